"""`write_report`: one HTML page about evaluations, and the verdict that it begins with.

Coverage on a test set varies with the test samples and with the calibration samples. The verdict
calls a predictor below the target only where both together make so few covered samples unlikely;
what this one predictor covers, whatever the reason, is said by the interval of its coverage.
"""

import base64
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from numpy.typing import NDArray

from trustsets._arrays import Floats
from trustsets._storage import atomic_path
from trustsets._version import __version__
from trustsets.auditing import Regions
from trustsets.basis import Groups
from trustsets.errors import InputError
from trustsets.metrics import (
    METRICS,
    BinTable,
    Comparison,
    Evaluation,
    check_guarantee,
    holm,
    split_name,
    to_plain,
)
from trustsets.outputs import ModelOutputs
from trustsets.plots import Theme, css_variables, deepest_coverage
from trustsets.predictors import MondrianConformal, Predictor, StandardConformal
from trustsets.report import content
from trustsets.report.content import (
    MOST_CLASSES,
    MOST_SAMPLES,
    Evaluations,
    division_title,
    joined,
    list_samples,
    number,
    p_value,
    percent,
    range_of,
    region_cards,
)
from trustsets.sets import PredictionSets

_SHEETS: dict[str, Theme] = {"report": "light", "dark": "dark"}
# The name of a single evaluation that was given without one.
ONE_METHOD = "this method"
# From this share of full sets on, a method says too little to be preferred.
_MOSTLY = 0.5
# Tables of one method that are described in words; all are on the page.
_MOST_TABLES = 4

Outcome = Literal["below", "consistent", "above", "untested"]


def write_report(
    path: str | os.PathLike[str],
    evaluations: Evaluation | Mapping[str, Evaluation],
    *,
    predictors: Predictor | Mapping[str, Predictor] | None = None,
    outputs: ModelOutputs | None = None,
    sets: PredictionSets | Mapping[str, PredictionSets] | None = None,
    regions: Regions | Mapping[str, Regions] | None = None,
    comparison: Comparison | None = None,
    title: str = "Coverage report",
    details: Mapping[str, Any] | None = None,
) -> Path:
    """Write evaluations as one HTML page that needs no network.

    The page starts with a verdict: whether marginal coverage reaches its target, in which groups
    and classes coverage does not, and what to do. It offers the numbers as JSON and CSV. Equal
    arguments give equal bytes.

    Parameters
    ----------
    path : path
        File to write, as a whole or not at all; its folder must exist.
    evaluations : Evaluation, or mapping of method name to Evaluation
        What `evaluate` returned, on the same test samples at the same alpha.
    predictors : predictor, or mapping of method name to predictor, optional
        What made the sets. The verdict needs their calibration sizes to tell a broken guarantee
        from the variability of calibration.
    outputs, sets : ModelOutputs, and PredictionSets or mapping of method name to them
        What was evaluated. With both, a cell of a heatmap lists its worst samples.
    regions : Regions, or mapping of method name to Regions, optional
        What `trustsets.auditing.find_regions` found.
    comparison : Comparison, optional
        The methods at equal mean size: ``compare(predictors, outputs=outputs, equal_size=True)``.
    title, details : str, mapping of str to any
        Title of the page; facts about the run to show at its end.

    Examples
    --------
    >>> import tempfile
    >>> from trustsets import StandardConformal, evaluate
    >>> rng = np.random.default_rng(0)
    >>> logits = 2.0 * rng.normal(size=(1000, 4))
    >>> labels = (logits + rng.gumbel(size=(1000, 4))).argmax(axis=1)
    >>> calibration, test = ModelOutputs(logits=logits, labels=labels).split(0.5)
    >>> predictor = StandardConformal().calibrate(calibration)
    >>> evaluation = evaluate(predictor.predict_set(test), test)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_report(Path(folder) / "report.html", evaluation, predictors=predictor)
    ...     page.read_text(encoding="utf-8")[:15]
    '<!doctype html>'
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError(f"path must lie in a folder that exists; {target.parent} does not.")
    methods = _check_evaluations(evaluations)
    made_by: dict[str, Predictor] = _by_method("predictors", predictors, methods, Predictor)
    chosen = _check_samples(methods, outputs, sets)
    searched = _check_regions(methods, regions)
    _check_comparison(methods, comparison)
    facts = _facts(methods)
    shown = {str(name): str(value) for name, value in (details or {}).items()}
    grids = content.grid_names(methods)
    numbers = {
        "title": title,
        "facts": facts | shown,
        "metrics": {method: to_plain(item.metrics) for method, item in methods.items()},
        "evaluations": {method: item.to_dict() for method, item in methods.items()},
        "equal_size": comparison and comparison.to_dict(),
        "samples": outputs and list_samples(methods, outputs, chosen, grids),
    }
    # Set sizes are the method's own choice, so the gap over their bins says nothing against it.
    goals = [name for name in content.division_names(methods) if name != "size_strata"]
    first = next(iter(methods.values()))
    # Everything that reaches the page is escaped, but for our own style sheets and script.
    environment = Environment(
        loader=PackageLoader("trustsets.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page = environment.get_template("report.html").render(
        title=title,
        facts=facts,
        details=shown,
        methods=list(methods),
        verdict=verdict(methods, made_by, searched, comparison),
        guarantees=[
            (name, predictor.summary(chosen.get(name)).splitlines())
            for name, predictor in made_by.items()
        ],
        regions=[
            (name, item, *region_cards(item, outputs, chosen.get(name)))
            for name, item in searched.items()
        ],
        glance=content.glance(methods, goals),
        equal_size=comparison and content.equal_size(comparison, list(methods)),
        divisions=content.divisions(methods),
        gaps=content.gap_chart(methods, goals),
        sizes=content.size_chart(methods),
        bin_lists=content.bin_lists(methods),
        other=content.other_measures(methods),
        excess_risk=any("excess_risk.total" in item.more for item in methods.values()),
        correlated=any(item.correlation is not None for item in methods.values()),
        lists_samples=outputs is not None,
        has_trust=outputs is not None and outputs.trust is not None,
        left_out=all(item.left_out for item in methods.values()),
        target=f"{100.0 * (1.0 - first.alpha):g}%",
        deepest=f"{100.0 * deepest_coverage(1.0 - first.alpha):.3g}%",
        level=f"{100.0 * first.level:g}%",
        significance=f"{100.0 * (1.0 - first.level):.3g}%",
        half_significance=f"{50.0 * (1.0 - first.level):.3g}%",
        most_classes=MOST_CLASSES,
        most_samples=MOST_SAMPLES,
        version=__version__,
        data=htmlsafe_json_dumps(numbers, allow_nan=False, separators=(",", ":")),
        css=page_styles(),
        **_script(),
    )
    # A browser reads a carriage return as a line feed, so that a name in an attribute would
    # differ from the one in the data.
    text = page.replace("\r", "&#13;")
    with atomic_path(target) as temporary:
        # Names of files may hold bytes that are no text.
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
    return target


# ---- Style sheets, also of the explorer's page, and script ---------------------------------------


def page_styles() -> dict[str, Markup]:
    """The sheet of every page (``report``), and what dark screens add to it (``dark``)."""
    return {
        name: Markup(f":root {{\n{css_variables(theme)}}}\n{_read(f'{name}.css')}")
        for name, theme in _SHEETS.items()
    }


def _script() -> dict[str, Any]:
    """The script of the report, and the digest by which the page allows it."""
    # Within a function, what the script defines is out of reach of other scripts.
    script = "".join(("(() => {\n", _read("report.js"), "})();\n"))
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return {"script": Markup(script), "script_digest": base64.b64encode(digest).decode("ascii")}


def _read(name: str) -> str:
    folder = resources.files("trustsets.report") / "templates"
    return (folder / name).read_text(encoding="utf-8")


# ---- Arguments ----------------------------------------------------------------------------------


def _facts(evaluations: Evaluations) -> dict[str, str]:
    """What was measured, for the top of the page."""
    first = next(iter(evaluations.values()))
    facts = {
        "Calibration samples" if first.left_out else "Test samples": f"{first.n:,}",
        "Classes": f"{first.n_classes:,}",
        "Target coverage": f"{100.0 * (1.0 - first.alpha):g}% (α = {first.alpha:g})",
    }
    if len(evaluations) > 1 or ONE_METHOD not in evaluations:
        facts["Method" if len(evaluations) == 1 else "Methods"] = ", ".join(evaluations)
    return facts


def _check_evaluations(evaluations: Evaluation | Evaluations) -> dict[str, Evaluation]:
    """Methods by name, all of the same samples."""
    if isinstance(evaluations, Evaluation):
        return {ONE_METHOD: evaluations}
    if not isinstance(evaluations, Mapping) or not evaluations:
        raise InputError(
            "evaluations must be an Evaluation or a non-empty mapping of method names to them; "
            f"got {type(evaluations).__name__}. Make them with evaluate."
        )
    methods: dict[str, Evaluation] = _by_method("evaluations", evaluations, evaluations, Evaluation)
    settings = {(item.n, item.n_classes, item.alpha, item.level) for item in methods.values()}
    rows = [item.rows for item in methods.values() if item.rows is not None]
    if len(settings) > 1 or any(not np.array_equal(rows[0], other) for other in rows[1:]):
        raise InputError(
            "evaluations must share test samples in the same order, classes, alpha and level; "
            "evaluate every method on the same ModelOutputs, or write one report for each."
        )
    return methods


def _by_method(argument: str, values: Any, methods: Evaluations, kind: type[Any]) -> dict[str, Any]:
    """Arguments by name of their method; a single one is that of the only method."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        if len(methods) > 1:
            raise InputError(f"{argument} must be a mapping with names among {list(methods)}.")
        values = {next(iter(methods)): values}
    by_name = {str(name): item for name, item in values.items()}
    if not set(by_name) <= set(map(str, methods)):
        raise InputError(
            f"{argument} must name methods among {list(methods)}; got {list(by_name)}."
        )
    for name, item in by_name.items():
        if not isinstance(item, kind):
            raise InputError(
                f"{argument}[{name!r}] must be of type {kind.__name__}; got {type(item).__name__}."
            )
    return by_name


def _check_samples(
    methods: Evaluations,
    outputs: ModelOutputs | None,
    sets: PredictionSets | Mapping[str, PredictionSets] | None,
) -> dict[str, PredictionSets]:
    """Sets by method at the alpha of the page; none where there are no outputs either."""
    if outputs is None and sets is None:
        return {}
    if outputs is None or sets is None:
        raise InputError("listing samples needs both outputs= and sets=; one is missing.")
    by_name = _by_method("sets", sets, methods, PredictionSets)
    if len(by_name) < len(methods):
        raise InputError(f"sets must name the methods {list(methods)}; got {list(by_name)}.")
    for name, evaluation in methods.items():
        by_name[name] = chosen = by_name[name].at(evaluation.alpha)
        if not (
            evaluation.set_sizes is not None
            and evaluation.rows is not None
            and np.array_equal(chosen.sizes, evaluation.set_sizes)
            and np.array_equal(outputs.rows, evaluation.rows)
        ):
            raise InputError(
                f"sets[{name!r}] and outputs are not what evaluations[{name!r}] was made from, or "
                "it was read from JSON, which keeps no samples; pass what evaluate was given."
            )
    return by_name


def _check_regions(
    methods: Evaluations, regions: Regions | Mapping[str, Regions] | None
) -> dict[str, Regions]:
    """Regions by method, which must be of the evaluated samples."""
    by_name = _by_method("regions", regions, methods, Regions)
    for name, item in by_name.items():
        evaluation = methods[name]
        if (item.n, item.alpha) != (evaluation.n, evaluation.alpha):
            raise InputError(
                f"regions[{name!r}] are of {item.n} samples at alpha={item.alpha:g}; search the "
                "sets that were evaluated."
            )
    return by_name


def _check_comparison(methods: Evaluations, comparison: Comparison | None) -> None:
    """Refuse a comparison that lacks rows at equal size, or has other methods."""
    if comparison is None:
        return
    last = {key[-1] for key in comparison.keys if key[0] == comparison.keys[-1][0]}
    alpha = next(iter(methods.values())).alpha
    if len(comparison.keys[0]) != 2 or last != set(methods) or comparison.alpha != alpha:
        raise InputError(
            f"comparison must have rows at equal size of the methods {list(methods)} at alpha="
            f"{alpha:g}; make it with compare(predictors, outputs=outputs, alpha={alpha:g}, "
            "equal_size=True)."
        )


# ---- Verdict -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgement:
    """What was found of one method.

    `outcome` is that of marginal coverage against the target, with its `p_value`: untested without
    a predictor, whose calibration samples are not known, and for leave-one-out coverage. `low` has
    the bins of each table that are below the target, after Holm's correction over all tables,
    `marked` counts those below by the variability of the test samples alone, and `guarantees` names
    tables in each of whose bins the method guarantees coverage.
    """

    outcome: Outcome
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

    A method whose coverage is 1 - alpha everywhere is called below the target, marginally or in
    any bin, with probability 1 - level at most. The predictors know how many calibration samples
    there were; without them nothing is said about marginal coverage but its interval. Arguments are
    those of `write_report`.
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
    if comparison is not None:
        sections.append(("At equal set size", [_at_equal_size(comparison)]))
    sections.append(("What to do", _advice(evaluations, judgements, comparison is not None)))
    return sections


# ---- Tests ----------------------------------------------------------------------------------


def judge(evaluation: Evaluation, predictor: Predictor | None = None) -> Judgement:
    """Test the coverage of one method, marginally and in the bins of its tables.

    Half of the probability of a false positive is for marginal coverage and half for all bins.
    """
    significance = (1.0 - evaluation.level) / 2.0
    tested = predictor is not None and not evaluation.left_out
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
        outcome=outcome,  # type: ignore[arg-type]
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
            f"{number(item.sizes.mean, 1)} classes per set"
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
            text += f" Low coverage of {bins} marked in the tables may be due to the calibration."
        who = f"{quoted(method)}: {text[0].lower()}" if len(evaluations) > 1 else text[0]
        sentences.append(who + text[1:])
    return sentences


def _at_equal_size(comparison: Comparison) -> str:
    """What the last block of the comparison says about shortfalls."""
    rows = dict(zip(comparison.keys, comparison.entries, strict=True))
    setting = comparison.keys[-1][0]
    methods = [key[-1] for key in rows if key[0] == setting]
    parts = []
    for i, name in enumerate(comparison.columns):
        table, part = split_name(name)
        if part in ("shortfall", "under"):
            values = [number(rows[setting, method][i].mean) for method in methods]
            bins = "classes" if table == "class" else division_title(table)
            kind = "by excess risk" if part == "under" else f"over {bins}"
            parts.append(f"{joined(values)} points {kind}")
    return (
        f"With sets of the mean {setting}, {joined([quoted(m) for m in methods])} fall short of "
        f"the target by {joined(parts)}."
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
    count, title = f"{table.count.size:,}", division_title(table.name)
    if table.name == "class":
        return f"{count} classes"
    if table.name.startswith("group:"):
        return f"{count} groups by {title}"
    return f"{count} bins of {title}"


def _advice(
    evaluations: Evaluations, judgements: Mapping[str, Judgement], compared: bool
) -> list[str]:
    """What follows from the tests above, and from the methods at equal size if `compared`."""
    preferred, why = _preferred(evaluations, judgements)
    if compared and "classes on average" in why:
        why += " What remains with sets of equal size is said above."
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
            f" Its sets have {number(means[best[0]], 1)} classes on average, those of "
            f"{quoted(smallest)} {number(means[smallest], 1)}."
        )
    return best[0], text


def _remedies(tables: Sequence[str], who: str) -> list[str]:
    """Methods that guarantee coverage where it is below the target."""
    groups = [name.removeprefix("group:") for name in tables if name.startswith("group:")]
    columns = ", ".join(repr(name) for name in groups)
    words = {
        "class": f"For the classes{who}: ConditionalConformal(per_class=True), on the command line "
        "--per-class, guarantees class-conditional coverage.",
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
