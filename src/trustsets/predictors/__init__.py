"""From calibration samples to prediction sets."""

from trustsets.predictors.base import Predictor, load
from trustsets.predictors.by_class import InterpolatedConformal, RankCalibratedConformal
from trustsets.predictors.clustered import ClusteredConformal
from trustsets.predictors.conditional import ConditionalConformal
from trustsets.predictors.mondrian import MondrianConformal
from trustsets.predictors.oracle import oracle_sets
from trustsets.predictors.related import PluginConformal, atypicality_groups
from trustsets.predictors.shift import AdaptedConformal
from trustsets.predictors.standard import StandardConformal

__all__ = [
    "AdaptedConformal",
    "ClusteredConformal",
    "ConditionalConformal",
    "InterpolatedConformal",
    "MondrianConformal",
    "PluginConformal",
    "Predictor",
    "RankCalibratedConformal",
    "StandardConformal",
    "atypicality_groups",
    "load",
    "oracle_sets",
]
