"""Model outputs and prediction sets in files.

`open_outputs` reads outputs by ranges of rows, `predict_file` maps a file to its prediction sets,
and `predict_table` a table.
"""

from trustsets.files.outputs import (
    OutputsFile,
    TableColumns,
    open_outputs,
    open_table,
    read_classes,
    read_late_labels,
    read_training,
    split_names,
)
from trustsets.files.predictions import (
    PredictionSummary,
    check_output,
    content_digest,
    open_for_model,
    predict_file,
    predict_table,
)
from trustsets.files.tables import Column, open_columns

__all__ = [
    "Column",
    "OutputsFile",
    "PredictionSummary",
    "TableColumns",
    "check_output",
    "content_digest",
    "open_columns",
    "open_for_model",
    "open_outputs",
    "open_table",
    "predict_file",
    "predict_table",
    "read_classes",
    "read_late_labels",
    "read_training",
    "split_names",
]
