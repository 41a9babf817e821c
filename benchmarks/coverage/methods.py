"""Methods of this package: split conformal prediction, the default, its ablations, and others."""

from collections.abc import Callable
from functools import partial
from typing import Any

from splits import ALPHA, FEW_CLASSES, Mask, Method, Predict, Split

from trustsets import (
    Bins,
    ConditionalConformal,
    Confidence,
    MondrianConformal,
    StandardConformal,
    Trust,
)

CELLS = 6
FEWEST_TO_LEARN = 500
"""Tuning samples that the default needs to learn a function of the score."""
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
    """The default with too few tuning samples to learn a function from them."""
    fraction = min(0.2, (FEWEST_TO_LEARN - 1) / len(split.calibration))
    make = partial(ConditionalConformal, tuning_fraction=fraction)
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
