"""From calibration data to prediction sets. Imports sets, basis, scores and below."""

from trustsets.predictors.base import Predictor, load
from trustsets.predictors.conditional import ConditionalConformal
from trustsets.predictors.mondrian import MondrianConformal
from trustsets.predictors.standard import StandardConformal

__all__ = ["ConditionalConformal", "MondrianConformal", "Predictor", "StandardConformal", "load"]
