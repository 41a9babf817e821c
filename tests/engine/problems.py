"""Random calibration problems of every kind the engine must solve, and their reference."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trustsets.engine import solve_linear_program

Array = NDArray[np.float64]

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
"""Without compilation the same laws are checked on smaller problems."""


@dataclass(frozen=True)
class Case:
    phi: Array
    scores: Array
    tests: Array
    alpha: float | Array


def polynomial(x: Array, degree: int) -> Array:
    a, b = x.T
    return np.stack([a**i * b**j for i in range(degree + 1) for j in range(degree + 1 - i)], axis=1)


def one_hot(labels: NDArray[np.int64], count: int) -> Array:
    return np.eye(count)[labels]


def plane(rng: np.random.Generator, count: int, heavy: bool = False) -> Array:
    x = rng.random((count, 2))
    if heavy:
        x[:, 1] = np.exp(1.5 * rng.standard_normal(count))
    return x


def bins(rng: np.random.Generator, count: int) -> Array:
    """One-hot bins next to one-hot bins: one dependent column."""
    return np.hstack([one_hot(rng.integers(k, size=count), k) for k in (4, 3)])


def features(kind: str, rng: np.random.Generator, n: int, m: int) -> tuple[Array, Array]:
    """Calibration and test rows."""
    if kind == "normal":
        p = int(rng.integers(1, min(45, n) + 1))
        rows = rng.standard_normal((n + m, p))
        rows[:, 0] = 1.0
    elif kind == "student":
        rows = rng.standard_t(1.5, (n + m, min(6, n)))
    elif kind == "bins":
        rows = bins(rng, n + m)
    elif kind == "duplicated":
        rows = rng.standard_normal((max(n // 4, 5), 4))[rng.integers(max(n // 4, 5), size=n + m)]
    else:
        degree = int(kind[-1])
        rows = polynomial(plane(rng, n + m, heavy="heavy" in kind), degree)
        if "scaled" in kind:
            rows = rows * 10.0 ** rng.integers(-3, 5, rows.shape[1])
    return rows[:n], rows[n:]


def scores(kind: str, rng: np.random.Generator, n: int) -> Array:
    values = rng.gamma(2.0, size=n)
    if kind == "rounded":
        return np.round(values, 1)
    if kind == "mostly_zero":
        return np.where(rng.random(n) < 0.8, 0.0, values)
    if kind == "constant":
        return np.full(n, 0.3)
    return values


def random_case(
    seed: int, features_kind: str, scores_kind: str, n: int | None = None, m: int = 4
) -> Case:
    rng = np.random.default_rng([seed, *features_kind.encode(), *scores_kind.encode()])
    n = int(rng.choice([5, 12, 40, 150, 400])) if n is None else n
    phi, tests = features(features_kind, rng, n, m)
    tests = tests.copy()
    tests[-1] *= rng.choice([1.0, 3.0, 30.0])
    alpha = float(rng.choice([0.01, 0.05, 0.1, 0.25, 0.5, 0.9]))
    return Case(phi, scores(scores_kind, rng, n), tests, alpha)


def with_copies_and_penalty(
    case: Case, rng: np.random.Generator, draw_alphas: Callable[[int], Array]
) -> Case:
    """Every point up to several times, each time with another alpha, and a penalty."""
    n, p = case.phi.shape
    drawn = np.concatenate([np.arange(n), rng.integers(n, size=n)])
    penalty = 0.7 * np.abs(case.phi).max(axis=0) * np.eye(p)[1:]
    phi = np.vstack([case.phi[drawn], penalty, -penalty])
    scores = np.append(case.scores[drawn], np.zeros(2 * len(penalty)))
    alphas = np.append(draw_alphas(2 * n), np.full(2 * len(penalty), 0.5))
    return Case(phi, scores, case.tests, alphas)


def reference(case: Case, weights: Array) -> Array:
    """Thresholds by the definition, in coordinates found by an independent singular value
    decomposition; the product is taken in extended precision."""
    scale = np.abs(case.phi).max(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    _, sizes, directions = np.linalg.svd(case.phi / scale, full_matrices=True)
    sizes = np.append(sizes, np.zeros(case.phi.shape[1] - len(sizes)))
    seen = sizes > 1e-12 * sizes[0]
    change = directions.T / np.where(seen, sizes / np.sqrt(len(case.phi)), 1.0)
    rows, tests = (
        ((phi.astype(np.longdouble) / scale) @ change.astype(np.longdouble)).astype(np.float64)
        for phi in (case.phi, case.tests)
    )
    rows[:, ~seen] = 0.0
    tests[:, ~seen] = np.where(np.abs(tests[:, ~seen]) > 1e-8, tests[:, ~seen], 0.0)
    return np.array(
        [
            solve_linear_program(rows, case.scores, case.alpha, row, weight)
            for row, weight in zip(tests, weights, strict=True)
        ]
    )
