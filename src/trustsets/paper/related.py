"""Methods of related work on the same splits, scores and temperature. Imports predictors.

Plug-in quantile regression shares everything with CONDITIONAL and is made in `methods`. The
others are run as the package has them: they set tuning samples aside for what they learn
besides thresholds.
"""

from typing import Any

import numpy as np

from trustsets.errors import InputError
from trustsets.paper.methods import ATYPICALITY, CLUSTERED, ORACLE, PLUGIN, SCORES, Method
from trustsets.paper.sources import Source
from trustsets.paper.splits import Split
from trustsets.predictors.base import Predictor
from trustsets.predictors.clustered import ClusteredConformal
from trustsets.predictors.oracle import oracle_sets
from trustsets.predictors.related import atypicality_groups
from trustsets.sets import PredictionSets
from trustsets.statistics import Atypicality

__all__ = ["fit_atypicality", "related_methods", "related_sets", "setting"]


def related_methods(source: Source, degree: int, left_out: list[str]) -> list[Method]:
    """Methods that the data allow; the others are named in `left_out`.

    Parameters
    ----------
    source : Source
        The samples.
    degree : int
        Of the polynomials of plug-in quantile regression.
    left_out : list of str
        Gets a sentence for each method that cannot be run.
    """
    found = [Method(CLUSTERED)]
    if source.has_trust:
        found.insert(0, Method(PLUGIN, degree=degree, n_functions=(degree + 1) * (degree + 2) // 2))
        found.append(Method(ATYPICALITY))
    else:
        left_out.append(f"{PLUGIN} and {ATYPICALITY}: there are no training points.")
    if source.label_probabilities is not None:
        return [*found, Method(ORACLE)]
    left_out.append(
        f"{ORACLE}: the true probabilities of the classes are not known (no array "
        "label_probabilities in the file of outputs)."
    )
    return found


def setting(method: Method, score: str, split: Split) -> str:
    """All options of a method as one text, without fitting anything."""
    return f"{method.name} {SCORES[score]!r} temperature={split.temperature!r}"


def fit_atypicality(source: Source) -> Atypicality:
    """Densities of the training features."""
    if source.train is None:
        raise InputError(f"{ATYPICALITY} needs training points.")
    return Atypicality.from_training(*source.train)


def related_sets(
    method: Method, score: str, split: Split, alpha: float, atypicality: Atypicality | None
) -> PredictionSets:
    """Sets of the test samples of a split.

    Parameters
    ----------
    method : Method
        CLUSTERED, ATYPICALITY or ORACLE.
    score : str
        Name of the score; the oracle has none.
    split : Split
        Calibration and test samples, and the temperature.
    alpha : float
        Allowed miscoverage.
    atypicality : Atypicality, optional
        Needed by ATYPICALITY.
    """
    if method.name == ORACLE:
        source = split.source
        rows = source.positions(source.test_part, split.test)
        return oracle_sets(
            np.asarray(source.label_probabilities)[rows], alpha, source.parts["pool"].classes
        )
    parameters: dict[str, Any] = {
        "score": SCORES[score],
        "temperature": split.temperature,
        "allow_empty": True,
    }
    predictor: Predictor = ClusteredConformal(**parameters)
    if method.name == ATYPICALITY:
        assert atypicality is not None  # fitted by the experiment
        predictor = atypicality_groups(atypicality, **parameters)
    return predictor.calibrate(split.calibration).predict_set(split.test, alpha)
