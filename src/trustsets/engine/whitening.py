"""The linear map from basis rows to whitened rows, computed in twice the working precision."""

from dataclasses import dataclass, replace

import numpy as np

from trustsets.engine.compiled import (
    BoolArray,
    FloatArray,
    IntArray,
    entry,
    read_only,
)
from trustsets.engine.kernels import add_product

# A column whose part outside the others is smaller than this share of the largest is dependent.
RANK_TOL = 1e-12
# A test row whose part outside the calibration row space exceeds this share of it is unseen.
UNSEEN_TOL = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Whitening:
    r"""The linear map from basis rows to whitened rows, :math:`q = D^{-1}\phi_I\, T`.

    `D` holds powers of two (scaling is exact), `I` the `rank` independent columns and `T` the
    upper triangular inverse of their R factor, so that calibration rows have :math:`Q'Q = n I`.
    Any invertible `T` gives the same function class, so `T` itself may carry rounding errors. The
    product must be accurate: it is summed in twice the working precision, because a plain product
    would move thresholds by 1e-6 where the basis has condition 1e10.
    """

    scale: FloatArray  # (p,): exact inverse scale of every column.
    # (rank,) (p - rank,): column numbers. The dependent columns are the independent ones times
    # `relation`.
    independent: IntArray
    dependent: IntArray
    transform: FloatArray  # (rank, rank): `T`, upper triangular.
    # (rank, p - rank): coefficients of the dependent columns, fitted on the calibration data.
    relation: FloatArray
    seen: float  # Largest deviation from `relation` (rounding) among calibration rows.

    @property
    def rank(self) -> int:
        """Dimension of the function class on the calibration data."""
        return len(self.independent)

    def apply(self, phi: FloatArray) -> FloatArray:
        """Whitened rows (m, rank) of basis rows (m, p)."""
        rows = np.empty((len(phi), self.rank))
        arrays = phi, self.scale, self.independent, self.transform
        _whiten_rows(*map(read_only, arrays), rows)
        return rows

    def leaves_row_space(self, phi: FloatArray) -> BoolArray:
        """Whether each row (m, p) lies outside the span of the calibration rows."""
        return self.deviations(phi) > 2.0 * self.seen

    def deviations(self, phi: FloatArray) -> FloatArray:
        """Distance (m,) of dependent columns from `relation`, beyond rounding."""
        out = np.zeros(len(phi))
        arrays = phi, self.scale, self.independent, self.dependent, self.relation
        _relation_gaps(*map(read_only, arrays), out)
        return out


def fit_whitening(phi: FloatArray) -> Whitening:
    """Scale the columns, factor them, and separate independent from dependent ones."""
    largest = np.abs(phi).max(axis=0, initial=0.0)
    scale = np.ldexp(1.0, -np.frexp(np.where(largest > 0.0, largest, 1.0))[1])
    pivoted, order = _pivoted_triangle(phi * scale)
    diagonal = np.abs(np.diagonal(pivoted))
    rank = int(np.sum(diagonal > RANK_TOL * diagonal.max(initial=0.0)))
    block = np.ascontiguousarray(pivoted[:rank, :rank])
    transform = _solve_upper(block, np.eye(rank)) * np.sqrt(len(phi))
    relation = _solve_upper(block, np.ascontiguousarray(pivoted[:rank, rank:]))
    whitening = Whitening(
        scale=scale,
        independent=order[:rank],
        dependent=order[rank:],
        transform=np.ascontiguousarray(np.triu(transform)),
        relation=np.ascontiguousarray(relation),
        seen=0.0,
    )
    return replace(whitening, seen=float(whitening.deviations(phi).max(initial=0.0)))


def _pivoted_triangle(matrix: FloatArray) -> tuple[FloatArray, IntArray]:
    """R factor with column pivoting, and the order of the columns.

    The tall matrix is factored without pivoting, which is fast; pivoting its small R is enough.
    """
    if matrix.shape[1] == 0:
        return np.zeros((0, 0)), np.empty(0, np.int64)
    from scipy.linalg import qr

    triangle = np.linalg.qr(matrix, mode="r")
    pivoted, order = qr(triangle, mode="r", pivoting=True)
    return np.asarray(pivoted, dtype=np.float64), np.asarray(order, dtype=np.int64)


@entry()
def _solve_upper(triangle: FloatArray, right: FloatArray) -> FloatArray:
    """Solve by back substitution, which is far faster than a library call at this size."""
    out = right.copy()
    for i in range(len(triangle) - 1, -1, -1):
        for k in range(out.shape[1]):
            for j in range(i + 1, len(triangle)):
                out[i, k] -= triangle[i, j] * out[j, k]
            out[i, k] /= triangle[i, i]
    return out


@entry()
def _whiten_rows(
    phi: FloatArray,
    scale: FloatArray,
    independent: IntArray,
    transform: FloatArray,
    out: FloatArray,
) -> None:
    """Whiten every row of `phi` (m, p) into `out` (m, rank), correct to the last bits.

    Equal rows give equal bits in any batch.
    """
    total, low = np.empty(out.shape[1]), np.empty(out.shape[1])
    for i in range(len(phi)):
        for k in range(len(low)):
            total[k] = low[k] = 0.0
        for j in range(len(independent)):
            column = independent[j]
            add_product(phi[i, column] * scale[column], transform, j, j, total, low)
        for k in range(len(low)):
            out[i, k] = total[k] + low[k]


@entry()
def _relation_gaps(
    phi: FloatArray,
    scale: FloatArray,
    independent: IntArray,
    dependent: IntArray,
    relation: FloatArray,
    gap: FloatArray,
) -> None:
    """Store how far the dependent columns of each row are from `relation`, beyond rounding."""
    for i in range(len(phi)):
        for k in range(len(dependent)):
            column = dependent[k]
            difference = phi[i, column] * scale[column]
            magnitude = abs(difference)
            for j in range(len(independent)):
                term = phi[i, independent[j]] * scale[independent[j]] * relation[j, k]
                difference -= term
                magnitude += abs(term)
            gap[i] = max(gap[i], abs(difference) - UNSEEN_TOL * magnitude)
