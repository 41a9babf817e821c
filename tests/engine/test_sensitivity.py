"""Thresholds as functions of one score, against fits with that score moved."""

import numpy as np
import pytest
from problems import COMPILED, Array, random_case

from trustsets.engine import ScorePath, Sensitivity, fit_quantiles, prove_threshold
from trustsets.engine import proof as module

N = 60 if COMPILED else 25


@pytest.mark.parametrize("scores", ["continuous", "mostly_zero"])
@pytest.mark.parametrize("features", ["normal", "bins", "duplicated", "polynomial3", "student"])
@pytest.mark.parametrize("kind", ["one alpha", "copied", "alphas", "alphas, penalised"])
def test_paths_are_those_of_new_fits(features: str, scores: str, kind: str) -> None:
    rng = np.random.default_rng(len(features))
    case = random_case(3, features, scores, n=N)
    drawn = rng.integers(N, size=N) if kind == "copied" else np.arange(N)
    phi, values, p = case.phi[drawn], case.scores[drawn], case.phi.shape[1]
    alpha: float | Array = 0.2
    if "penalised" in kind:
        penalty = 0.5 * np.abs(phi).max(axis=0) * np.eye(p)[1:]
        phi = np.vstack([phi, penalty, -penalty])
        values = np.append(values, np.zeros(2 * len(penalty)))
    if "alphas" in kind:
        alpha = np.append(rng.uniform(0.05, 0.5, N), np.full(len(phi) - N, 0.3))
    model, scale = fit_quantiles(phi, values, alpha), np.abs(values).max()
    finite = np.isfinite(model.thresholds(case.tests, alpha=0.2).values)
    for row in case.tests[finite][: 2 if COMPILED else 1]:
        proof = prove_threshold(model, row, alpha=0.2)
        sensitivity = Sensitivity(model, row, proof)
        size = scale * np.abs(sensitivity.weights).sum()
        threshold = sensitivity.weights @ values[sensitivity.points]
        assert threshold == pytest.approx(proof.threshold, abs=1e-9 * size)
        basic = sensitivity.points[sensitivity.points < N]
        for point in [*basic[: 4 if COMPILED else 1], *rng.integers(N, size=1)]:
            path = sensitivity.path(point)
            low, high = path.scores[[0, -1]] + np.array([-0.3, 0.3]) * scale
            for score in rng.uniform(low, high, 3):
                moved = values.copy()
                moved[point] = score
                again = fit_quantiles(phi, moved, alpha).thresholds(row[None], alpha=0.2).values[0]
                assert path.at(np.array([score]))[0] == pytest.approx(again, abs=1e-7 * size)


def test_ends_of_paths() -> None:
    """The largest score has no upper end, and an infinite path is reached nowhere."""
    model = fit_quantiles(np.ones((9, 1)), np.arange(9.0), 0.1)
    row = np.ones(1)
    path = Sensitivity(model, row, prove_threshold(model, row)).path(8)
    assert path.slopes == (0.0, 1.0)
    for score in (-3.0, 7.5, 100.0):
        moved = fit_quantiles(np.ones((9, 1)), np.append(np.arange(8.0), score), 0.1)
        assert path.at(np.array([score])) == moved.thresholds(row[None]).values
    assert path.reach(100.0).tolist() == [100.0]
    assert path.reach(7.5).tolist() == [7.5]
    assert path.reach(6.0).size == 0  # the second largest score stops it
    path = ScorePath(np.zeros(1), np.array([np.inf]), (0.0, 0.0))
    assert path.reach(1.0).size == 0
    assert path.at(np.array([-5.0, 5.0])).tolist() == [np.inf, np.inf]


def test_a_path_that_is_not_finished_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STEPS", 1)
    case = random_case(0, "normal", "continuous", n=N)
    model = fit_quantiles(case.phi, case.scores, 0.2)
    own = Sensitivity(model, case.tests[0], prove_threshold(model, case.tests[0]))
    paths = [own.path(point) for point in own.points]
    unknown = next(path for path in paths if np.isnan(path.slopes[1]))
    beyond = unknown.scores[-1] + np.array([-1e-9, 1.0])
    assert np.isnan(unknown.at(beyond)).tolist() == [False, True]
