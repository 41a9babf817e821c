"""The parts of a monitor that are stored: what was counted and bet on so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final
from zlib import crc32

import numpy as np

from trustsets._common.arrays import Array, Codes, Floats
from trustsets._common.draws import Stream, row_uniforms
from trustsets._common.storage import require, storable
from trustsets.basis import FittedBins
from trustsets.monitor.evidence import Evidence, miss_bets, rank_bets, tail_bets
from trustsets.monitor.intervals import MeanTrack
from trustsets.monitor.ranks import Bag
from trustsets.monitor.samples import Directions, Samples
from trustsets.predictors.calibrated import Calibrated

__all__ = ["WEIGHTS", "Drift", "MonitorState", "Setting", "Slice", "make_slices"]

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

    def needed(self, weight: float) -> float:
        """Log evidence that an alarm of a test needs, which has a share of the rate."""
        return float(-np.log(self.false_alarm * weight))

    def draws(self, name: str, start: int, count: int) -> Floats:
        """Uniform draws for the samples of a test, the same whatever the batches."""
        seed = (self.seed << 32) + crc32(name.encode())
        return row_uniforms(seed, Stream.MONITOR_TIES, np.arange(start, start + count))


@final
@storable
@dataclass
class Slice:
    """Labelled samples of one kind: coverage, sizes, and the test of their scores.

    `place` is the number of the region or class, `column` and `value` are those of the group.
    """

    kind: str
    name: str
    weight: float
    place: int = 0
    column: str = ""
    value: str = ""
    count: int = 0
    covered: int = 0
    batch: tuple[int, int] = (0, 0)
    sizes: MeanTrack = field(default_factory=MeanTrack)
    bag: Bag = field(default_factory=Bag)
    evidence: Evidence = field(default_factory=lambda: Evidence.start(_BETS["miss"]))

    def check_state(self) -> None:
        """Refuse what no samples give, for `storage`."""
        fits = 0 <= self.covered <= self.count == self.evidence.count == self.sizes.count
        require(fits and 0 < self.weight <= 1, "Slice.covered", "must be a part of the samples")
        require(self.evidence.wealth.size == _BETS["miss"], "Slice.evidence", "has other bets")

    def add(self, covered: Any, shares: Floats, scores: Floats, setting: Setting) -> None:
        """Take labelled samples: whether covered, size as a share of K, score of the label."""
        draws = setting.draws(f"{self.kind}:{self.name}", self.count, scores.size)
        found = self.bag.p_values(scores, draws)
        bets = rank_bets(found, setting.alpha)
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
    bag: Bag = field(default_factory=Bag)
    evidence: Evidence = field(default_factory=lambda: Evidence.start(_BETS["drift"]))

    def check_state(self) -> None:
        """Refuse what no samples give, for `storage`."""
        require(self.evidence.wealth.size == _BETS["drift"], "Drift.evidence", "has other bets")

    def add(self, values: Floats, setting: Setting) -> None:
        """Take the statistic of samples."""
        draws = setting.draws(f"drift:{self.name}", self.evidence.count, values.size)
        bets = tail_bets(self.bag.p_values(values, draws))
        self.evidence.update(bets, setting.needed(self.weight))


@final
@storable
@dataclass
class MonitorState:
    """All that a monitor knows besides its predictor.

    Attributes
    ----------
    rate : float
        Rate of misses that the calibration samples explain, up to half the false-alarm rate of
        `coverage`.
    ranking : Calibrated or None
        In a file: state of the predictor whose p-values samples are ranked by.
    coverage : Evidence
        Of more misses than that.
    batches : list of str
        Names of the batches that were taken.
    last_time : str
        When the last of them was taken, in words of the caller.
    """

    setting: Setting
    rate: float
    pending: Samples
    slices: list[Slice] = field(default_factory=list)
    drifts: list[Drift] = field(default_factory=list)
    ranking: Calibrated | None = None
    regions: FittedBins | None = None
    directions: Directions | None = None
    coverage: Evidence = field(default_factory=lambda: Evidence.start(_BETS["miss"]))
    samples: int = 0
    dropped: int = 0
    batches: list[str] = field(default_factory=list)
    last_time: str = ""

    def check_state(self) -> None:
        """Refuse parts that do not belong together, for `storage`."""
        known = all(isinstance(own, Slice) for own in self.slices)
        known &= all(isinstance(own, Drift) for own in self.drifts)
        require(known, "MonitorState.slices", "must be slices and drifts")
        require(0.0 < self.rate <= 1.0, "MonitorState.rate", "must lie in (0, 1]")
        started = (self.regions is not None) == bool(self.slices)
        require(started, "MonitorState.regions", "must be there with the slices")
        require(min(self.samples, self.dropped) >= 0, "MonitorState.samples", "must be counts")

    def label(self, samples: Samples, codes: Codes) -> None:
        """Take labels of measured samples."""
        rows = np.arange(len(samples))
        covered = samples.mask[rows, codes]
        shares, scores = samples.sizes / samples.mask.shape[1], samples.scores[rows, codes]
        needed = self.setting.needed(WEIGHTS["coverage"] / 2.0)
        self.coverage.update(miss_bets(~covered, self.rate), needed)
        for own in self.slices:
            inside = _inside(own, samples, codes)
            if inside.any():
                own.add(covered[inside], shares[inside], scores[inside], self.setting)

    def next_batch(self) -> None:
        """Begin to count a batch."""
        for own in self.slices:
            own.batch = (0, 0)


def make_slices(
    regions: Sequence[str], classes: Sequence[Any], columns: Mapping[str, Array]
) -> list[Slice]:
    """All samples, then regions, classes and groups; each kind shares its rate equally."""
    groups = [
        (name, value)
        for name, values in columns.items()
        if values.size <= _MOST_GROUPS
        for value in values.tolist()
    ]
    share = WEIGHTS["group"] / max(len(groups), 1)
    return [
        Slice("all", "all samples", WEIGHTS["all"]),
        *(
            Slice("region", name, WEIGHTS["region"] / len(regions), place)
            for place, name in enumerate(regions)
        ),
        *(
            Slice("class", f"class {name}", WEIGHTS["class"] / len(classes), place)
            for place, name in enumerate(classes)
        ),
        *(
            Slice("group", f"{name} = {value}", share, column=name, value=value)
            for name, value in groups
        ),
    ]


def _inside(own: Slice, samples: Samples, codes: Codes) -> Any:
    """Which samples a slice is about."""
    if own.kind == "all":
        return np.ones(len(samples), dtype=bool)
    if own.kind == "group":
        return samples.groups.get(own.column, np.full(len(samples), "")) == own.value
    return (samples.regions if own.kind == "region" else codes) == own.place
