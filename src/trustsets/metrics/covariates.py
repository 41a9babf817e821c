"""What the coverage of samples is explained by: one named column of numbers or categories each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from trustsets._arrays import Codes, Floats, texts_of
from trustsets.basis import PrincipalComponents
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Confidence, Entropy, Margin, Statistic, Trust

_STATISTICS: dict[str, Statistic] = {
    "confidence": Confidence(),
    "trust": Trust(),
    "entropy": Entropy(),
    "margin": Margin(),
}
_KINDS = (*_STATISTICS, "sizes", "groups", "predicted", "classes", "components")
# A principal component with less than this share of the spread of the first is rounding.
_NO_SPREAD = 1e-9


@final
@dataclass(frozen=True, eq=False)
class Covariate:
    """One column: its name, the kind it belongs to, and a number per sample, shape (n,).

    For categories the numbers are positions in `levels`.
    """

    name: str
    kind: str
    values: Floats
    levels: tuple[str, ...] = ()


def covariates(
    outputs: ModelOutputs,
    sizes: Codes | None,
    by: Sequence[str] | None,
    default: Sequence[str],
    n_components: int,
    learn: Codes,
) -> list[Covariate]:
    """Columns of the kinds in `by`, or of those among `default` that the data allow.

    Principal components are learned from the samples `learn`.
    """
    if isinstance(by, str):
        raise InputError(f"by must be a sequence of names; write by=({by!r},).")
    lacking = {
        "trust": "" if outputs.trust is not None else "trust; pass trust= to ModelOutputs",
        "sizes": "" if sizes is not None else "PredictionSets",
        "groups": "" if outputs.groups else "group columns; pass groups= to ModelOutputs",
        "classes": "" if outputs.codes is not None else "labels; pass labels= to ModelOutputs",
    }
    if outputs.features is None:
        lacking["components"] = "features; pass features= to ModelOutputs"
    columns: list[Covariate] = []
    for kind in default if by is None else by:
        if kind not in _KINDS:
            raise InputError(f"by holds {kind!r}, which is none of {', '.join(_KINDS)}.")
        missing = lacking.get(kind, "")
        if missing and by is not None:
            raise InputError(f"by asks for {kind!r}, which needs {missing}.")
        if not missing:
            columns += _columns(kind, outputs, sizes, n_components, learn)
    if not columns:
        raise InputError("by must name at least one kind of column.")
    return columns


def _columns(
    kind: str, outputs: ModelOutputs, sizes: Codes | None, n_components: int, learn: Codes
) -> list[Covariate]:
    """Columns of one kind, for which nothing is missing."""
    if kind in _STATISTICS:
        return [Covariate(kind, kind, _STATISTICS[kind].measure(outputs))]
    if kind == "sizes":
        return [Covariate("set size", kind, np.asarray(sizes, dtype=np.float64))]
    if kind == "groups":
        return [_categories(name, texts_of(values)) for name, values in outputs.groups.items()]
    if kind == "components":
        return _components(outputs, n_components, learn)
    levels = tuple(texts_of(outputs.classes))
    if kind == "predicted":
        codes = outputs.predicted_codes
        return [Covariate("predicted class", kind, codes.astype(np.float64), levels)]
    codes = outputs.require_labels("the true class")
    return [Covariate("true class", kind, codes.astype(np.float64), levels)]


def _categories(name: str, texts: list[str]) -> Covariate:
    levels = tuple(sorted(set(texts)))
    codes = {level: float(code) for code, level in enumerate(levels)}
    return Covariate(name, "groups", np.array([codes[text] for text in texts]), levels)


def _components(outputs: ModelOutputs, count: int, learn: Codes) -> list[Covariate]:
    """Leading principal components, learned from some samples and computed for all."""
    assert outputs.features is not None  # checked by `covariates`
    learned = outputs.features[learn]
    count = min(count, *learned.shape)
    if count < 1 or (learned == learned[0]).all():
        return []
    basis = PrincipalComponents(count).fit(outputs.take(learn))
    scores = basis.design(outputs)[:, 1:]
    spread = np.abs(scores[learn]).max(axis=0)
    return [
        Covariate(f"principal component {number + 1}", "components", scores[:, number])
        for number in np.flatnonzero(spread > _NO_SPREAD * spread[0]).tolist()
    ]


def restrict(columns: Sequence[Covariate], rows: Codes) -> list[Covariate]:
    """The same columns of some of the samples."""
    return [replace(item, values=item.values[rows]) for item in columns]


def names_of(columns: Sequence[Covariate]) -> tuple[str, ...]:
    """Names of the columns for a sentence; principal components count as one."""
    names = [item.name for item in columns if item.kind != "components"]
    if any(item.kind == "components" for item in columns):
        names.append("principal components of the features")
    return tuple(names)
