"""Linear algebra steps that the fit and the path share.

A vertex is stored as its inverse basis, transposed: an (r, r) array `inverse` with
``inverse[k] @ rows[basic[l]] == (k == l)``. Row k is the edge that leaves basic point k: along it
the residuals of the other basic points stay zero.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from trustsets.engine.compiled import REASSOCIATE, FloatArray, IntArray, entry, inner, read_only

# Veltkamp's constant: splits a double in two halves whose products are exact.
SPLITTER = 2.0**27 + 1.0
WIDTH = 16  # Points per block: a few vector registers.
# Zero as a NumPy integer: numba compiles a kernel anew for each Python integer passed to it.
ZERO: Any = np.int64(0)
# A product of a row with an edge counts as zero below this share of the edge's length.
EDGE_TOL = 1e-11
# A coefficient this close to an integer is that integer: its term then carries no rounding.
SNAP_TOL = 1e-11
# A threshold whose sum was rounded is raised by this share of the absolute values of its terms,
# some thirty times the largest rounding error seen.
THRESHOLD_ROUNDING = 2.0**-42


@inner(fastmath=REASSOCIATE)
def dot(left: FloatArray, right: FloatArray) -> float:
    """Inner product; the sum may be reordered, so that it vectorises."""
    total = 0.0
    for k in range(len(left)):
        total += left[k] * right[k]
    return total


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
def invert(matrix: FloatArray, inverse: FloatArray) -> bool:
    """Store the transposed inverse of a matrix in `inverse`, or NaN and return false.

    Gauss-Jordan elimination with partial pivoting, which leaves the unit matrix in `matrix`. It is
    written out because the code of a library call includes error messages, which take longer to
    compile than all the rest.
    """
    rank = len(matrix)
    for k in range(rank):
        for j in range(rank):
            inverse[k, j] = 1.0 if k == j else 0.0
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
        _eliminate(matrix, inverse, j, best)
    for k in range(rank):
        for j in range(k):
            inverse[k, j], inverse[j, k] = inverse[j, k], inverse[k, j]
    return True


@inner(inline="always")
def _eliminate(left: FloatArray, right: FloatArray, j: int, best: int) -> None:
    """Bring row `best` to position j, scale it and clear column j of all other rows."""
    rank, reciprocal = len(left), 1.0 / left[best, j]
    for i in range(rank):
        above, beside = left[best, i] * reciprocal, right[best, i] * reciprocal
        left[best, i], right[best, i] = left[j, i], right[j, i]
        left[j, i], right[j, i] = above, beside
    for k in range(rank):
        factor = left[k, j]
        if k != j and factor != 0.0:
            for i in range(rank):
                left[k, i] -= factor * left[j, i]
                right[k, i] -= factor * right[j, i]


@inner(fastmath=REASSOCIATE)
def exchange(inverse: FloatArray, leaving: int, entering: FloatArray, ratio: FloatArray) -> None:
    """Replace basic row number `leaving` by the row `entering`: a rank-one update of the inverse.

    Stores in ``ratio[k]`` the multiple of the old edge `leaving` that was subtracted from edge k,
    and in ``ratio[leaving]`` the reciprocal of the pivot.
    """
    rank = len(ratio)
    for k in range(rank):
        total = 0.0
        for j in range(rank):
            total += inverse[k, j] * entering[j]
        ratio[k] = total
    reciprocal = 1.0 / ratio[leaving]
    for k in range(rank):
        if k != leaving:
            ratio[k] *= reciprocal
            for j in range(rank):
                inverse[k, j] -= ratio[k] * inverse[leaving, j]
    ratio[leaving] = reciprocal
    for j in range(rank):
        inverse[leaving, j] *= reciprocal


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
            add_term(weights[i] * rows[i, j], j, total, lost)


def compensated_sum(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Sum ``weights[i] * rows[i]`` over points, with Neumaier's correction.

    A plain sum of a million terms of size one can be off by 1e-10, which is near the tolerance of
    dual values. The corrected sum is exact to the last bits.
    """
    total, lost = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    _add_rows(read_only(rows), read_only(weights), total, lost)
    return total + lost


@inner()
def add_term(term: float, j: int, total: FloatArray, lost: FloatArray) -> None:
    """Add a term to entry j of a sum and its rounding error to `lost` (Neumaier 1974)."""
    total[j], error = two_sum(total[j], term)
    lost[j] += error


@inner()
def add_product(
    x: float, rows: FloatArray, i: int, first: int, total: FloatArray, low: FloatArray
) -> None:
    """Add `x * rows[i]` to the double-double sums `total + low`, from column `first` on.

    The error of each product and of each sum is computed exactly and kept in `low`. Written over
    columns, so that it vectorises.
    """
    for k in range(first, len(total)):
        product, error = two_product(x, rows[i, k])
        total[k], lost = two_sum(total[k], product)
        low[k] += lost + error


@inner()
def accurate_coefficients(
    rows: FloatArray,
    basic: IntArray,
    inverse: FloatArray,
    target: FloatArray,
    solution: FloatArray,
    rest: FloatArray,
    gap: FloatArray,
) -> float:
    """Improve a solution of ``rows[basic]' solution = target`` to twice the working precision.

    The result is ``solution + rest``; `gap` is scratch. Its bits depend on the basic points alone,
    not on the inverse or on the order of the points, so every way to a vertex gives the same
    threshold. Returns the largest error before the improvement.
    """
    rank = len(basic)
    for j in range(rank):
        gap[j], rest[j] = target[j], 0.0
    for k in range(rank):
        add_product(-solution[k], rows, basic[k], 0, gap, rest)
    worst = 0.0
    for j in range(rank):
        gap[j] += rest[j]
        worst = max(worst, abs(gap[j]))
    for k in range(rank):
        rest[k] = row_dot(inverse, k, gap)
    return worst


@inner()
def weighted_sum(coefficients: FloatArray, rest: FloatArray, scores: FloatArray) -> float:
    """Threshold of a vertex: the sum of ``coefficients + rest`` times scores, rounded up.

    A sum that a double can hold is returned as it is. In exact arithmetic a threshold may equal
    the score of a class, and a threshold that was rounded down would leave that class out.
    """
    total, lost, size, exact = 0.0, 0.0, 0.0, True
    for k in range(len(coefficients)):
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
    arrays = [read_only(array) for array in (rows, basic, inverse, row, scores)]
    return float(_vertex_threshold(*arrays, *np.empty((3, len(row)))))


@entry()
def _vertex_threshold(
    rows: FloatArray,
    basic: IntArray,
    inverse: FloatArray,
    row: FloatArray,
    scores: FloatArray,
    coefficients: FloatArray,
    rest: FloatArray,
    gap: FloatArray,
) -> float:
    for k in range(len(row)):
        coefficients[k] = row_dot(inverse, k, row)
    accurate_coefficients(rows, basic, inverse, row, coefficients, rest, gap)
    for k in range(len(row)):
        gap[k] = scores[basic[k]]
    return weighted_sum(coefficients, rest, gap)


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


def block_products(
    blocks: FloatArray, block: int, vector: FloatArray, out: FloatArray, row: int
) -> None:
    """Store the products of the points of one block with a vector in ``out[row]``.

    Half of the time of a path goes into this. Compiled code calls `_compiled_products` instead.
    """
    out[row] = vector @ blocks[block]


@overload(block_products, jit_options={"nogil": True})
def _compiled_products(blocks: Any, block: Any, vector: Any, out: Any, row: Any) -> Any:
    def multiply(blocks: Any, block: Any, vector: Any, out: Any, row: Any) -> None:
        add_lanes: Any = _add_lanes
        add_lanes(blocks, block * len(vector) * WIDTH, vector, len(vector), out, row * WIDTH)

    return multiply


@intrinsic
def _add_lanes(
    context: Any, blocks: Any, start: Any, vector: Any, count: Any, out: Any, to: Any
) -> Any:
    """Sum ``vector[j] * blocks.flat[start + j * WIDTH :][:WIDTH]`` over j, into ``out.flat[to:]``.

    Written in LLVM's vector types. Of a loop over lanes the compiler makes scalar code: it is so
    short that it is unrolled before anything could be vectorised.
    """
    lanes, number = ir.VectorType(ir.DoubleType(), WIDTH), ir.IntType(32)
    anything, first = ir.Constant(lanes, ir.Undefined), ir.Constant(number, 0)
    everywhere = ir.Constant(ir.VectorType(number, WIDTH), [0] * WIDTH)
    flags = tuple(REASSOCIATE)

    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, start, _, count, _, to = values
        points, factors, products = (
            target.make_array(signature.args[k])(target, builder, values[k]).data for k in (0, 2, 4)
        )
        total = cgutils.alloca_once_value(builder, ir.Constant(lanes, [0.0] * WIDTH))
        with cgutils.for_range(builder, count) as loop:
            offset = builder.add(start, builder.mul(loop.index, start.type(WIDTH)))
            block_row = builder.bitcast(builder.gep(points, [offset]), lanes.as_pointer())
            factor = builder.load(builder.gep(factors, [loop.index]))
            repeated = builder.shuffle_vector(
                builder.insert_element(anything, factor, first), anything, everywhere
            )
            term = builder.fmul(builder.load(block_row, align=8), repeated, flags=flags)
            builder.store(builder.fadd(builder.load(total), term, flags=flags), total)
        result = builder.bitcast(builder.gep(products, [to]), lanes.as_pointer())
        builder.store(builder.load(total), result, align=8)
        return target.get_dummy_value()

    return types.void(blocks, types.intp, vector, types.intp, out, types.intp), generate
