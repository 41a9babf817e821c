"""Methods of this package: split conformal prediction, the default, its ablations, and others."""

from collections.abc import Callable
from functools import partial
from typing import Any

from splits import ALPHA, FEW_CLASSES, Mask, Method, Predict, Split

from trustsets import (
    Bins,
    ClassBias,
    ConditionalConformal,
    Confidence,
    Entropy,
    Groups,
    MondrianConformal,
    Polynomial,
    PrincipalComponents,
    StandardConformal,
    Trust,
)

CELLS = 6
RANKS = [kind(transform="rank") for kind in (Confidence, Trust, Entropy)]
REFERENCE = "split conformal"
DEFAULT = "default"


def _predictor(
    make: Callable[..., Any],
    split: Split,
    *,
    without: tuple[str, ...] = (),
    trained: bool = False,
    paper: bool = False,
) -> Predict:
    """Calibrate a predictor; `trained` ones also get the fitted trust score, as users give it.

    Its values come with the outputs, so that no split searches for neighbours again.
    """
    task = split.task
    calibration = task.outputs(split.calibration, without=without, paper=paper)
    test = task.outputs(split.test, without=without, paper=paper)
    setting = {"trust": task.trust_score} if trained else {}
    predictor = make(**setting).calibrate(calibration)

    def predict() -> Mask:
        mask: Mask = predictor.predict_set(test, alpha=ALPHA).mask
        return mask

    return predict


def _ours(make: Callable[..., Any], **setting: Any) -> Callable[..., Predict]:
    return partial(_predictor, make, **setting)


def mondrian_cells() -> MondrianConformal:
    """Cells of equal counts by confidence and trust, with a threshold each."""
    return MondrianConformal(by=Bins(Confidence(), Trust(), counts=CELLS, spacing="quantile"))


def _without_learning(split: Split) -> Predict:
    """The default's first function class without the learned function, and without a choice."""
    count = min(12, split.task.features.shape[1])
    basis = Polynomial(5, tuple(RANKS[:2]), 5.0) + Polynomial(1, (RANKS[2],))
    basis = basis + PrincipalComponents(count, 5.0, source="training")
    if split.task.groups:
        basis = basis + Groups(penalty=5.0)
    make = partial(
        ConditionalConformal,
        basis=basis,
        class_bias=ClassBias(prevalence=0.75),
        temperature="tuning",
        tuning_fraction=0.2,
    )
    return _predictor(make, split, trained=True)


FEWER_SPLITS = {
    "default, no Trust": 5,
    "default, no embedding": 5,
    "default, no class biases": 5,
    "default, no learning": 5,
    "default, per class": 2,
}
"""Splits of methods that are not run on all of them, to save time."""
METHODS = {
    method.name: method
    for method in (
        Method(REFERENCE, "trustsets", _ours(StandardConformal)),
        Method("Mondrian 6 x 6", "trustsets", _ours(mondrian_cells)),
        Method("paper", "trustsets", _ours(ConditionalConformal.paper, paper=True)),
        Method(DEFAULT, "trustsets", _ours(ConditionalConformal, trained=True)),
        Method("default, no Trust", "trustsets", _ours(ConditionalConformal, without=("trust",))),
        Method(
            "default, no embedding",
            "trustsets",
            _ours(ConditionalConformal, without=("features",)),
        ),
        Method(
            "default, no class biases",
            "trustsets",
            _ours(partial(ConditionalConformal, class_bias=None), trained=True),
        ),
        Method("default, no learning", "trustsets", _without_learning),
        Method(
            "default, per class",
            "trustsets",
            _ours(partial(ConditionalConformal, per_class=True), trained=True),
            largest_classes=FEW_CLASSES,
        ),
    )
}
"""Methods of this package by name, in the order of the tables."""
