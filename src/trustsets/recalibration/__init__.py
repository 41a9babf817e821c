"""Corrections of the model outputs before scores are computed: temperature and class bias."""

from trustsets.recalibration.class_bias import ClassBias, ClassLikelihood
from trustsets.recalibration.temperature import TemperatureScaling

__all__ = ["ClassBias", "ClassLikelihood", "TemperatureScaling"]
