"""Under-covered regions that a person can read: searched on one half, tested on the other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from trustsets._common.arrays import Codes, Floats
from trustsets._common.frames import Flavour, frame_of_rows
from trustsets._common.validation import check_least, check_open
from trustsets.auditing.covariates import Audited, covariates, names_of, restrict
from trustsets.auditing.search import Condition, Rule, describe, inside, search_regions
from trustsets.errors import InputError
from trustsets.metrics.bins import LOCAL
from trustsets.metrics.inference import Estimate, Ints, holm, share_estimate, under_coverage
from trustsets.metrics.plain import PlainData
from trustsets.outputs import ModelOutputs
from trustsets.sets import PredictionSets
from trustsets.statistics import SupportsTrust

__all__ = ["Region", "Regions", "find_regions"]

DEFAULT_KINDS = ("confidence", "trust", "groups", "predicted", "classes", "components")
# Regions searched for in each half, and missed samples that are named for each.
_MAX_REGIONS = 5
_EXAMPLES = 8
# Regions that share more of their samples than this are one region to a reader.
_OVERLAP = 0.5
# Fewest searched samples of a region.
_FEWEST = 20


@final
@dataclass(frozen=True, eq=False)
class Region(PlainData):
    """One region whose coverage is below 1 - alpha.

    Attributes
    ----------
    conditions : tuple of Condition
        All must hold.
    share : float
        Share of all samples that lie in the region.
    count, covered : int
        Samples of the region that were tested, and those whose set contains the true class.
    coverage : Estimate
        Their share. The intervals of all tested regions hold together at the level.
    elsewhere : float
        Coverage of the tested samples outside the region.
    searched : float
        Coverage of the samples that the region was found on: too low, as it was chosen for that.
    p_value, adjusted : float
        The larger of two exact p-values (below 1 - alpha; below the coverage elsewhere), and the
        same adjusted for all tested regions.
    examples : int array
        Positions of samples in the region whose set misses the true class, the most confident
        first.
    members : int array, or None
        Positions of all samples in the region; not kept in JSON.
    """

    conditions: tuple[Condition, ...]
    share: float
    count: int
    covered: int
    coverage: Estimate
    elsewhere: float
    searched: float
    p_value: float
    adjusted: float
    examples: Ints
    members: Ints | None = field(default=None, repr=False, metadata=LOCAL)

    @property
    def name(self) -> str:
        """The conditions in words."""
        return describe(self.conditions)

    @property
    def sentence(self) -> str:
        """The region in plain words."""
        own = self.coverage
        return (
            f"Where {self.name} ({self.share:.1%} of samples), {own.value:.1%} of the sets contain "
            f"the true class (interval {own.lower:.1%} to {own.upper:.1%}, {self.count:,} samples "
            f"tested), against {own.floor:.1%} asked for and {self.elsewhere:.1%} elsewhere."
        )


@final
@dataclass(frozen=True, eq=False, repr=False)
class Regions(PlainData):
    """Under-covered regions of one method, those of most evidence first.

    Attributes
    ----------
    alpha, level : float
        Miscoverage that was asked for. A region is reported by mistake with probability
        1 - level at most.
    n : int
        Samples.
    coverage : Estimate
        Coverage of all samples, with its exact interval.
    found : tuple of Region
        The regions.
    n_tested : int
        Regions that were tested, in both halves together.
    columns : tuple of str
        Columns that conditions could be about.
    """

    alpha: float
    level: float
    n: int
    coverage: Estimate
    found: tuple[Region, ...]
    n_tested: int
    columns: tuple[str, ...]

    def __repr__(self) -> str:
        names = "; ".join(region.name for region in self.found)
        return f"Regions(n={self.n}, alpha={self.alpha:g}, found={len(self.found)}: {names})"

    def __len__(self) -> int:
        return len(self.found)

    @property
    def summary(self) -> str:
        """What was found, in plain words."""
        total = self.coverage
        lines = [
            f"Of all {self.n:,} sets, {total.value:.1%} contain the true class (interval "
            f"{total.lower:.1%} to {total.upper:.1%}); {total.floor:.1%} was asked for."
        ]
        if not self.found:
            lines.append(
                "No region was found whose coverage is significantly lower, among regions of a few "
                f"conditions on {', '.join(self.columns)}."
            )
        return "\n".join([*lines, *(region.sentence for region in self.found)])

    def to_frame(self, flavour: Flavour | None = None) -> Any:
        """One row per region."""
        names = ("share", "count", "covered", "elsewhere", "p_value", "adjusted")
        rows = [
            {"region": item.name}
            | {name: getattr(item, name) for name in names}
            | {"coverage": item.coverage.value}
            | {"lower": item.coverage.lower, "upper": item.coverage.upper}
            for item in self.found
        ]
        order = ["region", "share", "count", "covered", "coverage", "lower", "upper"]
        order += ["elsewhere", "p_value", "adjusted"]
        return frame_of_rows(rows, flavour, columns=order)


def find_regions(
    sets: PredictionSets | Any,
    outputs: ModelOutputs,
    trust: SupportsTrust | Floats | None = None,
    *,
    alpha: float | None = None,
    by: Sequence[str] | None = None,
    max_conditions: int = 2,
    min_share: float = 0.02,
    tolerance: float = 0.0,
    n_components: int = 5,
    level: float = 0.95,
    seed: int = 0,
) -> Regions:
    r"""Search for regions where coverage is below 1 - alpha, and test them on other samples.

    Parameters
    ----------
    sets : PredictionSets, or bool array of shape (n,)
        Sets of n samples at one alpha, or whether each set contains the true class. Test
        samples, or calibration samples with their leave-one-out sets.
    outputs : ModelOutputs
        The same samples; with features for principal components, groups for groups.
    trust : TrustScore or array of shape (n,), optional
        Fitted trust score, or known values.
    alpha : float, optional
        Miscoverage that was asked for, where `sets` is an array.
    by : sequence of str, optional
        What conditions may be about, among ``confidence``, ``trust``, ``entropy``, ``margin``,
        ``sizes``, ``groups``, ``predicted`` and ``classes`` (the predicted and the true class),
        ``components``. Default: all that the data allow but entropy, margin and sizes. The
        true class is combined with groups only.
    max_conditions : int
        Most conditions of a region.
    min_share : float
        Smallest share of the samples that a region may hold.
    tolerance : float
        Report only regions whose coverage is below ``1 - alpha - tolerance``.
    n_components : int
        Principal components of the features that conditions may be about.
    level : float
        One minus the probability of any false alarm; also the level of the intervals.
    seed : int
        Random state of the division into halves.

    Returns
    -------
    Regions
        With ``found``, ``summary``, ``to_frame``, ``to_json``.

    Notes
    -----
    The samples are divided at random. Regions are searched on each half and tested on the other:
    everything about a region (conditions, principal components) comes from the searched half. A
    region R is reported if two null hypotheses are rejected.

    * *Given this calibration, R is covered*: :math:`P(Y \in C(X) \mid R) \ge 1 - \alpha -`
      tolerance, with the thresholds as they are. For test samples that are independent given the
      calibration, the covered ones among the tested samples of R are binomial, so the binomial
      test is exact.
    * *R is no worse than the rest*: Fisher's exact test against the tested samples outside R.
      A calibration of n samples moves the coverage of everything together by about
      ``sqrt(alpha * (1 - alpha) / n)``; that alone is no region. This test stays exact for any
      common coverage. It is also exact for leave-one-out sets if misses do not depend on the
      samples: all arrangements of the misses are then equally likely.

    The p-value is the larger of the two. It is valid given the searched half, and Holm's
    correction at half of ``1 - level`` for each direction makes the probability of any false
    alarm at most ``1 - level``, whatever the dependence between the two directions.

    A method that conditions on many functions fits the noise of its calibration samples, and its
    coverage given this calibration really differs between regions. Regions found for that
    reason are no false alarms; `tolerance` leaves small ones out.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(4000, 5))
    >>> site = rng.choice(["north", "south", "west"], size=4000)
    >>> outputs = ModelOutputs(logits=logits, groups={"site": site})
    >>> covered = rng.random(4000) < np.where(site == "west", 0.75, 0.95)
    >>> regions = find_regions(covered, outputs, alpha=0.1)
    >>> [region.name for region in regions.found]
    ['site is west']
    """
    case = Audited(sets, outputs, trust, alpha)
    _check(len(case), max_conditions, min_share, tolerance, case.target, level)
    first, second = outputs.split_indices(0.5, seed)
    names: dict[str, None] = {}
    trials: list[_Trial] = []
    for searched, tested in ((first, second), (second, first)):
        columns = covariates(case, by, DEFAULT_KINDS, n_components, searched)
        names |= dict.fromkeys(names_of(columns))
        rules = search_regions(
            restrict(columns, searched),
            case.covered[searched],
            case.target - tolerance,
            max_conditions=max_conditions,
            fewest=max(_FEWEST, math.ceil(min_share * searched.size)),
            max_regions=_MAX_REGIONS,
        )
        own = [_Trial(rule, inside(rule, columns), searched, tested) for rule in rules]
        p_values = np.array([trial.p_value(case, tolerance) for trial in own])
        for trial, p, adjusted in zip(own, p_values, holm(p_values), strict=True):
            trial.found = float(p), min(2.0 * float(adjusted), 1.0)
        trials += own
    return Regions(
        alpha=case.alpha,
        level=level,
        n=len(case),
        coverage=share_estimate(int(case.covered.sum()), len(case), level, case.target),
        found=_to_report(case, trials, level),
        n_tested=len(trials),
        columns=tuple(names),
    )


@final
@dataclass(eq=False)
class _Trial:
    """A region that was found on one half, to be tested on the other."""

    rule: Rule
    members: NDArray[np.bool_]
    searched: Codes
    tested: Codes
    found: tuple[float, float] = (1.0, 1.0)

    def counts(self, case: Audited, half: Codes) -> tuple[int, int]:
        """Samples of a half that lie in the region, and those covered."""
        own = self.members[half]
        return int(own.sum()), int(case.covered[half][own].sum())

    def p_value(self, case: Audited, tolerance: float) -> float:
        """The larger of the p-values of the binomial test and of Fisher's."""
        count, hits = self.counts(case, self.tested)
        total, misses = self.tested.size, int((~case.covered[self.tested]).sum())
        below_target = float(under_coverage(hits, count, case.alpha + tolerance))
        below_rest = float(stats.hypergeom.sf(count - hits - 1, total, misses, count))
        return max(below_target, below_rest)

    def region(self, case: Audited, level: float) -> Region:
        """The region with its numbers; `level` is that of its interval."""
        count, hits = self.counts(case, self.tested)
        n, all_hits = self.tested.size, int(case.covered[self.tested].sum())
        n_searched, searched_hits = self.counts(case, self.searched)
        missed = np.flatnonzero(self.members & ~case.covered)
        surest = np.argsort(-case.outputs.confidence[missed], kind="stable")[:_EXAMPLES]
        return Region(
            conditions=self.rule,
            share=float(self.members.mean()),
            count=count,
            covered=hits,
            coverage=share_estimate(hits, count, level, case.target),
            elsewhere=(all_hits - hits) / (n - count),
            searched=searched_hits / n_searched,
            p_value=self.found[0],
            adjusted=self.found[1],
            examples=missed[surest],
            members=np.flatnonzero(self.members),
        )


def _to_report(case: Audited, trials: list[_Trial], level: float) -> tuple[Region, ...]:
    """Significant regions, the smallest p-value first, without those that nearly repeat one."""
    chosen: list[_Trial] = []
    for trial in sorted(trials, key=lambda own: own.found[1]):
        repeats = any(_overlap(trial.members, own.members) > _OVERLAP for own in chosen)
        if trial.found[1] <= 1.0 - level and not repeats:
            chosen.append(trial)
    together = 1.0 - (1.0 - level) / max(len(trials), 1)
    return tuple(trial.region(case, together) for trial in chosen)


def _overlap(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """Shared samples over the samples of either."""
    return float((first & second).sum() / max(int((first | second).sum()), 1))


def _check(
    n: int, max_conditions: int, min_share: float, tolerance: float, target: float, level: float
) -> None:
    if n < 2 * _FEWEST:
        raise InputError(f"find_regions needs at least {2 * _FEWEST} samples; got {n}.")
    check_least(1, max_conditions=max_conditions)
    check_open(min_share=min_share)
    if not 0.0 <= tolerance < target:
        raise InputError(f"tolerance must be 0 or more and less than {target:g}; got {tolerance}.")
    check_open(level=level)
