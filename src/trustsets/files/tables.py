"""`predict_table`: Arrow table in, Arrow table out.

It is for engines that map batches: Ray, Spark's mapInArrow, Dask. A row of the result depends on
its own row of the input alone, whatever the batches.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trustsets._common.arrays import Array
from trustsets.errors import InputError
from trustsets.files.naming import RESULT, ROW, Roles, find_roles
from trustsets.files.parquet import list_matrix, scalar_values
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor
from trustsets.predictors.p_values import PointPredictions
from trustsets.statistics import Observed

if TYPE_CHECKING:
    import pyarrow as pa

ALPHA = "alpha"
"""Column of what each set promises, where samples have alphas of their own."""


def predict_table(
    predictor: Predictor,
    table: "pa.Table",
    alpha: float = 0.1,
    *,
    ids: Sequence[str] = (),
    max_size: int | None = None,
    p_values: int | None = None,
) -> "pa.Table":
    """Prediction sets of a batch of samples.

    Parameters
    ----------
    predictor : Predictor
        Calibrated.
    table : pyarrow.Table
        Columns ``logits`` or ``probabilities`` and, where the predictor uses them,
        ``features`` (lists of numbers), group columns (``NAME`` or ``group_NAME``), and
        ``row``, the number of the sample in the whole data set, on which random draws are
        keyed. Labels are not looked at.
    alpha : float
        Allowed miscoverage.
    ids : sequence of str
        Columns to copy to the result; ``row`` and ``id`` are copied where they are.
    max_size : int, optional
        As in `Predictor.predict_set`; the result has a column ``alpha``, what each set promises.
    p_values : int, optional
        How many of the largest p-values to add, with their classes, confidence and credibility.

    Returns
    -------
    pyarrow.Table
        The copied columns, then ``set`` (list of class names), ``size``, ``threshold`` and
        ``status`` (`Status` as a word).

    Examples
    --------
    >>> import numpy as np
    >>> import pyarrow as pa
    >>> from trustsets import StandardConformal
    >>> codes = np.arange(99) % 2
    >>> calibration = ModelOutputs(logits=np.eye(2)[codes], labels=np.array(["a", "b"])[codes])
    >>> predictor = StandardConformal().calibrate(calibration)
    >>> batch = pa.table({"id": ["x", "y"], "logits": [[3.0, 0.0], [0.0, 3.0]]})
    >>> predict_table(predictor, batch, alpha=0.1).to_pylist()[1]
    {'id': 'y', 'set': ['b'], 'size': 1, 'threshold': 0.0, 'status': 'exact'}
    """
    import pyarrow as pa

    roles = find_roles(table.column_names, predictor.needed_groups, ids)
    check_table(predictor, table, roles)
    outputs = table_outputs(predictor, table, roles)
    trust = None if p_values is None else _trust(predictor, outputs)
    sets = predictor.predict_set(outputs, alpha=float(alpha), max_size=max_size, trust=trust)
    found = sets.to_arrow()
    # Plain types, which every Arrow consumer reads.
    names = found.schema.field("set").type.value_type
    plain = {"set": pa.list_(names), "size": pa.int32(), "status": pa.string()}
    result = table.select([ROW, *roles.ids] if ROW in table.column_names else list(roles.ids))
    for name in RESULT:
        values = found.column(name)
        result = result.append_column(name, values.cast(plain[name]) if name in plain else values)
    if sets.has_own_alphas:
        result = result.append_column(ALPHA, found.column(ALPHA))
    if p_values is None:
        return result
    points = predictor.predict_confidence(outputs, trust=trust)
    return _with_p_values(result, points, sets.classes, p_values)


def _with_p_values(
    table: "pa.Table", points: PointPredictions, classes: Array, count: int
) -> "pa.Table":
    """Add the largest p-values with their classes, confidence and credibility."""
    import pyarrow as pa

    names = pa.array(classes.tolist())
    columns: list[Any] = []
    for place in range(count):
        columns += [names.take(pa.array(points.codes[:, place])), points.p_values[:, place]]
    for name, own in zip(
        _p_columns(count), [*columns, points.confidence, points.credibility], strict=True
    ):
        table = table.append_column(name, pa.array(own) if isinstance(own, np.ndarray) else own)
    return table


def _trust(predictor: Predictor, outputs: ModelOutputs) -> Array | None:
    """Trust of the samples, which both sets and p-values need."""
    if predictor.trust is None or not predictor.uses_features:
        return None
    return Observed(outputs, predictor.trust).trust


def added_columns(max_size: int | None, p_values: int | None) -> list[str]:
    """Columns of a result besides those that every result has."""
    own = [] if max_size is None else [ALPHA]
    return own if p_values is None else own + _p_columns(p_values)


def _p_columns(count: int) -> list[str]:
    each = [f"{name}_{place}" for place in range(1, count + 1) for name in ("class", "p")]
    return [*each, "confidence", "credibility"]


def table_outputs(predictor: Predictor, table: "pa.Table", roles: Roles) -> ModelOutputs:
    """Outputs in a table, as a predictor needs them."""
    values = list_matrix(table.column(roles.values), f"column {roles.values!r}")
    classes = predictor.classes_
    if values.shape[1] != classes.size:
        raise InputError(
            f"column {roles.values!r} has {values.shape[1]} classes, but calibration had "
            f"{classes.size}. Use outputs of the same classifier."
        )
    fields: dict[str, Any] = {roles.kind: values, "classes": classes}
    if roles.features is not None and predictor.uses_features:
        column = table.column(roles.features)
        fields["features"] = list_matrix(column, f"column {roles.features!r}")
    fields["groups"] = {
        group: scalar_values(table.column(roles.groups[group]), f"column {group!r}")
        for group in predictor.needed_groups
    }
    if ROW in table.column_names:
        fields["rows"] = scalar_values(table.column(ROW), f"column {ROW!r}")
    return ModelOutputs(**fields)


def check_table(predictor: Predictor, table: "pa.Table", roles: Roles) -> None:
    """Refuse tables that sets cannot be predicted for."""
    if roles.values is None:
        raise InputError(
            f"table has no column 'logits' or 'probabilities'; it has {table.column_names}."
        )
    if predictor.draws_at_random and ROW not in table.column_names:
        raise InputError(
            f"table needs a column {ROW!r} with the number of each sample: this predictor draws "
            "at random, and the draws of a sample must not depend on its batch."
        )
    if reason := predictor.batch_dependence:
        raise InputError(f"predictor cannot work in batches: {reason}.")
