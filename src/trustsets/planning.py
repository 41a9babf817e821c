"""How many samples to calibrate on and to test on.

The coverage of a split conformal predictor depends on its n calibration samples. With scores that
have no ties the miss rate has the law Beta(l, m - l) with m = n + 1 and l = floor(m alpha) (Vovk
2012), and of test samples a Beta-binomial number is missed. `plan` turns these laws into sample
sizes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from numbers import Real
from typing import Annotated, Any, final

import numpy as np
from scipy import special

from trustsets._arrays import Array, Codes, Flavour, Floats, to_numpy
from trustsets._frames import frame_of_rows
from trustsets._parameters import Open, check_alpha, check_arguments, whole
from trustsets.errors import InputError
from trustsets.metrics import PlainData, missed_at_least
from trustsets.outputs import ModelOutputs, require_outputs

__all__ = ["CoverageLaw", "Plan", "PlanRow", "plan", "size_of_test"]

Shares = Mapping[Any, float] | Sequence[float]

SIGNIFICANCE = 0.05
# Numbers of misses beyond the first of enough power that must have it, too.
STEPS_AHEAD = 8
"""How often the test of an evaluation calls a valid predictor's coverage too low, at most."""
TUNING_SHARE = 0.2
"""Largest share of its samples that the default `ConditionalConformal` sets aside for tuning."""
MOST_SAMPLES = 10**7
"""Larger numbers of samples are refused."""

# Rounding of shares and of quotients by them.
_ROUNDING = 1e-6
# So many blocks of sizes are looked at. If the last one fails, the last that fails is found by
# bisection, and as many after it are looked at too: whole numbers make the value of a block wobble.
_SCANNED_BLOCKS = 4096
_SMALLEST_STEP = 1e-12


def plan(
    alpha: float = 0.1,
    within: float = 0.02,
    probability: float = 0.95,
    *,
    n: int | None = None,
    groups: Shares | None = None,
    classes: Shares | None = None,
    outputs: ModelOutputs | None = None,
) -> "Plan":
    """How many samples to calibrate on, and to test on.

    `plan` gives the size from which on, at every larger size too, coverage is within the tolerance
    with the probability. Tuning samples, which the default `ConditionalConformal` sets aside, come
    on top: `Plan.with_tuning`. The law is that of split conformal sets of scores without ties; ties
    and ``allow_empty=False`` can only add coverage. ``print`` shows the plan in sentences.

    Parameters
    ----------
    alpha : float
        Allowed miscoverage.
    within : float
        Tolerance: coverage should be at most so far from 1 - alpha, up or down. An evaluation
        should see a gap as large; `size_of_test` is for other gaps.
    probability : float
        How likely it should be within the tolerance, and an evaluation should see the gap.
    n : int, optional
        Calibration samples there are; by default those of `outputs`.
    groups, classes : mapping of names to shares, or sequence of shares, optional
        Groups or classes that should each be within the tolerance, and their shares of the samples;
        by default those of `outputs`. The sizes hold where each has a threshold of its own
        (`MondrianConformal`) or an indicator among the basis functions.
    outputs : ModelOutputs, optional
        Labelled samples, which give shares and sizes.

    Examples
    --------
    >>> sizes = plan(alpha=0.1, within=0.02, probability=0.95, n=500)
    >>> sizes.needed, round(sizes.rows[0].probability, 3)
    (854, 0.867)
    >>> plan(classes={"common": 0.9, "rare": 0.1}).rows[2].in_all
    8540
    """
    alpha = check_alpha(alpha)
    check_arguments(Open, within=within, probability=probability)
    if within >= 1.0 - alpha:
        raise InputError(f"within must be less than the coverage {1.0 - alpha:g}; got {within:g}.")
    if n is not None:
        check_arguments(Annotated[int, whole(1, MOST_SAMPLES)], n=n)
    outputs = None if outputs is None else require_outputs(outputs, "outputs")
    shares = _shares_of_parts(groups, classes, outputs)
    total = len(outputs) if n is None and outputs is not None else n

    needed = cache(CoverageLaw.needed)
    test = cache(size_of_test)

    def row(part: str, share: float, law: CoverageLaw) -> PlanRow:
        enough = needed(law, within, probability)
        present = None if total is None else round(total * share)
        reached, ends = math.nan, (math.nan, math.nan)
        if present is not None:
            reached = float(law.probability(np.array([present]), within)[0])
            ends = law.interval(present, probability)
        # A part is tested as it is planned; for all samples, those beyond the plan count too.
        calibrated = enough if share < 1.0 else max(enough, present or 0)
        tested, misses = test(law, calibrated, within, probability) or (None, None)
        return PlanRow(
            part=part,
            share=share,
            needed=enough,
            in_all=_in_all(enough, share),
            present=present,
            probability=reached,
            lower=ends[0],
            upper=ends[1],
            calibrated=calibrated,
            test=tested,
            misses=misses,
        )

    law = CoverageLaw(alpha)
    rows = [row(name, share, law) for name, share in {"all samples": 1.0, **shares}.items()]
    return Plan(alpha, within, probability, tuple(rows))


def _in_all(needed: int, share: float) -> int:
    """Samples in all of which a part has so many in expectation."""
    if needed > MOST_SAMPLES * share:
        raise InputError(
            f"a share of {share:g} needs more than {MOST_SAMPLES:.0e} samples in all; leave out "
            "groups and classes as rare as that."
        )
    return math.ceil(needed / share - _ROUNDING)


def _shares_of_parts(
    groups: Shares | None, classes: Shares | None, outputs: ModelOutputs | None
) -> dict[str, float]:
    """Shares of groups and classes, as given or as in the outputs, by name."""
    shares: dict[str, float] = {}
    if groups is not None:
        shares |= _check_shares(groups, "groups", "group")
    elif outputs is not None:
        for column, values in outputs.groups.items():
            shares |= _observed_shares(values, f"{column} =")
    if classes is not None:
        shares |= _check_shares(classes, "classes", "class")
    elif outputs is not None and outputs.labels is not None:
        shares |= _observed_shares(outputs.labels, "class")
    return shares


def _observed_shares(values: Array, word: str) -> dict[str, float]:
    names, counts = np.unique(values.astype(str), return_counts=True)
    pairs = zip(names.tolist(), counts.tolist(), strict=True)
    return {f"{word} {name}": count / values.size for name, count in pairs}


def _check_shares(shares: Shares, name: str, word: str) -> dict[str, float]:
    named = (
        shares
        if isinstance(shares, Mapping)
        else dict(enumerate(np.atleast_1d(to_numpy(shares, name))))
    )
    checked: dict[str, Any] = {f"{word} {part}": share for part, share in named.items()}
    positive = all(isinstance(s, Real) and 0.0 < float(s) <= 1.0 for s in checked.values())
    if not positive or sum(checked.values()) > 1.0 + _ROUNDING:
        raise InputError(f"{name} must be shares in (0, 1] that add up to 1 at most; got {shares}.")
    return {part: float(share) for part, share in checked.items()}


@final
@dataclass(frozen=True)
class PlanRow:
    """Sizes for all samples, or for those of one group or class.

    Attributes
    ----------
    part, share : str, float
        ``"all samples"``, or a group or class by name, and its share of the samples.
    needed, in_all : int
        Calibration samples that are needed of this part, and in all so that it has as many in
        expectation.
    present : int, optional
        Calibration samples there are, or are expected, of this part.
    probability, lower, upper : float
        Probability that its coverage is within the tolerance with these, and interval of its
        coverage; NaN without.
    calibrated, test, misses : int, optional
        For a test after calibration on so many samples of this part: test samples of it that show
        the gap, and the number of misses from which on they do; None where no test tells the gap
        from the variability of the calibration.
    """

    part: str
    share: float
    needed: int
    in_all: int
    present: int | None
    probability: float
    lower: float
    upper: float
    calibrated: int
    test: int | None
    misses: int | None


@final
@dataclass(frozen=True)
class Plan(PlainData):
    """How many samples to calibrate and to test on; `plan` makes it.

    The first of the `rows` is for all samples, the others are for groups and classes.
    """

    alpha: float
    within: float
    probability: float
    rows: tuple[PlanRow, ...]

    def __str__(self) -> str:
        return self.summary()

    @property
    def needed(self) -> int:
        """Calibration samples that suffice for all samples together."""
        return self.rows[0].needed

    @property
    def with_tuning(self) -> int:
        """Samples for ``calibrate`` of the default `ConditionalConformal`, tuning included."""
        return math.ceil(self.needed / (1.0 - TUNING_SHARE))

    def to_frame(self, flavour: Flavour | None = None) -> Any:
        """One row for all samples and for each group and class."""
        return frame_of_rows([vars(row) for row in self.rows], flavour)

    def summary(self) -> str:
        """Say the plan in sentences."""
        lines = [self._goal(), self._present(), self._parts(), self._test()]
        return "\n".join(line for line in lines if line)

    def _goal(self) -> str:
        ends = (1.0 - self.alpha - self.within, min(1.0 - self.alpha + self.within, 1.0))
        return (
            f"Sets at alpha={self.alpha:g} have a marginal coverage of "
            f"{_percent(1.0 - self.alpha)}; that of one calibrated predictor varies with its "
            f"calibration samples. Calibrate on {self.needed:,} samples or more, and coverage "
            f"is between {_percent(ends[0])} and {_percent(ends[1])} with probability "
            f"{_percent(self.probability)}. Tuning samples are not among them: the default "
            f"ConditionalConformal sets up to {_percent(TUNING_SHARE)} of its samples aside, so "
            f"give it {self.with_tuning:,}."
        )

    def _present(self) -> str:
        row = self.rows[0]
        if row.present is None:
            return ""
        smallest = CoverageLaw(self.alpha).smallest
        if row.present < smallest:
            return (
                f"You have {row.present:,}, with which every set must be full: at least "
                f"{smallest:,} samples are needed at alpha={self.alpha:g}."
            )
        likely = "above 99.99%" if row.probability > 0.9999 else _percent(row.probability)
        return (
            f"You have {row.present:,}: coverage will be between {_percent(row.lower)} and "
            f"{_percent(row.upper)} with probability {_percent(self.probability)}, and within the "
            f"tolerance with probability {likely}."
        )

    def _parts(self) -> str:
        if len(self.rows) == 1:
            return ""
        hardest = max(self.rows[1:], key=lambda row: row.in_all)
        counts = [(row.present, row.needed) for row in self.rows[1:] if row.present is not None]
        text = (
            "Where each group or class has its own guarantee, each of them needs "
            f"{hardest.needed:,} samples of its own. The rarest, {hardest.part} "
            f"({_percent(hardest.share)} of all samples), has them on average if there are "
            f"{hardest.in_all:,} in all."
        )
        if counts:
            few = sum(present < needed for present, needed in counts)
            text += f" {few:,} of {len(counts):,} groups and classes have too few now."
        return text

    def _test(self) -> str:
        row, gap = self.rows[0], f"{100.0 * self.within:.3g} percentage points"
        if row.test is None:
            return (
                f"No test tells a coverage that is {gap} too low from that of a valid predictor "
                f"that was calibrated on {row.calibrated:,} samples, which varies as much. "
                "Calibrate on more samples, or look for a larger gap."
            )
        return (
            f"To see in an evaluation that coverage is {gap} too low, test on {row.test:,} other "
            f"samples or more; of {row.test:,}, {row.misses:,} misses or more show it. Such a gap "
            f"is then found with probability {_percent(self.probability)}, and a valid predictor "
            f"that was calibrated on {row.calibrated:,} samples is called bad with probability "
            f"{_percent(SIGNIFICANCE)} at most."
        )


def _percent(share: float) -> str:
    """A share in percent with three digits, near 1 three digits of what is missing.

    Examples
    --------
    >>> _percent(0.9), _percent(0.8734), _percent(0.99996), _percent(1.0), _percent(0.00021)
    ('90%', '87.3%', '99.996%', '100%', '0.021%')
    """
    if 0.99 < share < 1.0 - _SMALLEST_STEP:
        digits = 2 - math.floor(math.log10(100.0 * (1.0 - share)))
        return f"{100.0 * share:.{digits}f}".rstrip("0") + "%"
    return f"{100.0 * share:.3g}%"


@final
@dataclass(frozen=True)
class CoverageLaw:
    """How coverage at `alpha` varies from one calibration set to the next."""

    alpha: float

    @cached_property
    def fraction(self) -> Fraction:
        """Alpha as the decimal number it prints as."""
        return Fraction(repr(self.alpha))

    @property
    def smallest(self) -> int:
        """Fewest calibration samples with which a set can leave out a class."""
        return min(-(-self.fraction.denominator // self.fraction.numerator), MOST_SAMPLES) - 1

    def probability(self, n: Codes, within: float) -> Floats:
        """Probability that coverage is at most `within` away from 1 - alpha, at each n.

        It is 0 where n is under `smallest`: the sets are full, and their coverage says nothing.
        """
        a, b = self.miss_law(n)
        below = special.betaincc(a, b, min(self.alpha + within, 1.0))
        above = special.betainc(a, b, max(self.alpha - within, 0.0))
        return np.where(a > 0.5, np.maximum(1.0 - below - above, 0.0), 0.0)

    def interval(self, n: int, probability: float) -> tuple[float, float]:
        """Interval that contains the coverage with this probability; both tails are equal."""
        if n < self.smallest:
            return 1.0, 1.0
        tail = (1.0 - probability) / 2.0
        low, high = special.betaincinv(*self.miss_law(np.array([n])), [1.0 - tail, tail])
        return 1.0 - float(low), 1.0 - float(high)

    def needed(self, within: float, probability: float) -> int:
        """Size from which on coverage is within the tolerance with the probability, at every n.

        The probability rises and falls with n, as l = floor(m alpha) stays the same for a block of
        about 1 / alpha sizes. For fixed l the miss rate is of an exponential family in m, so that
        the probability of an interval first rises and then falls (Karlin 1968). Its smallest value
        in a block is thus at one of the two ends.
        """
        most_blocks = int(self._misses(np.array([MOST_SAMPLES]))[0])

        def fails(blocks: Any) -> Any:
            return self._lowest(np.atleast_1d(blocks), within) < probability

        if most_blocks < 1 or fails(most_blocks):
            raise InputError(
                f"within={within:g} with probability {probability:g} at alpha={self.alpha:g} needs "
                f"more than {MOST_SAMPLES:.0e} samples; ask for a larger within, a lower "
                "probability, or a larger alpha."
            )
        scanned = np.flatnonzero(fails(np.arange(1, min(_SCANNED_BLOCKS, most_blocks) + 1)))
        block = 0 if scanned.size == 0 else int(scanned[-1]) + 1
        if block == _SCANNED_BLOCKS:
            block = _last_where(lambda number: bool(fails(number)), block, most_blocks)
        while (after := np.flatnonzero(fails(block + np.arange(1, _SCANNED_BLOCKS + 1)))).size:
            block += int(after[-1]) + 1
        if block == 0:
            return self.smallest
        first, last = (self._first(np.array([block, block + 1])) - [1, 2]).tolist()
        # In the block that fails last, all sizes suffice from some size on, or its end fails.
        return 1 + _last_where(
            lambda n: bool(self.probability(np.array([n]), within)[0] < probability), first, last
        )

    def _lowest(self, blocks: Codes, within: float) -> Floats:
        """Lowest probability at any of the sizes of each block."""
        ends = np.stack([self._first(blocks) - 1, self._first(blocks + 1) - 2])
        return np.asarray(self.probability(ends, within).min(axis=0))

    def miss_law(self, n: Codes) -> tuple[Floats, Floats]:
        """Parameters l and m - l of the Beta law of the miss rate; l of about 0 for full sets."""
        misses = np.maximum(self._misses(n + 1), _SMALLEST_STEP, dtype=np.float64)
        return misses, np.asarray(n + 1 - misses)

    def _misses(self, m: Codes) -> Codes:
        """``floor(m alpha)`` in exact arithmetic."""
        top, bottom = self.fraction.numerator, self.fraction.denominator
        return _exact(m, lambda number: number * top // bottom)

    def _first(self, blocks: Codes) -> Codes:
        """Smallest m of each block of sizes with the same l, or just beyond those in use."""
        top, bottom = self.fraction.numerator, self.fraction.denominator
        return _exact(blocks, lambda block: min(-(-block * bottom // top), 2 * MOST_SAMPLES))


def _exact(numbers: Codes, function: Callable[[int], int]) -> Codes:
    """A function of whole numbers, in Python's integers, which never overflow."""
    values = [function(number) for number in numbers.ravel().tolist()]
    return np.array(values, dtype=np.int64).reshape(numbers.shape)


def size_of_test(law: CoverageLaw, n: int, gap: float, power: float) -> tuple[int, int] | None:
    """Test samples from which on an evaluation sees that coverage is lower by `gap`.

    The test, which is that of `trustsets.metrics.check_guarantee`, calls coverage too low from t
    misses on, where t is the smallest number that a valid predictor, calibrated on n samples,
    reaches with probability 5% at most. A predictor whose miss rate is alpha + gap
    reaches it with probability `power` at least, at every larger size too. Returns the number of
    test samples and t; None where the coverage of a valid predictor varies as much as `gap`.

    Examples
    --------
    >>> size_of_test(CoverageLaw(0.1), n=10_000, gap=0.02, power=0.9)
    (2459, 275)
    """
    if not 0.0 < gap < 1.0 - law.alpha:
        raise InputError(f"the gap must be > 0 and less than {1.0 - law.alpha:g}; got {gap}.")
    a, b = (float(end[0]) for end in law.miss_law(np.array([n])))
    rate = law.alpha + gap
    if n < law.smallest or special.betaincc(a, b, rate) >= SIGNIFICANCE:
        return None

    def is_significant(misses: int, samples: int) -> bool:
        return missed_at_least(misses, samples, a, b) <= SIGNIFICANCE

    def first_size(misses: int) -> int:
        """Fewest samples of which fewer misses than these are not significant."""
        fewer = misses - 1
        if fewer < 1 or not is_significant(fewer, fewer):
            return misses
        return 1 + _last_where(lambda samples: is_significant(fewer, samples), fewer, MOST_SAMPLES)

    def lacks_power(misses: int) -> bool:
        """Whether the power is too low at any of the sizes at which so many misses are needed."""
        if not is_significant(misses, misses):
            return True  # not even if all are missed
        samples = first_size(misses)  # for t misses the power rises with the number of samples
        return bool(special.betainc(misses, samples - misses + 1.0, rate) < power)

    high = 1
    while lacks_power(high):
        high *= 2
        if high > rate * MOST_SAMPLES:
            return None
    misses = 1 + _last_where(lacks_power, high // 2, high) if high > 1 else 1
    # The power does not rise at every step, so the next ones must have it, too.
    while any(map(lacks_power, range(misses, misses + STEPS_AHEAD))):
        misses += 1
    return first_size(misses), misses


def _last_where(fails: Callable[[int], bool], low: int, high: int) -> int:
    """Last number of low..high that fails, by bisection: all after it do not, and `low` does."""
    if fails(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fails(middle) else (low, middle)
    return low
