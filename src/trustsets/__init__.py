"""Prediction sets that keep their coverage where the classifier is overconfident.

The public names live in small modules and are imported when first used, so that
``import trustsets`` itself stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trustsets._version import __version__

if TYPE_CHECKING:
    from trustsets.basis import Bins, Groups
    from trustsets.errors import (
        InputError,
        NotCalibratedError,
        StorageError,
        TrustSetsError,
        TrustSetsWarning,
    )
    from trustsets.metrics import compare, evaluate
    from trustsets.outputs import ModelOutputs
    from trustsets.predictors import MondrianConformal, StandardConformal, load
    from trustsets.report import write_report
    from trustsets.scores import APS, RAPS, Softmax
    from trustsets.sets import PredictionSets
    from trustsets.statistics import Confidence, Trust
    from trustsets.status import Status
    from trustsets.temperature import TemperatureScaling

_HOME = {
    "APS": "scores",
    "Bins": "basis",
    "Confidence": "statistics",
    "Groups": "basis",
    "InputError": "errors",
    "ModelOutputs": "outputs",
    "MondrianConformal": "predictors",
    "NotCalibratedError": "errors",
    "PredictionSets": "sets",
    "RAPS": "scores",
    "Softmax": "scores",
    "StandardConformal": "predictors",
    "Status": "status",
    "StorageError": "errors",
    "TemperatureScaling": "temperature",
    "Trust": "statistics",
    "TrustSetsError": "errors",
    "TrustSetsWarning": "errors",
    "compare": "metrics",
    "evaluate": "metrics",
    "load": "predictors",
    "write_report": "report",
}

__all__ = [
    "APS",
    "RAPS",
    "Bins",
    "Confidence",
    "Groups",
    "InputError",
    "ModelOutputs",
    "MondrianConformal",
    "NotCalibratedError",
    "PredictionSets",
    "Softmax",
    "StandardConformal",
    "Status",
    "StorageError",
    "TemperatureScaling",
    "Trust",
    "TrustSetsError",
    "TrustSetsWarning",
    "__version__",
    "compare",
    "evaluate",
    "load",
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
