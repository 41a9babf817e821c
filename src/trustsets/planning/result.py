"""What `plan` returns: sizes, words, a table and a plot."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from trustsets._common.arrays import Floats
from trustsets._common.frames import Flavour, frame_of_rows
from trustsets.metrics.inference import Ints
from trustsets.metrics.plain import PlainData
from trustsets.planning.law import CoverageLaw
from trustsets.planning.simulation import Curve
from trustsets.plots import HALF_WIDTH, method_colour, styled, theme_colour, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SIGNIFICANCE", "Plan", "PlanRow", "plot_data"]

SIGNIFICANCE = 0.05
"""How often the test of an evaluation calls coverage too low by mistake, at most."""
# Points of the drawn law, and how far beyond the sizes that matter it goes.
_POINTS = 200
_BEYOND = 3.0
# Groups and classes that are drawn, those of the lowest coverage.
_MOST_DRAWN = 3
_ROUNDING = 1e-12


@final
@dataclass(frozen=True)
class PlanRow:
    """Sizes for all samples, or for those of one group or class.

    Attributes
    ----------
    part : str
        ``"all samples"``, or a group or class by name.
    share : float
        Its share of the samples.
    needed, in_all : int
        Calibration samples that are needed of this part, and in all so that it has enough.
    present : int, optional
        Calibration samples there are, or are expected, of this part.
    probability : float
        Probability that its coverage is within the tolerance with these; NaN without.
    lower, upper : float
        Interval that its coverage lies in with the probability that was asked for; NaN without.
    test, test_in_all : int
        Test samples of this part, and in all, that an evaluation needs to see the gap.
    """

    part: str
    share: float
    needed: int
    in_all: int
    present: int | None
    probability: float
    lower: float
    upper: float
    test: int
    test_in_all: int


@final
@dataclass(frozen=True)
class Plan(PlainData):
    """How many samples to calibrate and to test on; `plan` makes it.

    Attributes
    ----------
    alpha, within, probability : float
        What was asked for: coverage of 1 - alpha, up to `within`, with this probability.
    gap : float
        Lack of coverage that an evaluation should see.
    functions, penalty : int, float
        Basis functions, and penalty of groups and classes, in calibration samples.
    rows : tuple of PlanRow
        All samples first, then groups and classes.
    curve : Curve, optional
        What calibration sets drawn from the user's own outputs gave.
    """

    alpha: float
    within: float
    probability: float
    gap: float
    functions: int
    penalty: float
    rows: tuple[PlanRow, ...]
    curve: Curve | None = None

    def __str__(self) -> str:
        return self.summary()

    @property
    def needed(self) -> int:
        """Calibration samples that suffice for all samples together."""
        return self.rows[0].needed

    @property
    def law(self) -> CoverageLaw:
        """Law of the coverage of all samples together."""
        return CoverageLaw(self.alpha, self.functions)

    def summary(self) -> str:
        """Say the plan in sentences."""
        lines = [self._goal(), self._present(), self._parts(), self._test(), self._simulated()]
        return "\n".join(line for line in lines if line)

    def to_frame(self, flavour: Flavour | None = None) -> Any:
        """One row for all samples and for each group and class."""
        rows = [vars(row) for row in self.rows]
        if self.curve is not None:
            names = ("simulated", "simulated_spread", "simulated_within")
            found = [zip(names, self.simulated(row.part), strict=True) for row in self.rows]
            rows = [row | dict(own) for row, own in zip(rows, found, strict=True)]
        return frame_of_rows(rows, flavour)

    def simulated(self, part: str) -> tuple[float, float, float]:
        """Coverage of a part with the most calibration samples of the simulation.

        Mean over calibrations, its spread, and the share within the tolerance; NaN without a
        simulation of this part.
        """
        curve = self.curve
        if curve is not None and part == self.rows[0].part:
            return float(curve.coverage[-1]), float(curve.spread[-1]), float(curve.reached[-1])
        if curve is None or part not in curve.parts:
            return (float("nan"),) * 3
        each = (curve.part_coverage, curve.part_spread, curve.part_reached)
        coverage, spread, reached = (float(own[-1, curve.parts.index(part)]) for own in each)
        return coverage, spread, reached

    @styled
    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the range of the coverage against the number of calibration samples."""
        if ax is None:
            from matplotlib import pyplot as plt

            ax = plt.subplots(figsize=(1.5 * HALF_WIDTH, 3.2), layout="constrained")[1]
        target, (sizes, low, high) = 1.0 - self.alpha, plot_data(self)
        label = f"coverage with probability {_percent(self.probability)}"
        ax.fill_between(sizes, low, high, color=method_colour(0), alpha=0.25, lw=0, label=label)
        for edge in (target - self.within, target + self.within):
            ax.axhline(edge, color=theme_colour("quiet"), ls=":", lw=1)
        ax.axvline(self.needed, color=method_colour(1), lw=1.2, label=f"{self.needed:,} needed")
        present = self.rows[0].present
        if present:
            ax.axvline(
                present, color=theme_colour("ink"), ls="--", lw=1.2, label=f"{present:,} present"
            )
        if self.curve is not None:
            self._draw(self.curve, ax)
        ax.set(xscale="log", xlabel="Calibration samples", ylabel="Coverage of one calibration")
        ax.legend()
        return tidy(ax)

    def _draw(self, curve: Curve, ax: "Axes") -> None:
        """Draw what was simulated: all samples, and the parts of the lowest coverage."""
        style: dict[str, Any] = {"color": method_colour(2), "marker": "o", "ms": 3.5, "capsize": 2}
        bars = 2.0 * curve.spread
        ax.errorbar(curve.sizes, curve.coverage, bars, ls="none", label="simulated", **style)
        for number, place in enumerate(self._lowest_parts()[:_MOST_DRAWN]):
            own: dict[str, Any] = {"color": method_colour(3 + number), "label": curve.parts[place]}
            ax.plot(curve.sizes, curve.part_coverage[:, place], lw=1, **own)

    def _lowest_parts(self) -> list[int]:
        """Groups and classes of the simulation, those of the lowest coverage first."""
        last = np.empty(0) if self.curve is None else self.curve.part_coverage[-1]
        return [int(place) for place in np.argsort(last) if np.isfinite(last[place])]

    def _goal(self) -> str:
        ends = (1.0 - self.alpha - self.within, min(1.0 - self.alpha + self.within, 1.0))
        how = "" if self.functions == 1 else f" by bounds for {self.functions} basis functions,"
        return (
            f"Sets at alpha={self.alpha:g} hold the true class for {_percent(1.0 - self.alpha)} of "
            "new samples on average, and for a few more or fewer with any one calibration. "
            f"Calibrate on {self.needed:,} samples or more,{how} and coverage is between "
            f"{_percent(ends[0])} and {_percent(ends[1])} with probability "
            f"{_percent(self.probability)}."
        )

    def _present(self) -> str:
        row = self.rows[0]
        if row.present is None:
            return ""
        if row.present < self.law.smallest:
            return (
                f"You have {row.present:,}, with which every set must be full: at least "
                f"{self.law.smallest:,} samples are needed at alpha={self.alpha:g}."
            )
        return (
            f"You have {row.present:,}: coverage will be between {_percent(row.lower)} and "
            f"{_percent(row.upper)} with probability {_percent(self.probability)}, and within the "
            f"tolerance with probability {_percent(row.probability)}."
        )

    def _parts(self) -> str:
        if len(self.rows) == 1:
            return ""
        hardest = max(self.rows[1:], key=lambda row: row.in_all)
        short = [row for row in self.rows[1:] if row.present is not None]
        few = sum(row.present < row.needed for row in short if row.present is not None)
        text = (
            "Where each group or class has its own guarantee, each of them needs "
            f"{hardest.needed:,} samples of its own. The rarest, {hardest.part} "
            f"({_percent(hardest.share)} of all samples), has them if there are "
            f"{hardest.in_all:,} in all."
        )
        if short:
            text += f" {few:,} of {len(short):,} groups and classes have too few now."
        return text

    def _test(self) -> str:
        row = self.rows[0]
        return (
            f"To see in an evaluation that coverage is {_points(self.gap)} too low, test on "
            f"{row.test:,} other samples or more. Such a gap is then found with probability "
            f"{_percent(self.probability)}, and a good predictor is called bad with probability "
            f"{_percent(SIGNIFICANCE)} at most."
        )

    def _simulated(self) -> str:
        if self.curve is None:
            return ""
        found = [
            f"{_percent(share)} of {self.curve.repeats} calibrations on {n:,} samples"
            for n, share in zip(self.curve.sizes.tolist(), self.curve.reached.tolist(), strict=True)
        ]
        return (
            f"On your own samples, coverage was within the tolerance for {'; '.join(found)}. Sets "
            f"had {self.curve.set_size[0]:.2f} classes on average with the fewest and "
            f"{self.curve.set_size[-1]:.2f} with the most samples.{self._lowest()}"
        )

    def _lowest(self) -> str:
        lowest = self._lowest_parts()
        if self.curve is None or not lowest:
            return ""
        part = self.curve.parts[lowest[0]]
        coverage, spread, reached = self.simulated(part)
        return (
            f" The group or class that is served worst is {part}: with {self.curve.sizes[-1]:,} "
            f"calibration samples its sets hold the true class for {_percent(coverage)} of its "
            f"samples, give or take {_points(spread)} from one calibration to the next, and "
            f"{_percent(reached)} of the calibrations are within the tolerance for it."
        )


def plot_data(plan: Plan) -> tuple[Ints, Floats, Floats]:
    """Sizes, and the ends of the range of the coverage at each, that the plot shows."""
    marks = [plan.needed, plan.rows[0].present or plan.needed, plan.law.smallest]
    marks += [] if plan.curve is None else plan.curve.sizes.tolist()
    first, last = max(min(marks) / _BEYOND, plan.law.smallest), max(marks) * _BEYOND
    sizes = np.unique(np.geomspace(first, last, _POINTS).astype(np.int64))
    ends = [plan.law.interval(n, plan.probability) for n in sizes.tolist()]
    low, high = np.array(ends).T
    return sizes, low, high


def _percent(share: float) -> str:
    """A share in percent with three digits, near 1 three digits of what is missing.

    Examples
    --------
    >>> _percent(0.9), _percent(0.8734), _percent(0.99996), _percent(1.0), _percent(0.00021)
    ('90%', '87.3%', '99.996%', '100%', '0.021%')
    """
    if 0.99 < share < 1.0 - _ROUNDING:
        digits = 2 - math.floor(math.log10(100.0 * (1.0 - share)))
        return f"{100.0 * share:.{digits}f}".rstrip("0") + "%"
    return f"{100.0 * share:.3g}%"


def _points(gap: float) -> str:
    value = f"{100.0 * gap:.3g}"
    return f"{value} percentage point" + ("" if value == "1" else "s")
