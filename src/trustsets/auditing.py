"""Audits: coverage without a test set, and where it fails without naming the bins beforehand.

`audit` evaluates exact leave-one-out sets of the calibration samples. `find_regions` looks for
under-covered regions that a person can read: a few conditions, searched on one half of the samples
and tested on the other. `excess_risk` measures how well a classifier can predict which sets miss
the true class.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from trustsets._arrays import Codes, Flavour, Floats
from trustsets._frames import frame_of_rows
from trustsets._parameters import Open, Positive, check_alphas, check_arguments
from trustsets.errors import InputError
from trustsets.metrics import (
    Estimate,
    Evaluation,
    ExcessRisk,
    FrequencyBins,
    evaluate,
    excess_risk,
    holm,
    outcomes_of,
    share_estimate,
    under_coverage,
)
from trustsets.metrics.plain import LOCAL, PlainData
from trustsets.metrics.risk import Covariate, covariates, names_of, restrict
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor
from trustsets.sets import PredictionSets

__all__ = [
    "Condition",
    "ExcessRisk",
    "Region",
    "Regions",
    "audit",
    "excess_risk",
    "find_regions",
]

Bools = NDArray[np.bool_]
Rule = tuple["Condition", ...]

DEFAULT_KINDS = ("confidence", "trust", "groups", "predicted", "classes", "components")
# Regions searched for in each half.
_MAX_REGIONS = 5
# Regions that share more of their samples than this are one region to a reader.
_OVERLAP = 0.5
# Fewest searched samples of a region, and their smallest share.
_FEWEST = 20
_SMALLEST_SHARE = 0.02
# Principal components of the features that conditions may be about.
_COMPONENTS = 5
# Numbers may be divided at these shares of the searched samples; a division may move by a third
# of the distance to the next to have fewer digits.
_SHARES = np.arange(1, 16) / 16
_LEEWAY = 1 / 48
# Regions that are extended by one more condition, the best of each length.
_BEAM = 12


def audit(
    predictor: Predictor,
    alpha: float = 0.1,
    *,
    sets: PredictionSets | None = None,
    **options: Any,
) -> Evaluation:
    """Measure coverage without a test set: each calibration sample is left out once.

    Parameters
    ----------
    predictor : Predictor
        Calibrated in this process: files and copies do not hold the calibration samples. All
        labelled samples may have been used for calibration, as none are needed for a test.
    alpha : float
        Allowed miscoverage.
    sets : PredictionSets, optional
        ``predictor.leave_one_out(alpha)``, if it was called before.
    **options
        Options of `trustsets.evaluate`, such as ``metrics``, ``bins``, ``level``.

    Notes
    -----
    Intervals are those of the coverage of this predictor for new samples; for split conformal
    thresholds with continuous scores that is a theorem, for others it holds up to terms of order p
    / n for p basis functions. In groups, cells or classes that the predictor itself adjusts for,
    leave-one-out coverage is 1 - alpha by construction. Where something was learned from the
    calibration samples themselves, which ``predictor.summary()`` says, coverage is slightly
    overstated.

    Examples
    --------
    >>> import numpy as np
    >>> from trustsets import ModelOutputs, StandardConformal
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(1000, 5))
    >>> labels = (logits + rng.gumbel(size=(1000, 5))).argmax(axis=1)
    >>> outputs = ModelOutputs(logits=logits, labels=labels)
    >>> result = audit(StandardConformal().calibrate(outputs), alpha=0.1)
    >>> result.left_out, result.coverage.value, result.coverage.lower < 0.9
    (True, 0.9, True)
    """
    if not isinstance(predictor, Predictor):
        raise InputError(
            "predictor must be a calibrated predictor, such as "
            "StandardConformal().calibrate(ModelOutputs(logits=..., labels=...)); got "
            f"{type(predictor).__name__}."
        )
    alphas, is_single = check_alphas(alpha)
    if not is_single:
        raise InputError(f"alpha must be one number; got {alpha}. Audit one alpha after another.")
    outputs = predictor.calibration_
    sets = predictor.leave_one_out(alpha) if sets is None else sets
    if isinstance(sets, PredictionSets) and not np.array_equal(sets.alpha, alphas[0]):
        raise InputError(f"sets must be those at alpha={alpha}; they are at {sets.alpha}.")
    bins = options.get("bins")
    if bins is None or isinstance(bins, Mapping):
        frequency = {"conf_frequency": FrequencyBins(predictor.class_counts_)}
        options["bins"] = frequency | dict(bins or {})
    result = evaluate(sets, outputs, **options)
    return replace(result, left_out=True, n_calibration=predictor.n_calibration_)


# ---- Regions ----------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Condition:
    """One condition on one column: ``above < x <= at_most``, or ``x`` is the category.

    NaN stands for an end that the interval does not have.
    """

    name: str
    above: float = math.nan
    at_most: float = math.nan
    category: str | None = None

    def __str__(self) -> str:
        if self.category is not None:
            return f"{self.name} is {self.category}"
        ends = {"above": self.above, "at most": self.at_most}
        # All digits, so that the words are the condition itself.
        parts = [
            f"{words} {repr(end).removesuffix('.0')}"
            for words, end in ends.items()
            if not math.isnan(end)
        ]
        return f"{self.name} is {' and '.join(parts)}"

    def holds(self, column: Covariate) -> Bools:
        """Whether each value of its column satisfies the condition."""
        if self.category is not None:
            if self.category not in column.levels:
                return np.zeros(column.values.size, dtype=bool)
            same: Bools = column.values == column.levels.index(self.category)
            return same
        # Comparisons with NaN are false, so an end that is not there excludes no value.
        outside = (column.values <= self.above) | (column.values > self.at_most)
        return ~outside


def inside(rule: Rule, columns: Sequence[Covariate]) -> Bools:
    """Samples that satisfy every condition, shape (n,)."""
    by_name = {column.name: column for column in columns}
    members: Bools = np.all([item.holds(by_name[item.name]) for item in rule], axis=0)
    return members


@final
@dataclass(frozen=True, eq=False)
class Region(PlainData):
    """One region whose coverage is below 1 - alpha: all its conditions hold.

    Attributes
    ----------
    share, elsewhere : float
        Share of all samples in the region; coverage of the tested samples outside it.
    count, covered, coverage : int, int, Estimate
        Samples of the region that were tested, those whose set contains the true class, and their
        share. The intervals of all tested regions hold together at the level.
    p_value, adjusted : float
        The larger of two exact p-values (below 1 - alpha; below the coverage elsewhere), and the
        same adjusted for all tested regions.
    members : int array, or None
        Positions of its samples; not kept in JSON.
    """

    conditions: tuple[Condition, ...]
    share: float
    count: int
    covered: int
    coverage: Estimate
    elsewhere: float
    p_value: float
    adjusted: float
    members: Codes | None = field(default=None, repr=False, metadata=LOCAL)

    @property
    def name(self) -> str:
        """The conditions in words."""
        return ", and ".join(str(item) for item in self.conditions)

    @property
    def sentence(self) -> str:
        """The region in plain words."""
        share = self.coverage
        return (
            f"Where {self.name} ({self.share:.1%} of samples), {share.value:.1%} of the sets "
            f"contain the true class (interval {share.lower:.1%} to {share.upper:.1%}, "
            f"{self.count:,} samples tested), against a target of {share.floor:.4g} and "
            f"{self.elsewhere:.1%} elsewhere."
        )


@final
@dataclass(frozen=True, eq=False, repr=False)
class Regions(PlainData):
    """Under-covered regions of one method, those of most evidence first.

    `coverage` is that of all n samples, `n_tested` the number of regions tested in both halves
    together, and `columns` are what conditions could be about.
    """

    alpha: float
    level: float
    n: int
    coverage: Estimate
    regions: tuple[Region, ...]
    n_tested: int
    columns: tuple[str, ...]

    def __repr__(self) -> str:
        names = "; ".join(region.name for region in self.regions)
        return f"Regions(n={self.n}, alpha={self.alpha:g}, found={len(self.regions)}: {names})"

    def __len__(self) -> int:
        return len(self.regions)

    def summary(self) -> str:
        """What was found, in plain words."""
        total = self.coverage
        lines = [
            f"Of all {self.n:,} sets, {total.value:.1%} contain the true class (interval "
            f"{total.lower:.1%} to {total.upper:.1%}); the target is {total.floor:.4g}."
        ]
        if not self.regions:
            lines.append(
                "No region was found whose coverage is significantly lower, among regions of a few "
                f"conditions on {', '.join(self.columns)}."
            )
        return "\n".join([*lines, *(region.sentence for region in self.regions)])

    def to_frame(self, flavour: Flavour | None = None) -> Any:
        """One row per region."""
        names = "region share count covered coverage lower upper elsewhere p_value adjusted"
        rows = []
        for item in self.regions:
            share = {"coverage": item.coverage.value, "region": item.name}
            ends = {"lower": item.coverage.lower, "upper": item.coverage.upper}
            rows.append({name: getattr(item, name, None) for name in names.split()} | share | ends)
        return frame_of_rows(rows, flavour, columns=names.split())


def find_regions(
    sets: PredictionSets | Any,
    outputs: ModelOutputs,
    *,
    alpha: float | None = None,
    by: Sequence[str] | None = None,
    max_conditions: int = 2,
    level: float = 0.95,
    seed: int = 0,
) -> Regions:
    """Search for regions where coverage is below 1 - alpha, and test them on other samples.

    Parameters
    ----------
    sets : PredictionSets, or bool array of shape (n,)
        Sets of n samples at one alpha, or whether each set contains the true class. Test
        samples, or calibration samples with their leave-one-out sets.
    outputs : ModelOutputs
        The same samples, with trust, features and groups where they are known.
    alpha : float, optional
        Miscoverage that was asked for, where `sets` is an array.
    by : sequence of str, optional
        What conditions may be about, among ``confidence``, ``trust``, ``entropy``, ``margin``,
        ``sizes``, ``groups``, ``predicted``, ``classes`` (the true class, with groups only) and
        ``components``. Default: all that the data allow but entropy, margin and sizes.
    max_conditions : int
        Most conditions of a region.
    level : float
        One minus the probability of any false positive.
    seed : int
        Random state of the halves.

    Notes
    -----
    Regions are searched on each of two random halves and tested on the other. A region R is
    reported if two null hypotheses are rejected: *R is covered, given this calibration* (exact
    binomial test), and *R is no worse than the rest* (Fisher's exact test). Holm's correction at
    half of ``1 - level`` for each direction bounds the probability of any false positive by ``1 -
    level``.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(4000, 5))
    >>> site = rng.choice(["north", "south", "west"], size=4000)
    >>> outputs = ModelOutputs(logits=logits, groups={"site": site})
    >>> covered = rng.random(4000) < np.where(site == "west", 0.75, 0.95)
    >>> regions = find_regions(covered, outputs, alpha=0.1)
    >>> [region.name for region in regions.regions]
    ['site is west']
    """
    covered, sizes, alpha = outcomes_of(sets, outputs, alpha)
    n, target = covered.size, 1.0 - alpha
    if n < 2 * _FEWEST:
        raise InputError(f"find_regions needs at least {2 * _FEWEST} samples; got {n}.")
    check_arguments(Positive, max_conditions=max_conditions)
    check_arguments(Open, level=level)
    first, second = outputs.split_indices(0.5, seed)
    names: dict[str, None] = {}
    trials: list[_Trial] = []
    for searched, tested in ((first, second), (second, first)):
        columns = covariates(outputs, sizes, by, DEFAULT_KINDS, _COMPONENTS, searched)
        names |= dict.fromkeys(names_of(columns))
        rules = search_regions(
            restrict(columns, searched),
            covered[searched],
            target,
            max_conditions=max_conditions,
            fewest=max(_FEWEST, math.ceil(_SMALLEST_SHARE * searched.size)),
        )
        members = [inside(rule, columns) for rule in rules]
        p_values = np.array([_p_value(m, covered, tested, alpha) for m in members])
        # Each direction has half of the allowed probability.
        adjusted = np.minimum(2.0 * holm(p_values), 1.0)
        trials += [
            _Trial(*trial, tested)
            for trial in zip(rules, members, p_values.tolist(), adjusted.tolist(), strict=True)
        ]
    # Intervals of all tested regions hold together (Bonferroni).
    together = 1.0 - (1.0 - level) / max(len(trials), 1)
    reported = _without_repeats([trial for trial in trials if trial.adjusted <= 1.0 - level])
    return Regions(
        alpha=alpha,
        level=level,
        n=n,
        coverage=share_estimate(int(covered.sum()), n, level, target),
        regions=tuple(_region(trial, covered, together, target) for trial in reported),
        n_tested=len(trials),
        columns=tuple(names),
    )


@final
@dataclass(frozen=True, eq=False)
class _Trial:
    """A region that was found on one half and tested on the other."""

    rule: Rule
    members: Bools
    p_value: float
    adjusted: float
    tested: Codes


def _p_value(members: Bools, covered: Bools, tested: Codes, alpha: float) -> float:
    """The larger of the p-values of the binomial test and of Fisher's."""
    region, hits = members[tested], covered[tested]
    count, covered_count = int(region.sum()), int(hits[region].sum())
    below_target = float(under_coverage(covered_count, count, alpha))
    misses = int((~hits).sum())
    below_rest = float(stats.hypergeom.sf(count - covered_count - 1, tested.size, misses, count))
    return max(below_target, below_rest)


def _without_repeats(trials: list[_Trial]) -> list[_Trial]:
    """Those of most evidence first, without those that nearly repeat an earlier one."""
    chosen: list[_Trial] = []
    for trial in sorted(trials, key=lambda item: item.adjusted):
        shared = [(trial.members & item.members).sum() for item in chosen]
        either = [(trial.members | item.members).sum() for item in chosen]
        if all(a <= _OVERLAP * b for a, b in zip(shared, either, strict=True)):
            chosen.append(trial)
    return chosen


def _region(trial: _Trial, covered: Bools, level: float, target: float) -> Region:
    """A tested region with its numbers; `level` is that of its interval."""
    tested, hits = trial.members[trial.tested], covered[trial.tested]
    count, covered_count = int(tested.sum()), int(hits[tested].sum())
    return Region(
        conditions=trial.rule,
        share=float(trial.members.mean()),
        count=count,
        covered=covered_count,
        coverage=share_estimate(covered_count, count, level, target),
        elsewhere=(int(hits.sum()) - covered_count) / (hits.size - count),
        p_value=trial.p_value,
        adjusted=trial.adjusted,
        members=np.flatnonzero(trial.members),
    )


def evidence(count: Floats, covered: Floats, target: float) -> Floats:
    """Chernoff's bound on minus the log p-value: ``n KL(c || target)`` at coverage c below it."""
    share = covered / np.maximum(count, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        hits = np.where(share > 0.0, share * np.log(share / target), 0.0)
        misses = np.where(share < 1.0, (1.0 - share) * np.log((1.0 - share) / (1.0 - target)), 0.0)
    return np.where(share < target, count * (hits + misses), 0.0)


def search_regions(
    columns: Sequence[Covariate],
    covered: Bools,
    target: float,
    *,
    max_conditions: int,
    fewest: int,
) -> list[Rule]:
    """Regions that look worst, the worst first, each among the samples of no earlier one.

    The worst region has the most evidence after a correction for the number of regions of so
    many conditions. The first is always returned, others only while the evidence exceeds the
    correction.
    """
    candidates = _Candidates(columns, fewest)
    left = np.ones(covered.size, dtype=bool)
    rules: list[Rule] = []
    for _ in range(_MAX_REGIONS):
        # A calibration that came out low lowers all regions alike, which is no region.
        reference = min(target, float(covered[left].mean())) if left.any() else 0.0
        if not 0.0 < reference:
            break
        best = candidates.worst(left, covered, reference, max_conditions, fewest)
        if best is None or (rules and best[1] <= 0.0):
            break
        rules.append(_merged(candidates.conditions[number] for number in best[0]))
        if best[1] <= 0.0:
            break
        left &= ~inside(rules[-1], columns)
    return rules


class _Candidates:
    """Every single condition, and the searched samples that satisfy it."""

    def __init__(self, columns: Sequence[Covariate], fewest: int) -> None:
        self.conditions: list[Condition] = []
        self.kinds: list[str] = []
        masks = []
        for column in columns:
            for condition in _conditions(column, fewest):
                self.conditions.append(condition)
                self.kinds.append(column.kind)
                masks.append(condition.holds(column))
        self.masks = np.array(masks, dtype=np.float32).reshape(len(masks), -1)

    def worst(
        self, left: Bools, covered: Bools, target: float, max_conditions: int, fewest: int
    ) -> tuple[tuple[int, ...], float] | None:
        """Numbers of the conditions of the worst region, and its evidence after correction."""
        if not self.conditions:
            return None
        correction = math.log(len(self.conditions))
        best: tuple[tuple[int, ...], float] | None = None
        beam: list[tuple[int, ...]] = [()]
        for length in range(1, max_conditions + 1):
            grown = self._grow(beam, left, covered, target, fewest)
            if not grown:
                break
            beam = [rule for rule, _ in grown]
            if best is None or grown[0][1] - length * correction > best[1]:
                best = (beam[0], grown[0][1] - length * correction)
        return best

    def _grow(
        self,
        beam: list[tuple[int, ...]],
        left: Bools,
        covered: Bools,
        target: float,
        fewest: int,
    ) -> list[tuple[tuple[int, ...], float]]:
        """The best regions with one condition more, with their evidence, the best first."""
        masks = np.array([self.masks[list(rule)].min(axis=0, initial=1.0) for rule in beam]) * left
        # Sums of zeros and ones below 2**24 are exact in single precision.
        count = (masks @ self.masks.T).astype(np.float64)
        hits = ((masks * covered) @ self.masks.T).astype(np.float64)
        gain = evidence(count, hits, target)
        # A condition that excludes no sample only makes the region longer.
        whole = masks.sum(axis=1, dtype=np.float64)[:, None]
        gain[(count < fewest) | ((count == whole) & (len(beam[0]) > 0))] = -1.0
        grown: dict[tuple[int, ...], float] = {}
        for flat in np.argsort(-gain, axis=None, kind="stable"):
            row, number = divmod(int(flat), len(self.conditions))
            if gain[row, number] <= 0.0 or len(grown) == _BEAM:
                break
            rule = tuple(sorted({*beam[row], number}))
            if self._may_combine(rule):
                grown.setdefault(rule, float(gain[row, number]))
        return list(grown.items())

    def _may_combine(self, rule: tuple[int, ...]) -> bool:
        """Whether the conditions may stand together."""
        # The true class stands with groups only: together with the confidence or the predicted
        # class it says that the prediction is wrong, and every method misses more of those.
        kinds = {self.kinds[number] for number in rule}
        return "classes" not in kinds or kinds <= {"classes", "groups"}


def _conditions(column: Covariate, fewest: int) -> Iterator[Condition]:
    """All conditions on one column that hold for `fewest` samples or more."""
    if column.levels:
        counts = np.bincount(column.values.astype(np.int64), minlength=len(column.levels))
        for code in np.flatnonzero(counts >= fewest).tolist():
            yield Condition(column.name, category=column.levels[code])
        return
    for cut in _cuts(column.values):
        yield Condition(column.name, at_most=cut)
        yield Condition(column.name, above=cut)


def _cuts(values: Floats) -> list[float]:
    """Numbers with few digits that divide the values at about the shares `_SHARES`."""
    ordered = np.sort(values)
    cuts = set()
    for share in _SHARES:
        ends = np.array([share - _LEEWAY, share, share + _LEEWAY]) * (ordered.size - 1)
        low, middle, high = ordered[np.rint(ends).astype(np.int64)].tolist()
        if math.isfinite(middle):
            cuts.add(_shortest(low, middle, high))
    return sorted(cut for cut in cuts if ordered[0] <= cut < ordered[-1])


def _shortest(low: float, middle: float, high: float) -> float:
    """The middle, rounded to as few digits as keep it between low and high."""
    rounded = (float(f"{middle:.{digits}g}") for digits in range(1, 17))
    return next((number for number in rounded if low <= number <= high), middle)


def _merged(conditions: Iterator[Condition]) -> Rule:
    """Join two ends on the same column into one condition."""
    joined: dict[str, Condition] = {}
    for item in conditions:
        earlier = joined.get(item.name)
        if earlier is None:
            joined[item.name] = item
            continue
        joined[item.name] = replace(
            earlier,
            above=float(np.fmax(earlier.above, item.above)),
            at_most=float(np.fmin(earlier.at_most, item.at_most)),
        )
    return tuple(joined.values())
