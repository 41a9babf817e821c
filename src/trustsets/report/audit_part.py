"""What an audit adds to the page: how it was made, under-covered regions, excess risk."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trustsets._common.arrays import texts_of
from trustsets.auditing import Region, Regions
from trustsets.errors import InputError
from trustsets.metrics.result import Evaluation
from trustsets.outputs import ModelOutputs
from trustsets.report.samples import MOST_CLASSES, SampleSource
from trustsets.report.summary import summarise
from trustsets.report.text import fixed, number, percent, range_of

__all__ = ["audit_part"]

# Where the axis of coverage starts, in percent; lower unless all intervals lie above.
_STARTS = (80.0, 50.0, 0.0)
# Categories that describe a region, and by how much their share must be larger than among all.
_TYPICAL = 4
_FAR_MORE = 0.1
_EXCESS_RISK = {
    "excess_risk.total": "Excess risk, points",
    "excess_risk.under": "Shortfall that can be predicted, points",
    "excess_risk.over": "Excess that can be predicted, points",
    "excess_risk.flagged": "Samples predicted to be under-covered",
    "excess_risk.flagged_coverage": "Coverage of these samples",
}


@dataclass(frozen=True)
class Example:
    """One sample whose set misses the true class, as text."""

    row: str
    label: str
    predicted: str
    confidence: str
    trust: str
    set: str


@dataclass(frozen=True)
class Card:
    """One region: its name, numbers, places on the axis in percent of its length, samples."""

    name: str
    coverage: str
    ends: str
    share: str
    count: str
    elsewhere: str
    typical: str
    low: float
    width: float
    value: float
    goal: float
    examples: list[Example]


@dataclass(frozen=True)
class Found:
    """Regions of one method."""

    method: str
    cards: list[Card]
    start: str
    searched: str
    n_tested: int


def audit_part(
    evaluations: Mapping[str, Evaluation],
    regions: Regions | Mapping[str, Regions] | None,
    source: SampleSource | None,
) -> dict[str, Any]:
    """Regions of each method, rows of the excess risk, and whether samples were left out."""
    given = _check(evaluations, regions)
    risks = [name for name in _EXCESS_RISK if any(name in e.more for e in evaluations.values())]
    return {
        "summary": summarise(evaluations, given),
        "left_out": all(item.left_out for item in evaluations.values()),
        "regions": [_found(method, item, source) for method, item in given.items()],
        "risks": [
            (_EXCESS_RISK[name], [_risk(item, name) for item in evaluations.values()])
            for name in risks
        ],
        "names_components": any(
            condition.name.startswith("principal component")
            for item in given.values()
            for region in item.found
            for condition in region.conditions
        ),
        "has_trust": source is not None and source.trust is not None,
    }


def _check(
    evaluations: Mapping[str, Evaluation], regions: Regions | Mapping[str, Regions] | None
) -> dict[str, Regions]:
    """Regions by method, which must be of the evaluated samples."""
    if regions is None:
        return {}
    if not isinstance(regions, Mapping) and len(evaluations) > 1:
        raise InputError(f"regions must be a mapping with names among {list(evaluations)}.")
    given = {**regions} if isinstance(regions, Mapping) else {next(iter(evaluations)): regions}
    if not set(given) <= set(evaluations):
        raise InputError(f"regions must name methods among {list(evaluations)}; got {list(given)}.")
    for name, item in given.items():
        own = evaluations[name]
        if (item.n, item.alpha) != (own.n, own.alpha):
            raise InputError(
                f"regions[{name!r}] are of {item.n} samples at alpha={item.alpha:g}, and the "
                f"evaluation is of {own.n} at alpha={own.alpha:g}; search the same sets."
            )
    return given


def _found(method: str, regions: Regions, source: SampleSource | None) -> Found:
    lowest = 100.0 * min((item.coverage.lower for item in regions.found), default=1.0)
    start = next(tick for tick in _STARTS if tick <= lowest)
    return Found(
        method,
        [_card(method, item, start, source) for item in regions.found],
        f"{start:g}%",
        ", ".join(regions.columns),
        regions.n_tested,
    )


def _card(method: str, region: Region, start: float, source: SampleSource | None) -> Card:
    own = region.coverage

    def place(share: float) -> float:
        return round(100.0 * (100.0 * share - start) / (100.0 - start), 3)

    return Card(
        name=region.name,
        coverage=percent(own.value),
        ends=range_of(own.lower, own.upper),
        share=percent(region.share),
        count=f"{region.count:,}",
        elsewhere=percent(region.elsewhere),
        typical="" if source is None else _typical(region, source.outputs),
        low=place(own.lower),
        width=round(place(own.upper) - place(own.lower), 3),
        value=max(place(own.value), 0.0),
        goal=place(own.floor),
        examples=[] if source is None else _examples(method, region, source),
    )


def _examples(method: str, region: Region, source: SampleSource) -> list[Example]:
    """The missed samples that a region names."""
    rows = region.examples
    if rows.size == 0:
        return []
    part, mask = source.outputs.take(rows), source.sets[method][rows].mask
    names = texts_of(part.classes)
    codes, top = part.require_labels("the list of samples"), part.predicted_codes
    weight = np.where(mask, part.probabilities, -1.0)
    order = np.argsort(-weight, axis=1, kind="stable")[:, :MOST_CLASSES].tolist()
    found = []
    for i, size in enumerate(mask.sum(axis=1).tolist()):
        listed = ", ".join(names[code] for code in order[i][:size])
        more = f" and {size - MOST_CLASSES:,} more" if size > MOST_CLASSES else ""
        found.append(
            Example(
                row=str(int(part.rows[i])),
                label=names[codes[i]],
                predicted=names[top[i]],
                confidence=fixed(float(part.confidence[i]), 3),
                trust="" if source.trust is None else f"{source.trust[rows[i]]:.3g}",
                set=f"{listed}{more}" if size else "empty set",
            )
        )
    return found


def _typical(region: Region, outputs: ModelOutputs) -> str:
    """Which categories are more frequent in a region than among all samples, in words."""
    if region.members is None:
        return ""
    codes, names = outputs.require_labels("the list of samples"), texts_of(outputs.classes)
    columns = {"true class": [names[code] for code in codes.tolist()]}
    columns |= {"predicted class": [names[code] for code in outputs.predicted_codes.tolist()]}
    columns |= {name: texts_of(values) for name, values in outputs.groups.items()}
    settled = {item.name for item in region.conditions if item.category is not None}
    found = []
    for name, texts in columns.items():
        if name not in settled:
            here = Counter(texts[i] for i in region.members.tolist())
            overall = Counter(texts)
            for value, count in here.items():
                shares = count / region.members.size, overall[value] / len(texts)
                found.append((shares[0] - shares[1], shares, f"{name} {value}"))
    found.sort(key=lambda item: -item[0])
    return ", ".join(
        f"{what} ({percent(own, 0)} against {percent(rest, 0)})"
        for more, (own, rest), what in found[:_TYPICAL]
        if more >= _FAR_MORE
    )


def _risk(evaluation: Evaluation, name: str) -> tuple[str, str, str]:
    """A number of the excess risk, its interval and its noise floor."""
    item = evaluation.more.get(name)
    if item is None:
        return "–", "", ""
    if name.startswith("excess_risk.flagged"):
        return percent(item.value), range_of(item.lower, item.upper), ""
    ends = f"{number(item.lower)} to {number(item.upper)}"
    return number(item.value), ends, number(item.floor)
