"""Model outputs and prediction sets in files.

`open_outputs` reads outputs of any size by ranges of rows, `predict_table` maps an Arrow table to
its prediction sets, and `predict_file` predicts a file with bounded memory and continues after a
kill.
"""

from trustsets.files.naming import TableColumns
from trustsets.files.prediction import predict_file
from trustsets.files.source import OutputsFile, open_outputs, read_training
from trustsets.files.tables import predict_table
from trustsets.files.writing import write_outputs

__all__ = [
    "OutputsFile",
    "TableColumns",
    "open_outputs",
    "predict_file",
    "predict_table",
    "read_training",
    "write_outputs",
]
