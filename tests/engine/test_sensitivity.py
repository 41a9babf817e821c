"""Thresholds as functions of one score, against fits with that score moved."""

import numpy as np
import pytest
from problems import COMPILED, Case, random_case

from trustsets.engine import ScorePath, Sensitivity, fit_quantiles, prove_threshold
from trustsets.engine import proof as module

N = 60 if COMPILED else 25


@pytest.mark.parametrize("scores", ["continuous", "mostly_zero"])
@pytest.mark.parametrize("features", ["normal", "bins", "duplicated", "polynomial3", "student"])
@pytest.mark.parametrize("copied", [False, True])
def test_paths_are_those_of_new_fits(features: str, scores: str, copied: bool) -> None:
    rng = np.random.default_rng(len(features))
    case = random_case(3, features, scores, n=N)
    drawn = rng.integers(N, size=N) if copied else np.arange(N)
    case = Case(case.phi[drawn], case.scores[drawn], case.tests, 0.2)
    model, scale = fit_quantiles(case.phi, case.scores, 0.2), np.abs(case.scores).max()
    rows = [row for row in case.tests if np.isfinite(model.thresholds(row[None]).values[0])]
    for row in rows[: 2 if COMPILED else 1]:
        proof = prove_threshold(model, row)
        own = Sensitivity(model, row, proof)
        assert own.weights @ case.scores[own.points] == pytest.approx(
            proof.threshold, abs=1e-9 * scale * np.abs(own.weights).sum()
        )
        for point in [*own.points[: 4 if COMPILED else 1], *rng.integers(N, size=1)]:
            path = own.path(point)
            low, high = path.scores[[0, -1]] + np.array([-0.3, 0.3]) * scale
            for score in rng.uniform(low, high, 3):
                moved = case.scores.copy()
                moved[point] = score
                again = fit_quantiles(case.phi, moved, 0.2).thresholds(row[None]).values[0]
                found = path.at(np.array([score]))[0]
                assert found == pytest.approx(again, abs=1e-7 * scale * np.abs(own.weights).sum())


def test_the_largest_score_has_no_upper_end() -> None:
    model = fit_quantiles(np.ones((9, 1)), np.arange(9.0), 0.1)
    row = np.ones(1)
    path = Sensitivity(model, row, prove_threshold(model, row)).path(8)
    assert path.slopes == (0.0, 1.0)
    assert path.reach(100.0).tolist() == [100.0]
    assert path.reach(7.5).tolist() == [7.5]
    assert path.reach(6.0).size == 0  # the second largest score stops it


def test_a_path_that_is_not_finished_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STEPS", 1)
    case = random_case(0, "normal", "continuous", n=N)
    model = fit_quantiles(case.phi, case.scores, 0.2)
    own = Sensitivity(model, case.tests[0], prove_threshold(model, case.tests[0]))
    paths = [own.path(point) for point in own.points]
    assert any(np.isnan(path.slopes).any() for path in paths)
    unknown = next(path for path in paths if np.isnan(path.slopes[1]))
    beyond = unknown.scores[-1] + np.array([-1e-9, 1.0])
    assert np.isnan(unknown.at(beyond)).tolist() == [False, True]


def test_infinite_paths_are_reached_nowhere() -> None:
    path = ScorePath(np.zeros(1), np.array([np.inf]), (0.0, 0.0))
    assert path.reach(1.0).size == 0
    assert path.at(np.array([-5.0, 5.0])).tolist() == [np.inf, np.inf]
