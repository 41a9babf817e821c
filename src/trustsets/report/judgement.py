"""The verdict of a report: what the numbers of an evaluation say about the methods.

Coverage on a test set varies with the test samples and with the calibration samples. The verdict
calls a predictor below the target only where both together make so few covered samples unlikely;
what this one predictor covers, whatever the reason, is said by the interval of its coverage.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Floats
from trustsets.auditing import Regions
from trustsets.basis import Groups
from trustsets.metrics import (
    METRICS,
    BinTable,
    Comparison,
    Entry,
    Evaluation,
    check_guarantee,
    holm,
    split_name,
)
from trustsets.plots import (
    Evaluations,
    division_title,
    joined,
    number,
    p_value,
    percent,
    range_of,
)
from trustsets.predictors import MondrianConformal, Predictor, StandardConformal

# The name of a single evaluation that was given without one.
ONE_METHOD = "this method"
# From this share of full sets on, a method says too little to be preferred.
_MOSTLY = 0.5
# Tables of one method that are described in words; all are on the page.
_MOST_TABLES = 4


@dataclass(frozen=True)
class Judgement:
    """What was found of one method.

    `outcome` is that of marginal coverage, untested without a predictor and for leave-one-out
    coverage. `low` has the bins of each table that are below the target, after Holm's correction
    over all tables; `marked` counts those below by the variability of the test samples alone;
    `guarantees` names tables in each of whose bins the method guarantees coverage.
    """

    outcome: str  # below, consistent, above or untested
    p_value: float
    low: dict[str, NDArray[np.bool_]]
    marked: int
    guarantees: tuple[str, ...] = ()

    @property
    def n_low(self) -> dict[str, int]:
        """Number of bins below the target, by table."""
        return {name: int(low.sum()) for name, low in self.low.items()}


def verdict(
    evaluations: Evaluations,
    predictors: Mapping[str, Predictor] | None = None,
    regions: Mapping[str, Regions] | None = None,
    comparison: Comparison | None = None,
) -> list[tuple[str, list[str]]]:
    """Judge marginal and conditional coverage of methods by name: headings and their sentences.

    Arguments are those of `write_report`. A method whose coverage is 1 - alpha everywhere is called
    below the target, marginally or in any bin, with probability 1 - level at most.
    """
    predictors = predictors or {}
    judgements = {m: judge(item, predictors.get(m)) for m, item in evaluations.items()}
    target = (
        "A prediction set lists the classes that a sample may have. At least "
        f"{100.0 * (1.0 - next(iter(evaluations.values())).alpha):g}% of the sets should contain "
        "the true class (marginal coverage)."
    )
    sections = [
        ("Target", [target]),
        ("Marginal coverage", _marginal(evaluations, judgements, predictors)),
        ("Conditional coverage", _conditional(evaluations, judgements, regions or {})),
    ]
    if comparison is not None and not _shortfalls(comparison):
        comparison = None  # of columns that say nothing about shortfalls
    if comparison is not None:
        sections.append(("At equal set size", [_at_equal_size(comparison)]))
    sections.append(("What to do", _advice(evaluations, judgements, comparison)))
    return sections


def judge(evaluation: Evaluation, predictor: Predictor | None = None) -> Judgement:
    """Test the coverage of one method, marginally and in the bins of its tables.

    Half of the probability of a false positive is for marginal coverage and half for all bins.
    """
    significance = (1.0 - evaluation.level) / 2.0
    # How far estimated class prevalences are off is not known, nor is the law of such coverage.
    shift = getattr(predictor, "shift", None)
    is_law_known = shift is None or hasattr(shift, "effective_size")
    tested = predictor is not None and not evaluation.left_out and is_law_known
    p, outcome = math.nan, "untested"
    if tested:
        covered = round(evaluation.coverage.value * evaluation.n)
        p = float(_p_values(covered, evaluation.n, evaluation, predictor)[0])
        above = evaluation.coverage.lower > 1.0 - evaluation.alpha
        outcome = "below" if p <= significance else "above" if above else "consistent"
    tables = [evaluation.tables[name] for name in _judged(evaluation)]
    # Without calibration sizes, bins are judged by the variability of their own samples alone.
    p_values = [
        _bin_p_values(table, evaluation, predictor) if tested else table.p_value for table in tables
    ]
    adjusted = holm(np.concatenate([np.empty(0), *p_values]))
    ends = np.cumsum([table.count.size for table in tables])[:-1]
    parts = np.split(adjusted <= significance, ends)
    return Judgement(
        outcome=outcome,
        p_value=p,
        low={table.name: part for table, part in zip(tables, parts, strict=False)},
        marked=sum(int(t.under_covered(1.0 - evaluation.level).sum()) for t in tables),
        guarantees=() if predictor is None else _guaranteed_tables(predictor),
    )


def _judged(evaluation: Evaluation) -> list[str]:
    """Tables in each of whose bins a method can reach its target: classes, groups, all others."""
    names = [n for n in evaluation.tables if n not in METRICS or METRICS[n].is_goal]
    return sorted(names, key=lambda name: (name != "class", not name.startswith("group:")))


def _p_values(
    covered: Any, count: Any, evaluation: Evaluation, predictor: Any, share: Any = 1.0
) -> Floats:
    """P-values of samples whose thresholds rest on this share of the calibration samples."""
    exact = isinstance(predictor, StandardConformal)
    # Weighted calibration samples tell as much as a smaller number of unweighted ones.
    shift = getattr(predictor, "shift", None)
    n = getattr(shift, "effective_size", predictor.n_calibration_)
    sizes = np.floor(np.multiply(n, share)).astype(np.int64)
    # Where no exact law is known, its mean is 1 - alpha and its variance that of so many samples.
    functions = None if exact else 0
    return check_guarantee(covered, count, sizes, evaluation.alpha, n_functions=functions)


def _bin_p_values(table: BinTable, evaluation: Evaluation, predictor: Any) -> Floats:
    """P-value of each bin: so few covered samples, or fewer, at coverage 1 - alpha in the bin.

    Thresholds that are neither the same for all samples nor those of a group or class rest on no
    fewer samples than those of calibration that fall into the bin, in expectation its share of all.
    """
    if isinstance(predictor, MondrianConformal) and (table.name,) == _guaranteed_tables(predictor):
        counts = [predictor.cell_counts_.get(label, 0) for label in table.labels]
        return check_guarantee(table.covered, table.count, counts, evaluation.alpha)
    share = 1.0 if isinstance(predictor, StandardConformal) else table.count / evaluation.n
    return _p_values(table.covered, table.count, evaluation, predictor, share)


def _guaranteed_tables(predictor: Predictor) -> tuple[str, ...]:
    """Tables in each of whose bins coverage is guaranteed."""
    if predictor.is_class_conditional:
        return ("class",)
    by_group = isinstance(predictor, MondrianConformal) and isinstance(predictor.by, Groups)
    return tuple(f"group:{name}" for name in predictor.needed_groups if by_group)


# ---- Words ----------------------------------------------------------------------------------


def _marginal(
    evaluations: Evaluations,
    judgements: Mapping[str, Judgement],
    predictors: Mapping[str, Predictor],
) -> list[str]:
    """What each predictor covers, and whether both draws of samples explain it."""
    sentences, first = [], next(iter(evaluations.values()))
    target, plural = f"{100.0 * (1.0 - first.alpha):g}%", "s" if first.n > 1 else ""
    kind = "calibration sample{}, each left out once" if first.left_out else "test sample{}"
    for method, item in evaluations.items():
        coverage, outcome = item.coverage, judgements[method].outcome
        text = (f"{quoted(method)} covers" if len(evaluations) > 1 else "The sets cover") + (
            f" {percent(coverage.value)} of {item.n:,} {kind.format(plural)} "
            f"({100.0 * item.level:g}% interval {range_of(coverage.lower, coverage.upper)}), with "
            f"{number(item.sizes.mean)} classes per set"
        )
        if outcome != "untested":
            n, p = predictors[method].n_calibration_, p_value(judgements[method].p_value)
            words = "consistent with" if outcome == "consistent" else outcome
            # Whether so few are covered is no question where coverage is above the target.
            tested = "" if outcome == "above" else f"p = {p} "
            text += f": {words} the target ({tested}with {n:,} calibration samples)"
        sentences.append(f"{text}.".replace("= <", "< "))
    outcomes = {judgement.outcome for judgement in judgements.values()}
    if outcomes & {"below", "consistent"}:
        sentences.append(
            f"Here p is the probability of so few covered samples, over calibration and test "
            f"samples, at marginal coverage of {target}."
        )
    elif outcomes == {"untested"} and first.left_out:
        sentences.append(
            "Leave-one-out coverage is near its target by construction; only a test set can show "
            "that samples are not exchangeable."
        )
    elif outcomes == {"untested"}:
        sentences.append(
            "The interval allows for the test samples only. Whether the guarantee holds cannot be "
            "judged without the number of calibration samples (predictors=)."
        )
    return sentences


def _conditional(
    evaluations: Evaluations,
    judgements: Mapping[str, Judgement],
    regions: Mapping[str, Regions],
) -> list[str]:
    """The bins of each method that are below the target, the lowest of each table by name."""
    if not any(judgement.low for judgement in judgements.values()) and not regions:
        return ["No classes, groups or other bins were measured."]
    sentences = []
    for method, judgement in judgements.items():
        evaluation = evaluations[method]
        tables = [evaluation.tables[name] for name, low in judgement.low.items() if low.any()]
        parts = [_low_bins(table, judgement.low[table.name]) for table in tables[:_MOST_TABLES]]
        if method in regions and len(regions[method]):
            parts.append(f"the region where {regions[method].regions[0].name}")
        text = f"Below the target in {joined(parts)}." if parts else ""
        if not parts:
            judged = [_bins_of(evaluation.tables[name]) for name in judgement.low]
            text = f"No bin was found below the target, of {joined(judged or ['none'])}."
        others = judgement.marked - sum(judgement.n_low.values())
        if judgement.outcome != "untested" and others > 0:
            bins = f"{others:,} {'more ' if parts else ''}bin{'s' if others > 1 else ''}"
            kind = joined(list(dict.fromkeys(map(_kind, judgement.low))))
            text += f" Low coverage of {bins} marked in tables of {kind} may be due to calibration."
        who = f"{quoted(method)}: {text[0].lower()}" if len(evaluations) > 1 else text[0]
        sentences.append(who + text[1:])
    return sentences


def _shortfalls(comparison: Comparison) -> dict[str, dict[str, Entry]]:
    """Shortfalls of the methods in the last block of the comparison, by how they are measured."""
    setting, shortfalls = comparison.keys[-1][0], {}
    rows = zip(comparison.keys, comparison.entries, strict=True)
    methods = {key[-1]: entries for key, entries in rows if key[0] == setting}
    for i, name in enumerate(comparison.columns):
        table, part = split_name(name)
        bins = "classes" if table == "class" else division_title(table)
        words = {"under": "by excess risk", "shortfall": f"over {bins}"}.get(part)
        if words is not None:
            shortfalls[words] = {method: entries[i] for method, entries in methods.items()}
    return shortfalls


def _at_equal_size(comparison: Comparison) -> str:
    """What the last block of the comparison says about shortfalls."""
    setting = comparison.keys[-1][0]
    methods = [key[-1] for key in comparison.keys if key[0] == setting]
    parts = [
        f"{joined([number(entry.mean) for entry in entries.values()])} points {words}"
        for words, entries in _shortfalls(comparison).items()
    ]
    return (
        f"With sets of the mean {setting}, {joined([quoted(m) for m in methods])} fall short of "
        f"the target by {joined(parts)}."
    )


def _beyond_size(comparison: Comparison, method: str) -> str:
    """Whether the method that has larger sets is better with sets of equal size, too."""
    clear = [
        words
        for words, entries in _shortfalls(comparison).items()
        if all(entries[method].upper < entries[other].lower for other in {*entries} - {method})
    ]
    if clear:
        return f" With sets of equal size its shortfall is still clearly smaller {joined(clear)}."
    return (
        " With sets of equal size the intervals of the shortfalls overlap, so its larger sets may "
        "explain the difference."
    )


def _low_bins(table: BinTable, low: NDArray[np.bool_]) -> str:
    """The bins of a table that are below the target; the lowest with samples enough is named."""
    enough = low & ~table.few
    lowest = int(np.argmin(np.where(enough if enough.any() else low, table.coverage, np.inf)))
    share = percent(float(table.coverage[lowest]))
    if not enough.any():
        share = f"{range_of(table.lower[lowest], table.upper[lowest], 0)}%"
    label = table.labels[lowest]
    name = f"“{label}”" if table.has_names else label
    which = "lowest: " if low.sum() > 1 else ""
    return (
        f"{low.sum():,} of {_bins_of(table)} ({which}{name}, {share} of "
        f"{table.count[lowest]:,} samples)"
    )


def _bins_of(table: BinTable) -> str:
    """How many bins there are, and of which kind."""
    count, kind = f"{table.count.size:,}", _kind(table.name)
    if kind == "groups":
        return f"{count} groups by {division_title(table.name)}"
    return f"{count} classes" if kind == "classes" else f"{count} bins of {kind}"


def _kind(name: str) -> str:
    """Which bins the table of this name has."""
    if name == "class":
        return "classes"
    return "groups" if name.startswith("group:") else division_title(name)


def _advice(
    evaluations: Evaluations,
    judgements: Mapping[str, Judgement],
    comparison: Comparison | None,
) -> list[str]:
    """What follows from the tests above, and from the methods at equal size."""
    preferred, why = _preferred(evaluations, judgements)
    if comparison is not None and "classes on average" in why:
        why += _beyond_size(comparison, preferred)
    sentences = [why] if why else []
    for method in [preferred] if preferred else list(evaluations):
        item, judgement = evaluations[method], judgements[method]
        who = f" of {quoted(method)}" if len(evaluations) > 1 else ""
        full = item.sizes.full / item.n
        failing = [name for name, count in judgement.n_low.items() if count]
        if full > _MOSTLY:
            sentences.append(
                f"{percent(full, 0)} of the sets{who} are full and tell nothing: use more "
                "calibration samples or a larger alpha."
            )
        if judgement.outcome == "below" or set(failing) & set(judgement.guarantees):
            sentences.append(
                f"Do not rely on the sets{who}: calibration and test samples do not look "
                "exchangeable. Check that neither was used in training, and calibrate on samples "
                "like those to predict."
            )
        sentences += _remedies([n for n in failing if n not in judgement.guarantees], who)
    if not sentences:
        sentences.append(
            "The sets can be used for samples that are exchangeable with these. A shortfall in a "
            "small part of them may have gone unseen."
        )
    return list(dict.fromkeys(sentences))


def _preferred(evaluations: Evaluations, judgements: Mapping[str, Judgement]) -> tuple[str, str]:
    """A method that no other beats in any table, and the sentence for it; empty if there is none.

    Of methods that fail alike everywhere, the one with clearly smaller sets.
    """
    if len(evaluations) == 1:
        return "", ""
    names = dict.fromkeys(name for judgement in judgements.values() for name in judgement.low)

    def failures(method: str) -> tuple[float, ...]:
        judgement, item = judgements[method], evaluations[method]
        useless = item.sizes.full / item.n > _MOSTLY
        # A table that a method lacks could hide its failures.
        counts = [judgement.n_low.get(name, math.inf) for name in names]
        return (useless, judgement.outcome == "below", *counts)

    def beats(one: str, other: str) -> bool:
        """Whether a method is no worse in all respects, and better in one or smaller."""
        pairs = list(zip(failures(one), failures(other), strict=True))
        if any(a > b for a, b in pairs) or not all(map(math.isfinite, failures(one))):
            return False
        sizes = [evaluations[method].metrics["size"] for method in (one, other)]
        return any(a < b for a, b in pairs) or sizes[0].upper < sizes[1].lower

    best = [m for m in evaluations if all(beats(m, other) for other in evaluations if other != m)]
    if not best or failures(best[0])[0]:
        return "", ""
    fewer = any(failures(best[0]) != failures(other) for other in evaluations)
    reason = (
        "in no table are more of its bins below the target than of any other method"
        if fewer
        else "its sets are smaller, and no method has more bins below the target"
    )
    text = f"Prefer {quoted(best[0])}: {reason}."
    means = {method: item.sizes.mean for method, item in evaluations.items()}
    smallest = min(means, key=lambda method: means[method])
    if smallest != best[0] and fewer:
        text += (
            f" Its sets have {number(means[best[0]])} classes on average, those of "
            f"{quoted(smallest)} {number(means[smallest])}."
        )
    return best[0], text


def _remedies(tables: Sequence[str], who: str) -> list[str]:
    """Methods that guarantee coverage where it is below the target."""
    groups = [name.removeprefix("group:") for name in tables if name.startswith("group:")]
    columns = ", ".join(repr(name) for name in groups)
    words = {
        "class": f"For the classes{who}: ConditionalConformal(per_class=True), on the command line "
        "--set per_class=true, guarantees class-conditional coverage.",
        "groups": f"For the groups{who}: MondrianConformal(by=Groups({columns})), or a basis with "
        f"Groups({columns}), guarantees group-conditional coverage.",
        "conf_trust": f"For confidence and trust{who}: ConditionalConformal with a trust score "
        "adapts its thresholds to both.",
    }
    kinds = {"groups" if name.startswith("group:") else name for name in tables}
    return [text for kind, text in words.items() if kind in kinds]


def quoted(method: str) -> str:
    """The name in quotes, which set several words apart from the sentence."""
    return method if method == ONE_METHOD else f"“{method}”"
