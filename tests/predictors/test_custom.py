"""Scores and groups of one's own: used like those of the package, checked, and saved by name."""

import numpy as np
import pytest
import saved_functions

from trustsets import (
    APS,
    ConditionalConformal,
    Custom,
    Intercept,
    MondrianConformal,
    Softmax,
    StandardConformal,
    load,
)
from trustsets.basis import CustomGroups
from trustsets.errors import InputError, StorageError
from trustsets.scores import CustomScore


@pytest.mark.parametrize("make", [StandardConformal, ConditionalConformal])
def test_a_score_of_ones_own_is_a_score(make, make_outputs, tmp_path):
    """The formula of Softmax, written as a function, gives the sets of Softmax."""
    calibration, test = make_outputs(600).split(0.5)
    settings = {} if make is StandardConformal else {"basis": Intercept()}
    own = make(score=CustomScore(function=saved_functions.complement), **settings)
    plain = make(score=Softmax(), **settings)
    first, second = (each.calibrate(calibration).predict_set(test) for each in (own, plain))
    np.testing.assert_array_equal(first.mask, second.mask)
    np.testing.assert_array_equal(first.thresholds, second.thresholds)
    own.save(tmp_path / "a.trustsets")
    again = load(tmp_path / "a.trustsets").predict_set(test)
    np.testing.assert_array_equal(again.mask, first.mask)


def test_groups_of_ones_own_are_groups(make_outputs, tmp_path):
    calibration, test = make_outputs(600).split(0.5)
    predictor = MondrianConformal(by=saved_functions.is_sure).calibrate(calibration)
    sets = predictor.predict_set(test)
    for sure in (True, False):
        here, there = (saved_functions.is_sure(part) == sure for part in (calibration, test))
        alone = StandardConformal().calibrate(calibration.take(here)).predict_set(test.take(there))
        np.testing.assert_array_equal(sets.mask[there], alone.mask)
    predictor.save(tmp_path / "a.trustsets")
    again = load(tmp_path / "a.trustsets").predict_set(test)
    np.testing.assert_array_equal(again.mask, sets.mask)
    basis = ConditionalConformal(basis=CustomGroups(saved_functions.is_sure)).calibrate(calibration)
    np.testing.assert_array_equal(basis.conditions_on.cells(test), saved_functions.is_sure(test))


def test_functions_without_a_name_are_used_and_not_saved(make_outputs, tmp_path):
    outputs = make_outputs(200)
    for predictor in (
        StandardConformal(score=CustomScore(function=lambda p: -p)),
        MondrianConformal(by=lambda outputs: outputs.confidence > 0.5),
        ConditionalConformal(basis=Custom(lambda outputs: np.ones((len(outputs), 1)))),
    ):
        predictor.calibrate(outputs).predict_set(outputs, 0.2)
        with pytest.raises(StorageError, match="defined with def at the top of a module"):
            predictor.save(tmp_path / "a.trustsets")


@pytest.mark.parametrize(
    "function",
    [lambda p: p[:, :2], lambda p: p * np.nan, lambda p: p.astype(str), lambda p: p.sum(axis=1)],
)
def test_wrong_functions_are_named(function, make_outputs):
    with pytest.raises(InputError, match="function must return"):
        StandardConformal(score=CustomScore(function=function)).calibrate(make_outputs())
    with pytest.raises(InputError, match="what function returns"):
        MondrianConformal(by=lambda outputs: np.zeros(3)).calibrate(make_outputs())
    with pytest.raises(InputError, match="function must map probabilities"):
        CustomScore(function=3)
    assert APS() != CustomScore(function=function)
