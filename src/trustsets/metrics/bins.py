"""The table of one division of the samples into bins."""

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from trustsets._common.arrays import Floats
from trustsets._common.frames import Flavour, make_frame
from trustsets.metrics.binning import Binned
from trustsets.metrics.catalogue import Case
from trustsets.metrics.inference import (
    Estimate,
    Ints,
    binomial_interval,
    bootstrap_gaps,
    expected_gap,
    expected_worst,
    gap_halves,
    holm,
    macro_coverage,
    share_below,
    share_estimate,
    under_coverage,
)

__all__ = ["BinTable", "tabulate"]

LOCAL = {"json": False}
# As in the paper's balls, which hold at least 10 samples.
_FEW = 10


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
        Exact one-sided test that the coverage is below 1 - alpha: unadjusted, and adjusted for
        the number of bins (for any false alarm; for the share of false alarms).
    divisor : int, optional
        What CovGap divides by; None means the number of bins that hold samples.
    gap, shortfall, excess : Estimate
        CovGap in percent, and its two halves.
    worst : Estimate
        Lowest coverage of any bin. As it is the lowest of B, its exact interval has the
        level ``1 - (1 - level) / B`` (Bonferroni), and its noise floor is the expected lowest
        coverage of a perfect method.
    macro : Estimate
        Mean of the coverages of the bins; see `macro_coverage`.
    below : dict of str to Estimate
        Share of bins covered less than each share that was asked for; see `share_below`.
    cells : int array of shape (n,), or None
        Bin of each sample; not kept in JSON.
    flavour : str, optional
        Package that the outputs came in as a frame; not kept in JSON.
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
    macro: Estimate
    below: dict[str, Estimate]
    cells: Ints | None = field(default=None, repr=False, metadata=LOCAL)
    flavour: Flavour | None = field(default=None, repr=False, metadata=LOCAL)

    @property
    def is_grid(self) -> bool:
        """Whether the bins lie on a grid of two axes."""
        return len(self.axes) == 2

    @property
    def has_names(self) -> bool:
        """Whether bins have names, as classes and groups do, and no ends along an axis."""
        return bool(np.isnan(self.edges).all())

    @property
    def metrics(self) -> dict[str, Estimate]:
        """The numbers by the ends of their names in ``Evaluation.metrics``."""
        found = {name: getattr(self, name) for name in ("gap", "shortfall", "excess", "worst")}
        if self.has_names:
            found |= {"macro": self.macro}
            found |= {f"below_{least}": item for least, item in self.below.items()}
        return found

    @property
    def few(self) -> NDArray[np.bool_]:
        """Bins of so few samples that their coverage alone says little: fewer than 10."""
        return self.count < _FEW

    def under_covered(self, significance: float) -> NDArray[np.bool_]:
        """Bins whose coverage is significantly below 1 - alpha after Holm's correction."""
        return self.holm <= significance

    def to_frame(self, flavour: Flavour | None = None) -> Any:
        """One row per bin; a frame of the package that the outputs came in, or of `flavour`."""
        names = "count covered coverage lower upper mean_size p_value holm benjamini_hochberg"
        columns = {"bin": list(self.labels)} | {n: getattr(self, n) for n in names.split()}
        return make_frame(columns, flavour or self.flavour)


def tabulate(name: str, binned: Binned, case: Case) -> BinTable:
    """Count the samples of a case by bin, with intervals, tests and noise floors."""
    inside = binned.cells >= 0
    cells, n_bins = binned.cells[inside], len(binned.labels)
    count = np.bincount(cells, minlength=n_bins)
    covered = np.bincount(cells[case.covered[inside]], minlength=n_bins)
    lower, upper = binomial_interval(covered, count, case.level)
    p_value = under_coverage(covered, count, case.alpha)
    per_class = name == "class" and case.class_divisor == "all"
    divisor = case.outputs.n_classes if per_class else None
    gap, shortfall, excess = _gaps(count, covered, divisor, case)
    return BinTable(
        name=name,
        **vars(binned),
        count=count,
        covered=covered,
        coverage=covered / count,
        lower=lower,
        upper=upper,
        mean_size=np.bincount(cells, weights=case.sizes[inside], minlength=n_bins) / count,
        p_value=p_value,
        holm=holm(p_value),
        benjamini_hochberg=stats.false_discovery_control(p_value),
        divisor=divisor,
        gap=gap,
        shortfall=shortfall,
        excess=excess,
        worst=_worst(count, covered, case),
        macro=macro_coverage(count, covered, case.alpha, case.level),
        below={
            f"{least:g}": share_below(count, covered, least, case.alpha, case.level)
            for least in case.below
        },
        flavour=case.outputs.flavour,
    )


def _gaps(count: Ints, covered: Ints, divisor: int | None, case: Case) -> list[Estimate]:
    """CovGap, shortfall and excess with intervals and noise floors."""
    shortfall, excess = (float(half) for half in gap_halves(count, covered, case.alpha, divisor))
    ends = bootstrap_gaps(
        [(count, covered)],
        case.alpha,
        divisor=divisor,
        level=case.level,
        n_bootstrap=case.n_bootstrap,
        seed=case.seed,
    )
    floor = expected_gap(count, case.alpha, divisor)
    return [
        Estimate(shortfall + excess, *ends[0], floor),
        Estimate(shortfall, *ends[1], floor / 2.0),
        Estimate(excess, *ends[2], floor / 2.0),
    ]


def _worst(count: Ints, covered: Ints, case: Case) -> Estimate:
    """Lowest coverage, its interval corrected for the choice among the bins, its noise floor."""
    low = int(np.argmin(covered / count))
    corrected = 1.0 - (1.0 - case.level) / count.size
    return share_estimate(covered[low], count[low], corrected, expected_worst(count, case.alpha))
