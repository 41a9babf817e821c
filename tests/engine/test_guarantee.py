"""The guarantee itself, over many simulated calibration sets.

For f in F with f >= 0, ``E[f(X) (1{covered} - (1 - alpha))]`` is at least 0; for continuous scores
it is at most ``d / (n + 1) E[max_i |f(X_i)|]`` (Theorem 2 of the paper), and it is 0 when the
weight is drawn uniformly from (-alpha, 1 - alpha). The same holds with an alpha(X) for each point.
"""

import numpy as np
import pytest
from problems import COMPILED, Array

from trustsets.engine import fit_quantiles

REPEATS = 4000 if COMPILED else 40
N, ALPHA = 60, 0.2
FUNCTIONS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, -1.0, 0.0]])


def basis(x: Array) -> Array:
    return np.stack([np.ones_like(x), x, (x > 0.5).astype(float)], axis=1)


def gaps(randomised: bool, ties: bool, own: bool = False) -> Array:
    """f(X) (covered - (1 - alpha)) for every repeat and function: (REPEATS, 4).

    With `own`, every point has the alpha 0.05 + 0.5 X^2, a function outside the class.
    """
    rng = np.random.default_rng(11)
    out = np.empty((REPEATS, len(FUNCTIONS)))
    for i in range(REPEATS):
        x = rng.random(N + 1)
        scores = rng.gamma(1.0, 0.2 + x)
        scores = np.where(scores < 0.4, 0.0, scores) if ties else scores
        phi = basis(x)
        alphas = 0.05 + 0.5 * x**2 if own else np.full(N + 1, ALPHA)
        weight = rng.uniform(-alphas[N], 1.0 - alphas[N]) if randomised else 1.0 - alphas[N]
        model = fit_quantiles(phi[:N], scores[:N], alphas[:N] if own else ALPHA)
        threshold = model.thresholds(phi[N:], weight, alpha=alphas[N]).values[0]
        out[i] = (FUNCTIONS @ phi[N]) * ((scores[N] <= threshold) - (1.0 - alphas[N]))
    return out


def mean_and_error(values: Array) -> tuple[Array, Array]:
    return values.mean(axis=0), values.std(axis=0) / np.sqrt(len(values))


@pytest.mark.statistical
@pytest.mark.parametrize("ties", [False, True])
def test_coverage_is_at_least_nominal_for_every_shift(ties: bool) -> None:
    mean, error = mean_and_error(gaps(randomised=False, ties=ties))
    assert np.all(mean >= -3.5 * error)


@pytest.mark.statistical
def test_coverage_is_within_the_upper_bound_for_continuous_scores() -> None:
    mean, error = mean_and_error(gaps(randomised=False, ties=False))
    assert np.all(mean <= 3.0 / (N + 1) + 3.5 * error)  # |f| <= 1 for all four functions


@pytest.mark.statistical
@pytest.mark.parametrize("own", [False, True])
def test_randomised_coverage_is_exact(own: bool) -> None:
    mean, error = mean_and_error(gaps(randomised=True, ties=False, own=own))
    assert np.all(np.abs(mean) <= 3.5 * error)
