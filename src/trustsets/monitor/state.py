"""What a monitor has counted and bet on so far, as it lies on disk.

`MonitorState` is written by `storage` as a whole or not at all. The predictor is not in the file,
only a digest of its calibration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self, final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Array, Codes, Floats
from trustsets._checks import check_open
from trustsets._draws import Stream, row_uniforms
from trustsets._quantiles import check_alpha
from trustsets._storage import require, require_increasing, require_numbers, storable
from trustsets.errors import InputError
from trustsets.monitor.sequential import (
    MOST_SAMPLES,
    EmpiricalDistribution,
    Evidence,
    MeanTrack,
    miss_bets,
    rank_bets,
    tail_bets,
)
from trustsets.outputs import ModelOutputs

# Shares of the false-alarm rate: coverage of all samples; scores of all samples; scores of regions,
# of classes and of groups; statistics that need no label.
WEIGHTS = {
    "coverage": 1 / 4,
    "all": 1 / 4,
    "region": 1 / 12,
    "class": 1 / 12,
    "group": 1 / 12,
    "drift": 1 / 4,
}
_BETS = {"miss": 3, "drift": 6}
# A group column takes part if it has at most so many values.
_MOST_GROUPS = 100
# Quantile bins of Conf, and of Trust within each; of Conf where there is no Trust.
_REGIONS = (3, 3)
_REGIONS_OF_CONF = 5
# Principal components that the distance of features is made of.
_COMPONENTS = 10
# Principal components that are tested by themselves.
_DIRECTIONS = 3
_SMALLEST_VARIANCE = 1e-12


@final
@storable
@dataclass(frozen=True)
class Setting:
    """Parameters of a monitor, and the predictor it belongs to (a digest)."""

    alpha: float
    false_alarm: float
    level: float
    most_pending: int
    seed: int
    predictor: str

    def check_state(self) -> None:
        """Refuse numbers that `Monitor` does not take."""
        check_alpha(self.alpha)
        check_open(false_alarm=self.false_alarm, level=self.level)
        if self.most_pending < 0:
            raise InputError(f"most_pending must not be negative; got {self.most_pending}.")
        require(0 <= self.seed < 1 << 63, "Setting.seed", "must not be negative")

    def needed(self, weight: float) -> float:
        """Log evidence that an alarm of a test needs, which has a share of the rate."""
        return float(-np.log(self.false_alarm * weight))

    def draws(self, name: str, start: int, count: int) -> Floats:
        """Uniform draws for the samples of a test, the same whatever the batches."""
        seed = (self.seed << 32) + crc32(name.encode())
        return row_uniforms(seed, Stream.MONITOR_TIES, np.arange(start, start + count))


@final
@storable
@dataclass(frozen=True)
class Regions:
    """Quantile bins of Conf, and of Trust within each where Trust is known."""

    confidence: Floats
    trust: Floats | None

    def check_state(self) -> None:
        """Refuse edges that no samples give, for `storage`."""
        require_numbers(self.confidence, "Regions.confidence", None)
        require_increasing(self.confidence, "Regions.confidence")
        if self.trust is not None:
            require_numbers(self.trust, "Regions.trust", self.confidence.size + 1, None)
            require_increasing(self.trust, "Regions.trust")

    @classmethod
    def fit(cls, outputs: ModelOutputs) -> Self:
        """Place the edges."""
        conf, trust = outputs.confidence, outputs.trust
        if trust is None:
            return cls(_quantiles(conf, _REGIONS_OF_CONF), None)
        regions = cls(_quantiles(conf, _REGIONS[0]), None)
        inside = [trust[regions.cells(outputs) == cell] for cell in range(_REGIONS[0])]
        edges = [_quantiles(values if values.size else trust, _REGIONS[1]) for values in inside]
        return cls(regions.confidence, np.array(edges))

    def cells(self, outputs: ModelOutputs) -> Codes:
        """Region of each sample; a value on an edge belongs to the bin above it."""
        cells = np.count_nonzero(outputs.confidence[:, None] >= self.confidence, axis=1)
        if self.trust is None:
            return np.asarray(cells)
        trust = outputs.require_trust("this monitor, whose reference has trust,")
        above = np.count_nonzero(trust[:, None] >= self.trust[cells], axis=1)
        return np.asarray(cells * (self.trust.shape[1] + 1) + above)

    def names(self) -> list[str]:
        """What each region contains, in words, in the order of the cells."""
        names = _spans("Conf", self.confidence.tolist())
        if self.trust is None:
            return names
        rows = zip(names, self.trust.tolist(), strict=True)
        return [f"{name}, {span}" for name, edges in rows for span in _spans("Trust", edges)]


def _quantiles(values: Floats, count: int) -> Floats:
    return np.asarray(np.quantile(values, np.arange(1, count) / count))


def _spans(word: str, edges: list[float]) -> list[str]:
    """Names of the bins between edges."""
    inner = [f"{word} {low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    return [f"{word} below {edges[0]:.3g}", *inner, f"{word} from {edges[-1]:.3g}"]


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
        positive = bool((self.variances > 0).all()) and 0.0 < self.rest < np.inf
        require(positive, "Directions.variances", "must be > 0")

    @classmethod
    def fit(cls, features: Array) -> Self:
        """Learn from the features of some samples, which must not be ranked afterwards."""
        numbers = features.astype(np.float64)
        mean = numbers.mean(axis=0)
        _, sizes, axes = np.linalg.svd(numbers - mean, full_matrices=False)
        variances = np.maximum(sizes**2 / len(numbers), _SMALLEST_VARIANCE)
        used = min(_COMPONENTS, variances.size)
        left = variances[used:].sum() / max(numbers.shape[1] - used, 1)
        return cls(mean, axes[:used], variances[:used], max(float(left), _SMALLEST_VARIANCE))

    def values(self, features: Array) -> dict[str, Floats]:
        """Squared distance to the mean in units of the spread, and the first coordinates."""
        if features.shape[1] != self.mean.size:
            raise InputError(
                f"features must have {self.mean.size} columns, as those of the reference; got "
                f"{features.shape[1]}."
            )
        centred = features.astype(np.float64) - self.mean
        along = centred @ self.axes.T
        inside = (along**2 / self.variances).sum(axis=1)
        outside = np.maximum((centred**2).sum(axis=1) - (along**2).sum(axis=1), 0.0)
        first = enumerate(along.T[:_DIRECTIONS], start=1)
        return {"feature distance": inside + outside / self.rest} | {
            f"feature direction {number}": values for number, values in first
        }


@final
@storable
@dataclass
class Samples:
    """Measured samples without labels, which may come later."""

    ids: Array  # texts, shape (m,)
    scores: Floats  # of all classes, shape (m, K)
    mask: NDArray[np.bool_]  # prediction sets, shape (m, K)
    regions: Codes  # region of Conf and Trust, shape (m,)
    groups: dict[str, Array]  # texts, shape (m,)

    def __len__(self) -> int:
        return int(self.ids.size)

    def check_state(self) -> None:
        """Refuse what no samples give, for `storage`."""
        m = self.ids.size
        shaped = self.scores.ndim == 2 and self.scores.shape == self.mask.shape
        require(shaped and len(self.scores) == m, "Samples.scores", "must be K for each sample")
        require(not np.isnan(self.scores).any(), "Samples.scores", "must not be NaN")
        require_numbers(self.regions, "Samples.regions", m)
        texts = all(
            isinstance(column, np.ndarray) and column.shape == (m,) and column.dtype.kind == "U"
            for column in (self.ids, *self.groups.values())
        )
        require(texts, "Samples.groups", "must be one text for each sample")

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
        return type(self)(
            ids=self.ids[index],
            scores=self.scores[index],
            mask=self.mask[index],
            regions=self.regions[index],
            groups={name: column[index] for name, column in self.groups.items()},
        )

    def joined(self, other: "Samples") -> Self:
        """These samples and then others; those of a group column that one lacks are unknown."""
        names = dict.fromkeys([*self.groups, *other.groups])

        def column(part: Samples, name: str) -> Array:
            return part.groups.get(name, np.full(len(part), "", dtype="U1"))

        return type(self)(
            ids=np.concatenate([self.ids, other.ids]),
            scores=np.vstack([self.scores, other.scores]),
            mask=np.vstack([self.mask, other.mask]),
            regions=np.concatenate([self.regions, other.regions]),
            groups={n: np.concatenate([column(self, n), column(other, n)]) for n in names},
        )


@final
@storable
@dataclass
class Part:
    """Labelled samples of one kind: coverage, sizes, and the test of their scores.

    `code` is the number of the region or class, `column` and `value` are those of the group.
    """

    kind: str
    name: str
    weight: float
    code: int = 0
    column: str = ""
    value: str = ""
    count: int = 0
    covered: int = 0
    batch: tuple[int, int] = (0, 0)
    sizes: MeanTrack = field(default_factory=MeanTrack)
    earlier: EmpiricalDistribution = field(default_factory=EmpiricalDistribution)
    evidence: Evidence = field(default_factory=lambda: Evidence.start(_BETS["miss"]))

    def check_state(self) -> None:
        """Refuse what no samples give, for `storage`."""
        counted = 0 <= self.covered <= self.count == self.evidence.count == self.sizes.count
        require(counted and 0 < self.weight <= 1, "Part.covered", "must be a part of the samples")
        last = 0 <= self.batch[1] <= self.batch[0] <= self.count
        require(last, "Part.batch", "must be a part of the samples")
        require(self.evidence.wealth.size == _BETS["miss"], "Part.evidence", "has other bets")

    def contains(self, regions: Codes, codes: Codes, groups: Mapping[str, Array]) -> Any:
        """Which samples it is about, from their regions, label codes and groups."""
        if self.kind == "all":
            return np.ones(len(codes), dtype=bool)
        if self.kind == "group":
            return groups.get(self.column, np.full(len(codes), "")) == self.value
        return (regions if self.kind == "region" else codes) == self.code

    def add(self, covered: Any, shares: Floats, scores: Floats, setting: Setting) -> None:
        """Take labelled samples: whether covered, size as a share of K, score of the label."""
        draws = setting.draws(f"{self.kind}:{self.name}", self.count, scores.size)
        bets = rank_bets(self.earlier.p_values(scores, draws), setting.alpha)
        self.evidence.update(bets, setting.needed(self.weight))
        self.sizes.add(shares, setting.level)
        hits = int(np.count_nonzero(covered))
        self.count, self.covered = self.count + scores.size, self.covered + hits
        self.batch = (self.batch[0] + scores.size, self.batch[1] + hits)


@final
@storable
@dataclass
class Drift:
    """The test of a statistic that needs no label."""

    name: str
    weight: float
    earlier: EmpiricalDistribution = field(default_factory=EmpiricalDistribution)
    evidence: Evidence = field(default_factory=lambda: Evidence.start(_BETS["drift"]))

    def check_state(self) -> None:
        """Refuse what no samples give, for `storage`."""
        require(0 < self.weight <= 1, "Drift.weight", "must lie in (0, 1]")
        require(self.evidence.wealth.size == _BETS["drift"], "Drift.evidence", "has other bets")

    def add(self, values: Floats, setting: Setting) -> None:
        """Take the statistic of samples."""
        draws = setting.draws(f"drift:{self.name}", self.evidence.count, values.size)
        bets = tail_bets(self.earlier.p_values(values, draws))
        self.evidence.update(bets, setting.needed(self.weight))


@final
@storable
@dataclass
class MonitorState:
    """All that a monitor knows besides its predictor."""

    setting: Setting
    # Misses that the calibration samples explain, up to half the false-alarm rate of `coverage`.
    rate: float
    pending: Samples
    # Tests with and without labels; none before the first samples.
    parts: tuple[Part, ...] = ()
    drifts: tuple[Drift, ...] = ()
    regions: Regions | None = None
    directions: Directions | None = None
    # Evidence of more misses than `rate`.
    coverage: Evidence = field(default_factory=lambda: Evidence.start(_BETS["miss"]))
    samples: int = 0
    dropped: int = 0
    batches: tuple[str, ...] = ()

    def check_state(self) -> None:
        """Refuse parts that do not belong together, for `storage`."""
        require(0.0 < self.rate <= 1.0, "MonitorState.rate", "must lie in (0, 1]")
        started = (self.regions is not None) == bool(self.parts)
        require(started, "MonitorState.regions", "must be there with the parts")
        require(self.coverage.wealth.size == _BETS["miss"], "MonitorState.coverage", "is other")
        counts = (self.samples, self.dropped)
        require(all(0 <= n < MOST_SAMPLES for n in counts), "MonitorState.samples", "must count")

    def label(self, samples: Samples, codes: Codes) -> None:
        """Take labels of measured samples."""
        rows = np.arange(len(samples))
        covered = samples.mask[rows, codes]
        shares, scores = samples.sizes / samples.mask.shape[1], samples.scores[rows, codes]
        needed = self.setting.needed(WEIGHTS["coverage"] / 2.0)
        self.coverage.update(miss_bets(~covered, self.rate), needed)
        for part in self.parts:
            inside = part.contains(samples.regions, codes, samples.groups)
            if inside.any():
                part.add(covered[inside], shares[inside], scores[inside], self.setting)


def make_parts(
    regions: Sequence[str], classes: Sequence[Any], columns: Mapping[str, Array]
) -> tuple[Part, ...]:
    """All samples, then regions, classes and groups; each kind shares its rate equally."""
    groups = [
        (name, value)
        for name, values in columns.items()
        if values.size <= _MOST_GROUPS
        for value in values.tolist()
    ]
    names = {"region": list(regions), "class": [f"class {name}" for name in classes]}
    share = WEIGHTS["group"] / max(len(groups), 1)
    return (
        Part("all", "all samples", WEIGHTS["all"]),
        *(
            Part(kind, name, WEIGHTS[kind] / len(parts), code=code)
            for kind, parts in names.items()
            for code, name in enumerate(parts)
        ),
        *(
            Part("group", f"{name} = {value}", share, column=name, value=value)
            for name, value in groups
        ),
    )
