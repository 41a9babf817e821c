"""Sets of calibration samples, each as if it had been left out."""

import copy
import pickle

import numpy as np
import pytest
from kinds import PREDICTORS, RANKS, some

from trustsets import (
    ConditionalConformal,
    Groups,
    MondrianConformal,
    PredictionSets,
    StandardConformal,
    load,
)
from trustsets.errors import NotCalibratedError
from trustsets.predictors import Predictor

MAKERS = PREDICTORS | {"paper rules": lambda: MondrianConformal.paper(by=Groups("site"))}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("seed", "digits"), [(0, 9), (1, 1), (2, 0)])
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")  # groups of few samples
def test_leaving_out_equals_calibrating_on_the_others(name, seed, digits):
    predictor = MAKERS[name]().calibrate(some(seed, 60, digits))
    alphas = (0.1, 0.3)
    sets = predictor.leave_one_out(alphas)
    # The slow way: thresholds of a predictor without each sample.
    scores = predictor.scores(predictor.calibration_)
    slow = Predictor._leave_one_out_thresholds(predictor, scores, alphas)
    expected = PredictionSets.from_scores(
        scores, slow, alphas, predicted=sets.predicted, allow_empty=predictor.allow_empty
    )
    np.testing.assert_array_equal(sets.mask, expected.mask)
    np.testing.assert_array_equal(sets.status, expected.status)
    np.testing.assert_allclose(sets.thresholds, expected.thresholds, rtol=1e-9, atol=1e-9)


def test_rows_say_which_samples_were_left_out():
    outputs = some(3, 200)
    predictor = ConditionalConformal(basis=RANKS).calibrate(outputs)
    sets, rows = predictor.leave_one_out(0.2), predictor.calibration_rows_
    assert len(sets) == len(rows) == predictor.n_calibration_ < 200
    misses = ~sets.covers(outputs.take(rows).labels)
    # Coverage over the constant function holds on average over calibrations, and here nearly.
    assert misses.mean() < 0.2 + 0.05


def test_files_and_copies_do_not_hold_the_samples(tmp_path):
    predictor = StandardConformal().calibrate(some(0, 60))
    predictor.save(tmp_path / "p.trustsets")
    others = load(tmp_path / "p.trustsets"), copy.deepcopy(predictor)
    for other in (*others, pickle.loads(pickle.dumps(predictor))):
        with pytest.raises(NotCalibratedError, match="do not hold the calibration samples"):
            other.leave_one_out()
    with pytest.raises(NotCalibratedError, match="not calibrated"):
        StandardConformal().leave_one_out()
