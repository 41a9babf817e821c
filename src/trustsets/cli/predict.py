"""``trustsets predict``: outputs to prediction sets."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from trustsets.cli import console
from trustsets.cli.options import Alpha, TableOptions, argument, option, resolved

__all__ = ["predict"]


_OUTPUTS = "New outputs: .npz, .parquet, .csv, .safetensors, a folder of .npy."
_MAX_SIZE = (
    "Largest size of a set. Where K classes cannot keep alpha, the column 'alpha' says what the "
    "set guarantees instead."
)
_PROBABILITIES = "Write the probabilities of the classes of a set."
_P_VALUES = "Write the p-values of the classes of a set, and confidence and credibility."
_ID = "Arrays to copy to the result, such as name,date. 'id' is always copied."
_EXPLAIN = "Print why the sets of the first N samples are what they are."


def predict(
    context: typer.Context,
    model: Annotated[Path, argument("MODEL", "Saved by 'trustsets calibrate'.")],
    outputs: Annotated[Path, argument("OUTPUTS", _OUTPUTS)],
    output: Annotated[Path, option("FILE", "Result: .parquet, .csv or .jsonl.", "--output", "-o")],
    alpha: Alpha = 0.1,
    max_size: Annotated[int | None, option("K", _MAX_SIZE)] = None,
    probabilities: Annotated[bool, option(None, _PROBABILITIES, "--probabilities")] = False,
    p_values: Annotated[bool, option(None, _P_VALUES, "--p-values")] = False,
    id: Annotated[list[str] | None, option("NAMES", _ID)] = None,
    explain: Annotated[int | None, option("N", _EXPLAIN, min=1)] = None,
    *,
    table: TableOptions,
) -> None:
    """Write a set of possible classes for every new sample.

    A set lists its classes likeliest first; in a .csv file they stand in one
    cell, as in 'cat|dog'. Nothing appears under the name of the result until
    it is whole.

    Example:

      trustsets predict model.trustsets new.npz --alpha 0.1 -o sets.csv
    """
    from trustsets.files import predict_file

    record, columns = resolved(context), table.columns()
    summary = predict_file(
        model,
        outputs,
        output,
        alpha=alpha,
        max_size=max_size,
        probabilities=probabilities,
        p_values=p_values,
        ids=id or (),
        columns=columns,
        progress=partial(console.progress, "Prediction sets"),
    )
    explanations = _explain(model, outputs, explain, alpha, columns) if explain else {}
    console.conclude(
        record | {"output": str(output)} | summary.to_dict() | explanations,
        *summary.sentences(),
        f"Written to {output}.",
    )


def _explain(model: Path, outputs: Path, count: int, alpha: float, columns: Any) -> dict[str, Any]:
    """Print why the first sets are what they are, or return it for --json."""
    from trustsets.files import open_for_prediction, remembered_columns
    from trustsets.predictors import load

    predictor = load(model)
    source = open_for_prediction(
        predictor, outputs, columns=columns, remembered=remembered_columns(model)
    )
    samples = source.read(0, count)
    # Where each class has a threshold of its own, that of the most likely class is explained.
    labels = samples.predicted if predictor.has_class_thresholds else [None] * len(samples)
    found = [
        predictor.explain(samples[row], alpha, label=label) for row, label in enumerate(labels)
    ]
    if console.settings.json:
        return {"explanations": [one.to_dict() for one in found]}
    for number, one in enumerate(found):
        console.print_lines([f"Sample {number}:", *one.summary().splitlines(), ""])
    return {}
