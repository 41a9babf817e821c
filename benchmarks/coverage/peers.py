"""The peers, each through its own package.

Peers get a classifier that hands out the saved probabilities, and run with the settings of their
own documentation; what is random is seeded by the split.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from data_sets import Task
from sklearn.base import BaseEstimator, ClassifierMixin
from splits import ALPHA, FEW_CLASSES, Array, Floats, Mask, Method, Predict, Split

RAPS_PENALTY, RAPS_RANK = 0.01, 5
CREPES_BINS = 10


class SavedOutputs(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose inputs begin with the probabilities that it gives."""

    def __init__(self, n_classes: int = 2) -> None:
        self.n_classes = n_classes
        self.classes_ = np.arange(n_classes)

    def fit(self, X: Array, y: Array) -> "SavedOutputs":
        """Nothing to learn."""
        return self

    def predict_proba(self, X: Array) -> Array:
        """The probabilities themselves."""
        return np.asarray(X)[:, : self.n_classes]

    def predict(self, X: Array) -> Array:
        """The most likely classes."""
        return np.asarray(self.predict_proba(X).argmax(axis=1))


def mapie_sets(
    probabilities: Floats, labels: Array, test: Floats, *, score: str, seed: int, alpha: float
) -> Predict:
    """MAPIE's `SplitConformalClassifier`."""
    from mapie.classification import SplitConformalClassifier

    model = SplitConformalClassifier(
        SavedOutputs(probabilities.shape[1]),
        confidence_level=1.0 - alpha,
        conformity_score=score,
        prefit=True,
        random_state=seed,
    )
    model.conformalize(probabilities, labels)
    return lambda: np.asarray(model.predict_set(test)[1][:, :, 0], dtype=bool)


def mapie_conditional_sets(
    probabilities: Floats,
    labels: Array,
    test: Floats,
    *,
    columns: Floats,
    test_columns: Floats,
    alpha: float,
) -> Predict:
    """MAPIE's `ConditionalSplitConformalClassifier` with the given basis functions."""
    from mapie.conditional_conformal_prediction import ConditionalSplitConformalClassifier

    n_classes = probabilities.shape[1]
    model = ConditionalSplitConformalClassifier(
        feature_map=lambda rows: np.asarray(rows)[:, n_classes:],
        estimator=SavedOutputs(n_classes),
        confidence_level=1.0 - alpha,
        conformity_score="lac",
    )
    model.conformalize(np.hstack([probabilities, columns]), labels)
    rows = np.hstack([test, test_columns])
    return lambda: np.asarray(model.predict_set(rows)[1][:, :, 0], dtype=bool)


def torchcp_sets(
    probabilities: Floats,
    labels: Array,
    test: Floats,
    *,
    predictor: str,
    score: str,
    seed: int,
    alpha: float,
    **settings: Any,
) -> Predict:
    """TorchCP's predictors and scores, by the names of their classes."""
    import torch
    from torchcp.classification import predictor as predictors
    from torchcp.classification import score as scores

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = getattr(predictors, predictor)(getattr(scores, score)(**settings), alpha=alpha)
    # It takes the softmax of what it gets; log(0) would turn into NaN.
    logits, test_logits = (
        torch.from_numpy(np.log(np.maximum(values, 1e-300))) for values in (probabilities, test)
    )
    model.calculate_threshold(logits, torch.from_numpy(labels), alpha)
    return lambda: np.asarray(model.predict_with_logits(test_logits), dtype=bool)


def crepes_sets(
    probabilities: Floats,
    labels: Array,
    test: Floats,
    *,
    seed: int,
    alpha: float,
    class_cond: bool = False,
    bins: int = 0,
) -> Predict:
    """The `WrapClassifier` of crepes; bins of its `MondrianCategorizer` are by confidence."""
    from crepes import WrapClassifier
    from crepes.extras import MondrianCategorizer

    np.random.seed(seed)  # noqa: NPY002 (the categorizer breaks ties by draws from it)
    categorizer = None
    if bins:
        categorizer = MondrianCategorizer()
        categorizer.fit(probabilities, f=lambda rows: np.asarray(rows).max(axis=1), no_bins=bins)
    model = WrapClassifier(SavedOutputs(probabilities.shape[1]))
    model.calibrate(probabilities, labels, class_cond=class_cond, mc=categorizer, seed=seed)
    return lambda: np.asarray(
        model.predict_set(test, labels=False, confidence=1.0 - alpha, seed=seed), dtype=bool
    )


def puncc_sets(
    probabilities: Floats,
    labels: Array,
    test: Floats,
    *,
    method: str,
    seed: int,
    alpha: float,
    **settings: Any,
) -> Predict:
    """The classes LAC, APS and RAPS of puncc, around a predictor that is trained already."""
    from deel.puncc import classification
    from deel.puncc.api.prediction import BasePredictor

    class Saved(BasePredictor):
        def predict(self, X: Array, **_: Any) -> Array:
            """The probabilities themselves."""
            return np.asarray(X)

    np.random.seed(seed)  # noqa: NPY002 (what it draws from)
    wrapped = Saved(SavedOutputs(probabilities.shape[1]), is_trained=True)
    model = getattr(classification, method)(wrapped, train=False, **settings)
    model.fit(X_fit=probabilities[:1], y_fit=labels[:1], X_calib=probabilities, y_calib=labels)

    def predict() -> Mask:
        _, sets = model.predict(test, alpha=alpha)
        mask = np.zeros(test.shape, dtype=bool)
        for row, members in enumerate(sets):
            mask[row, np.asarray(members, dtype=np.int64)] = True
        return mask

    return predict


def _peer(call: Callable[..., Predict], **settings: Any) -> Callable[[Split], Predict]:
    """The method of a call on calibration probabilities, labels, and test probabilities."""

    def fit(split: Split) -> Predict:
        task = split.task
        return call(
            task.probabilities[split.calibration],
            task.labels[split.calibration],
            task.probabilities[split.test],
            alpha=ALPHA,
            seed=split.seed,
            **settings,
        )

    return fit


def _quadratic(task: Task, rows: Array) -> Floats:
    """Basis functions for MAPIE: a quadratic polynomial in confidence and log trust."""
    confidence = task.probabilities[rows].max(axis=1)
    trust = np.log(np.clip(task.trust[rows], 1e-3, 1e3))
    terms = [np.ones(len(rows)), confidence, trust, confidence**2, confidence * trust, trust**2]
    return np.stack(terms, axis=1)


def _mapie_conditional(split: Split) -> Predict:
    task = split.task
    return mapie_conditional_sets(
        task.probabilities[split.calibration],
        task.labels[split.calibration],
        task.probabilities[split.test],
        columns=_quadratic(task, split.calibration),
        test_columns=_quadratic(task, split.test),
        alpha=ALPHA,
    )


_raps: dict[str, Any] = {"penalty": RAPS_PENALTY, "kreg": RAPS_RANK}
PEERS = {
    method.name: method
    for method in (
        Method("MAPIE LAC", "mapie", _peer(mapie_sets, score="lac")),
        Method("MAPIE APS", "mapie", _peer(mapie_sets, score="aps")),
        Method("MAPIE RAPS", "mapie", _peer(mapie_sets, score="raps")),
        Method("MAPIE conditional", "mapie", _mapie_conditional, largest_pool=2000),
        Method(
            "TorchCP LAC (THR)",
            "torchcp",
            _peer(torchcp_sets, predictor="SplitPredictor", score="LAC"),
        ),
        Method(
            "TorchCP APS", "torchcp", _peer(torchcp_sets, predictor="SplitPredictor", score="APS")
        ),
        Method(
            "TorchCP RAPS",
            "torchcp",
            _peer(torchcp_sets, predictor="SplitPredictor", score="RAPS", **_raps),
        ),
        Method(
            "TorchCP SAPS", "torchcp", _peer(torchcp_sets, predictor="SplitPredictor", score="SAPS")
        ),
        Method(
            "TorchCP class-conditional",
            "torchcp",
            _peer(torchcp_sets, predictor="ClassConditionalPredictor", score="APS"),
        ),
        Method(
            "TorchCP clustered",
            "torchcp",
            _peer(torchcp_sets, predictor="ClusteredPredictor", score="APS"),
        ),
        Method(
            "crepes class-conditional",
            "crepes",
            _peer(crepes_sets, class_cond=True),
            largest_classes=FEW_CLASSES,
        ),
        Method("crepes Mondrian, confidence", "crepes", _peer(crepes_sets, bins=CREPES_BINS)),
        Method("puncc LAC", "deel.puncc", _peer(puncc_sets, method="LAC")),
        Method("puncc APS", "deel.puncc", _peer(puncc_sets, method="APS")),
        Method(
            "puncc RAPS",
            "deel.puncc",
            _peer(puncc_sets, method="RAPS", lambd=RAPS_PENALTY, k_reg=RAPS_RANK),
        ),
    )
}
"""Methods of other packages by name, in the order of the tables."""
