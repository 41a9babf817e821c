"""Columns of numbers, texts, leaves or sparse values become features that distances suit.

Each class is fitted to training samples and then used for new ones.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from trustsets._common.arrays import MISSING, Floats
from trustsets.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FeatureColumns", "LeafColumns", "columns_for"]

# Sparse features with more columns than this are reduced to so many components.
WIDEST = 1000
COMPONENTS = 64
# Rarer values of a column share an indicator, so that names of persons do not take over.
_MOST_CATEGORIES = 20
_REMEDY = (
    "Put the encoding of X into a pipeline, pass features= as a function of X, or do without a "
    'trust score (features=None, or method="standard").'
)


class FeatureColumns(ABC):
    """Features that are made of raw ones."""

    @abstractmethod
    def fit(self, raw: Any) -> Self:
        """Learn from training samples."""

    @abstractmethod
    def transform(self, raw: Any) -> Floats:
        """Features of any samples, shape (n, d)."""


def columns_for(raw: Any) -> FeatureColumns:
    """The kind that suits raw features."""
    if hasattr(raw, "toarray"):
        return ReducedColumns() if raw.shape[1] > WIDEST else NumberColumns()
    if hasattr(raw, "columns"):
        plain = all(isinstance(own, np.dtype) and own.kind in "biuf" for own in raw.dtypes)
    else:
        plain = np.asarray(raw).dtype.kind in "biuf"
    return NumberColumns() if plain else MixedColumns()


@final
class NumberColumns(FeatureColumns):
    """Standardised numbers; medians for missing ones, with indicators where training lacked some.

    The indicators are 0 or 1: two samples of which one lacks a number are as far apart in the
    indicator as two samples usually are in a standardised column.
    """

    def fit(self, raw: Any) -> Self:
        """Learn medians, means and standard deviations."""
        values = _numbers(raw)
        missing = np.isnan(values)
        self.incomplete = np.flatnonzero(missing.any(axis=0))
        self.medians = np.zeros(values.shape[1])
        known = np.flatnonzero(~missing.all(axis=0))
        self.medians[known] = np.nanmedian(values[:, known], axis=0)
        self.scaler = StandardScaler().fit(self._filled(values, missing))
        return self

    def transform(self, raw: Any) -> Floats:
        """Standardised numbers, and the indicators."""
        values = _numbers(raw)
        if values.shape[1] != self.medians.size:
            raise InputError(
                f"the trust score was fitted to {self.medians.size} features of a sample; got "
                f"{values.shape[1]}. Pass X with the same columns as at fit."
            )
        missing = np.isnan(values)
        scaled: Floats = np.asarray(self.scaler.transform(self._filled(values, missing)))
        if not self.incomplete.size:
            return scaled
        return np.hstack([scaled, missing[:, self.incomplete]])

    def _filled(self, values: Floats, missing: NDArray[np.bool_]) -> Floats:
        return np.where(missing, self.medians, values) if missing.any() else values


@final
class MixedColumns(FeatureColumns):
    """Columns of a table, of which some hold numbers and the others values of any kind.

    The latter become indicators of their values. A missing value is a value of its own.
    """

    def fit(self, raw: Any) -> Self:
        """Learn which columns hold numbers, and the values of the others."""
        frame = _frame(raw)
        self.names = list(frame.columns)
        self.is_number = [_as_number(frame.iloc[:, j]) is not None for j in range(frame.shape[1])]
        if any(self.is_number):
            self.numbers = NumberColumns().fit(self._number_part(frame))
        if not all(self.is_number):
            self.encoder = OneHotEncoder(
                handle_unknown="infrequent_if_exist",
                max_categories=_MOST_CATEGORIES,
                sparse_output=False,
            ).fit(self._value_part(frame))
        return self

    def transform(self, raw: Any) -> Floats:
        """Standardised numbers, their indicators, and indicators of the values."""
        frame = _frame(raw)
        if list(frame.columns) != self.names:
            raise InputError(
                f"the trust score was fitted to the columns {self.names}; got "
                f"{list(frame.columns)}. Pass X with the same columns as at fit."
            )
        parts = []
        if any(self.is_number):
            parts.append(self.numbers.transform(self._number_part(frame)))
        if not all(self.is_number):
            parts.append(np.asarray(self.encoder.transform(self._value_part(frame))))
        return np.hstack(parts)

    def _number_part(self, frame: Any) -> Floats:
        columns = []
        for j in np.flatnonzero(self.is_number):
            found = _as_number(frame.iloc[:, j])
            if found is None:
                raise InputError(
                    f"column {self.names[j]!r} held numbers at fit, but holds others now "
                    f"(type {frame.dtypes.iloc[j]}). Pass X with the same kinds of columns."
                )
            columns.append(found)
        return np.column_stack(columns)

    def _value_part(self, frame: Any) -> NDArray[np.object_]:
        columns = []
        for j in np.flatnonzero(~np.array(self.is_number)):
            own = frame.iloc[:, j]
            columns.append(own.astype(object).where(own.notna(), MISSING).map(str).to_numpy(object))
        return np.column_stack(columns)


@final
class ReducedColumns(FeatureColumns):
    """Leading components of sparse features, by a singular value decomposition.

    Components are not standardised, so that distances stay close to those of all columns.
    """

    def fit(self, raw: Any) -> Self:
        """Learn the directions."""
        size = max(1, min(COMPONENTS, min(raw.shape) - 1))
        self.directions = TruncatedSVD(size, random_state=0).fit(raw)
        return self

    def transform(self, raw: Any) -> Floats:
        """Components of samples."""
        return np.asarray(self.directions.transform(raw), dtype=np.float64)


@final
class LeafColumns(FeatureColumns):
    """Indicators of the leaf of each tree.

    The squared distance of two samples is twice the number of trees in which they fall into
    different leaves. More than `WIDEST` leaves are reduced as sparse features are. A leaf without
    training samples of the trust score has no indicator.
    """

    def fit(self, raw: Any) -> Self:
        """Learn which leaves hold training samples."""
        self.encoder = OneHotEncoder(handle_unknown="ignore").fit(raw)
        indicators = self.encoder.transform(raw)
        wide = indicators.shape[1] > WIDEST
        self.reduced = ReducedColumns().fit(indicators) if wide else None
        return self

    def transform(self, raw: Any) -> Floats:
        """Indicators of samples, or their components."""
        indicators = self.encoder.transform(raw)
        if self.reduced is not None:
            return self.reduced.transform(indicators)
        return np.asarray(indicators.toarray())


def _numbers(values: Any) -> Floats:
    """A float64 matrix without infinity from an array or a sparse matrix."""
    if hasattr(values, "toarray"):
        values = values.toarray()
    try:
        matrix: Floats = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"the trust score needs numeric features ({error}). {_REMEDY}") from error
    if matrix.ndim != 2:
        raise InputError(
            f"the trust score needs one row of features for each sample; got shape {matrix.shape}. "
            + _REMEDY
        )
    infinite = np.isinf(matrix)
    if infinite.any():
        row, place = np.argwhere(infinite)[0]
        raise InputError(
            f"the trust score needs finite features; row {row}, column {place} holds "
            f"{matrix[row, place]}. Replace it by NaN, which counts as missing, or by a number."
        )
    return matrix


def _frame(raw: Any) -> "pd.DataFrame":
    """A pandas frame from a frame of any kind, or from an array of objects."""
    import pandas as pd

    if isinstance(raw, pd.DataFrame):
        return raw
    if hasattr(raw, "to_pandas"):
        return pd.DataFrame(raw.to_pandas())
    values = np.asarray(raw, dtype=object)
    if values.ndim != 2:
        raise InputError(
            "the trust score needs numeric features or columns of values; got "
            f"{type(raw).__name__} of shape {values.shape}. {_REMEDY}"
        )
    return pd.DataFrame(values)


def _as_number(column: Any) -> Floats | None:
    """Numbers of a column, NaN where they are missing; None for texts, categories and others."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        return None
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return np.where(column.isna(), np.nan, column.astype("int64").to_numpy(np.float64))
    try:
        return np.asarray(pd.to_numeric(column).to_numpy(dtype=np.float64, na_value=np.nan))
    except (TypeError, ValueError):
        return None
