"""Model outputs and prediction sets in files.

`open_outputs` reads outputs by ranges of rows, `write_outputs` writes them, `predict_file` maps a
file to its prediction sets, and `predict_table` a table.
"""

from trustsets.files.arrays import Column, open_columns
from trustsets.files.prediction import (
    PredictionSummary,
    open_for_prediction,
    predict_file,
    predict_table,
    remembered_columns,
)
from trustsets.files.reading import (
    OutputsFile,
    TableColumns,
    open_outputs,
    open_table,
    read_classes,
    read_late_labels,
    read_training,
)
from trustsets.files.writing import (
    Snapshot,
    check_output,
    content_digest,
    read_sets,
    write_outputs,
)

__all__ = [
    "Column",
    "OutputsFile",
    "PredictionSummary",
    "Snapshot",
    "TableColumns",
    "check_output",
    "content_digest",
    "open_columns",
    "open_for_prediction",
    "open_outputs",
    "open_table",
    "predict_file",
    "predict_table",
    "read_classes",
    "read_late_labels",
    "read_sets",
    "read_training",
    "remembered_columns",
    "write_outputs",
]
