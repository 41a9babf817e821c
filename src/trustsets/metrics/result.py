"""What `evaluate` returns: every metric of one method."""

import math
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.frames import Flavour, frame_of_rows
from trustsets.metrics import render
from trustsets.metrics.balls import BallCurve
from trustsets.metrics.bins import LOCAL, BinTable
from trustsets.metrics.inference import Estimate, Ints
from trustsets.metrics.plain import PlainData
from trustsets.metrics.slab import SlabCoverage
from trustsets.metrics.summaries import ConditionalSummary, Correlation, SizeSummary

__all__ = ["Evaluation"]

# Coverage of a class that is lower than the target by this much is worth another method.
_FAR_BELOW = 0.1
REMEDY = (
    'ConditionalConformal(per_class=True), or MondrianConformal(by="class"), on the command line '
    "--method class, guarantees each class."
)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(PlainData):
    """Every metric of one method on the test samples, with intervals and noise floors.

    Attributes
    ----------
    alpha, level : float
        Miscoverage that was asked for, and confidence level of the intervals.
    n, n_classes : int
        Test samples and classes.
    coverage : Estimate
        Marginal coverage with its exact interval.
    sizes : SizeSummary
        Sizes of the sets, with their histogram.
    tables : dict of str to BinTable
        Coverage by bins: ``conf_trust``, ``conf_rank``, ``conf_frequency``, ``class``,
        ``group:NAME``, ``size_strata``, and those asked for.
    correlation : Correlation, optional
        Of Trust and Rank.
    balls : BallCurve, optional
        CovGap over balls against the radius.
    slab : SlabCoverage, optional
        The worst slab.
    conditional : ConditionalSummary, optional
        True conditional coverage, where label probabilities were given.
    left_out : bool
        Whether these are calibration samples, each left out once (`trustsets.audit`), and no
        test samples.
    more : dict of str to Estimate
        Numbers of other measurements, by name, such as ``excess_risk.under``.
    covered, set_sizes, rows : arrays of shape (n,), or None
        Whether each set holds its label, its size, and the identity of the sample; not
        kept in JSON. The bin of each sample is ``tables[name].cells``.
    flavour : str, optional
        Package that the outputs came in as a frame; not kept in JSON.
    """

    alpha: float
    level: float
    n: int
    n_classes: int
    coverage: Estimate
    sizes: SizeSummary
    tables: dict[str, BinTable]
    correlation: Correlation | None = None
    balls: BallCurve | None = None
    slab: SlabCoverage | None = None
    conditional: ConditionalSummary | None = None
    left_out: bool = False
    more: dict[str, Estimate] = field(default_factory=dict)
    covered: NDArray[np.bool_] | None = field(default=None, metadata=LOCAL)
    set_sizes: Ints | None = field(default=None, metadata=LOCAL)
    rows: Ints | None = field(default=None, metadata=LOCAL)
    flavour: Flavour | None = field(default=None, metadata=LOCAL)

    def __repr__(self) -> str:
        gaps = ", ".join(f"{name} {table.gap.value:.2f}" for name, table in self.tables.items())
        return (
            f"Evaluation(n={self.n}, alpha={self.alpha:g}, coverage={self.coverage.value:.3f}, "
            f"size={self.sizes.mean:.2f}, CovGap: {gaps})"
        )

    @property
    def metrics(self) -> dict[str, Estimate]:
        """Every number by name: ``coverage``, ``size``, ``conf_trust.gap``, ``class.worst``."""
        found = {"coverage": self.coverage} | self.sizes.metrics(self.level)
        for name, table in self.tables.items():
            found |= {f"{name}.{part}": item for part, item in table.metrics.items()}
        for own in (self.slab, self.conditional, self.correlation):
            found |= {} if own is None else own.metrics
        return found | self.more

    @property
    def advice(self) -> str:
        """What to do where coverage of classes is far below 1 - alpha; empty if none is."""
        return f"{self.poor_classes}; {REMEDY}" if self.poor_classes else ""

    @property
    def poor_classes(self) -> str:
        """Sentence on the classes whose coverage is far below 1 - alpha; empty if none is.

        Far below means by 10 percentage points or more, and significantly (after Holm's
        correction, at one minus the level of the intervals).
        """
        table = self.tables.get("class")
        if table is None:
            return ""
        target = 1.0 - self.alpha
        far = table.under_covered(1.0 - self.level) & (table.coverage <= target - _FAR_BELOW)
        if not far.any():
            return ""
        low = int(np.argmin(np.where(far, table.coverage, np.inf)))
        return (
            f"Coverage is far below {target:.4g} for {np.count_nonzero(far):,} of "
            f"{table.count.size:,} classes (lowest: {table.labels[low]}, "
            f"{table.coverage[low]:.3f} of {table.count[low]:,} samples)"
        )

    def to_frame(self, flavour: Flavour | None = None) -> Any:
        """One row per metric: value, interval, noise floor, and what is above the floor.

        It is a frame of the package that the outputs came in, or of `flavour`.
        """
        rows = [
            {"metric": name, **vars(item), "above_floor": item.above_floor}
            for name, item in self.metrics.items()
        ]
        return frame_of_rows(rows, flavour or self.flavour, index="metric")

    def to_markdown(self) -> str:
        """Pipe table of the metrics, and the advice if there is any."""
        table = render.markdown_table(self._header("%"), self._lines())
        return f"{table}\n\n{self.advice}" if self.advice else table

    def to_latex(self) -> str:
        """Booktabs table of the metrics."""
        safe = [[render.escape_latex(text) for text in line] for line in self._lines()]
        return render.latex_table(self._header(r"\%"), [safe])

    def _header(self, percent: str) -> list[str]:
        interval = f"{100 * self.level:g}{percent} interval"
        return ["Metric", "Value", interval, "Noise floor", "Above floor"]

    def _lines(self) -> list[list[str]]:
        return [
            [
                render.title(name),
                _number(item.value),
                "" if math.isnan(item.lower) else f"{_number(item.lower)} to {_number(item.upper)}",
                _number(item.floor),
                _number(item.above_floor),
            ]
            for name, item in self.metrics.items()
        ]


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"
