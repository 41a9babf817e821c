"""`evaluate`: every metric that the data allow, with intervals and noise floors."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeGuard, final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from trustsets._arrays import LARGEST_TRUST, Flavour, Floats, column
from trustsets._frames import frame_of_rows
from trustsets._parameters import Open, Positive, check_alpha, check_arguments
from trustsets.basis import Partition
from trustsets.errors import InputError
from trustsets.metrics.binning import (
    Binned,
    BinTable,
    FrequencyBins,
    bin_samples,
    label_ranks,
    tabulate,
)
from trustsets.metrics.catalogue import METRICS, markdown_table, title
from trustsets.metrics.inference import Estimate, Ints, share_estimate
from trustsets.metrics.plain import LOCAL, PlainData
from trustsets.outputs import ModelOutputs, require_outputs
from trustsets.sets import PredictionSets

if TYPE_CHECKING:
    from trustsets.predictors import Predictor

_REMEDIES = {
    "trust": "trust; pass trust= to ModelOutputs, or evaluate a predictor with a trust score",
    "groups": "group columns; pass groups= to ModelOutputs",
}


@final
@dataclass(frozen=True)
class SizeSummary:
    """Distribution of set sizes: mean with its standard error, empty and full sets, histogram.

    `values` are the sizes that occur, increasing, and `counts` how often, both of shape (S,).
    """

    mean: float
    standard_error: float
    median: float
    empty: int
    full: int
    values: Ints
    counts: Ints

    def metrics(self, level: float) -> dict[str, Estimate]:
        """The numbers by their names in ``Evaluation.metrics``, with intervals."""
        half = float(stats.norm.ppf(0.5 + level / 2.0)) * self.standard_error
        n = int(self.counts.sum())
        return {
            "size": Estimate(self.mean, self.mean - half, self.mean + half),
            "size_median": Estimate(self.median),
            "empty": share_estimate(self.empty, n, level),
            "full": share_estimate(self.full, n, level),
        }


def summarise_sizes(sizes: Ints, n_classes: int) -> SizeSummary:
    """Mean, spread and histogram of set sizes."""
    values, counts = np.unique(sizes, return_counts=True)
    spread = float(sizes.std(ddof=1)) if sizes.size > 1 else math.nan
    return SizeSummary(
        mean=float(sizes.mean()),
        standard_error=spread / float(np.sqrt(sizes.size)),
        median=float(np.median(sizes)),
        empty=int(np.count_nonzero(sizes == 0)),
        full=int(np.count_nonzero(sizes == n_classes)),
        values=values.astype(np.int64),
        counts=counts.astype(np.int64),
    )


@final
@dataclass(frozen=True)
class Correlation:
    """Pearson and Spearman correlation with two-sided p-values; NaN where undefined."""

    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float

    @property
    def metrics(self) -> dict[str, Estimate]:
        """The numbers by their names in ``Evaluation.metrics``."""
        return {"pearson": Estimate(self.pearson), "spearman": Estimate(self.spearman)}


def correlate(trust: Floats, rank: Ints) -> Correlation:
    """Correlation of Trust and Rank, both of shape (n,), as in the paper's appendix C.3.

    A constant input has no correlation, and infinite Trust only that of Spearman.
    """
    undefined = (math.nan, math.nan)
    if trust.size < 3 or np.ptp(rank) == 0 or (trust == trust[0]).all():
        return Correlation(*undefined, *undefined)
    spearman, pearson = stats.spearmanr(trust, rank), undefined
    if np.abs(trust).max() < LARGEST_TRUST:
        result = stats.pearsonr(trust, rank)
        pearson = (float(result.statistic), float(result.pvalue))
    return Correlation(*pearson, float(spearman.statistic), float(spearman.pvalue))


@final
@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(PlainData):
    """Every metric of one method on the test samples, with intervals and noise floors.

    Attributes
    ----------
    alpha, level : float
        Miscoverage that was asked for, and confidence level of the intervals.
    coverage : Estimate
        Marginal coverage of this predictor on n test samples, with its exact interval.
    sizes : SizeSummary
        Sizes of the sets, with their histogram.
    tables : dict of str to BinTable
        Coverage by bins: ``conf_trust``, ``conf_rank``, ``conf_frequency``, ``class``,
        ``group:NAME``, ``size_strata``, and those asked for.
    correlation : Correlation, optional
        Of Trust and Rank, where Trust is known.
    n_calibration : int, optional
        Calibration samples, where a predictor was evaluated.
    left_out : bool
        Whether these are the calibration samples, each left out once (`trustsets.audit`).
    more : dict of str to Estimate
        Numbers of other measurements, by name, such as ``excess_risk.under``.
    covered, set_sizes, rows : arrays of shape (n,), or None
        Whether each set contains its label, its size, and the identity of the sample; not
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
    n_calibration: int | None = None
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
        numbers = {"coverage": self.coverage} | self.sizes.metrics(self.level)
        for name, table in self.tables.items():
            numbers |= {f"{name}.{part}": item for part, item in table.metrics.items()}
        numbers |= {} if self.correlation is None else self.correlation.metrics
        return numbers | self.more

    def to_frame(self, flavour: Flavour | None = None) -> Any:
        """One row per metric; a frame of the package that the outputs came in, or of `flavour`."""
        rows = [{"metric": name, **vars(item)} for name, item in self.metrics.items()]
        return frame_of_rows(rows, self.flavour if flavour is None else flavour, index="metric")

    def to_markdown(self) -> str:
        """Pipe table of the metrics."""
        header = ["Metric", "Value", f"{100.0 * self.level:g}% interval", "Noise floor"]
        rows = []
        for name, item in self.metrics.items():
            numbers = (item.value, item.lower, item.upper, item.floor)
            value, low, high, floor = ("" if math.isnan(x) else f"{x:.3f}" for x in numbers)
            rows.append([title(name), value, f"{low} to {high}" if low else "", floor])
        return markdown_table(header, rows)


def evaluate(
    sets: "PredictionSets | Predictor | Any",
    outputs: ModelOutputs,
    *,
    alpha: float | None = None,
    sizes: Any = None,
    metrics: Sequence[str] | None = None,
    bins: Mapping[str, Partition | Binned] | None = None,
    level: float = 0.95,
    n_bootstrap: int = 1000,
) -> Evaluation:
    """Measure where prediction sets keep their coverage and where they fail.

    Parameters
    ----------
    sets : PredictionSets, predictor, or bool array of shape (n,)
        Sets of n samples at one alpha; or a calibrated predictor, which makes them; or whether
        each set contains the true class.
    outputs : ModelOutputs
        The same samples with their labels; trust for Conf x Trust, groups for coverage by group.
    alpha : float, optional
        Miscoverage: 0.1 by default for a predictor, and needed with an array.
    sizes : int array of shape (n,), optional
        Sizes of the sets, where `sets` is an array.
    metrics : sequence of str, optional
        Names in `trustsets.metrics.METRICS`: ``conf_trust``, ``conf_rank``, ``conf_frequency``,
        ``class``, ``groups``, ``size_strata``, ``trust_rank``. Default: all that the data allow.
        Marginal coverage and sizes are always measured.
    bins : mapping of str to Partition, optional
        Other bins, or more of them: ``{"conf_rank": RankBins(edges=(0, 1, 2, 4, 1000))}`` for
        edges by hand, ``{"sex x site": Groups("sex", "site")}`` for a crossing. A table of an
        earlier evaluation of the same samples gives its bins again, which saves time.
    level : float
        Confidence level of the intervals.
    n_bootstrap : int
        Resamples behind the intervals of CovGap.

    Examples
    --------
    >>> from trustsets import StandardConformal
    >>> rng = np.random.default_rng(0)
    >>> logits = 2.0 * rng.normal(size=(4000, 5))
    >>> labels = (logits / 2.0 + rng.gumbel(size=(4000, 5))).argmax(axis=1)
    >>> site = np.where(np.arange(4000) % 4 == 0, "north", "south")
    >>> outputs = ModelOutputs(logits=logits, labels=labels, groups={"site": site})
    >>> calibration, test = outputs.split(0.5)
    >>> result = evaluate(StandardConformal().calibrate(calibration), test, alpha=0.1)
    >>> list(result.tables)
    ['conf_rank', 'conf_frequency', 'class', 'group:site', 'size_strata']
    """
    outputs = require_outputs(outputs, "outputs")
    outputs.require_labels("evaluate")
    check_arguments(Open, level=level)
    check_arguments(Positive, n_bootstrap=n_bootstrap)
    if not isinstance(bins, Mapping | None):
        raise InputError(f"bins must map names to partitions; got {type(bins).__name__}.")
    bins, n_calibration = dict(bins or {}), None
    if is_predictor(sets):
        n_calibration = sets.n_calibration_
        bins.setdefault("conf_frequency", FrequencyBins(sets.class_counts_))
        outputs = outputs.with_trust(sets.trust)
        sets, alpha = sets.predict_set(outputs, alpha=0.1 if alpha is None else alpha), None
    covered, set_sizes, alpha = outcomes_of(sets, outputs, alpha)
    if set_sizes is None:
        if sizes is None:
            raise InputError("sizes must be given where sets says only which samples are covered.")
        numbers = column(sizes, "sizes", len(outputs))
        if not np.isin(numbers, np.arange(outputs.n_classes + 1)).all():
            raise InputError(f"sizes must be whole numbers from 0 to {outputs.n_classes}.")
        set_sizes = numbers.astype(np.int64)
    names = _chosen(metrics, bins, outputs)
    tables: dict[str, BinTable] = {}
    for name, binned in _divide(names, bins, outputs, set_sizes).items():
        table = tabulate(name, binned, covered, set_sizes, alpha, level, n_bootstrap)
        tables[name] = replace(table, flavour=outputs.flavour)
    correlation = None
    if "trust_rank" in names:
        correlation = correlate(outputs.require_trust("trust_rank"), label_ranks(outputs))
    return Evaluation(
        alpha=alpha,
        level=level,
        n=len(outputs),
        n_classes=outputs.n_classes,
        coverage=share_estimate(int(covered.sum()), covered.size, level, floor=1.0 - alpha),
        sizes=summarise_sizes(set_sizes, outputs.n_classes),
        tables=tables,
        correlation=correlation,
        n_calibration=n_calibration,
        covered=covered,
        set_sizes=set_sizes,
        rows=outputs.rows,
        flavour=outputs.flavour,
    )


def outcomes_of(
    sets: PredictionSets | Any, outputs: ModelOutputs, alpha: float | None
) -> tuple[NDArray[np.bool_], Ints | None, float]:
    """Whether each set contains the true class, the sizes of the sets if known, and alpha.

    `sets` are `PredictionSets` at one alpha, or a bool array of shape (n,) with its `alpha`.
    """
    require_outputs(outputs, "outputs")
    if not isinstance(sets, PredictionSets):
        if not hasattr(sets, "__array__") and not isinstance(sets, list | tuple):
            raise InputError(
                "sets must be PredictionSets, or say of each sample whether its set contains the "
                f"true class; got {type(sets).__name__}."
            )
        if alpha is None:
            raise InputError("alpha must be given with a coverage vector.")
        alpha = check_alpha(alpha)
        hits = column(sets, "sets", len(outputs))
        if hits.dtype.kind not in "biuf" or not np.isin(hits, (0, 1)).all():
            raise InputError("sets must be PredictionSets, or True or False for each sample.")
        return hits.astype(bool), None, alpha
    if alpha is not None:
        raise InputError("alpha belongs to a coverage vector; PredictionSets know their own.")
    if not isinstance(sets.alpha, float):
        raise InputError("sets must be at one alpha; choose one with sets.at(alpha).")
    outputs.require_labels("coverage")
    if len(sets) != len(outputs):
        raise InputError(
            f"sets and outputs must be of the same samples; got {len(sets)} sets for "
            f"{len(outputs)} samples."
        )
    if not np.array_equal(sets.classes, outputs.classes):
        raise InputError("sets and outputs name other classes; pass the same classes= to both.")
    return sets.covers(outputs.labels), sets.sizes, sets.alpha


def is_predictor(value: Any) -> "TypeGuard[Predictor]":
    """Whether this is a predictor; its room is not imported for that."""
    return hasattr(type(value), "class_counts_")


def _chosen(
    metrics: Sequence[str] | None, bins: Mapping[str, Any], outputs: ModelOutputs
) -> list[str]:
    """Metrics to compute: those named, which must be possible, or all possible ones."""
    if isinstance(metrics, str) or not isinstance(metrics, Iterable | None):
        raise InputError(f"metrics must be a sequence of names; write metrics=({metrics!r},).")
    metrics = None if metrics is None else list(metrics)
    for name in metrics or ():
        if not isinstance(name, str) or name not in METRICS:
            raise InputError(f"metrics holds {name!r}, which is none of {', '.join(METRICS)}.")
    there = {"": True, "trust": outputs.trust is not None, "groups": bool(outputs.groups)}
    chosen = []
    for name, metric in METRICS.items():
        # Bins that the user gave name what they need themselves.
        possible = name in bins or there[metric.needs]
        if metrics is not None and name in metrics and not possible:
            raise InputError(f"metrics asks for {name!r}, which needs {_REMEDIES[metric.needs]}.")
        if possible and (metrics is None or name in metrics):
            chosen.append(name)
    return chosen


def _divide(
    names: Sequence[str],
    bins: Mapping[str, Partition | Binned],
    outputs: ModelOutputs,
    sizes: Ints,
) -> dict[str, Binned]:
    """Bins of the samples by the names of their tables."""
    divided: dict[str, Binned] = {}
    for name in names:
        metric = METRICS[name]
        if metric.divide is not None:
            divided |= metric.divide(outputs, sizes)
        elif metric.partition is not None:
            divided[name] = bin_samples(bins.get(name, metric.partition), outputs, name)
    for name, partition in bins.items():
        replaceable = name not in METRICS or METRICS[name].partition is not None
        if not replaceable and not isinstance(partition, Binned):
            raise InputError(f"bins names {name!r}, which is a metric already; choose another.")
        if name not in METRICS:
            divided[name] = bin_samples(partition, outputs, name)
    return divided
