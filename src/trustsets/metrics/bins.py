"""The table of one division of the samples into bins. Imports binning and inference."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from trustsets._common.arrays import Floats
from trustsets.metrics.binning import Binned
from trustsets.metrics.coverage import Ints, gap_halves
from trustsets.metrics.inference import (
    Estimate,
    binomial_interval,
    bootstrap_gaps,
    expected_gap,
    expected_worst,
    holm,
    under_coverage,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BinTable", "tabulate"]

LOCAL = {"json": False}


@final
@dataclass(frozen=True, eq=False)
class BinTable:
    """Coverage in each of B bins, and what it adds up to.

    Attributes
    ----------
    name : str
        Name of the division, such as ``"conf_trust"``.
    axes, shape, labels, index, edges
        As in `Binned`; only bins that hold samples are listed.
    count, covered : int arrays of shape (B,)
        Samples, and samples whose set holds their label.
    coverage, lower, upper : arrays of shape (B,)
        Share covered with its exact binomial interval.
    mean_size : array of shape (B,)
        Mean size of the sets.
    p_value, holm, benjamini_hochberg : arrays of shape (B,)
        Exact one-sided test that the coverage is below 1 - alpha, as it is and adjusted
        for the number of bins (any false alarm; share of false alarms).
    divisor : int, optional
        What CovGap divides by; None means the number of bins that hold samples.
    gap, shortfall, excess : Estimate
        CovGap in percent, and its two halves.
    worst : Estimate
        Coverage of the worst bin. It was picked for looking bad, so its exact interval is
        at the level ``1 - (1 - level) / B`` (Bonferroni), and the floor is the expected
        worst coverage of a perfect method.
    cells : int array of shape (n,), or None
        Bin of each sample; not kept in JSON.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    labels: tuple[str, ...]
    index: Ints
    edges: Floats
    count: Ints
    covered: Ints
    coverage: Floats
    lower: Floats
    upper: Floats
    mean_size: Floats
    p_value: Floats
    holm: Floats
    benjamini_hochberg: Floats
    divisor: int | None
    gap: Estimate
    shortfall: Estimate
    excess: Estimate
    worst: Estimate
    cells: Ints | None = field(default=None, repr=False, metadata=LOCAL)

    def to_frame(self) -> "pd.DataFrame":
        """One row per bin."""
        import pandas as pd

        names = "count covered coverage lower upper mean_size p_value holm benjamini_hochberg"
        return pd.DataFrame({"bin": self.labels} | {n: getattr(self, n) for n in names.split()})


def tabulate(
    name: str,
    binned: Binned,
    hits: NDArray[np.bool_],
    sizes: Ints,
    alpha: float,
    *,
    divisor: int | None = None,
    level: float = 0.95,
    n_bootstrap: int = 1000,
    seed: int = 0,
) -> BinTable:
    """Count samples by bin and put error bars on what comes out.

    Parameters
    ----------
    name : str
        Name of the table.
    binned : Binned
        Where each sample belongs.
    hits : bool array of shape (n,)
        Whether the set of each sample holds its label.
    sizes : int array of shape (n,)
        Sizes of the sets.
    alpha, divisor, level, n_bootstrap, seed
        As in `trustsets.metrics.inference.bootstrap_gaps`.
    """
    inside = binned.cells >= 0
    cells, n_bins = binned.cells[inside], len(binned.labels)
    count = np.bincount(cells, minlength=n_bins)
    covered = np.bincount(cells[hits[inside]], minlength=n_bins)
    lower, upper = binomial_interval(covered, count, level)
    p_value = under_coverage(covered, count, alpha)
    floor = expected_gap(count, alpha, divisor)
    shortfall, excess = (float(half) for half in gap_halves(count, covered, alpha, divisor))
    of_gap, of_shortfall, of_excess = bootstrap_gaps(
        [(count, covered)],
        alpha,
        divisor=divisor,
        level=level,
        n_bootstrap=n_bootstrap,
        seed=seed,
    )
    return BinTable(
        name=name,
        axes=binned.axes,
        shape=binned.shape,
        labels=binned.labels,
        index=binned.index,
        edges=binned.edges,
        count=count,
        covered=covered,
        coverage=covered / count,
        lower=lower,
        upper=upper,
        mean_size=np.bincount(cells, weights=sizes[inside], minlength=n_bins) / count,
        p_value=p_value,
        holm=holm(p_value),
        benjamini_hochberg=stats.false_discovery_control(p_value),
        divisor=divisor,
        gap=Estimate(shortfall + excess, *of_gap, floor),
        shortfall=Estimate(shortfall, *of_shortfall, floor / 2.0),
        excess=Estimate(excess, *of_excess, floor / 2.0),
        worst=_worst(count, covered, alpha, level),
        cells=binned.cells,
    )


def _worst(count: Ints, covered: Ints, alpha: float, level: float) -> Estimate:
    """Lowest coverage, its interval corrected for the choice among the bins, its floor."""
    low = int(np.argmin(covered / count))
    corrected = 1.0 - (1.0 - level) / count.size
    lower, upper = binomial_interval(covered[low], count[low], corrected)
    value = float(covered[low] / count[low])
    return Estimate(value, float(lower), float(upper), expected_worst(count, alpha))
