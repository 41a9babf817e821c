"""From calibration data to prediction sets. Imports sets, basis, scores and below."""

from trustsets.predictors.base import Predictor, load
from trustsets.predictors.mondrian import MondrianConformal
from trustsets.predictors.standard import StandardConformal

__all__ = ["MondrianConformal", "Predictor", "StandardConformal", "load"]
