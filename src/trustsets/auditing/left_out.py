"""`audit`: an evaluation without a test set, from exact leave-one-out sets."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from sklearn.base import clone

from trustsets._common.arrays import Floats
from trustsets._common.quantiles import check_alphas
from trustsets.auditing.regions import Regions, find_regions
from trustsets.auditing.risk import ExcessRisk, excess_risk
from trustsets.errors import InputError
from trustsets.metrics import Evaluation, FrequencyBins, evaluate
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor
from trustsets.sets import PredictionSets
from trustsets.statistics import SupportsTrust

__all__ = ["LeftOut", "audit", "leave_out"]


@final
@dataclass(frozen=True, eq=False)
class LeftOut:
    """Calibration samples with exact sets, each as if it had been left out of calibration.

    Attributes
    ----------
    predictor : Predictor
        Calibrated on all of them.
    samples : ModelOutputs
        The samples whose scores were kept; tuning samples are not among them.
    sets : PredictionSets
        Their leave-one-out sets at one alpha.
    """

    predictor: Predictor
    samples: ModelOutputs
    sets: PredictionSets

    @property
    def outputs(self) -> ModelOutputs:
        """Outputs of the samples."""
        return self.samples

    @property
    def trust(self) -> Floats | None:
        """Trust of each sample, shape (n,), if it is known or can be computed."""
        return self.samples.trust

    def evaluate(self, risk: ExcessRisk | None = None, **measured: Any) -> Evaluation:
        """Every metric of the sets; `measured` are options of `trustsets.evaluate`."""
        facts = self.predictor.state_.class_facts
        if facts is not None:
            bins: Mapping[str, Any] = measured.get("bins") or {}
            measured["bins"] = {"conf_frequency": FrequencyBins(facts.counts)} | {**bins}
        found = evaluate(self.sets, self.outputs, self.trust, **measured)
        return replace(found, left_out=True, more={} if risk is None else risk.metrics)

    def regions(self, **options: Any) -> Regions:
        """Under-covered regions; `options` are those of `find_regions`."""
        return find_regions(self.sets, self.outputs, self.trust, **options)

    def risk(self, **options: Any) -> ExcessRisk:
        """Excess risk; `options` are those of `excess_risk`."""
        return excess_risk(self.sets, self.outputs, self.trust, **options)


def leave_out(
    predictor: Predictor,
    calibration: ModelOutputs,
    alpha: float = 0.1,
    *,
    tuning: ModelOutputs | None = None,
    trust: SupportsTrust | Floats | None = None,
) -> LeftOut:
    """Leave-one-out sets of calibration samples, for `audit`, regions and excess risk.

    Parameters
    ----------
    predictor, calibration, alpha, tuning, trust
        As in `audit`.
    """
    if not isinstance(predictor, Predictor):
        raise InputError(
            "predictor must be a predictor such as StandardConformal(); got "
            f"{type(predictor).__name__}."
        )
    if not check_alphas(alpha)[1]:
        raise InputError(f"alpha must be one number; got {alpha}. Audit one alpha after another.")
    own = predictor
    if tuning is not None or trust is not None or not _was_calibrated_on(predictor, calibration):
        own = clone(predictor).calibrate(calibration, tuning=tuning, trust=trust)
    return LeftOut(own, own._kept_task().calibration, own.leave_one_out(float(alpha)))


def audit(
    predictor: Predictor,
    calibration: ModelOutputs,
    alpha: float = 0.1,
    *,
    tuning: ModelOutputs | None = None,
    trust: SupportsTrust | Floats | None = None,
    risk: bool = False,
    **measured: Any,
) -> Evaluation:
    r"""Measure coverage without a test set: each calibration sample is left out once.

    Parameters
    ----------
    predictor : Predictor
        Calibrated on `calibration` already, or else a copy is calibrated on it. The predictor
        itself stays as it is.
    calibration : ModelOutputs
        Calibration samples with labels; all may be used, as none are kept back for a test.
    alpha : float
        Allowed miscoverage.
    tuning : ModelOutputs, optional
        As in ``predictor.calibrate``.
    trust : TrustScore or array, optional
        As in ``predictor.calibrate``, also for Conf x Trust where the method has no trust score.
    risk : bool
        Add the excess risk to the metrics; see `trustsets.auditing.excess_risk`. It takes seconds.
    **measured
        Options of `trustsets.evaluate`, such as ``metrics``, ``bins``, ``level``.

    Returns
    -------
    Evaluation
        Of the samples whose scores were kept (see ``predictor.calibration_rows_``), marked
        ``left_out``.

    Notes
    -----
    *What the intervals hold.* The coverage of this predictor for new samples, overall or in a bin
    G, given its calibration and tuning samples D: :math:`c_G(D) = P(Y \in C_D(X) \mid G, D)`. (The
    average of :math:`c_G(D)` over calibrations is another number. Left-out coverage estimates
    it without bias, but may vary about it more than these intervals allow for.)

    *Why they hold it.* Left-out misses depend on one another, as they share the calibration.
    Leaving out one of n samples hardly moves the thresholds, so the left-out coverage of the
    :math:`n_G` samples of a bin is, up to terms of order p / n for p basis functions,

    .. math:: \hat c_G = c_G(D) + n_G^{-1} \sum_{i \in G} (1[s_i \le S(x_i)] - P(s \le S(x) \mid G))

    with S the limit of the thresholds. The sum is one of independent terms, whatever D made of
    the thresholds, because both sides of the difference have the same thresholds. It has the
    variance :math:`c_G (1 - c_G) / n_G` of the binomial law, so the exact binomial interval
    applies, as it does to test samples.

    For `StandardConformal`, and in each cell of `MondrianConformal`, this is a theorem for
    continuous scores where sets may be empty. Left-out coverage is then the same for all data
    sets, k of n with :math:`k = \lceil (1 - \alpha) n \rceil`, and all variation is in
    :math:`c(D)`. That has the law Beta(k', n + 1 - k') with k' = k or k + 1, whose quantiles are
    the ends of the Clopper-Pearson interval of k of n or lie inside of it.

    *What they do not hold.* Where the method itself fixes the coverage of the bins of a table
    (its own groups, cells or classes), left-out coverage is 1 - alpha there by construction. The
    intervals of the bins hold; but CovGap of such a table is lower than on a test set, even
    lower than its noise floor. What was learned from tuning samples counts as given. Where it
    came from the calibration samples themselves, which ``predictor.summary()`` says, coverage is
    slightly overstated.

    Examples
    --------
    >>> from trustsets import StandardConformal
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(1000, 5))
    >>> labels = (logits + rng.gumbel(size=(1000, 5))).argmax(axis=1)
    >>> outputs = ModelOutputs(logits=logits, labels=labels)
    >>> result = audit(StandardConformal(), outputs, alpha=0.1)
    >>> result.left_out, result.coverage.value, result.coverage.lower < 0.9
    (True, 0.9, True)
    """
    left = leave_out(predictor, calibration, alpha, tuning=tuning, trust=trust)
    shared = {name: measured[name] for name in ("level", "seed") if name in measured}
    return left.evaluate(left.risk(**shared) if risk else None, **measured)


def _was_calibrated_on(predictor: Predictor, calibration: ModelOutputs) -> bool:
    """Whether the predictor keeps these very samples; they may be divided for tuning."""
    if predictor._task is None:
        return False
    kept, state = predictor._task.calibration, predictor.state_
    if kept is calibration:
        return True
    if state.n + state.n_tuning != len(calibration):
        return False
    order = np.argsort(calibration.rows, kind="stable")
    place = np.searchsorted(calibration.rows, kept.rows, sorter=order)
    given = calibration.take(order[np.minimum(place, len(order) - 1)])
    return _are_equal(kept, given)


def _are_equal(one: ModelOutputs, other: ModelOutputs) -> bool:
    """Whether both hold the same samples in the same order."""
    names = ("classes", "rows", "labels", "features")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    if one.n_classes != other.n_classes or one.groups.keys() != other.groups.keys():
        return False
    pairs += [(values, other.groups[name]) for name, values in one.groups.items()]
    pairs += [(one.logits, other.logits)]
    return all(np.array_equal(mine, its) for mine, its in pairs)
