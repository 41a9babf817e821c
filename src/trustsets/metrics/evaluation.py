"""`evaluate`: one call, every metric that the data allow."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from trustsets._common.arrays import Floats, to_numpy
from trustsets.basis import Partition
from trustsets.errors import InputError
from trustsets.metrics.balls import Balls, Neighbourhoods
from trustsets.metrics.binning import Binned
from trustsets.metrics.bins import tabulate
from trustsets.metrics.catalogue import METRICS, Case, Metric
from trustsets.metrics.inference import share_estimate
from trustsets.metrics.result import Evaluation
from trustsets.metrics.slab import Slab
from trustsets.metrics.summaries import conditional_coverage, summarise_sizes
from trustsets.outputs import ModelOutputs
from trustsets.sets import PredictionSets
from trustsets.statistics import SupportsTrust

__all__ = ["evaluate", "evaluate_case"]


def evaluate(
    sets: PredictionSets,
    outputs: ModelOutputs,
    trust: SupportsTrust | Floats | None = None,
    *,
    metrics: Sequence[str] | None = None,
    bins: Mapping[str, Partition] | None = None,
    class_divisor: Literal["all", "present"] = "all",
    below: float | Sequence[float] = 0.5,
    balls: Balls | Neighbourhoods = Balls(),
    slab: Slab = Slab(),
    label_probabilities: Any = None,
    level: float = 0.95,
    n_bootstrap: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Measure where prediction sets keep their coverage and where they fail.

    Parameters
    ----------
    sets : PredictionSets
        Sets of n samples at one alpha.
    outputs : ModelOutputs
        The same samples with their labels; features for balls and slab, groups for
        coverage by group.
    trust : TrustScore or array of shape (n,), optional
        Fitted trust score, or known values, for Conf x Trust and the correlation of Trust and
        Rank.
    metrics : sequence of str, optional
        Names among ``conf_trust``, ``conf_rank``, ``conf_frequency``, ``class``, ``groups``,
        ``size_strata``, ``trust_rank``, ``balls``, ``slab``, ``conditional``. Default: all
        that the data allow. Marginal coverage and sizes are always measured.
    bins : mapping of str to Partition, optional
        Other bins, or more of them: ``{"conf_trust": Bins(nested=False)}`` for the global
        quantiles of the authors' code, ``{"conf_rank": RankBins(edges=(0, 1, 2, 4, 1000))}``
        for edges by hand, ``{"sex x site": Groups("sex", "site")}`` for a crossing,
        ``{"conf_frequency": FrequencyBins(class_counts)}`` for class frequencies in the
        calibration samples instead of the test samples.
    class_divisor : {"all", "present"}
        Divide the class CovGap by K, as the paper does, or by the classes that occur. All
        other means over classes are over those that occur.
    below : float or sequence of float
        Report the share of bins, such as classes, that are covered less than this:
        ``metrics["class.below_0.5"]``.
    balls, slab
        How to draw balls and to search slabs. ``Balls().around(features)``, made once,
        serves several methods on the same samples.
    label_probabilities : array of shape (n, K), optional
        True P(y | x), where known, for the true conditional coverage.
    level : float
        Confidence level of the intervals.
    n_bootstrap, seed : int
        Resamples behind the intervals of CovGap, and their seed.

    Returns
    -------
    Evaluation
        With ``to_frame``, ``to_markdown``, ``to_latex``, ``to_json``.

    Examples
    --------
    >>> from trustsets import StandardConformal
    >>> rng = np.random.default_rng(0)
    >>> logits = 2.0 * rng.normal(size=(4000, 5))
    >>> labels = (logits / 2.0 + rng.gumbel(size=(4000, 5))).argmax(axis=1)
    >>> site = np.where(np.arange(4000) % 4 == 0, "north", "south")
    >>> outputs = ModelOutputs(logits=logits, labels=labels, groups={"site": site})
    >>> calibration, test = outputs.split(0.5)
    >>> sets = StandardConformal().calibrate(calibration).predict_set(test, alpha=0.1)
    >>> result = evaluate(sets, test)
    >>> list(result.tables)
    ['conf_rank', 'conf_frequency', 'class', 'group:site', 'size_strata']
    >>> gap = result.metrics["group:site.gap"]
    >>> gap.lower <= gap.value <= gap.upper
    True
    """
    _check_sets(sets, outputs)
    truth = None
    if label_probabilities is not None and (metrics is None or "conditional" in metrics):
        truth = conditional_coverage(sets, label_probabilities)
    assert isinstance(sets.alpha, float)  # checked: one alpha
    case = Case(
        covered=sets.covers(outputs.labels),
        sizes=sets.sizes,
        outputs=outputs.with_trust(trust),
        alpha=sets.alpha,
        true_coverage=truth,
        bins=bins,
        class_divisor=class_divisor,
        below=tuple(to_numpy(below, "below").ravel().tolist()),
        balls=balls,
        slab=slab,
        level=level,
        n_bootstrap=n_bootstrap,
        seed=seed,
    )
    return evaluate_case(case, metrics)


def evaluate_case(case: Case, metrics: Sequence[str] | None = None) -> Evaluation:
    """Do the work of `evaluate` where only the hits and sizes of the sets are known."""
    bins = case.bins or {}
    _check_names(bins)
    binned: dict[str, Binned] = {}
    others: dict[str, Any] = {}
    for row in _chosen(metrics, case):
        found = row.measure(case)
        if row.field == "tables":
            binned |= found
        else:
            others[row.field] = found
    binned |= {name: case.bin_by(name, own) for name, own in bins.items() if name not in METRICS}
    n_covered, n = int(case.covered.sum()), case.covered.size
    return Evaluation(
        alpha=case.alpha,
        level=case.level,
        n=n,
        n_classes=case.outputs.n_classes,
        coverage=share_estimate(n_covered, n, case.level, floor=1.0 - case.alpha),
        sizes=summarise_sizes(case.sizes, case.outputs.n_classes),
        tables={name: tabulate(name, own, case) for name, own in binned.items()},
        **others,
        covered=case.covered,
        set_sizes=case.sizes,
        rows=case.outputs.rows,
        flavour=case.outputs.flavour,
    )


def _chosen(metrics: Sequence[str] | None, case: Case) -> list[Metric]:
    """Metrics to compute: those named, which must be possible, or all possible ones."""
    if isinstance(metrics, str):
        raise InputError(f"metrics must be a sequence of names; write metrics=({metrics!r},).")
    for name in metrics or ():
        if name not in METRICS:
            raise InputError(f"metrics holds {name!r}, which is none of {', '.join(METRICS)}.")
    chosen = []
    for name, row in METRICS.items():
        # Bins that the user gave name what they need themselves.
        missing = "" if name in (case.bins or {}) else row.missing(case)
        if metrics is not None and name in metrics and missing:
            raise InputError(f"metrics asks for {name!r}, which needs {missing}.")
        if not missing and (metrics is None or name in metrics):
            chosen.append(row)
    return chosen


def _check_sets(sets: PredictionSets, outputs: ModelOutputs) -> None:
    outputs.require_labels("evaluate")
    if sets.has_own_alphas:
        raise InputError(
            "sets must be at one alpha, and each of these has its own; compare "
            "sets.covers(labels) with 1 - sets.alpha."
        )
    if not sets.is_single:
        raise InputError(
            f"sets must be at one alpha, not {sets.alpha}; choose one with sets.at(alpha)."
        )
    if len(sets) != len(outputs):
        raise InputError(
            f"sets and outputs must be of the same samples; got {len(sets)} sets for "
            f"{len(outputs)} samples."
        )
    if not np.array_equal(sets.classes, outputs.classes):
        raise InputError(
            "sets and outputs must name the same classes in the same order; they name other "
            "classes, or order them otherwise. Pass the same classes= to both."
        )


def _check_names(bins: Mapping[str, Partition]) -> None:
    for name in bins:
        if name in METRICS and not METRICS[name].replaceable:
            raise InputError(f"bins names {name!r}, which is a metric already; choose another.")
