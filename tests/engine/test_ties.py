"""Scores with few distinct values: a threshold that equals one of them is never below it.

Confidences that are rounded, constant or one-hot give such scores. An optimum then often equals a
score exactly, and a class at the threshold belongs to the set.
"""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from problems import COMPILED, Array, polynomial

from trustsets import APS, ConditionalConformal, ModelOutputs, Softmax, TrustScore
from trustsets.engine import fit_quantiles
from trustsets.engine.kernels import vertex_threshold
from trustsets.engine.problem import RESOLUTION, build_problem, distinct_points

SAMPLES = 2000 if COMPILED else 120


def inputs(kind: str, n: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if kind == "grid":
        return rng.integers(0, 9, (n, 2)) / 8.0
    return rng.uniform(-1.0, 1.0, (n, 2)) if kind == "uniform" else np.exp(rng.normal(size=(n, 2)))


@pytest.mark.parametrize("kind", ["uniform", "skewed", "grid"])
@pytest.mark.parametrize("degree", [1, 3, 5] if COMPILED else [1, 2])
@pytest.mark.parametrize("values", [[1.4], [0.3, 0.7], [1 / 3, 2 / 3, 1.0, 7.1]])
def test_a_threshold_at_a_score_is_not_below_it(
    kind: str, degree: int, values: list[float]
) -> None:
    scores = np.random.default_rng(0).choice(values, SAMPLES)
    phi = polynomial(inputs(kind, SAMPLES, 1), degree)
    rows = polynomial(inputs(kind, 200, 2), degree)
    found = fit_quantiles(phi, scores, alpha=0.1).thresholds(rows).values
    at = [np.abs(found - value) < 1e-9 for value in values]
    if len(values) == 1:
        assert np.array_equal(at[0], np.isfinite(found))
    for value, near in zip(values, at, strict=True):
        assert np.all(found[near] >= value)
        assert np.all(found[near] <= value * (1.0 + 1e-10))


@pytest.mark.parametrize("score", [APS(), APS(scale="tail"), Softmax(), Softmax(scale="tail")])
@pytest.mark.parametrize("outputs", ["all equal", "rounded", "one-hot"])
def test_sets_of_coarse_outputs_cover(outputs: str, score: APS | Softmax) -> None:
    rng = np.random.default_rng(5)
    labels = rng.integers(4, size=2 * SAMPLES)
    features = rng.normal(size=(2 * SAMPLES, 4)) + 2.0 * np.eye(4)[labels]
    logits = np.zeros((2 * SAMPLES, 4))
    if outputs == "rounded":
        logits = np.round(features)
    elif outputs == "one-hot":
        logits = 30.0 * np.eye(4)[features.argmax(axis=1)]
    everything = ModelOutputs(logits=logits, labels=labels, features=features)
    calibration, test = (everything.take(slice(k, None, 2)) for k in range(2))
    trust = TrustScore().fit(features + 0.1 * rng.normal(size=features.shape), labels)
    predictor = ConditionalConformal(score=score, trust=trust).calibrate(calibration)
    for alpha in (0.1, 0.02):
        coverage = predictor.predict_set(test, alpha=alpha).covers(test.labels).mean()
        # Four standard errors of two samples of this size, calibration and test.
        assert coverage > 1.0 - alpha - 4.0 * np.sqrt(2.0 * alpha * (1.0 - alpha) / SAMPLES)


@pytest.mark.parametrize("digits", [2, 52])
def test_a_sum_is_never_rounded_down(digits: int) -> None:
    """Against rational arithmetic; sums of short binary fractions are exact."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        coefficients = rng.integers(-1, 2, 6).astype(float)
        scores = np.round(rng.random(6) * 2.0**digits) / 2.0**digits
        eye, order = np.eye(6), np.arange(6)
        found = Fraction(vertex_threshold(eye, order, eye, coefficients, scores))
        terms = zip(coefficients, scores, strict=True)
        exact = sum((Fraction(c) * Fraction(s) for c, s in terms), Fraction(0))
        assert exact <= found <= exact + Fraction(1, 10**11)
        assert digits == 52 or found == exact


def test_perturbations_break_ties_and_keep_the_order_of_scores() -> None:
    gap = 1.25 * RESOLUTION
    scores = np.append(gap * np.repeat(np.arange(40.0), 5), np.linspace(0.5, 0.9, 20))
    problem = build_problem(np.arange(220.0)[:, None], scores, 0.1)
    np.testing.assert_array_equal(problem.scores, scores)
    assert np.all(problem.perturbations > 0.0)
    assert len(np.unique(problem.perturbations)) == 220
    assert problem.perturbations[:200].max() > 0.4 * gap
    assert problem.perturbations[:195].max() < 0.5 * gap


def test_only_equal_points_are_merged() -> None:
    """Scores that differ by less than the rounding of a sum over the row stay apart."""
    rng = np.random.default_rng(0)
    phi = rng.integers(0, 2, (80, 2)).astype(float)
    scores = rng.choice([0.0, 1e-18, 2e-18, 1.0], 80)
    first, copies, point = distinct_points(phi, scores)
    points = [(*row, score) for row, score in zip(phi.tolist(), scores.tolist(), strict=True)]
    expected, found = Counter(points), Counter[tuple[float, ...]]()
    for i, count in zip(first, copies, strict=True):
        found[points[i]] += int(count)
    assert found == expected
    assert len(first) < 80
    assert [points[first[k]] for k in point] == points
