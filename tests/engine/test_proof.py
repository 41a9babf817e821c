"""Proofs of thresholds, checked by a few lines that know nothing of the engine."""

from dataclasses import replace

import numpy as np
import pytest
from problems import COMPILED, Array, Case, random_case

from trustsets.engine import ThresholdProof, fit_quantiles, prove_threshold
from trustsets.engine import proof as proof_module
from trustsets.engine.fit import CAPPED
from trustsets.errors import InputError, TrustSetsError


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
