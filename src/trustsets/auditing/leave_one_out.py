"""`audit`: an evaluation without a test set, from exact leave-one-out sets."""

from dataclasses import replace
from typing import Any

from trustsets._quantiles import check_alphas
from trustsets.errors import InputError
from trustsets.metrics import Evaluation, FrequencyBins, evaluate, excess_risk
from trustsets.predictors import Predictor
from trustsets.sets import PredictionSets


def audit(
    predictor: Predictor,
    alpha: float = 0.1,
    *,
    sets: PredictionSets | None = None,
    risk: bool = False,
    **options: Any,
) -> Evaluation:
    """Measure coverage without a test set: each calibration sample is left out once.

    Parameters
    ----------
    predictor : Predictor
        Calibrated in this process: files and copies do not hold the calibration samples. All
        labelled samples may have been used for calibration, as none are needed for a test.
    alpha : float
        Allowed miscoverage.
    sets : PredictionSets, optional
        ``predictor.leave_one_out(alpha)``, if it was called before.
    risk : bool
        Add the excess risk to the metrics; see `trustsets.auditing.excess_risk`. It takes seconds.
    **options
        Options of `trustsets.evaluate`, such as ``metrics``, ``bins``, ``level``.

    Notes
    -----
    Intervals are those of the coverage of this predictor for new samples, overall or in a bin,
    given its calibration and tuning samples; for split conformal thresholds with continuous scores
    that is a theorem, for others it holds up to terms of order p / n for p basis functions.

    Where the predictor itself fixes the coverage of the bins of a table (its own groups, cells or
    classes), leave-one-out coverage is 1 - alpha there by construction, and CovGap of such a table
    is below its noise floor. Where something was learned from the calibration samples themselves,
    which ``predictor.summary()`` says, coverage is slightly overstated.

    Examples
    --------
    >>> import numpy as np
    >>> from trustsets import ModelOutputs, StandardConformal
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(1000, 5))
    >>> labels = (logits + rng.gumbel(size=(1000, 5))).argmax(axis=1)
    >>> outputs = ModelOutputs(logits=logits, labels=labels)
    >>> result = audit(StandardConformal().calibrate(outputs), alpha=0.1)
    >>> result.left_out, result.coverage.value, result.coverage.lower < 0.9
    (True, 0.9, True)
    """
    if not isinstance(predictor, Predictor):
        raise InputError(
            "predictor must be a calibrated predictor, such as "
            "StandardConformal().calibrate(ModelOutputs(logits=..., labels=...)); got "
            f"{type(predictor).__name__}."
        )
    if not check_alphas(alpha)[1]:
        raise InputError(f"alpha must be one number; got {alpha}. Audit one alpha after another.")
    outputs = predictor.calibration_
    sets = predictor.leave_one_out(float(alpha)) if sets is None else sets
    frequency = {"conf_frequency": FrequencyBins(predictor.class_counts_)}
    options["bins"] = frequency | dict(options.get("bins") or {})
    result = evaluate(sets, outputs, **options)
    shared = {name: options[name] for name in ("level", "seed") if name in options}
    more = excess_risk(sets, outputs, **shared).metrics if risk else {}
    return replace(result, left_out=True, n_calibration=predictor.n_calibration_, more=more)
