"""From calibration samples to prediction sets."""

from trustsets.predictors.base import Predictor, load
from trustsets.predictors.clustered import ClusteredConformal
from trustsets.predictors.conditional import ConditionalConformal
from trustsets.predictors.mondrian import MondrianConformal
from trustsets.predictors.shift import AdaptedConformal
from trustsets.predictors.standard import StandardConformal

__all__ = [
    "AdaptedConformal",
    "ClusteredConformal",
    "ConditionalConformal",
    "MondrianConformal",
    "Predictor",
    "StandardConformal",
    "load",
]
