"""The first paragraph of the page, for readers who are no statisticians.

It says what was promised, whether it was kept, for whom it was not, and what to do. A promise is
called kept or broken by the interval of the coverage. A class, group or range is named only if its
coverage is significantly too low after Holm's correction over all parts that are looked at. A
method that keeps its promise everywhere is therefore blamed with probability 1 - level at most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from trustsets.auditing import Region, Regions
from trustsets.metrics.bins import BinTable
from trustsets.metrics.inference import binomial_interval, holm
from trustsets.metrics.result import Evaluation
from trustsets.report.text import division_title, joined, number, percent, range_of
from trustsets.report.verdict import goal_tables, named

__all__ = ["Outcome", "failing_parts", "outcome_of", "summarise"]

# A promise counts as kept only if the interval leaves room for a shortage of no more than this
# share of alpha, and of no more than so much coverage.
_SLACK_OF_ALPHA, _SLACK = 0.5, 0.05
# Kinds of parts that are named for one method.
_MOST_PARTS = 3
# From so many methods with the same outcome on, the range of their coverages is given.
_MANY = 4
# From this share of full sets on, a method says too little to be preferred.
_MOSTLY = 0.5
# Fewest test samples that the advice may ask for, and the most (a tiny alpha needs more of them).
_FEWEST, _MOST, _MOST_TIMES_ALPHA = 20, 1e6, 100.0

Evaluations = Mapping[str, Evaluation]


@final
@dataclass(frozen=True)
class Outcome:
    """Whether a promise was kept on average: the word for it, and what it is called."""

    name: str
    words: str


KEPT = Outcome("kept", "Kept on average")
MORE = Outcome("more", "More than kept on average")
BROKEN = Outcome("broken", "Not kept on average")
UNSURE = Outcome("unsure", "Too few samples to say")
_OUTCOMES = (BROKEN, UNSURE, KEPT, MORE)


@final
@dataclass(frozen=True)
class Part:
    """Samples for whom a promise was not kept: the table they are of, and words."""

    table: str
    words: str


def summarise(
    evaluations: Evaluations, regions: Mapping[str, Regions] | None = None
) -> list[tuple[str, list[str]]]:
    """The paragraph as pairs of a question and the sentences of its answer.

    Examples
    --------
    >>> import numpy as np
    >>> from trustsets import ModelOutputs, StandardConformal, evaluate
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 4))
    >>> labels = (logits + rng.gumbel(size=(2000, 4))).argmax(axis=1)
    >>> calibration, test = ModelOutputs(logits=logits, labels=labels).split(0.5)
    >>> sets = StandardConformal().calibrate(calibration).predict_set(test)
    >>> summarise({"standard": evaluate(sets, test, metrics=["class"])})[2][1]
    ['No class was found for which the promise is broken.']
    """
    found = {
        method: [*failing_parts(item), *_found_regions((regions or {}).get(method))]
        for method, item in evaluations.items()
    }
    return [
        ("What was promised", [_promised(evaluations)]),
        ("Was it kept?", _kept(evaluations)),
        ("For whom was it not?", _broken_for(evaluations, found)),
        ("What to do", [" ".join(_advice(evaluations, found))]),
    ]


def outcome_of(evaluation: Evaluation) -> Outcome:
    """Whether the promise was kept on average, by the interval of the coverage."""
    target, own = 1.0 - evaluation.alpha, evaluation.coverage
    if own.upper < target:
        return BROKEN
    if own.lower > target:
        return MORE
    return KEPT if own.lower >= _least(evaluation.alpha) else UNSURE


def failing_parts(evaluation: Evaluation) -> list[Part]:
    """Bins whose coverage is significantly too low, the worst of each table, in words.

    Holm's correction is over the bins of all tables in which a method can reach its target.
    """
    tables = [evaluation.tables[name] for name in sorted(goal_tables(evaluation), key=_asked_for)]
    if not tables:
        return []
    adjusted = holm(np.concatenate([table.p_value for table in tables]))
    ends = np.cumsum([table.count.size for table in tables])[:-1]
    low = [own <= 1.0 - evaluation.level for own in np.split(adjusted, ends)]
    found = [_part(table, own) for table, own in zip(tables, low, strict=True) if own.any()]
    # Rare classes say the same as classes.
    known = {part.table for part in found}
    return [part for part in found if part.table != "conf_frequency" or "class" not in known]


def _asked_for(name: str) -> tuple[bool, bool]:
    """Order of tables: classes, groups, all others."""
    return name != "class", not name.startswith("group:")


def _part(table: BinTable, low: NDArray[np.bool_]) -> Part:
    """The under-covered bins of a table; the lowest of those with samples enough is named."""
    enough = low & ~table.few
    lowest = int(np.argmin(np.where(enough if enough.any() else low, table.coverage, np.inf)))
    share = percent(float(table.coverage[lowest]))
    if not enough.any():
        share = f"somewhere between {range_of(table.lower[lowest], table.upper[lowest], 0)}%"
    label = table.labels[lowest]
    name = f"“{label}”" if table.has_names else _plain(label)
    where = f"{name}, {share} of {table.count[lowest]:,} samples"
    which = "lowest: " if low.sum() > 1 else ""
    return Part(table.name, f"{low.sum():,} of {_kind(table)} ({which}{where})")


def _kind(table: BinTable) -> str:
    """How many parts there are, in plain words."""
    count, title = f"{table.count.size:,}", division_title(table.name)
    if table.name == "class":
        return f"{count} classes"
    if table.name.startswith("group:"):
        return f"{count} groups by {title}"
    return f"{count} ranges of {_plain(title.replace(' × ', ' and '))}"


def _plain(label: str) -> str:
    """A label of a bin with whole words."""
    words = {"Conf ": "confidence ", "Trust": "trust", "Class frequency": "class frequency"}
    for short, word in words.items():
        label = label.replace(short, word)
    return label


def _found_regions(regions: Regions | None) -> list[Part]:
    """The first region that a search found, that no table has, and that has a plain name."""

    def is_new(region: Region) -> bool:
        own = region.conditions
        plain = not any(item.name.startswith("principal component") for item in own)
        return plain and (len(own) > 1 or own[0].category is None)

    found = [region for region in regions.found if is_new(region)] if regions else []
    return [
        Part(
            "region",
            f"samples where {region.name} ({percent(region.coverage.value)} of {region.count:,})",
        )
        for region in found[:1]
    ]


def _least(alpha: float) -> float:
    """The lowest coverage that the interval of a promise called kept may hold."""
    return 1.0 - alpha - min(_SLACK_OF_ALPHA * alpha, _SLACK)


def _promised(evaluations: Evaluations) -> str:
    first = next(iter(evaluations.values()))
    return (
        "A prediction set lists the classes that a sample may have. "
        f"{100.0 * (1.0 - first.alpha):g}% of the sets should contain the true class; this "
        "share is called coverage."
    )


def _kept(evaluations: Evaluations) -> list[str]:
    """Methods by outcome, and the samples behind it."""
    first = next(iter(evaluations.values()))
    kind = "calibration sample{}, each left out once," if first.left_out else "test sample{}"
    parts = []
    for outcome in _OUTCOMES:
        own = {name: e for name, e in evaluations.items() if outcome_of(e) is outcome}
        if own:
            parts.append(f"{outcome.words}{_by(own, evaluations)}: {_shares(own)}.")
    samples = kind.format("s" if first.n > 1 else "")
    classes = "classes" if first.n_classes > 1 else "class"
    return [f"Measured on {first.n:,} {samples} of {first.n_classes:,} {classes}.", *parts]


def _by(own: Evaluations, evaluations: Evaluations) -> str:
    """Whose outcome it is, if there are several methods."""
    if len(evaluations) == 1:
        return ""
    everyone = len(own) == len(evaluations) and len(own) >= _MANY
    return f" by {f'all {len(own)} methods' if everyone else joined([named(m) for m in own])}"


def _shares(own: Evaluations) -> str:
    """Coverage, its interval, and what the sets cost."""
    items = list(own.values())
    if len(items) >= _MANY:
        shares = sorted(item.coverage.value for item in items)
        sizes = sorted(item.sizes.mean for item in items)
        return (
            f"{percent(shares[0])} to {percent(shares[-1])} of the sets contain the true class, "
            f"with {number(sizes[0], 1)} to {number(sizes[-1], 1)} classes a set"
        )
    level = f"{100.0 * items[0].level:g}%"
    texts = [
        f"{percent(item.coverage.value)} of the sets contain the true class ({level} interval "
        f"{range_of(item.coverage.lower, item.coverage.upper)}), with "
        f"{number(item.sizes.mean, 1)} classes a set"
        for item in items
    ]
    return joined(texts)


def _broken_for(evaluations: Evaluations, found: Mapping[str, Sequence[Part]]) -> list[str]:
    if not any(found.values()):
        looked = _looked_at(evaluations)
        if not looked:
            return ["No classes, groups or other parts were looked at."]
        small = any(outcome_of(item) is UNSURE for item in evaluations.values())
        but = ", but so few samples show only large failures" if small else ""
        return [f"No {looked} was found for which the promise is broken{but}."]
    sentences = []
    for method, parts in found.items():
        who = f"{named(method)}: " if len(found) > 1 else ""
        words = joined([part.words for part in parts[:_MOST_PARTS]]) if parts else ""
        text = f"Not kept for {words}." if parts else "No such samples were found."
        sentences.append(f"{who}{text[0].lower() if who else text[0]}{text[1:]}")
    return sentences


def _looked_at(evaluations: Evaluations) -> str:
    """Kinds of parts in which coverage was measured."""
    names = {name for item in evaluations.values() for name in goal_tables(item)}
    groups = any(name.startswith("group:") for name in names)
    kinds = ["class"] * ("class" in names) + ["group"] * groups
    kinds += ["range of confidence and trust"] * ("conf_trust" in names)
    if not kinds:
        return "bin" if names else ""
    return joined(kinds, "or")


def _advice(evaluations: Evaluations, found: Mapping[str, Sequence[Part]]) -> list[str]:
    best = _best(evaluations, found)
    item, parts = evaluations[best], found[best]
    outcome, sentences = outcome_of(item), []
    fewer = any(len(own) > len(parts) for own in found.values())
    if len(evaluations) > 1 and fewer:
        why = (
            "which fails for the fewest kinds of" if parts else "which was not seen to fail for any"
        )
        sentences.append(f"Prefer {named(best)}, {why} samples.")
    if _full(item) > _MOSTLY:
        sentences.append(
            f"{percent(_full(item), 0)} of the sets are full and tell nothing: use more "
            "calibration samples or a larger alpha."
        )
    if outcome is BROKEN:
        sentences.append(
            "Do not rely on these sets yet. Check that calibration and test samples come from the "
            "same source and were not used in training, and calibrate again."
        )
    elif parts:
        sentences.append("Do not rely on the sets for the samples named above.")
    sentences += _remedies(parts)
    if outcome is UNSURE:
        sentences.append(f"Measure on about {_enough(item):,} samples or more.")
    elif not parts and outcome is not BROKEN and _full(item) <= _MOSTLY:
        sentences.append(
            "The sets can be used for samples from the same source. A shortage in a small part of "
            "them may have gone unseen, so check again with more samples, and when the data change."
        )
    return sentences


def _best(evaluations: Evaluations, found: Mapping[str, Sequence[Part]]) -> str:
    """The method that keeps most of its promise; of several such, the one with smaller sets."""

    def order(method: str) -> tuple[bool, int, float]:
        item = evaluations[method]
        useless = outcome_of(item) is BROKEN or _full(item) > _MOSTLY
        return useless, len(found[method]), item.sizes.mean

    return min(evaluations, key=order)


def _full(evaluation: Evaluation) -> float:
    """Share of full sets."""
    return evaluation.sizes.full / evaluation.n


def _remedies(parts: Sequence[Part]) -> list[str]:
    """What promises more to the parts that were named."""
    tables = [part.table for part in parts[:_MOST_PARTS]]
    groups = [name.removeprefix("group:") for name in tables if name.startswith("group:")]
    names = ", ".join(repr(name) for name in groups)
    known = {
        "class": "ConditionalConformal(per_class=True), on the command line --per-class, "
        "promises the target to each class.",
        "groups": f"A function class with Groups({names}) promises it to each of these groups.",
        "conf_trust": "ConditionalConformal with a trust score adjusts sets to confidence and "
        "trust.",
    }
    kinds = {"groups" if name.startswith("group:") else name for name in tables}
    return [text for kind, text in known.items() if kind in kinds]


def _enough(evaluation: Evaluation) -> int:
    """About how many test samples would tell whether the promise is kept.

    They do so for a method that has the target coverage, and for the coverage that was measured:
    where that is lower, its interval needs to be narrower.
    """
    alpha, level = evaluation.alpha, evaluation.level
    most = max(_MOST, _MOST_TIMES_ALPHA / alpha)
    sizes = np.unique(np.geomspace(_FEWEST, most, 400).astype(np.int64))
    needed = 0
    for share in (1.0 - alpha, evaluation.coverage.value):
        lower, _ = binomial_interval(np.floor(share * sizes), sizes, level)
        _, upper = binomial_interval(np.ceil(share * sizes), sizes, level)
        unsure = np.flatnonzero((lower < _least(alpha)) & (upper >= 1.0 - alpha))
        needed = max(needed, int(sizes[min(unsure.max(initial=-1) + 1, sizes.size - 1)]))
    # The interval of the present samples may be of another kind, and tells nothing as it is.
    needed = max(needed, evaluation.n + 1)
    digits = int(10 ** (len(str(needed)) - 2))
    return -(-needed // digits) * digits
