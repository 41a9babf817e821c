"""P-values agree with sets, and are small no more often than they say."""

import numpy as np
import pytest
from kinds import LINE, PREDICTORS, some

from trustsets import (
    SAPS,
    Classes,
    ConditionalConformal,
    Groups,
    MondrianConformal,
    Softmax,
    StandardConformal,
)
from trustsets.engine import default_alphas
from trustsets.errors import InputError
from trustsets.scores import TopK

GRID = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
MAKERS = PREDICTORS | {"per class": lambda: ConditionalConformal(basis=LINE + Classes())}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")  # groups of few samples
def test_sets_from_p_values_are_the_sets(name):
    predictor = MAKERS[name]().calibrate(some(0, 300))
    test = some(1, 60)
    p = predictor.predict_p(test, GRID)
    sets = predictor.predict_set(test, GRID)
    for alpha in GRID:
        np.testing.assert_array_equal(p > alpha, sets.at(alpha).mask)
    assert set(np.unique(p)) <= {*GRID, 1.0}
    # The order of the grid does not matter.
    np.testing.assert_array_equal(predictor.predict_p(test, GRID[::-1]), p)


def test_few_and_many_alphas_have_the_same_thresholds():
    predictor = ConditionalConformal(basis=LINE + Groups("site", penalty=3.0))
    predictor.calibrate(some(0, 300))
    test = some(1, 50)
    many = predictor.predict_set(test, GRID[:-3])
    lowest = np.inf
    for alpha in GRID[-4::-1]:
        alone = predictor.predict_set(test, alpha).thresholds
        lowest = alone if alpha == GRID[-4] else np.maximum(lowest, alone)
        np.testing.assert_array_equal(many.at(alpha).thresholds, lowest)


EXACT = [
    StandardConformal(),
    StandardConformal(allow_empty=True),
    StandardConformal(score=TopK(), allow_empty=True),  # nearly all scores are tied
    StandardConformal(score=SAPS(own_mass="random"), allow_empty=True),
    MondrianConformal(by="class"),
    MondrianConformal(by="class", score=Softmax(scale="tail"), allow_empty=True),
    MondrianConformal(by=Groups("site")),
    MondrianConformal(by=Groups("site"), score=TopK(own_mass="random"), allow_empty=True),
]


@pytest.mark.parametrize("n", [1, 19, 99, 300])
@pytest.mark.parametrize("predictor", EXACT, ids=repr)
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")  # groups of few samples
def test_exact_p_values_are_the_sets_at_every_alpha(predictor, n):
    predictor.calibrate(some(0, n))
    test = some(1, 60)  # with n = 1, of groups and classes that calibration lacks
    p = predictor.predict_p(test)
    # With n + 1 a divisor of 1,000, a p-value equals one of these: then it leaves the class out.
    alphas = np.arange(1, 1000) / 1000.0
    sets = predictor.predict_set(test, alphas.tolist())
    np.testing.assert_array_equal(p[..., None] > alphas, sets.mask)
    assert np.isin(p, np.arange(1, n + 2)[:, None] / np.arange(2, n + 2)).all()


@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")  # groups of few samples
def test_p_values_are_exact_unless_there_is_no_closed_form():
    calibration, test = some(0, 400), some(1, 80)
    numbers = {*default_alphas(), 1.0}
    for predictor in (MondrianConformal.paper(by=Groups("site")), ConditionalConformal(basis=LINE)):
        p = predictor.calibrate(calibration).predict_p(test)
        assert len(numbers) > len(np.unique(p)) > 10 and set(np.unique(p)) <= numbers
    exact = StandardConformal(allow_empty=True).calibrate(calibration)
    p, scores = exact.predict_p(test), exact.scores(test)
    at_least = (exact.state_.scores[:, None, None] >= scores).sum(axis=0)
    np.testing.assert_array_equal(p, (1 + at_least) / 401)


@pytest.mark.parametrize("wrong", [[], [0.0, 0.5], [1.0], "all", [[0.1]], [np.nan]])
def test_a_grid_that_is_none_is_refused(wrong):
    predictor = StandardConformal().calibrate(some(0, 50))
    with pytest.raises(InputError, match="alpha must"):
        predictor.predict_p(some(1, 5), wrong)
