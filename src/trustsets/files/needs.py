"""What a calibrated predictor asks of new samples. Imports predictors."""

from typing import Any

from trustsets.basis import Bins, Groups
from trustsets.basis.base import FittedSum
from trustsets.basis.partitions import FittedGroups
from trustsets.predictors import (
    ClusteredConformal,
    ConditionalConformal,
    MondrianConformal,
    Predictor,
    StandardConformal,
)
from trustsets.predictors.conditional import ConditionalLearned
from trustsets.predictors.mondrian import MondrianLearned

__all__ = ["dependence", "needed_groups", "uses_features", "uses_rows"]


def needed_groups(predictor: Predictor) -> tuple[str, ...]:
    """Names of the group columns that its thresholds depend on."""
    learned = predictor.state_.learned
    basis: Any = None
    if isinstance(learned, ConditionalLearned):
        basis = learned.basis
    elif isinstance(learned, MondrianLearned):
        basis = learned.partition
    parts = basis.parts if isinstance(basis, FittedSum) else (basis,)
    columns = [name for part in parts if isinstance(part, FittedGroups) for name in part.columns]
    return tuple(dict.fromkeys(columns))


def uses_features(predictor: Predictor) -> bool:
    """Whether it may look at the features of new samples."""
    if isinstance(predictor, StandardConformal | ClusteredConformal):
        return False
    return not (isinstance(predictor, MondrianConformal) and isinstance(predictor.by, Groups | str))


def uses_rows(predictor: Predictor) -> bool:
    """Whether it draws random numbers, which are keyed on the numbers of the samples."""
    randomized = isinstance(predictor, ConditionalConformal) and predictor.randomized
    return randomized or predictor.score.randomized


def dependence(predictor: Predictor) -> str:
    """Why its sets of one sample depend on the other samples; empty if they do not."""
    if isinstance(predictor, MondrianConformal) and predictor.paper_rules:
        if isinstance(predictor.by, Bins):
            return (
                "the paper's own NAIVE computes its bins from the samples to predict, so its sets "
                "depend on what is predicted together; calibrate the method without paper rules"
            )
    return ""
