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
REFERENCE = "split conformal"
DEFAULT = "default"


def _predictor(
    make: Callable[[], Any], split: Split, without: tuple[str, ...] = (), paper: bool = False
) -> Predict:
    calibration = split.task.outputs(split.calibration, without=without, paper=paper)
    test = split.task.outputs(split.test, without=without, paper=paper)
    predictor = make().calibrate(calibration)

    def predict() -> Mask:
        mask: Mask = predictor.predict_set(test, alpha=ALPHA).mask
        return mask

    return predict


def _ours(make: Callable[[], Any], *without: str, paper: bool = False) -> Callable[..., Predict]:
    return partial(_predictor, make, without=without, paper=paper)


def mondrian_cells() -> MondrianConformal:
    """Cells of equal counts by confidence and trust, with a threshold each."""
    return MondrianConformal(by=Bins(Confidence(), Trust(), counts=CELLS, spacing="quantile"))


METHODS = {
    method.name: method
    for method in (
        Method(REFERENCE, "trustsets", _ours(StandardConformal)),
        Method("Mondrian 6 x 6", "trustsets", _ours(mondrian_cells)),
        Method("paper", "trustsets", _ours(ConditionalConformal.paper, paper=True)),
        Method(DEFAULT, "trustsets", _ours(ConditionalConformal)),
        Method("default, no Trust", "trustsets", _ours(ConditionalConformal, "trust")),
        Method("default, no embedding", "trustsets", _ours(ConditionalConformal, "features")),
        Method(
            "default, no class biases",
            "trustsets",
            _ours(partial(ConditionalConformal, class_bias=None)),
        ),
        Method(
            "default, per class",
            "trustsets",
            _ours(partial(ConditionalConformal, per_class=True)),
            largest_classes=FEW_CLASSES,
        ),
    )
}
"""Methods of this package by name, in the order of the tables."""
