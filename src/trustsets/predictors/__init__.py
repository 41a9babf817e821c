"""From calibration samples to prediction sets."""

from trustsets.predictors.clustered import ClusteredConformal
from trustsets.predictors.conditional import ConditionalConformal
from trustsets.predictors.predictor import Calibration, Predictor, load
from trustsets.predictors.quantiles import (
    QuantileFit,
    class_thresholds,
    leave_one_out_quantiles,
    nested_thresholds,
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
    "nested_thresholds",
    "quantile_thresholds",
]
