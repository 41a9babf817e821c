"""Proofs, checked by lines that know nothing of the engine; thresholds where a score moves."""

from dataclasses import replace

import numpy as np
import pytest
from problems import COMPILED, Array, Case, random_case

from trustsets.engine import ScorePath, Sensitivity, ThresholdProof, fit_quantiles, prove_threshold
from trustsets.engine import proof as proof_module
from trustsets.engine.fit import CAPPED
from trustsets.errors import InputError, TrustSetsError

N = 60 if COMPILED else 25


def is_proven(proof: ThresholdProof, case: Case, row: Array, tol: float = 1e-7) -> bool:
    """The check that `ThresholdProof` describes."""
    phi, alpha = case.phi, np.broadcast_to(case.alpha, len(case.scores))
    values = phi @ proof.coefficients
    if not np.isfinite(proof.threshold):
        growth = np.maximum(alpha * values, (alpha - 1.0) * values).sum()
        gain = proof.weight * (row @ proof.coefficients)
        return bool(gain > growth and np.sign(proof.threshold) == np.sign(proof.weight))
    scale = np.abs(case.scores).max()
    residuals = case.scores - values
    eta = np.where(residuals > 0.0, 1.0 - alpha, -alpha)
    eta[proof.points] = proof.duals
    sums = phi.T @ eta + proof.weight * row
    size = np.abs(phi).sum(axis=0) + np.abs(row)
    return bool(
        np.all(np.abs(residuals[proof.points]) <= tol * scale)
        and np.all((eta >= -alpha - tol) & (eta <= 1.0 - alpha + tol))
        and np.all(np.abs(sums) <= tol * size)
        and abs(row @ proof.coefficients - proof.threshold) <= tol * scale
    )


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("scores", ["continuous", "mostly_zero"])
@pytest.mark.parametrize("features", ["normal", "bins", "duplicated", "polynomial3", "student"])
def test_proofs_hold_for_every_kind_of_problem(features: str, scores: str, own: bool) -> None:
    rng = np.random.default_rng(len(features))
    case = random_case(1, features, scores, n=150 if COMPILED else 30)
    drawn = rng.integers(len(case.scores), size=2 * len(case.scores))
    alphas = rng.uniform(0.05, 0.4, len(drawn)) if own else np.full(len(drawn), 0.15)
    case = Case(case.phi[drawn], 1e3 * case.scores[drawn], case.tests, alphas if own else 0.15)
    model = fit_quantiles(case.phi, case.scores, case.alpha)
    for row in [*case.tests, 300.0 * case.tests[0]]:
        for weight in (None, 0.2, -0.1):
            proof = prove_threshold(model, row, weight, alpha=0.15)
            expected = model.thresholds(row[None], weight, alpha=0.15).values[0]
            assert proof.threshold == expected
            assert is_proven(proof, case, row)


def test_planted_errors_are_seen() -> None:
    rng, row = np.random.default_rng(0), np.array([1.0, 0.4, 0.9])
    phi = np.column_stack([np.ones(300), rng.random((300, 2))])
    case = Case(phi, rng.gamma(2.0, size=300), phi[:1], 0.1)
    proof = prove_threshold(fit_quantiles(phi, case.scores, 0.1), row)
    assert is_proven(proof, case, row)
    assert np.array_equal(np.sort(proof.basic_points), proof.points)
    wrong = proof.points.copy()
    wrong[0] = next(i for i in range(300) if i not in wrong)
    for changed in (
        replace(proof, threshold=proof.threshold + 1e-4),
        replace(proof, weight=proof.weight + 1e-2),
        replace(proof, duals=proof.duals + 1e-2),
        replace(proof, duals=proof.duals[::-1]),
        replace(proof, points=wrong),
        replace(proof, coefficients=1.0001 * proof.coefficients),
    ):
        assert not is_proven(changed, case, row)
    # A ray is no proof for another row.
    far = prove_threshold(fit_quantiles(case.phi, case.scores, 0.1), 1e3 * row)
    assert far.threshold == np.inf
    assert len(far.points) == 0
    assert is_proven(far, case, 1e3 * row)
    assert not is_proven(far, case, row)


def test_a_direction_without_points_is_proven_too() -> None:
    case = Case(np.eye(3)[[0, 1] * 20], np.arange(40.0), np.eye(3), 0.1)
    model = fit_quantiles(case.phi, case.scores, case.alpha)
    for weight in (0.9, -0.05):
        proof = prove_threshold(model, [0.2, 0.3, 1.0], weight)
        assert proof.threshold == np.copysign(np.inf, weight)
        assert is_proven(proof, case, np.array([0.2, 0.3, 1.0]))


def test_what_cannot_be_proven_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fit_quantiles(np.ones((30, 1)), np.arange(30.0), 0.1)
    with pytest.raises(InputError, match="phi_x must be one row, got 2"):
        prove_threshold(model, [[1.0], [1.0]])
    monkeypatch.setattr(proof_module, "fit_extreme", lambda *_: (CAPPED, None, np.empty(0)))
    with pytest.raises(TrustSetsError, match="rounding errors prevent a proof"):
        prove_threshold(model, [1.0])
    rounded = replace(model._problem, resolution=2.0**-12)
    object.__setattr__(model, "_problem", rounded)
    with pytest.raises(TrustSetsError, match="rounding errors prevent a proof"):
        prove_threshold(model, [1.0])


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
    monkeypatch.setattr(proof_module, "MOST_STEPS", 1)
    case = random_case(0, "normal", "continuous", n=N)
    model = fit_quantiles(case.phi, case.scores, 0.2)
    own = Sensitivity(model, case.tests[0], prove_threshold(model, case.tests[0]))
    paths = [own.path(point) for point in own.points]
    unknown = next(path for path in paths if np.isnan(path.slopes[1]))
    beyond = unknown.scores[-1] + np.array([-1e-9, 1.0])
    assert np.isnan(unknown.at(beyond)).tolist() == [False, True]
