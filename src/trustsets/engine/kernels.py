"""Linear algebra steps that the fit and the path share.

A vertex is stored as its inverse basis, transposed: an (r, r) array `inverse` with
``inverse[k] @ rows[basic[l]] == (k == l)``. Row k is the edge that leaves basic point k: along it
the residuals of the other basic points stay zero. Kernels that change the basis have the same
numbers as `edges`, with the edges of `WIDTH` basic points side by side (see `to_lanes`).
"""

from typing import Any

import numpy as np

from trustsets.engine.compiled import REASSOCIATE, FloatArray, IntArray, entry, inner, read_only
from trustsets.engine.lanes import WIDTH, Lanes, add_up, fused, load, padded, spread, store

# Veltkamp's constant: splits a double in two halves whose products are exact.
SPLITTER = 2.0**27 + 1.0
# Zero as a NumPy integer: numba compiles a kernel anew for each Python integer passed to it.
ZERO: Any = np.int64(0)
# A product of a row with an edge counts as zero below this share of the edge's length.
EDGE_TOL = 1e-11
# A coefficient this close to an integer is that integer: its term then carries no rounding.
SNAP_TOL = 1e-11
# A threshold whose sum was rounded is raised by this share of the absolute values of its terms,
# some thirty times the largest rounding error seen.
THRESHOLD_ROUNDING = 2.0**-42


def to_lanes(rows: FloatArray) -> FloatArray:
    """Rows (n, r) in blocks (n / `WIDTH`, r, `WIDTH`) of rows side by side, padded with zeros."""
    n_blocks, rank = padded(len(rows)) // WIDTH, rows.shape[1]
    blocks = np.zeros((n_blocks * WIDTH, rank))
    blocks[: len(rows)] = rows
    return np.ascontiguousarray(blocks.reshape(n_blocks, WIDTH, rank).transpose(0, 2, 1))


@inner()
def products(blocks: FloatArray, block: int, vector: FloatArray) -> Lanes:
    """Products of the rows of one block with a vector."""
    rank = blocks.shape[1]
    total = spread(0.0)
    for j in range(rank):
        total = fused(load(blocks, block * rank + j), vector[j], total)
    return total


@inner()
def two_products(
    blocks: FloatArray, block: int, left: FloatArray, right: FloatArray
) -> tuple[Lanes, Lanes]:
    """Products of the rows of one block with two vectors: half of the time is spent on reading."""
    rank = blocks.shape[1]
    first, second = spread(0.0), spread(0.0)
    for j in range(rank):
        column = load(blocks, block * rank + j)
        first, second = fused(column, left[j], first), fused(column, right[j], second)
    return first, second


@inner()
def multiply(blocks: FloatArray, vector: FloatArray, out: FloatArray) -> None:
    """Store the products of all rows with a vector."""
    for block in range(len(blocks)):
        store(out, block, products(blocks, block, vector))


@inner()
def dot(left: FloatArray, right: FloatArray) -> float:
    """Inner product of vectors that are padded with zeros."""
    total = spread(0.0)
    for k in range(len(left) // WIDTH):
        total = fused(load(left, k), load(right, k), total)
    return add_up(total)


@inner()
def add_multiple(vector: FloatArray, factor: float, other: FloatArray) -> None:
    """Add a multiple of another vector, both padded, in place."""
    for k in range(len(vector) // WIDTH):
        store(vector, k, fused(load(other, k), factor, load(vector, k)))


@inner(fastmath=REASSOCIATE)
def row_dot(matrix: FloatArray, i: int, vector: FloatArray) -> float:
    """Inner product of row i and a vector.

    Kernels index arrays instead of slicing them: a slice changes the array's reference count,
    and threads that change the same count wait for each other.
    """
    total = 0.0
    for k in range(matrix.shape[1]):
        total += matrix[i, k] * vector[k]
    return total


@inner()
def invert(  # noqa: PLR0912 - the elimination reads from top to bottom
    matrix: FloatArray, inverse: FloatArray
) -> bool:
    """Store the transposed inverse of a matrix in `inverse`, or NaN and return false.

    Gauss-Jordan elimination with partial pivoting, which leaves the unit matrix in `matrix`. It is
    written out because the code of a library call includes error messages, which take longer to
    compile than all the rest.
    """
    rank = len(matrix)
    for k in range(rank):
        for j in range(rank):
            inverse[k, j] = 1.0 if k == j else 0.0
    # Bring the row with the largest entry to position j, scale it and clear the rest of column j.
    for j in range(rank):
        best = j
        for k in range(j + 1, rank):
            if abs(matrix[k, j]) > abs(matrix[best, j]):
                best = k
        if not abs(matrix[best, j]) > 0.0:
            for k in range(rank):
                for i in range(rank):
                    inverse[k, i] = np.nan
            return False
        reciprocal = 1.0 / matrix[best, j]
        for i in range(rank):
            left, right = matrix[best, i] * reciprocal, inverse[best, i] * reciprocal
            matrix[best, i], inverse[best, i] = matrix[j, i], inverse[j, i]
            matrix[j, i], inverse[j, i] = left, right
        for k in range(rank):
            factor = matrix[k, j]
            if k != j and factor != 0.0:
                for i in range(rank):
                    matrix[k, i] -= factor * matrix[j, i]
                    inverse[k, i] -= factor * inverse[j, i]
    for k in range(rank):
        for j in range(k):
            inverse[k, j], inverse[j, k] = inverse[j, k], inverse[k, j]
    return True


@inner()
def exchange(
    edges: FloatArray, leaving: int, entering: FloatArray, ratio: FloatArray, edge: FloatArray
) -> None:
    """Replace basic row number `leaving` by the row `entering`: a rank-one update of the edges.

    Stores in ``ratio[k]`` the multiple of the old edge `leaving` that was subtracted from edge k,
    in ``ratio[leaving]`` the reciprocal of the pivot, and the old edge in `edge`.
    """
    rank, block, lane = edges.shape[1], leaving // WIDTH, leaving % WIDTH
    multiply(edges, entering, ratio)
    reciprocal = 1.0 / ratio[leaving]
    for j in range(rank):
        edge[j] = edges[block, j, lane]
    for k in range(len(edges)):
        multiple = load(ratio, k) * reciprocal
        store(ratio, k, multiple)
        for j in range(rank):
            store(edges, k * rank + j, fused(multiple, -edge[j], load(edges, k * rank + j)))
    for j in range(rank):
        edges[block, j, lane] = reciprocal * edge[j]
    ratio[leaving] = reciprocal


@inner(inline="always")
def two_sum(a: float, b: float) -> tuple[float, float]:
    """Rounded sum of two numbers and its exact error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@inner(inline="always")
def two_product(x: float, y: float) -> tuple[float, float]:
    """Rounded product of two numbers and its exact error (Dekker)."""
    x_high = SPLITTER * x
    x_high = x_high - (x_high - x)
    y_high = SPLITTER * y
    y_high = y_high - (y_high - y)
    x_low, y_low, product = x - x_high, y - y_high, x * y
    return product, x_low * y_low - (
        ((product - x_high * y_high) - x_low * y_high) - x_high * y_low
    )


@entry()
def _add_rows(rows: FloatArray, weights: FloatArray, total: FloatArray, lost: FloatArray) -> None:
    for i in range(len(rows)):
        for j in range(len(total)):
            total[j], error = two_sum(total[j], weights[i] * rows[i, j])
            lost[j] += error


def compensated_sum(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Sum ``weights[i] * rows[i]`` over points, with the correction of Neumaier (1974).

    A plain sum of a million terms of size one can be off by 1e-10, which is near the tolerance of
    dual values. The corrected sum is exact to the last bits.
    """
    total, lost = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    _add_rows(read_only(rows), read_only(weights), total, lost)
    return total + lost


@inner()
def accurate_coefficients(
    rows: FloatArray,
    edges: FloatArray,
    target: FloatArray,
    solution: FloatArray,
    rest: FloatArray,
    gap: FloatArray,
) -> float:
    """Improve a solution of ``rows' solution = target`` to twice the working precision.

    `rows` are those of the basic points, padded. The result is ``solution + rest``; `gap` is
    scratch. Its bits depend on the basic points alone, not on the inverse or on the order of the
    points, so every way to a vertex gives the same threshold. Returns the largest error before the
    improvement.
    """
    rank, width, worst = len(rows), rows.shape[1] // WIDTH, 0.0
    for j in range(width):
        total, low = load(target, j), spread(0.0)
        for k in range(rank):
            # The error of each product and of each sum is computed exactly and kept in `low`.
            product, error = two_product(load(rows, k * width + j), -solution[k])
            total, lost = two_sum(total, product)
            low = low + (lost + error)
        store(gap, j, total + low)
    for j in range(rank):
        worst = max(worst, abs(gap[j]))
    multiply(edges, gap, rest)
    return worst


@inner()
def weighted_sum(
    coefficients: FloatArray, rest: FloatArray, scores: FloatArray, count: int
) -> float:
    """Threshold of a vertex: the sum of ``coefficients + rest`` times scores, rounded up.

    A sum that a double can hold is returned as it is. In exact arithmetic a threshold may equal
    the score of a class, and a threshold that was rounded down would leave that class out.
    """
    total, lost, size, exact = 0.0, 0.0, 0.0, True
    for k in range(count):
        coefficient, low = coefficients[k], rest[k]
        # A test row that is a calibration row, or a sum of such rows as with groups, has integer
        # coefficients. Without them, rounding would turn a threshold of 0 into -1e-17.
        whole = np.floor(coefficient + 0.5)
        if abs((coefficient - whole) + low) <= SNAP_TOL:
            coefficient, low = whole, 0.0
        else:
            exact = False
        product, error = two_product(coefficient, scores[k])
        total, dropped = two_sum(total, product)
        lost += dropped + (error + low * scores[k])
        size += abs(product)
    value, dropped = two_sum(total, lost)
    if exact and dropped == 0.0:
        return value
    return total + (lost + THRESHOLD_ROUNDING * size)


def vertex_threshold(
    rows: FloatArray, basic: IntArray, inverse: FloatArray, row: FloatArray, scores: FloatArray
) -> float:
    """Threshold of a test row whose optimal vertex has these basic points."""
    rank = len(row)
    basic_rows, vectors = np.zeros((rank, padded(rank))), np.zeros((4, padded(rank)))
    basic_rows[:, :rank], vectors[0, :rank] = rows[basic], row
    return float(_threshold(basic_rows, to_lanes(inverse), read_only(scores[basic]), vectors))


@entry()
def _threshold(
    rows: FloatArray, edges: FloatArray, scores: FloatArray, vectors: FloatArray
) -> float:
    row, coefficients, rest, gap = vectors[0], vectors[1], vectors[2], vectors[3]
    multiply(edges, row, coefficients)
    accurate_coefficients(rows, edges, row, coefficients, rest, gap)
    return weighted_sum(coefficients, rest, scores, len(scores))


@inner()
def three_way(
    key: FloatArray, weight: FloatArray, index: IntArray, low: int, high: int
) -> tuple[int, int]:
    """Reorder [low, high) into keys below, equal to and above one of them; the two borders."""
    a, b, c = key[low], key[(low + high) // 2], key[high - 1]
    # The median of three is a good pivot value for sorted and for random keys.
    pivot, i = max(min(a, b), min(max(a, b), c)), low
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
