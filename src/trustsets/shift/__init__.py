"""Predictors for other populations than that of calibration: label shift and covariate shift."""

from trustsets.shift.adapted import AdaptedConformal, adapt
from trustsets.shift.covariate import CovariateWeights
from trustsets.shift.prevalence import ClassPrevalence

__all__ = ["AdaptedConformal", "ClassPrevalence", "CovariateWeights", "adapt"]
