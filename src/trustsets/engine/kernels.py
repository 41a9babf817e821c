"""Linear algebra steps that the fit and the path share. Imports NumPy and numba only.

A vertex is held by its `corner`, the (r, r) array whose row k is column k of the inverse of the
basic rows: `corner[k] @ rows[basis[l]] == (k == l)`. Row k is the edge along which basic point k
alone gets a residual.
"""

import numpy as np
from numba import njit

from trustsets.engine.problem import FloatArray, IntArray

__all__ = [
    "WIDTH",
    "add_term",
    "block_products",
    "compensated_pull",
    "dot",
    "exchange",
    "nudged_residuals",
    "products",
    "row_dot",
    "snap",
    "three_way",
]

WIDTH = 16
"""Points per block: a few vector registers."""
SNAP_TOL = 1e-11
"""Weights this close to an integer are that integer: sums of scores then carry no rounding."""


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def dot(left: FloatArray, right: FloatArray) -> float:
    """Inner product; the sum may be reordered, which lets it vectorise."""
    total = 0.0
    for k in range(len(left)):
        total += left[k] * right[k]
    return total


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def row_dot(matrix: FloatArray, i: int, vector: FloatArray) -> float:
    """Inner product of row i and a vector.

    Kernels index arrays instead of slicing them: a slice counts a reference, and threads that
    count references to the same array wait for each other.
    """
    total = 0.0
    for k in range(matrix.shape[1]):
        total += matrix[i, k] * vector[k]
    return total


@njit(cache=True, nogil=True)
def products(matrix: FloatArray, vector: FloatArray, out: FloatArray) -> None:
    """Store `matrix @ vector` in `out`."""
    for i in range(len(out)):
        out[i] = row_dot(matrix, i, vector)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
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


@njit(cache=True, nogil=True)
def compensated_pull(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Sum `weights[i] * rows[i]` over points, with Neumaier's correction.

    With a million terms of size one a plain sum can be off by 1e-10, near the tolerance that
    decides ties; the corrected one is exact to the last bits of the result.
    """
    total = np.zeros(rows.shape[1])
    lost = np.zeros(rows.shape[1])
    for i in range(len(rows)):
        for j in range(len(total)):
            add_term(weights[i] * rows[i, j], j, total, lost)
    return total + lost


@njit(cache=True, nogil=True)
def add_term(term: float, j: int, total: FloatArray, lost: FloatArray) -> None:
    """Add to entry j of a sum; what rounding takes away goes into `lost` (Neumaier 1974)."""
    new = total[j] + term
    part = new - total[j]
    lost[j] += (total[j] - (new - part)) + (term - part)
    total[j] = new


@njit(cache=True, nogil=True)
def nudged_residuals(
    rows: FloatArray,
    scores: FloatArray,
    nudges: FloatArray,
    basis: IntArray,
    corner: FloatArray,
    zero: float,
    out: FloatArray,
) -> None:
    """Residuals of nudged scores at the vertex of `basis`, exactly zero on it.

    Scores and nudges have each their own vertex, and residuals of scores up to `zero` are zero:
    where many points are tied, what is left is the residuals of the nudges with all their digits.
    """
    beta, small = np.zeros(len(basis)), np.zeros(len(basis))
    for k in range(len(basis)):
        beta += scores[basis[k]] * corner[k]
        small += nudges[basis[k]] * corner[k]
    for i in range(len(rows)):
        plain = scores[i] - row_dot(rows, i, beta)
        out[i] = nudges[i] - row_dot(rows, i, small)
        if abs(plain) > zero:
            out[i] += plain
    out[basis] = 0.0


@njit(cache=True, nogil=True)
def snap(weight: float) -> float:
    """Replace a weight by the nearest integer where that is within `SNAP_TOL`.

    A test row that is a calibration row, or a sum of such rows as with groups, has integer
    weights; rounding would turn its threshold of 0 into -1e-17.
    """
    whole = np.round(weight)
    return whole if abs(weight - whole) <= SNAP_TOL else weight


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _swap_entries(key: FloatArray, weight: FloatArray, index: IntArray, i: int, j: int) -> None:
    key[i], key[j] = key[j], key[i]
    weight[i], weight[j] = weight[j], weight[i]
    index[i], index[j] = index[j], index[i]


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def block_products(
    blocks: FloatArray, block: int, vector: FloatArray, out: FloatArray, low: int
) -> None:
    """Products of the points of one block with a vector, into `out` from `low` on.

    Four coordinates at a time: sums then live in registers instead of memory.
    """
    rank = len(vector)
    for lane in range(WIDTH):
        out[low + lane] = 0.0
    for j in range(0, rank - 3, 4):
        a, b, c, d = vector[j], vector[j + 1], vector[j + 2], vector[j + 3]
        for lane in range(WIDTH):
            out[low + lane] += (blocks[block, j, lane] * a + blocks[block, j + 1, lane] * b) + (
                blocks[block, j + 2, lane] * c + blocks[block, j + 3, lane] * d
            )
    for j in range(rank - rank % 4, rank):
        a = vector[j]
        for lane in range(WIDTH):
            out[low + lane] += blocks[block, j, lane] * a
