"""`evaluate`: one call, every metric that the data allow. Imports the metrics and result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Array, Floats
from trustsets.basis import Bins, Groups, Partition
from trustsets.errors import InputError
from trustsets.metrics.balls import Balls, Neighbourhoods
from trustsets.metrics.binning import (
    Binned,
    RankBins,
    bin_by_class,
    bin_by_size,
    bin_samples,
    label_ranks,
)
from trustsets.metrics.bins import BinTable, tabulate
from trustsets.metrics.coverage import Ints, correlate, summarise_sizes
from trustsets.metrics.inference import Estimate, binomial_interval, conditional_coverage
from trustsets.metrics.result import ConditionalSummary, Evaluation
from trustsets.metrics.slab import Slab
from trustsets.outputs import ModelOutputs
from trustsets.sets import PredictionSets
from trustsets.statistics import Observed, SupportsTrust

__all__ = ["METRICS", "evaluate", "evaluate_outcomes"]

# What may be asked for by name; marginal coverage and sizes are always there.
METRICS = (
    "conf_trust",
    "conf_rank",
    "class",
    "groups",
    "size_strata",
    "trust_rank",
    "balls",
    "slab",
    "conditional",
)
_FEWEST_FOR_BALLS = 2
_FEWEST_FOR_SLAB = 4


def evaluate(
    sets: PredictionSets,
    outputs: ModelOutputs,
    trust: SupportsTrust | Floats | None = None,
    *,
    metrics: Sequence[str] | None = None,
    bins: Mapping[str, Partition] | None = None,
    class_divisor: Literal["all", "present"] = "all",
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
        Names among ``conf_trust``, ``conf_rank``, ``class``, ``groups``, ``size_strata``,
        ``trust_rank``, ``balls``, ``slab``, ``conditional``. Default: all that the data
        allow. Marginal coverage and sizes are always measured.
    bins : mapping of str to Partition, optional
        Other bins, or more of them: ``{"conf_trust": Bins(nested=False)}`` for the global
        quantiles of the authors' code, ``{"conf_rank": RankBins(edges=(0, 1, 2, 4, 1000))}``
        for edges by hand, ``{"sex x site": Groups("sex", "site")}`` for a crossing.
    class_divisor : {"all", "present"}
        Divide the class CovGap by K, as the paper does, or by the classes that occur.
    balls, slab
        How to draw balls and to search slabs. ``Balls().around(features)``, made once,
        serves several methods on the same samples.
    label_probabilities : array of shape (n, K), optional
        True P(y | x), where known, for the true conditional coverage.
    level : float
        Level of the intervals.
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
    ['conf_rank', 'class', 'group:site', 'size_strata']
    >>> gap = result.metrics["group:site.gap"]
    >>> gap.lower <= gap.value <= gap.upper
    True
    """
    _check_sets(sets, outputs)
    truth = None
    if label_probabilities is not None and (metrics is None or "conditional" in metrics):
        truth = conditional_coverage(sets, label_probabilities)
    assert isinstance(sets.alpha, float)  # checked: one level
    return evaluate_outcomes(
        sets.covers(outputs.labels),
        sets.sizes,
        outputs,
        Observed(outputs, trust),
        alpha=sets.alpha,
        metrics=metrics,
        bins=bins,
        class_divisor=class_divisor,
        balls=balls,
        slab=slab,
        true_coverage=truth,
        level=level,
        n_bootstrap=n_bootstrap,
        seed=seed,
    )


def evaluate_outcomes(
    covered: NDArray[np.bool_],
    sizes: Ints,
    outputs: ModelOutputs,
    observed: Observed,
    *,
    alpha: float,
    metrics: Sequence[str] | None = None,
    bins: Mapping[str, Partition] | None = None,
    class_divisor: Literal["all", "present"] = "all",
    balls: Balls | Neighbourhoods = Balls(),
    slab: Slab = Slab(),
    true_coverage: NDArray[np.float64] | None = None,
    level: float = 0.95,
    n_bootstrap: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Do the work of `evaluate` where only hits and sizes of the sets are known.

    Parameters
    ----------
    covered, sizes : arrays of shape (n,)
        Whether each set holds its label, and its size.
    outputs : ModelOutputs
        The samples.
    observed : Observed
        The same samples with the trust score in use; shared among methods, it computes
        each statistic once.
    alpha : float
        Allowed miscoverage of the sets.
    true_coverage : array of shape (n,), optional
        True conditional coverage of each set, where known.
    metrics, bins, class_divisor, balls, slab, level, n_bootstrap, seed
        As in `evaluate`.
    """
    _check(outputs, level, n_bootstrap, class_divisor)
    case = _Case(
        hits=covered,
        sizes=sizes,
        alpha=alpha,
        outputs=outputs,
        observed=observed,
        true_coverage=true_coverage,
        extra=_check_bins(bins),
        balls=balls,
        slab=slab,
        divisor=outputs.n_classes if class_divisor == "all" else None,
        level=level,
        n_bootstrap=n_bootstrap,
        seed=seed,
    )
    return case.measure(_chosen(metrics, case))


@final
@dataclass(frozen=True, eq=False)
class _Case:
    """One evaluation in the making: checked arguments, and a method per metric."""

    hits: NDArray[np.bool_]
    sizes: Ints
    alpha: float
    outputs: ModelOutputs
    observed: Observed
    true_coverage: NDArray[np.float64] | None
    extra: dict[str, Partition]
    balls: Balls | Neighbourhoods
    slab: Slab
    divisor: int | None
    level: float
    n_bootstrap: int
    seed: int

    @property
    def features(self) -> Array:
        assert self.outputs.features is not None  # checked by `_missing`
        return self.outputs.features

    def measure(self, chosen: set[str]) -> Evaluation:
        """Compute the chosen metrics."""
        hits, sizes = self.hits, self.sizes
        lower, upper = binomial_interval(hits.sum(), hits.size, self.level)
        known = self.true_coverage if "conditional" in chosen else None
        return Evaluation(
            alpha=self.alpha,
            level=self.level,
            n=hits.size,
            n_classes=self.outputs.n_classes,
            coverage=Estimate(float(hits.mean()), float(lower), float(upper), 1.0 - self.alpha),
            sizes=summarise_sizes(sizes, self.outputs.n_classes),
            tables=self._tables(chosen),
            correlation=correlate(self.observed.trust, label_ranks(self.outputs))
            if "trust_rank" in chosen
            else None,
            balls=self._neighbourhoods().curve(hits, self.alpha) if "balls" in chosen else None,
            slab=self.slab.worst(self.features, hits, self.alpha, self.level)
            if "slab" in chosen
            else None,
            conditional=None
            if known is None
            else ConditionalSummary.of(known, self.alpha, self.level),
            covered=hits,
            set_sizes=sizes,
            rows=self.outputs.rows,
        )

    def _tables(self, chosen: set[str]) -> dict[str, BinTable]:
        return {
            name: tabulate(
                name,
                make(),
                self.hits,
                self.sizes,
                self.alpha,
                divisor=self.divisor if name == "class" else None,
                level=self.level,
                n_bootstrap=self.n_bootstrap,
                seed=self.seed,
            )
            for name, make in self._divisions(chosen).items()
        }

    def _divisions(self, chosen: set[str]) -> dict[str, Callable[[], Binned]]:
        """What to bin by, in the order of the tables."""

        def by(name: str, partition: Partition) -> Callable[[], Binned]:
            return lambda: bin_samples(partition, self.observed, f"bins[{name!r}]")

        extra = dict(self.extra)
        found: dict[str, Callable[[], Binned]] = {}
        for name, default in (("conf_trust", Bins()), ("conf_rank", RankBins())):
            partition = extra.pop(name, default)
            if name in chosen:
                found[name] = by(name, partition)
        if "class" in chosen:
            found["class"] = lambda: bin_by_class(self.outputs)
        if "groups" in chosen:
            found |= {f"group:{name}": by(name, Groups(name)) for name in self.outputs.groups}
        if "size_strata" in chosen:
            found["size_strata"] = lambda: bin_by_size(self.sizes, self.outputs.n_classes)
        return found | {name: by(name, partition) for name, partition in extra.items()}

    def _neighbourhoods(self) -> Neighbourhoods:
        if isinstance(self.balls, Balls):
            return self.balls.around(self.features)
        if self.balls.shell.shape[1] != len(self.outputs):
            raise InputError(
                f"balls were drawn around {self.balls.shell.shape[1]} samples, but outputs has "
                f"{len(self.outputs)}; make them with Balls().around(outputs.features)."
            )
        return self.balls


def _chosen(metrics: Sequence[str] | None, case: _Case) -> set[str]:
    """Metrics to compute: those named, which must be possible, or all possible ones."""
    if metrics is None:
        # Bins asked for by name must be made, or say why they cannot be.
        return {name for name in METRICS if not _missing(name, case) or name in case.extra}
    if isinstance(metrics, str):
        raise InputError(f"metrics must be a sequence of names; write metrics=({metrics!r},).")
    for name in metrics:
        if name not in METRICS:
            raise InputError(f"metrics holds {name!r}, which is none of {', '.join(METRICS)}.")
        missing = _missing(name, case)
        if missing:
            raise InputError(f"metrics asks for {name!r}, which needs {missing}.")
    return set(metrics)


def _missing(name: str, case: _Case) -> str:
    """What a metric lacks, with the remedy; empty if nothing."""
    outputs = case.outputs
    if name in {"conf_trust", "trust_rank"} and not case.observed.has_trust:
        replaced = name == "conf_trust" and name in case.extra
        return "" if replaced else "a trust score; pass trust="
    measured = {"conf_trust", "trust_rank"} if case.observed.trust_score is not None else set()
    if name in {"balls", "slab"} | measured and outputs.features is None:
        return "features; pass features= to ModelOutputs"
    fewest = {"balls": _FEWEST_FOR_BALLS, "slab": _FEWEST_FOR_SLAB}.get(name, 1)
    if len(outputs) < fewest:
        return f"at least {fewest} samples; there are {len(outputs)}"
    if name == "groups" and not outputs.groups:
        return "group columns; pass groups= to ModelOutputs"
    if name == "conditional" and case.true_coverage is None:
        return "known label probabilities; pass label_probabilities="
    return ""


def _check_sets(sets: PredictionSets, outputs: ModelOutputs) -> None:
    outputs.require_labels("evaluate")
    if not sets.is_single:
        raise InputError(
            f"sets hold the levels alpha={sets.alpha}; choose one with sets.at(alpha)."
        )
    if len(sets) != len(outputs):
        raise InputError(
            f"sets and outputs must be of the same samples; got {len(sets)} sets for "
            f"{len(outputs)} samples."
        )
    if not np.array_equal(sets.classes, outputs.classes):
        raise InputError(
            "sets and outputs name other classes, or the same in another order; pass the same "
            "classes= to both."
        )


def _check(outputs: ModelOutputs, level: float, n_bootstrap: int, divisor: str) -> None:
    outputs.require_labels("evaluate")
    if not 0.0 < level < 1.0:
        raise InputError(f"level must lie strictly between 0 and 1; got {level}.")
    if n_bootstrap < 1:
        raise InputError(f"n_bootstrap must be 1 or more; got {n_bootstrap}.")
    if divisor not in {"all", "present"}:
        raise InputError(f'class_divisor must be "all" or "present"; got {divisor!r}.')


def _check_bins(bins: Mapping[str, Partition] | None) -> dict[str, Partition]:
    taken = set(METRICS) - {"conf_trust", "conf_rank"}
    for name, partition in (bins or {}).items():
        if name in taken:
            raise InputError(f"bins names {name!r}, which is a metric already; choose another.")
        if not isinstance(partition, Partition):
            raise InputError(
                f"bins[{name!r}] must be a Partition such as Bins(), RankBins() or "
                f"Groups(...); got {type(partition).__name__}."
            )
    return dict(bins or {})
