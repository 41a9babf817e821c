"""Checks of what a user passes in: features and labels of any container."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import to_numpy
from trustsets.errors import InputError
from trustsets.neighbours.points import FloatArray, IndexArray, row_squares


def as_matrix(value: Any, name: str, half: bool = False) -> FloatArray:
    """Check a matrix of features; other numbers than floats become float64, exactly.

    float16 becomes float32, unless `half` lets it stay.
    """
    try:
        matrix = to_numpy(value, name)
        if matrix.dtype == np.float16:
            matrix = matrix if half else matrix.astype(np.float32)
        elif matrix.dtype != np.float32:
            matrix = matrix.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a matrix of numbers: {error}.") from error
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InputError(
            f"{name} must be a matrix with at least one row and one column, got shape "
            f"{matrix.shape}. Pass one row per sample."
        )
    # One pass: any NaN, infinity or value too large to square makes the sum not finite.
    bad = np.flatnonzero(~np.isfinite(row_squares(matrix)))
    if len(bad):
        raise InputError(
            f"{name} must be finite with finite squared norms, but {len(bad)} rows are not (first: "
            f"row {bad[0]}). Remove or impute them, or scale the features down."
        )
    return np.ascontiguousarray(matrix)


def as_labels(value: Any, length: int, name: str) -> NDArray[Any]:
    """Check a vector of labels; strings come as fixed-width unicode, so they store as such."""
    labels = to_numpy(value, name)
    if labels.dtype == object:
        text = all(isinstance(label, str) for label in labels.ravel())
        labels = labels.astype(str) if text else np.asarray(labels.tolist())
    if labels.ndim != 1 or len(labels) != length:
        raise InputError(
            f"{name} must be a vector with one label per row of features ({length}), got shape "
            f"{labels.shape}."
        )
    if labels.dtype.kind not in "biufU":
        raise InputError(f"{name} must hold numbers or strings, got {labels.dtype}.")
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise InputError(f"{name} must not hold NaN. Remove the rows without a label.")
    return labels


def class_codes(labels: Any, length: int) -> tuple[NDArray[Any], IndexArray]:
    """Sorted classes and the position of each label among them."""
    classes, codes = np.unique(as_labels(labels, length, "labels"), return_inverse=True)
    return classes, codes.reshape(-1).astype(np.int64)


def class_positions(predicted: Any, classes: NDArray[Any], length: int) -> IndexArray:
    """Position of each label in `classes`, -1 for a label that is not there."""
    labels = as_labels(predicted, length, "predicted")
    if (labels.dtype.kind == "U") != (classes.dtype.kind == "U"):
        raise InputError(
            f"predicted must be labels like those of fit ({classes.dtype}), got {labels.dtype}. "
            "Pass class labels, not positions."
        )
    places = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    return np.where(classes[places] == labels, places, -1).astype(np.int64)


def as_stored(matrix: FloatArray, storage: str | None) -> FloatArray:
    """Round features to the type they are kept in."""
    if storage is None or matrix.dtype == storage:
        return matrix
    with np.errstate(over="ignore"):
        stored = matrix.astype(storage)
    if not np.isfinite(stored).all():
        raise InputError(
            f"features must fit in storage={storage!r} (at most {np.finfo(storage).max:.4g}), "
            f"got {np.abs(matrix).max():.4g}. Use a wider storage, or scale the features down."
        )
    return stored
