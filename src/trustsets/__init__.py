"""Prediction sets that keep their coverage where the classifier is overconfident.

The public names live in small modules and are imported when first used, so that
``import trustsets`` itself stays light.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trustsets._version import __version__

# Silent unless a program asks for it, as in logging.basicConfig(level="INFO").
logging.getLogger(__name__).addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from trustsets.auditing import audit
    from trustsets.basis import (
        Bins,
        ClassClusters,
        Classes,
        ClassFrequencies,
        Custom,
        Groups,
        Intercept,
        Polynomial,
        PrincipalComponents,
    )
    from trustsets.errors import (
        InputError,
        NotCalibratedError,
        StorageError,
        TrustSetsError,
        TrustSetsWarning,
    )
    from trustsets.explorer import explore
    from trustsets.metrics import compare, evaluate
    from trustsets.monitor import Monitor
    from trustsets.outputs import ModelOutputs
    from trustsets.planning import plan
    from trustsets.predictors import (
        ClusteredConformal,
        ConditionalConformal,
        MondrianConformal,
        PluginConformal,
        StandardConformal,
        load,
        oracle_sets,
    )
    from trustsets.recalibration import ClassBias, TemperatureScaling
    from trustsets.report import write_report
    from trustsets.scores import APS, RAPS, SAPS, MarginScore, Softmax, TopK
    from trustsets.sets import PredictionSets
    from trustsets.sklearn import SetScorer, TrustSetClassifier
    from trustsets.statistics import Atypicality, ClassFrequency, Confidence, Entropy, Margin, Trust
    from trustsets.status import Status
    from trustsets.trust import TrustScore

_HOME = {
    "APS": "scores",
    "Atypicality": "statistics",
    "Bins": "basis",
    "ClassBias": "recalibration",
    "ClassClusters": "basis",
    "ClassFrequencies": "basis",
    "ClassFrequency": "statistics",
    "Classes": "basis",
    "ClusteredConformal": "predictors",
    "ConditionalConformal": "predictors",
    "Confidence": "statistics",
    "Custom": "basis",
    "Entropy": "statistics",
    "Groups": "basis",
    "InputError": "errors",
    "Intercept": "basis",
    "Margin": "statistics",
    "MarginScore": "scores",
    "ModelOutputs": "outputs",
    "MondrianConformal": "predictors",
    "Monitor": "monitor",
    "NotCalibratedError": "errors",
    "PluginConformal": "predictors",
    "Polynomial": "basis",
    "PredictionSets": "sets",
    "PrincipalComponents": "basis",
    "RAPS": "scores",
    "SAPS": "scores",
    "SetScorer": "sklearn",
    "Softmax": "scores",
    "StandardConformal": "predictors",
    "Status": "status",
    "StorageError": "errors",
    "TemperatureScaling": "recalibration",
    "TopK": "scores",
    "Trust": "statistics",
    "TrustScore": "trust",
    "TrustSetClassifier": "sklearn",
    "TrustSetsError": "errors",
    "TrustSetsWarning": "errors",
    "audit": "auditing",
    "compare": "metrics",
    "evaluate": "metrics",
    "explore": "explorer",
    "load": "predictors",
    "oracle_sets": "predictors",
    "plan": "planning",
    "write_report": "report",
}

__all__ = [
    "APS",
    "RAPS",
    "SAPS",
    "Atypicality",
    "Bins",
    "ClassBias",
    "ClassClusters",
    "ClassFrequencies",
    "ClassFrequency",
    "Classes",
    "ClusteredConformal",
    "ConditionalConformal",
    "Confidence",
    "Custom",
    "Entropy",
    "Groups",
    "InputError",
    "Intercept",
    "Margin",
    "MarginScore",
    "ModelOutputs",
    "MondrianConformal",
    "Monitor",
    "NotCalibratedError",
    "PluginConformal",
    "Polynomial",
    "PredictionSets",
    "PrincipalComponents",
    "SetScorer",
    "Softmax",
    "StandardConformal",
    "Status",
    "StorageError",
    "TemperatureScaling",
    "TopK",
    "Trust",
    "TrustScore",
    "TrustSetClassifier",
    "TrustSetsError",
    "TrustSetsWarning",
    "__version__",
    "audit",
    "compare",
    "evaluate",
    "explore",
    "load",
    "oracle_sets",
    "plan",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(__all__) | set(globals()))
