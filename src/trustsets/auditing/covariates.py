"""What the coverage of samples is explained by: one named column of numbers or categories each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Codes, Floats, column, texts_of
from trustsets.basis import PrincipalComponents
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.sets import PredictionSets
from trustsets.statistics import Confidence, Entropy, Margin, Statistic, SupportsTrust
from trustsets.statistics import Trust as TrustStatistic

__all__ = ["Audited", "Covariate", "covariates", "names_of", "restrict"]

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


@final
class Audited:
    """Samples whose coverage is known, checked.

    Attributes
    ----------
    covered : bool array of shape (n,)
        Whether each set contains the true class.
    alpha : float
        Miscoverage that was asked for.
    sizes : int array of shape (n,), or None
        Sizes of the sets, where sets were given.
    outputs : ModelOutputs
        The samples.
    """

    def __init__(
        self,
        sets: PredictionSets | Any,
        outputs: ModelOutputs,
        trust: SupportsTrust | Floats | None,
        alpha: float | None,
    ) -> None:
        self.outputs = outputs.with_trust(trust)
        self.sizes: NDArray[np.int64] | None = None
        if isinstance(sets, PredictionSets):
            self.covered, self.alpha = _covered_by(sets, outputs, alpha)
            self.sizes = sets.sizes
        else:
            self.covered, self.alpha = _given_coverage(sets, outputs, alpha)

    def __len__(self) -> int:
        return int(self.covered.size)

    @property
    def target(self) -> float:
        """Coverage that was asked for, 1 - alpha."""
        return 1.0 - self.alpha


def _covered_by(
    sets: PredictionSets, outputs: ModelOutputs, alpha: float | None
) -> tuple[NDArray[np.bool_], float]:
    if alpha is not None:
        raise InputError("alpha belongs to a coverage vector; PredictionSets know their own.")
    if not isinstance(sets.alpha, float):
        raise InputError(
            f"sets must be at one alpha, not {sets.alpha}; choose one with sets.at(alpha)."
        )
    outputs.require_labels("an audit of sets")
    if len(sets) != len(outputs) or not np.array_equal(sets.classes, outputs.classes):
        raise InputError(
            f"sets and outputs must be of the same samples and classes; got {len(sets)} sets of "
            f"{sets.classes.size} classes for {len(outputs)} samples of {outputs.n_classes}."
        )
    return sets.covers(outputs.labels), sets.alpha


def _given_coverage(
    covered: Any, outputs: ModelOutputs, alpha: float | None
) -> tuple[NDArray[np.bool_], float]:
    if alpha is None or not 0.0 < alpha < 1.0:
        raise InputError(
            f"alpha must be given with a coverage vector, strictly between 0 and 1; got {alpha}."
        )
    hits = column(covered, "sets", len(outputs))
    if hits.dtype.kind not in "biuf" or not np.isin(hits, (0, 1)).all():
        raise InputError(
            "sets must be PredictionSets, or say of each sample whether its set contains the true "
            "class: True or False, 1 or 0."
        )
    return hits.astype(bool), float(alpha)


def covariates(
    case: Audited, by: Sequence[str] | None, default: Sequence[str], n_components: int, learn: Codes
) -> list[Covariate]:
    """Columns of the kinds asked for, or of those among `default` that the data allow.

    `learn` are the samples from which principal components and categories are learned.
    """
    if isinstance(by, str):
        raise InputError(f"by must be a sequence of names; write by=({by!r},).")
    found: list[Covariate] = []
    for kind in default if by is None else by:
        if kind not in _KINDS:
            raise InputError(f"by holds {kind!r}, which is none of {', '.join(_KINDS)}.")
        lacking = _lacking(case, kind)
        if lacking and by is not None:
            raise InputError(f"by asks for {kind!r}, which needs {lacking}.")
        if not lacking:
            found += _KINDS[kind](case, kind, learn, n_components)
    if not found:
        raise InputError("by must name at least one kind of column.")
    return found


def restrict(columns: Sequence[Covariate], rows: Codes) -> list[Covariate]:
    """The same columns of some of the samples."""
    return [replace(item, values=item.values[rows]) for item in columns]


def names_of(columns: Sequence[Covariate]) -> tuple[str, ...]:
    """Names of the columns for a sentence; principal components count as one."""
    names = [item.name for item in columns if item.kind != "components"]
    if any(item.kind == "components" for item in columns):
        names.append("principal components of the features")
    return tuple(names)


def _lacking(case: Audited, kind: str) -> str:
    """What a kind of column needs and the case lacks; empty if nothing."""
    outputs, features = case.outputs, "features; pass features= to ModelOutputs"
    if kind == "components" and outputs.features is None:
        return features
    if kind == "trust":
        return "" if outputs.trust is not None else "trust; pass trust= to ModelOutputs"
    needs = {
        "sizes": (case.sizes, "PredictionSets"),
        "groups": (outputs.groups or None, "group columns; pass groups= to ModelOutputs"),
        "classes": (outputs.codes, "labels; pass labels= to ModelOutputs"),
    }
    value, words = needs.get(kind, (True, ""))
    return words if value is None else ""


def _statistic(
    case: Audited, kind: str, learn: Codes, count: int, *, statistic: Statistic
) -> list[Covariate]:
    return [Covariate(kind, kind, statistic.measure(case.outputs))]


def _sizes(case: Audited, kind: str, learn: Codes, count: int) -> list[Covariate]:
    return [Covariate("set size", kind, np.asarray(case.sizes, dtype=np.float64))]


def _groups(case: Audited, kind: str, learn: Codes, count: int) -> list[Covariate]:
    return [
        _categories(name, kind, texts_of(values)) for name, values in case.outputs.groups.items()
    ]


def _classes(case: Audited, kind: str, learn: Codes, count: int) -> list[Covariate]:
    outputs = case.outputs
    codes = outputs.predicted_codes if kind == "predicted" else outputs.codes
    name = "predicted class" if kind == "predicted" else "true class"
    assert codes is not None  # checked by `_lacking`
    names = tuple(texts_of(outputs.classes))
    return [Covariate(name, kind, codes.astype(np.float64), names)]


def _components(case: Audited, kind: str, learn: Codes, count: int) -> list[Covariate]:
    """Leading principal components, learned from some samples and computed for all."""
    features = case.outputs.features
    assert features is not None  # checked by `_lacking`
    known = features[learn]
    count = min(count, *known.shape)
    if count < 1 or (known == known[0]).all():
        return []
    basis = PrincipalComponents(count).fit(case.outputs.take(learn))
    places = basis.design(case.outputs)[:, 1:]
    spread = np.abs(places[learn]).max(axis=0)
    return [
        Covariate(f"principal component {number + 1}", kind, places[:, number])
        for number in np.flatnonzero(spread > _NO_SPREAD * spread[0]).tolist()
    ]


def _categories(name: str, kind: str, texts: list[str]) -> Covariate:
    levels = tuple(sorted(set(texts)))
    place = {level: float(code) for code, level in enumerate(levels)}
    return Covariate(name, kind, np.array([place[text] for text in texts]), levels)


_Builder = Callable[[Audited, str, Codes, int], list[Covariate]]
_KINDS: dict[str, _Builder] = {
    "confidence": partial(_statistic, statistic=Confidence()),
    "trust": partial(_statistic, statistic=TrustStatistic()),
    "entropy": partial(_statistic, statistic=Entropy()),
    "margin": partial(_statistic, statistic=Margin()),
    "sizes": _sizes,
    "groups": _groups,
    "predicted": _classes,
    "classes": _classes,
    "components": _components,
}
