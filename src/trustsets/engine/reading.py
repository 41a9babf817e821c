"""What callers pass to the engine: checked, copied to arrays, and refused with a reason."""

import numpy as np
from numpy.typing import ArrayLike

from trustsets.engine.compiled import BoolArray, FloatArray, IntArray
from trustsets.errors import InputError

__all__ = [
    "read_alphas",
    "read_follows",
    "read_matrix",
    "read_points",
    "read_scores",
    "read_test_alphas",
    "read_test_rows",
    "read_weights",
]

SMALLEST = 2.0**-1000
"""Entries of basis rows below this count as zero."""


def read_matrix(phi: ArrayLike, name: str) -> FloatArray:
    """Return a C-ordered float64 matrix of finite numbers; raise InputError on anything else.

    Numbers so small that the inverse of a column's scale would overflow become zero.
    """
    matrix = np.ascontiguousarray(np.asarray(phi, dtype=np.float64))
    if matrix.ndim != 2:
        raise InputError(
            f"{name} must be a matrix with one row per point, got {matrix.ndim} dimension(s) "
            f"of shape {matrix.shape}; reshape a single column with {name}[:, None]."
        )
    _require_finite(matrix, name)
    tiny = (np.abs(matrix) < SMALLEST) & (matrix != 0.0)
    return np.where(tiny, 0.0, matrix) if tiny.any() else matrix


def read_test_rows(phi: ArrayLike, n_columns: int) -> FloatArray:
    """Return the matrix of test rows, which must have as many columns as the calibration rows."""
    matrix = read_matrix(phi, "phi_test")
    if matrix.shape[1] != n_columns:
        raise InputError(
            f"phi_test must have the {n_columns} columns of phi_calib, got {matrix.shape[1]}; "
            "use the same basis for calibration and test."
        )
    return matrix


def read_scores(scores: ArrayLike, n_rows: int) -> FloatArray:
    """Return a copy of the scores, one for each row; raise InputError on anything else."""
    values = np.array(scores, dtype=np.float64, copy=True)
    if values.ndim != 1 or len(values) != n_rows:
        raise InputError(
            f"scores_calib must be one number per row of phi_calib ({n_rows}), got shape "
            f"{values.shape}; pass the score of the true label of every calibration point."
        )
    if n_rows == 0:
        raise InputError(
            "phi_calib must have at least one row, got none; pass some calibration points."
        )
    _require_finite(values, "scores_calib")
    return values


def read_alphas(alpha: ArrayLike, count: int, of: str) -> FloatArray:
    """Return one alpha (no dimension) or `count` of them; raise InputError on anything else."""
    given = np.array(alpha, dtype=np.float64)
    if given.ndim > 1 or (given.ndim == 1 and len(given) != count):
        raise InputError(
            f"alpha must be one number or one per {of} ({count}), got shape {given.shape}; "
            "pass a number or an array of that length."
        )
    wrong = given[~((given > 0.0) & (given < 1.0))]
    if wrong.size:
        raise InputError(
            f"alpha must lie strictly between 0 and 1, got {wrong.flat[0]}; "
            "use 0.1 for a coverage of 90 percent."
        )
    given.flags.writeable = False
    return given


def read_test_alphas(alpha: ArrayLike | None, default: float | None, count: int) -> FloatArray:
    """Return the alphas of `count` test points; None as `default` says that they must be given."""
    given = default if alpha is None else alpha
    if given is None:
        raise InputError(
            "alpha must be given with phi_test, because each calibration point has an alpha of "
            "its own; pass the alpha of every test point."
        )
    return read_alphas(given, count, "test row")


def read_weights(weight: ArrayLike | None, alphas: FloatArray, count: int) -> FloatArray:
    """Return the weights of `count` test points with these alphas, ``1 - alphas`` by default."""
    given = np.asarray(1.0 - alphas if weight is None else weight, dtype=np.float64)
    if given.ndim > 1 or (given.ndim == 1 and len(given) != count):
        raise InputError(
            f"weight must be one number or one per test row ({count}), got shape "
            f"{given.shape}; pass a number, an array of that length, or None for 1 - alpha."
        )
    if not np.all((given > -alphas) & (given <= 1.0 - alphas)):
        interval = f" = ({-alphas}, {1.0 - alphas}]" if alphas.ndim == 0 else ""
        raise InputError(
            f"weight must lie in (-alpha, 1 - alpha]{interval}, got values from {given.min()} "
            f"to {given.max()}; draw uniformly from that interval."
        )
    # A copy: numba would compile all kernels again for the read-only view.
    return np.array(np.broadcast_to(given, (count,)))


def read_points(points: ArrayLike | None, count: int) -> IntArray:
    """Return row numbers below `count`, all of them by default; raise InputError on others."""
    numbers = np.asarray(np.arange(count) if points is None else points)
    is_list = numbers.ndim == 1 and (numbers.dtype.kind in "iu" or numbers.size == 0)
    if not is_list or np.any((numbers < 0) | (numbers >= count)):
        raise InputError(
            f"points must be row numbers of phi_calib, from 0 to {count - 1}, got {points!r}; "
            "pass an array of integers, or None for all."
        )
    return numbers.astype(np.int64)


def _require_finite(values: FloatArray, name: str) -> None:
    if not np.isfinite(values).all():
        first = np.argwhere(~np.isfinite(values))[0].tolist()
        raise InputError(
            f"{name} must be finite, got {values[tuple(first)]} at index {first}; "
            "drop or repair such points first."
        )


def read_follows(follows: ArrayLike | None, count: int) -> BoolArray | None:
    """Whether each test row follows the one before; the first cannot."""
    if follows is None:
        return None
    given = np.array(follows, dtype=np.bool_)
    if given.shape != (count,) or given[:1].any():
        raise InputError(
            f"follows must have one value per test row ({count}) and be False for the first row; "
            f"got shape {given.shape}."
        )
    return given
