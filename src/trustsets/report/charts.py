"""Where marks go in the charts: shares of a width, coordinates of a line."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trustsets._common.arrays import Floats
from trustsets.metrics.balls import BallCurve
from trustsets.metrics.figure_data import size_data
from trustsets.metrics.inference import Estimate
from trustsets.metrics.result import Evaluation
from trustsets.report.text import division_title, interval, number, percent

__all__ = [
    "BallChart",
    "GapChart",
    "ball_chart",
    "gap_chart",
    "size_chart",
    "ticks",
]

# Rough number of steps of an axis, and the slack for the rounding of quotients.
_STEPS = 5
_SLACK = 1e-9


def ticks(top: float, bottom: float = 0.0) -> list[float]:
    """Round numbers from the last at or below `bottom` to the first at or above `top`.

    Examples
    --------
    >>> ticks(17.3)
    [0.0, 5.0, 10.0, 15.0, 20.0]
    >>> ticks(16.3, bottom=4.0)
    [2.5, 5.0, 7.5, 10.0, 12.5, 15.0, 17.5]
    """
    span = top - bottom
    if not span > 0.0:
        return [bottom, bottom + 1.0]
    rough = span / _STEPS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * power for unit in (1, 2, 2.5, 5, 10) if unit * power >= rough - _SLACK)
    first, last = math.floor(bottom / step + _SLACK), math.ceil(top / step - _SLACK)
    return [round(i * step, 10) for i in range(first, last + 1)]


@dataclass(frozen=True)
class GapMark:
    """CovGap of one method: places along the axis in percent of its length, and in words."""

    method: str
    slot: int
    floor: float
    low: float
    width: float
    value: float
    text: str
    note: str


@dataclass(frozen=True)
class GapChart:
    """CovGap of every division and method on one axis, with intervals and noise floors."""

    rows: list[tuple[str, list[GapMark]]]
    axis: list[tuple[float, str]]


def gap_chart(evaluations: Mapping[str, Evaluation], names: Sequence[str]) -> GapChart:
    """Place the gaps of the named divisions."""
    gaps = {
        name: [
            (slot, method, item.tables[name].gap)
            for slot, (method, item) in enumerate(evaluations.items())
            if name in item.tables
        ]
        for name in names
    }
    axis = ticks(max((gap.upper for own in gaps.values() for *_, gap in own), default=1.0))

    def place(value: float) -> float:
        return round(100.0 * value / axis[-1], 3)

    def mark(slot: int, method: str, gap: Estimate) -> GapMark:
        return GapMark(
            method=method,
            slot=slot,
            floor=place(gap.floor),
            low=place(gap.lower),
            width=place(gap.upper - gap.lower),
            value=place(gap.value),
            text=number(gap.value),
            note=f"CovGap {number(gap.value)} ({interval(gap.lower, gap.upper)}), "
            f"noise floor {number(gap.floor)}",
        )

    rows = [(division_title(name), [mark(*item) for item in own]) for name, own in gaps.items()]
    return GapChart(rows, [(place(tick), f"{tick:g}") for tick in axis])


def size_chart(
    evaluations: Mapping[str, Evaluation],
) -> list[tuple[str, list[tuple[int, float, str]]]]:
    """Share of the sets by size: a row per range of sizes, with a bar per method.

    A bar is the slot of its method, its length in percent of the longest bar, and its text.
    """
    data = size_data(list(evaluations.values()))
    longest = float(data.shares.max())
    # With many classes there may be small sizes that no set has; the largest always occurs.
    start = int(np.argmax(data.shares.any(axis=0)))
    return [
        (
            label,
            [
                (slot, round(100.0 * share / longest, 2), percent(share))
                for slot, share in enumerate(shares)
            ],
        )
        for label, shares in zip(data.labels[start:], data.shares.T[start:].tolist(), strict=True)
    ]


@dataclass(frozen=True)
class BallLine:
    """Curve of one method in drawing units, its noise floor, and its points in words."""

    method: str
    slot: int
    line: str
    floor: str
    points: list[tuple[float, float, float, float, str]]


@dataclass(frozen=True)
class Frame:
    """Where numbers go in a chart of `width` by `height` units, which the page scales."""

    x_ticks: list[float]
    y_ticks: list[float]
    width: float = 680.0
    height: float = 300.0
    left: float = 46.0
    right: float = 668.0
    top: float = 10.0
    bottom: float = 258.0

    def x(self, value: float) -> float:
        """Horizontal place of a number."""
        share = (value - self.x_ticks[0]) / (self.x_ticks[-1] - self.x_ticks[0])
        return round(self.left + (self.right - self.left) * share, 2)

    def y(self, value: float) -> float:
        """Vertical place of a number."""
        return round(self.bottom - (self.bottom - self.top) * value / self.y_ticks[-1], 2)

    def path(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        """Points of a line."""
        return " ".join(f"{self.x(x)},{self.y(y)}" for x, y in zip(xs, ys, strict=True))


@dataclass(frozen=True)
class BallChart:
    """CovGap over balls against their radius."""

    frame: Frame
    lines: list[BallLine]
    x_axis: list[tuple[float, str]]
    y_axis: list[tuple[float, str]]


def ball_chart(evaluations: Mapping[str, Evaluation]) -> BallChart | None:
    """Place the ball curves, or None where no method has one."""
    curves = [
        (method, slot, item.balls)
        for slot, (method, item) in enumerate(evaluations.items())
        if item.balls is not None and item.balls.radii.size > 0
    ]
    if not curves:
        return None
    tops = [np.max([curve.gap + _error(curve), curve.floor]) for *_, curve in curves]
    radii = np.concatenate([curve.radii for *_, curve in curves])
    frame = Frame(ticks(float(radii.max()), float(radii.min())), ticks(float(max(tops))))
    return BallChart(
        frame,
        [_ball_line(frame, *curve) for curve in curves],
        [(frame.x(tick), f"{tick:g}") for tick in frame.x_ticks],
        [(frame.y(tick), f"{tick:g}") for tick in frame.y_ticks],
    )


def _ball_line(frame: Frame, method: str, slot: int, curve: BallCurve) -> BallLine:
    radii, gaps, floors = curve.radii.tolist(), curve.gap.tolist(), curve.floor.tolist()
    points = []
    for radius, gap, error, floor, count in zip(
        radii, gaps, _error(curve).tolist(), floors, curve.count.tolist(), strict=True
    ):
        note = (
            f"{method}: radius {radius:.3g}, {count:,.0f} samples a ball, "
            f"CovGap {number(gap)}, noise floor {number(floor)}"
        )
        ends = frame.y(gap - error), frame.y(gap + error)
        points.append((frame.x(radius), frame.y(gap), *ends, note))
    return BallLine(method, slot, frame.path(radii, gaps), frame.path(radii, floors), points)


def _error(curve: BallCurve) -> Floats:
    """Standard deviation over trials, 0 where one trial leaves it undefined."""
    return np.nan_to_num(curve.trial_spread)
