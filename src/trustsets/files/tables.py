"""`predict_table`: Arrow table in, Arrow table out.

It is for engines that map batches: Ray, Spark's mapInArrow, Dask. A row of the result depends on
its own row of the input alone, whatever the batches.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trustsets._common.arrays import Array
from trustsets.files.naming import ROW, Roles, find_roles
from trustsets.files.parquet import list_matrix, scalar_values
from trustsets.files.predicted import block_outputs, predict_block
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor

if TYPE_CHECKING:
    import pyarrow as pa


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
    >>> from trustsets import ModelOutputs, StandardConformal
    >>> codes = np.arange(99) % 2
    >>> calibration = ModelOutputs(logits=np.eye(2)[codes], labels=np.array(["a", "b"])[codes])
    >>> predictor = StandardConformal().calibrate(calibration)
    >>> batch = pa.table({"id": ["x", "y"], "logits": [[3.0, 0.0], [0.0, 3.0]]})
    >>> predict_table(predictor, batch, alpha=0.1).to_pylist()[1]
    {'id': 'y', 'set': ['b'], 'size': 1, 'threshold': 0.0, 'status': 'exact'}
    """
    names = table.column_names
    roles = find_roles(names, predictor.needed_groups, ids)
    block = _block(predictor, table, roles)
    found = predict_block(predictor, block, alpha, max_size=max_size, p_values=p_values)
    return found.to_arrow(table.select([*([ROW] if ROW in names else []), *roles.ids]))


def table_outputs(predictor: Predictor, table: "pa.Table", roles: Roles) -> ModelOutputs:
    """Outputs in a table, as a predictor needs them."""
    return block_outputs(predictor, _block(predictor, table, roles), roles)


def _block(predictor: Predictor, table: "pa.Table", roles: Roles) -> dict[str, Array]:
    """Arrays that a prediction depends on."""
    found: dict[str, Array] = {}
    for name in (roles.values, roles.features if predictor.uses_features else None):
        if name is not None:
            found[name] = list_matrix(table.column(name), f"column {name!r}")
    for group in predictor.needed_groups:
        own = table.column(roles.groups[group])
        found[roles.groups[group]] = scalar_values(own, f"column {group!r}", missing=True)
    if ROW in table.column_names:
        found[ROW] = scalar_values(table.column(ROW), f"column {ROW!r}")
    return found
