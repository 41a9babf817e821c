"""What a monitor measures of samples, and keeps of those whose labels come later."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Array, Codes, Floats, texts_of, to_numpy
from trustsets._common.draws import Stream, row_uniforms
from trustsets._common.storage import require, require_numbers, storable
from trustsets.basis import Bins, FittedBins
from trustsets.errors import InputError, TrustSetsError
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor
from trustsets.statistics import Confidence, Trust

__all__ = [
    "Directions",
    "Samples",
    "calibration_part",
    "check_ids",
    "class_scores",
    "fit_regions",
    "known_trust",
    "measure",
    "region_names",
    "stored_scores",
    "without_ranked",
]

# Bins of Conf, and of Trust within each.
_REGIONS = (3, 3)
_REGIONS_OF_CONF = 5
# Principal components that the distance of features is made of.
_COMPONENTS = 10
# Principal components that are tested by themselves.
_DIRECTIONS = 3
_SMALLEST_VARIANCE = 1e-12
_LARGEST_TRUST = 1e300
# Tests look at the largest share alpha of scores, so p-values need to be fine near alpha only. In
# units of alpha; as many fits as a predictor keeps.
_ALPHAS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)


@final
@storable
@dataclass
class Samples:
    """Measured samples without labels: K scores and K memberships of each.

    Attributes
    ----------
    ids : str array of shape (m,)
        Identities under which labels may come later.
    scores : array of shape (m, K)
        Score of each class.
    mask : bool array of shape (m, K)
        Prediction sets.
    regions : int array of shape (m,)
        Region of Conf and Trust.
    groups : dict of str to str array of shape (m,)
        Group columns.
    """

    ids: Array
    scores: Floats
    mask: NDArray[np.bool_]
    regions: Codes
    groups: dict[str, Array]

    def __len__(self) -> int:
        return int(self.ids.size)

    def check_state(self) -> None:
        """Refuse what no samples give, for `storage`."""
        m = len(self)
        fits = self.scores.ndim == 2 and self.scores.shape == self.mask.shape
        require(fits and len(self.scores) == m, "Samples.scores", "must be K for each sample")
        require(not np.isnan(self.scores).any(), "Samples.scores", "must not be NaN")
        require_numbers(self.regions, "Samples.regions", m)
        same = all(own.shape == (m,) for own in self.groups.values())
        require(same, "Samples.groups", "must be one for each sample")

    @classmethod
    def none(cls, n_classes: int) -> Self:
        """No samples."""
        nothing = np.empty((0, n_classes))
        return cls(np.empty(0, "U1"), nothing, nothing.astype(bool), np.empty(0, np.int64), {})

    @property
    def sizes(self) -> Codes:
        """Number of classes in each set."""
        return np.asarray(np.count_nonzero(self.mask, axis=1))

    def take(self, index: Any) -> Self:
        """Some of the samples."""
        groups = {name: own[index] for name, own in self.groups.items()}
        ids, scores, mask = self.ids[index], self.scores[index], self.mask[index]
        return type(self)(ids, scores, mask, self.regions[index], groups)

    def joined(self, other: "Samples") -> Self:
        """These samples and then others; those of a group column that one lacks are unknown."""
        names = dict.fromkeys([*self.groups, *other.groups])

        def column(part: Samples, name: str) -> Array:
            return part.groups.get(name, np.full(len(part), "", dtype="U1"))

        return type(self)(
            np.concatenate([self.ids, other.ids]),
            np.vstack([self.scores, other.scores]),
            np.vstack([self.mask, other.mask]),
            np.concatenate([self.regions, other.regions]),
            {name: np.concatenate([column(self, name), column(other, name)]) for name in names},
        )


def class_scores(
    predictor: Predictor, ranking: Predictor | None, outputs: ModelOutputs, alpha: float, trust: Any
) -> Floats:
    """What new samples are ranked by, shape (m, K): it is larger where a class agrees less.

    Any such number that does not depend on the samples that new ones are ranked among keeps the
    tests of a monitor exact. It is the score or, if there is a predictor for it, minus the p-value.
    """
    if ranking is None:
        return predictor.state_.scoring(predictor.score).matrix(outputs)
    return -ranking.predict_p(outputs, alpha * np.array(_ALPHAS), trust=trust)


def without_ranked(
    predictor: Predictor, ranked: ModelOutputs, trust: Floats | None, alpha: float
) -> Predictor | None:
    """A copy of the predictor, calibrated without the `ranked` samples, for `class_scores`.

    None if its p-values would have the order of the scores, if too few samples were left, or if
    the ranked samples are not among those of the calibration.
    """
    learned, n = predictor.state_.learned, predictor.state_.n
    if learned.conditions_on is None or learned.smallest_alpha * n > alpha * (n - len(ranked)):
        return None
    try:
        return copy(predictor).forget(ranked, trust=trust)
    except TrustSetsError:
        return None


def measure(
    predictor: Predictor,
    ranking: Predictor | None,
    outputs: ModelOutputs,
    alpha: float,
    regions: FittedBins,
    ids: Array,
    trust: Floats | None,
) -> Samples:
    """Predict sets and compute what all classes are ranked by."""
    sets = predictor.predict_set(outputs, alpha=alpha, trust=trust)
    scores = class_scores(predictor, ranking, outputs, alpha, trust)
    groups = {name: np.array(texts_of(own)) for name, own in outputs.groups.items()}
    cells = regions.cells(outputs.with_trust(trust))
    return Samples(ids, scores, np.array(sets.mask), cells, groups)


def known_trust(predictor: Predictor, outputs: ModelOutputs, trust: Any) -> Floats | None:
    """Trust of each sample: as given, or by the trust score of the predictor; None without."""
    if trust is None and (predictor.trust is None or outputs.features is None):
        return None
    found = outputs.with_trust(predictor.trust if trust is None else trust).require_trust("Monitor")
    # Trust may be infinite; edges of regions between infinite values could not be stored.
    return np.minimum(found, _LARGEST_TRUST)


def stored_scores(predictor: Predictor) -> Floats:
    """Scores of the calibration labels, where the predictor keeps them as they were."""
    learned = predictor.state_.learned
    if getattr(learned, "tie_spread", 0.0):
        return np.empty(0)
    return np.asarray(getattr(learned, "scores", np.empty(0)))


def calibration_part(predictor: Predictor, reference: ModelOutputs) -> Codes:
    """Positions of the calibration samples among all that `calibrate` was given."""
    state = predictor.state_
    if state.n_tuning == 0 or len(reference) != state.n + state.n_tuning:
        return np.arange(len(reference))
    return reference.split_indices(state.n_tuning / len(reference), seed=state.seed)[1]


def fit_regions(outputs: ModelOutputs) -> FittedBins:
    """Equal shares of Conf, and of Trust within each; of Conf alone where Trust is unknown."""
    if outputs.trust is not None:
        bins = Bins(Confidence(), Trust(), counts=_REGIONS, spacing="quantile")
    else:
        bins = Bins(Confidence(), counts=_REGIONS_OF_CONF, spacing="quantile")
    return bins.fit(outputs)


def region_names(regions: FittedBins) -> list[str]:
    """What each region holds, in words, in the order of the cells."""
    names = [""]
    for item, cuts in zip(regions.of, regions.cuts, strict=True):
        rows = cuts if len(cuts) == len(names) else np.repeat(cuts, len(names), axis=0)
        word = item.statistic.name
        names = [
            f"{before}{', ' if before else ''}{_span(word, [None, *own, None], place)}"
            for before, own in zip(names, rows.tolist(), strict=True)
            for place in range(len(own) + 1)
        ]
    return names


def _span(word: str, ends: list[float | None], place: int) -> str:
    low, high = ends[place], ends[place + 1]
    if low is None:
        return f"all {word}" if high is None else f"{word} below {high:.3g}"
    return f"{word} from {low:.3g}" if high is None else f"{word} {low:.3g} to {high:.3g}"


@final
@storable
@dataclass(frozen=True)
class Directions:
    """Mean and principal components of features, for a few numbers that show a shift."""

    mean: Floats
    axes: Floats
    variances: Floats
    rest: float

    def check_state(self) -> None:
        """Refuse what no features give, for `storage`."""
        require_numbers(self.mean, "Directions.mean", None)
        require_numbers(self.axes, "Directions.axes", None, self.mean.size)
        require_numbers(self.variances, "Directions.variances", len(self.axes))
        require((self.variances > 0).all() and self.rest > 0, "Directions.variances", "must be > 0")

    @classmethod
    def fit(cls, features: Array) -> Self:
        """Learn from the features of some samples, which must not be ranked afterwards."""
        numbers = features.astype(np.float64)
        mean = numbers.mean(axis=0)
        _, sizes, axes = np.linalg.svd(numbers - mean, full_matrices=False)
        variances = np.maximum(sizes**2 / len(numbers), _SMALLEST_VARIANCE)
        kept = min(_COMPONENTS, variances.size)
        left = variances[kept:].sum() / max(numbers.shape[1] - kept, 1)
        return cls(mean, axes[:kept], variances[:kept], max(float(left), _SMALLEST_VARIANCE))

    def values(self, features: Array) -> dict[str, Floats]:
        """Squared distance to the mean in units of the spread, and places along the first axes."""
        centred = features.astype(np.float64) - self.mean
        along = centred @ self.axes.T
        inside = (along**2 / self.variances).sum(axis=1)
        outside = np.maximum((centred**2).sum(axis=1) - (along**2).sum(axis=1), 0.0)
        places = {f"feature direction {i + 1}": own for i, own in enumerate(along.T[:_DIRECTIONS])}
        return {"feature distance": inside + outside / self.rest} | places


def fitting_half(n: int, seed: int) -> NDArray[np.bool_]:
    """The samples of a reference that directions are learned from; the others are ranked."""
    return np.asarray(row_uniforms(seed, Stream.MONITOR_PARTS, np.arange(n)) < 0.5)


def check_ids(ids: Sequence[Any] | Array | None, n: int) -> Array:
    """Identities as texts; empty ones where none are given."""
    if ids is None:
        return np.full(n, "", dtype="U1")
    found = to_numpy(ids, "ids")
    if found.shape != (n,):
        raise InputError(f"ids must have shape ({n},), one per sample; got {found.shape}.")
    texts = np.array(texts_of(found), dtype=str)
    if np.unique(texts).size != n or (texts == "").any():
        raise InputError("ids must be different for all samples, and not empty.")
    return texts
