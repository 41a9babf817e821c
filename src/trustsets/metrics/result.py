"""What `evaluate` returns: every metric of one method. Imports bins, balls, slab and below."""

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from trustsets._common.arrays import Floats
from trustsets.errors import InputError
from trustsets.metrics import render
from trustsets.metrics.balls import BallCurve
from trustsets.metrics.bins import LOCAL, BinTable
from trustsets.metrics.coverage import PERCENT, Correlation, Ints, SizeSummary
from trustsets.metrics.inference import Estimate, binomial_interval
from trustsets.metrics.plain import from_plain, to_plain
from trustsets.metrics.slab import SlabCoverage

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ConditionalSummary", "Evaluation"]

_ROUNDING = 1e-9
# Coverage of a class that is lower than the target by this much is worth another method.
_FAR_BELOW = 0.1
_CONDITIONAL_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_CONDITIONAL_PARTS = ("mean", "gap", "shortfall", "excess", "below")
_TABLE_PARTS = ("gap", "shortfall", "excess", "worst")


@final
@dataclass(frozen=True, eq=False)
class ConditionalSummary:
    """Distribution over samples of the true conditional coverage.

    Attributes
    ----------
    mean : Estimate
        Mean true coverage: marginal coverage without the noise of the labels.
    gap, shortfall, excess : Estimate
        ``100 mean |c(x) - (1 - alpha)|`` and its halves; the floor is 0, as no label is drawn.
    below : Estimate
        Share of samples whose true coverage is under 1 - alpha.
    levels, quantiles : arrays of shape (Q,)
        Quantiles of c(x).
    """

    mean: Estimate
    gap: Estimate
    shortfall: Estimate
    excess: Estimate
    below: Estimate
    levels: Floats
    quantiles: Floats

    @classmethod
    def of(cls, coverage: Floats, alpha: float, level: float) -> Self:
        """Summarise the true coverage of each sample, shape (n,)."""
        # Probabilities add up to 1 - alpha only up to rounding; that is no shortfall.
        away = coverage - (1.0 - alpha)
        away = np.where(np.abs(away) < _ROUNDING, 0.0, away)
        below = int(np.count_nonzero(away < 0.0))
        ends = (float(end) for end in binomial_interval(below, away.size, level))
        levels = np.array(_CONDITIONAL_QUANTILES)
        return cls(
            mean=mean_estimate(coverage, level, floor=1.0 - alpha),
            gap=mean_estimate(PERCENT * np.abs(away), level, floor=0.0),
            shortfall=mean_estimate(PERCENT * np.maximum(-away, 0.0), level, floor=0.0),
            excess=mean_estimate(PERCENT * np.maximum(away, 0.0), level, floor=0.0),
            below=Estimate(below / away.size, *ends),
            levels=levels,
            quantiles=np.quantile(coverage, levels),
        )


def mean_estimate(values: Any, level: float, floor: float = math.nan) -> Estimate:
    """Mean of independent numbers with its normal interval."""
    values = np.asarray(values, dtype=np.float64)
    spread = values.std(ddof=1) if values.size > 1 else math.nan
    half = float(stats.norm.ppf(0.5 + level / 2.0) * spread / np.sqrt(values.size))
    mean = float(values.mean())
    return Estimate(mean, mean - half, mean + half, floor)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Every metric of one method on one test sample, with error bars and noise floors.

    Attributes
    ----------
    alpha, level : float
        Allowed miscoverage of the sets, and level of the intervals.
    n, n_classes : int
        Test samples and classes.
    coverage : Estimate
        Marginal coverage with its exact interval.
    sizes : SizeSummary
        Sizes of the sets, with their histogram.
    tables : dict of str to BinTable
        Coverage by bins: ``conf_trust``, ``conf_rank``, ``class``, ``group:NAME``,
        ``size_strata``, and those asked for.
    correlation : Correlation, optional
        Of Trust and Rank.
    balls : BallCurve, optional
        CovGap over balls against the radius.
    slab : SlabCoverage, optional
        The worst slab.
    conditional : ConditionalSummary, optional
        True conditional coverage, where label probabilities were given.
    covered, set_sizes, rows : arrays of shape (n,), or None
        Whether each set holds its label, its size, and the identity of the sample; not
        kept in JSON. The bin of each sample is ``tables[name].cells``.
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
    covered: NDArray[np.bool_] | None = field(default=None, metadata=LOCAL)
    set_sizes: Ints | None = field(default=None, metadata=LOCAL)
    rows: Ints | None = field(default=None, metadata=LOCAL)

    def __repr__(self) -> str:
        gaps = ", ".join(f"{name} {table.gap.value:.2f}" for name, table in self.tables.items())
        return (
            f"Evaluation(n={self.n}, alpha={self.alpha:g}, coverage={self.coverage.value:.3f}, "
            f"size={self.sizes.mean:.2f}, CovGap: {gaps})"
        )

    @property
    def metrics(self) -> dict[str, Estimate]:
        """Every number by name: ``coverage``, ``size``, ``conf_trust.gap``, ``class.worst``."""
        found = {"coverage": self.coverage} | self._size_metrics()
        for name, table in self.tables.items():
            found |= {f"{name}.{part}": getattr(table, part) for part in _TABLE_PARTS}
        if self.slab is not None:
            found["slab"] = self.slab.coverage
        if self.conditional is not None:
            own = self.conditional
            found |= {f"conditional.{part}": getattr(own, part) for part in _CONDITIONAL_PARTS}
        if self.correlation is not None:
            found["pearson"] = Estimate(self.correlation.pearson)
            found["spearman"] = Estimate(self.correlation.spearman)
        return found

    @property
    def advice(self) -> str:
        """What to do where classes are far below 1 - alpha; empty if none is.

        Far below means by 10 points or more, and surely below (Holm's correction, at one
        minus the level of the intervals).
        """
        table = self.tables.get("class")
        if table is None:
            return ""
        target = 1.0 - self.alpha
        far = (table.holm <= 1.0 - self.level) & (table.coverage <= target - _FAR_BELOW)
        if not far.any():
            return ""
        low = int(np.argmin(np.where(far, table.coverage, np.inf)))
        return (
            f"Coverage is far below {target:.4g} for {np.count_nonzero(far):,} of "
            f"{table.count.size:,} classes (lowest: {table.labels[low]}, "
            f"{table.coverage[low]:.3f} of {table.count[low]:,} samples); "
            'MondrianConformal(by="class"), on the command line --method class, guarantees each '
            "class."
        )

    def _size_metrics(self) -> dict[str, Estimate]:
        sizes = self.sizes
        half = float(stats.norm.ppf(0.5 + self.level / 2.0)) * sizes.standard_error
        shares = {}
        for name, number in (("empty", sizes.empty), ("full", sizes.full)):
            ends = (float(end) for end in binomial_interval(number, self.n, self.level))
            shares[name] = Estimate(number / self.n, *ends)
        size = Estimate(sizes.mean, sizes.mean - half, sizes.mean + half)
        return {"size": size, "size_median": Estimate(sizes.median)} | shares

    def to_frame(self) -> "pd.DataFrame":
        """One row per metric: value, interval, noise floor, and what is above the floor."""
        import pandas as pd

        rows = [
            {
                "metric": name,
                "value": item.value,
                "lower": item.lower,
                "upper": item.upper,
                "floor": item.floor,
                "above_floor": item.above_floor,
            }
            for name, item in self.metrics.items()
        ]
        return pd.DataFrame(rows).set_index("metric")

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

    def to_dict(self) -> dict[str, Any]:
        """Plain data: lists, dicts, strings, numbers; None for what is undefined."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    def to_json(self) -> str:
        """JSON text that `from_json` reads."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Evaluation":
        """Rebuild from `to_json`; what belongs to single samples is not there."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"text must be JSON written by to_json: {error}.") from None
        built: Evaluation = from_plain(cls, data)
        return built


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"
