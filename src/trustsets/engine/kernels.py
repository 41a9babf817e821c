"""Linear algebra steps that the fit and the path share. Imports NumPy and numba only.

A vertex is held by its `corner`, the (r, r) array whose row k is column k of the inverse of the
basic rows: `corner[k] @ rows[basis[l]] == (k == l)`. Row k is the edge along which basic point k
alone gets a residual.
"""

import numpy as np

from trustsets.engine.compiled import REASSOCIATE, entry, inner
from trustsets.engine.problem import SPLITTER, FloatArray, IntArray

__all__ = [
    "WIDTH",
    "add_term",
    "block_products",
    "compensated_pull",
    "dot",
    "exchange",
    "invert",
    "nudged_residuals",
    "products",
    "row_dot",
    "snap",
    "three_way",
]

ROUNDING = 2.0**-46
"""Rounding of a residual is below this share of the terms it is the sum of."""
WIDTH = 16
"""Points per block: a few vector registers."""
SNAP_TOL = 1e-11
"""Weights this close to an integer are that integer: sums of scores then carry no rounding."""
THRESHOLD_ROUNDING = 2.0**-42
"""A threshold whose sum of weighted scores was rounded is raised by this share of its terms, some
thirty times the rounding seen."""


@inner(fastmath=REASSOCIATE)
def dot(left: FloatArray, right: FloatArray) -> float:
    """Inner product; the sum may be reordered, which lets it vectorise."""
    total = 0.0
    for k in range(len(left)):
        total += left[k] * right[k]
    return total


@inner(fastmath=REASSOCIATE)
def row_dot(matrix: FloatArray, i: int, vector: FloatArray) -> float:
    """Inner product of row i and a vector.

    Kernels index arrays instead of slicing them: a slice counts a reference, and threads that
    count references to the same array wait for each other.
    """
    total = 0.0
    for k in range(matrix.shape[1]):
        total += matrix[i, k] * vector[k]
    return total


@entry()
def invert(rows: FloatArray, basis: IntArray, corner: FloatArray) -> bool:
    """Store the transposed inverse of ``rows[basis]`` in `corner`; false if there is none.

    Gauss and Jordan with partial pivoting. Written out because a library's version brings its
    error messages along, which take longer to compile than all the rest.
    """
    rank = len(basis)
    left, right = np.empty((rank, rank)), np.zeros((rank, rank))
    for k in range(rank):
        right[k, k] = 1.0
        for j in range(rank):
            left[k, j] = rows[basis[k], j]
    for j in range(rank):
        best = j
        for k in range(j + 1, rank):
            if abs(left[k, j]) > abs(left[best, j]):
                best = k
        if not abs(left[best, j]) > 0.0:
            return False
        _eliminate(left, right, j, best)
    for k in range(rank):
        for j in range(rank):
            corner[k, j] = right[j, k]
    return True


@inner()
def _eliminate(left: FloatArray, right: FloatArray, j: int, best: int) -> None:
    """Bring row `best` to place j, scale it and clear column j of all other rows."""
    rank, inverse = len(left), 1.0 / left[best, j]
    for i in range(rank):
        above, beside = left[best, i] * inverse, right[best, i] * inverse
        left[best, i], right[best, i] = left[j, i], right[j, i]
        left[j, i], right[j, i] = above, beside
    for k in range(rank):
        factor = left[k, j]
        if k != j and factor != 0.0:
            for i in range(rank):
                left[k, i] -= factor * left[j, i]
                right[k, i] -= factor * right[j, i]


@inner()
def products(matrix: FloatArray, vector: FloatArray, out: FloatArray) -> None:
    """Store `matrix @ vector` in `out`."""
    for i in range(len(out)):
        out[i] = row_dot(matrix, i, vector)


@inner(fastmath=REASSOCIATE)
def exchange(
    corner: FloatArray, leaving: int, rows: FloatArray, entering: int, ratio: FloatArray
) -> None:
    """Replace basic row number `leaving` by `rows[entering]`: a rank-one update of the inverse.

    Afterwards `ratio[k]` is what was subtracted from edge k in units of the old edge `leaving`;
    `ratio[leaving]` is the inverse of the pivot.
    """
    rank = len(ratio)
    for k in range(rank):
        total = 0.0
        for j in range(rank):
            total += corner[k, j] * rows[entering, j]
        ratio[k] = total
    inverse = 1.0 / ratio[leaving]
    for k in range(rank):
        if k != leaving:
            ratio[k] *= inverse
            for j in range(rank):
                corner[k, j] -= ratio[k] * corner[leaving, j]
    ratio[leaving] = inverse
    for j in range(rank):
        corner[leaving, j] *= inverse


@entry()
def _add_pull(rows: FloatArray, weights: FloatArray, total: FloatArray, lost: FloatArray) -> None:
    for i in range(len(rows)):
        for j in range(len(total)):
            add_term(weights[i] * rows[i, j], j, total, lost)


def compensated_pull(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Sum `weights[i] * rows[i]` over points, with Neumaier's correction.

    With a million terms of size one a plain sum can be off by 1e-10, near the tolerance that
    decides ties; the corrected one is exact to the last bits of the result.
    """
    total, lost = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    _add_pull(rows, weights, total, lost)
    return total + lost


@inner()
def add_term(term: float, j: int, total: FloatArray, lost: FloatArray) -> None:
    """Add to entry j of a sum; what rounding takes away goes into `lost` (Neumaier 1974)."""
    new = total[j] + term
    part = new - total[j]
    lost[j] += (total[j] - (new - part)) + (term - part)
    total[j] = new


@entry()
def nudged_residuals(
    rows: FloatArray,
    norms: FloatArray,
    scores: FloatArray,
    nudges: FloatArray,
    basis: IntArray,
    corner: FloatArray,
    out: FloatArray,
) -> None:
    """Residuals of nudged scores at the vertex of `basis`, exactly zero on it.

    Scores and nudges have each their own vertex. A residual of the scores that rounding alone
    could explain is zero: the point is tied, and the residual of its nudge, which has all its
    digits, decides its side. So the side of a point depends on the basis, never on the way there.
    """
    beta, small = np.empty(len(basis)), np.empty(len(basis))
    solve_vertex(rows, scores, basis, corner, beta)
    solve_vertex(rows, nudges, basis, corner, small)
    size = np.sqrt(dot(beta, beta))
    for i in range(len(rows)):
        plain = scores[i] - row_dot(rows, i, beta)
        out[i] = nudges[i] - row_dot(rows, i, small)
        if abs(plain) > ROUNDING * (abs(scores[i]) + norms[i] * size):
            out[i] += plain
    for k in range(len(basis)):
        out[basis[k]] = 0.0


@inner()
def solve_vertex(
    rows: FloatArray, values: FloatArray, basis: IntArray, corner: FloatArray, out: FloatArray
) -> None:
    """Solve ``rows[basis] @ out = values[basis]``, refined with residuals in twice the precision.

    Basic rows may be close to dependent. Refinement makes the error that of rounding `out` itself.
    """
    rank = len(basis)
    for j in range(rank):
        out[j] = 0.0
    for _ in range(3):
        for k in range(rank):
            left = _gap(rows, basis[k], out, values[basis[k]])
            for j in range(rank):
                out[j] += left * corner[k, j]


@inner()
def _gap(rows: FloatArray, i: int, vector: FloatArray, value: float) -> float:
    """``value - rows[i] @ vector`` with the rounding of every product and sum made good.

    Two-product and two-sum (Dekker, Knuth), as in `problem`.
    """
    total, lost = value, 0.0
    for j in range(len(vector)):
        x, y = rows[i, j], -vector[j]
        x_high = SPLITTER * x
        x_high = x_high - (x_high - x)
        y_high = SPLITTER * y
        y_high = y_high - (y_high - y)
        x_low, y_low, product = x - x_high, y - y_high, x * y
        lost += x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)
        new = total + product
        part = new - total
        lost += (total - (new - part)) + (product - part)
        total = new
    return total + lost


@inner()
def snap(weight: float) -> float:
    """Replace a weight by the nearest integer where that is within `SNAP_TOL`.

    A test row that is a calibration row, or a sum of such rows as with groups, has integer
    weights; rounding would turn its threshold of 0 into -1e-17.
    """
    whole = np.floor(weight + 0.5)
    return whole if abs(weight - whole) <= SNAP_TOL else weight


@entry()
def weighted_sum(vectors: FloatArray, weights: int, scores: int) -> float:
    """Threshold of a vertex: row `scores` of `vectors` weighted by row `weights`, rounded up.

    A sum that was not rounded is returned as it is. In exact arithmetic a threshold may equal the
    score of a class; rounded down it would leave that class out.
    """
    value, size, exact = 0.0, 0.0, True
    for k in range(vectors.shape[1]):
        weight = snap(vectors[weights, k])
        term = weight * vectors[scores, k]
        total = value + term
        exact = exact and abs(weight) <= 1.0 and weight == np.floor(weight + 0.5)
        exact = exact and total - value == term and total - term == value
        value, size = total, size + abs(term)
    return value if exact else value + THRESHOLD_ROUNDING * size


@inner()
def three_way(
    key: FloatArray, weight: FloatArray, index: IntArray, low: int, high: int, pivot: float
) -> tuple[int, int]:
    """Reorder [low, high) into keys below, equal to and above `pivot`; the two borders."""
    i = low
    while i < high:
        if key[i] < pivot:
            _swap_entries(key, weight, index, i, low)
            low += 1
            i += 1
        elif key[i] > pivot:
            high -= 1
            _swap_entries(key, weight, index, i, high)
        else:
            i += 1
    return low, high


@inner()
def _swap_entries(key: FloatArray, weight: FloatArray, index: IntArray, i: int, j: int) -> None:
    key[i], key[j] = key[j], key[i]
    weight[i], weight[j] = weight[j], weight[i]
    index[i], index[j] = index[j], index[i]


@inner(fastmath=REASSOCIATE)
def block_products(
    blocks: FloatArray, block: int, vectors: FloatArray, v: int, out: FloatArray, low: int
) -> None:
    """Products of the points of one block with `vectors[v]`, into `out` from `low` on.

    Four coordinates at a time: sums then live in registers instead of memory.
    """
    rank = vectors.shape[1]
    for lane in range(WIDTH):
        out[low + lane] = 0.0
    for j in range(0, rank - 3, 4):
        a, b, c, d = vectors[v, j], vectors[v, j + 1], vectors[v, j + 2], vectors[v, j + 3]
        for lane in range(WIDTH):
            out[low + lane] += (blocks[block, j, lane] * a + blocks[block, j + 1, lane] * b) + (
                blocks[block, j + 2, lane] * c + blocks[block, j + 3, lane] * d
            )
    for j in range(rank - rank % 4, rank):
        a = vectors[v, j]
        for lane in range(WIDTH):
            out[low + lane] += blocks[block, j, lane] * a
