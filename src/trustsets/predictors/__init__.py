"""From calibration samples to prediction sets."""

from trustsets.predictors.calibration import Calibration
from trustsets.predictors.clustered import ClusteredConformal
from trustsets.predictors.conditional import ConditionalConformal
from trustsets.predictors.predictor import Predictor, load
from trustsets.predictors.quantiles import (
    QuantileFit,
    class_thresholds,
    leave_one_out_quantiles,
    quantile_thresholds,
)
from trustsets.predictors.split import MondrianConformal, StandardConformal

__all__ = [
    "Calibration",
    "ClusteredConformal",
    "ConditionalConformal",
    "MondrianConformal",
    "Predictor",
    "QuantileFit",
    "StandardConformal",
    "class_thresholds",
    "leave_one_out_quantiles",
    "load",
    "quantile_thresholds",
]
