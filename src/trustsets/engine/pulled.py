"""Problems with a strong pull: test rows so extreme that their path would pass many vertices.

A step of the descent passes many points at once, so it needs far fewer vertices; and as most
points never change side, it runs over few of them. All others are held on their side of the base
vertex, checked with the bounds of `scan`, and taken in if they changed it. Imports `descent`,
`fit`, `kernels`, `problem` and `scan`.
"""

import numpy as np
from numba import njit

from trustsets.engine.descent import CAPPED, OPTIMAL, UNBOUNDED, Data
from trustsets.engine.fit import MAX_ROUNDS, Vertex, certify, problem_data, run_descent
from trustsets.engine.kernels import WIDTH, block_products, compensated_pull, dot, row_dot
from trustsets.engine.problem import BoolArray, FloatArray, IntArray, Problem
from trustsets.engine.scan import Base

__all__ = ["fit_pulled"]

FIRST_ACTIVE = 1024
"""Points of the first round, those with the smallest keys."""
RAY_TOL = 1e-9
"""A slope along a ray must be below zero by this share of its terms to count as negative."""
FAR = 1e100
"""Distance at which all points that a ray passes have been passed."""
CROSS_SLACK = 1.0 - 1e-9
"""Room for rounding in the bound of a block."""


def fit_pulled(
    problem: Problem, vertex: Vertex, base: Base, goal: FloatArray
) -> tuple[int, IntArray, Vertex | None]:
    """Solve the problem with the pull `goal` added: status, basic points, optimal vertex.

    `vertex` is the one of the base problem. `UNBOUNDED` means that no vertex is optimal: the dual
    has no feasible point.
    """
    data, alpha, basis, total = problem_data(problem), problem.alpha, vertex.basis, 0
    is_active = np.zeros(len(data.rows), np.bool_)
    for chosen in (basis, base.order[:FIRST_ACTIVE], base.heavy):
        is_active[chosen] = True
    for _ in range(MAX_ROUNDS):
        active = np.flatnonzero(is_active)
        part = data.take(active)
        pull = goal + _held_pull(part, active, vertex, alpha)
        local = np.searchsorted(active, basis)
        status, pivots, edge = run_descent(part, pull, alpha, local)
        basis, total = np.sort(active[local]), total + pivots
        shift = np.asarray(np.linalg.solve(data.rows[basis], vertex.residuals[basis]), np.float64)
        crossed = _crossed(base, shift, is_active)
        if status == OPTIMAL and len(crossed) == 0:
            local = np.searchsorted(active, basis)
            return OPTIMAL, basis, certify(part, alpha, local, pull, total)
        if status == UNBOUNDED:
            loss = _loss_along(data.rows, data.copies, edge, alpha)
            if len(active) == len(data.rows) or goal @ edge > (1.0 + RAY_TOL) * loss:
                return UNBOUNDED, basis, None
            if len(crossed) == 0:
                crossed = _crossed(base, FAR / np.sqrt(edge @ edge) * edge, is_active)
        is_active[crossed if len(crossed) > 0 else slice(None)] = True
    return CAPPED, basis, None


def _held_pull(part: Data, active: IntArray, vertex: Vertex, alpha: float) -> FloatArray:
    """Pull of the points that are not active, on their side of the base vertex."""
    eta = part.copies * np.where(vertex.residuals[active] > 0.0, 1.0 - alpha, -alpha)
    eta[np.searchsorted(active, vertex.basis)] = 0.0
    return vertex.pull - compensated_pull(part.rows, eta)


@njit(cache=True, nogil=True)
def _loss_along(rows: FloatArray, copies: FloatArray, edge: FloatArray, alpha: float) -> float:
    """Growth of the loss far along an edge, if no more residual changes its sign.

    In the end a point with ``Q_i edge > 0`` is below the fit and one with ``Q_i edge < 0`` above.
    If this is less than the product of edge and goal, the value falls for ever: a proof that the
    dual is infeasible. Written out, because the threads of a matrix library would get in the way
    of those that solve the rows.
    """
    total = 0.0
    for i in range(len(rows)):
        speed = row_dot(rows, i, edge)
        total += copies[i] * max(alpha * speed, (alpha - 1.0) * speed)
    return total


def _crossed(base: Base, shift: FloatArray, is_active: BoolArray) -> IntArray:
    """Points that are not active and on the other side after a `shift` from the base vertex.

    A solution over too few points lies far out, beyond many points that the true one never
    passes. So at most as many are given as are active, the first on the straight way there.
    """
    found, when = np.empty(len(base.order), np.int64), np.empty(len(base.order))
    count = _find_crossed(base, shift, found, when)
    points, when = base.order[found[:count]], when[:count]
    new = np.flatnonzero(~is_active[points])
    most = int(is_active.sum())
    if len(new) > most:
        new = new[np.argpartition(when[new], most)[:most]]
    return np.asarray(points[new])


@njit(cache=True, nogil=True)
def _find_crossed(base: Base, shift: FloatArray, found: IntArray, when: FloatArray) -> int:
    """Store the positions of points that changed side, and when; return their number."""
    middle, near = np.empty(WIDTH), np.empty(WIDTH)
    radius = np.sqrt(dot(shift, shift)) / CROSS_SLACK
    count = 0
    for chapter in range(len(base.centres)):
        if base.first_key[chapter * WIDTH] > radius:
            break
        block_products(base.centres, chapter, shift, middle, 0)
        for lane in range(WIDTH):
            block = chapter * WIDTH + lane
            if middle[lane] + base.spread[block] * radius < CROSS_SLACK * base.least[block]:
                continue
            block_products(base.blocks, block, shift, near, 0)
            for i in range(WIDTH):
                if near[i] > base.distance[block * WIDTH + i]:
                    found[count] = block * WIDTH + i
                    when[count] = base.distance[block * WIDTH + i] / near[i]
                    count += 1
    return count
