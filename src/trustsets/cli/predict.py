"""``trustsets predict``: outputs to prediction sets."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from trustsets.cli import console
from trustsets.cli.options import Alpha, TableOptions, argument, option, resolved

__all__ = ["predict"]

Model = Annotated[Path, argument("MODEL", "Saved by 'trustsets calibrate'.")]
Outputs = Annotated[
    Path, argument("OUTPUTS", "New outputs: .npz, .parquet, .csv, .safetensors, a folder of .npy.")
]
Output = Annotated[
    Path, option("FILE", "Where to write: .parquet, .csv or .jsonl.", "--output", "-o")
]
Ids = Annotated[
    list[str] | None,
    option("NAME", "An array to copy to the result; may be given again. 'id' is always copied."),
]
Memory = Annotated[
    str, option("SIZE", "Memory for the samples at work, besides the program and the model.")
]
MaxSize = Annotated[
    int | None,
    option(
        "K",
        "Largest size of a set. Where K classes cannot keep alpha, the column 'alpha' says what "
        "the set promises instead.",
        "--max-size",
    ),
]
PValues = Annotated[
    int | None,
    option(
        "N",
        "Write the N largest p-values with their classes, and confidence and credibility.",
        "--p-values",
    ),
]
Explain = Annotated[
    int | None, option("N", "Print why the sets of the first N samples are what they are.", min=1)
]


def predict(
    context: typer.Context,
    model: Model,
    outputs: Outputs,
    output: Output,
    alpha: Alpha = 0.1,
    max_size: MaxSize = None,
    p_values: PValues = None,
    id: Ids = None,
    memory: Memory = "1GB",
    explain: Explain = None,
    *,
    table: TableOptions,
) -> None:
    """Write a set of possible classes for every new sample.

    Works on files larger than memory. If it is interrupted, run the same
    command again: it continues where it stopped, and gives the same file.
    Until it is whole, nothing appears under the name of the result.

    Example:

      trustsets predict model.trustsets new.npz --alpha 0.1 -o sets.csv
    """
    from trustsets.files.memory import parse_memory
    from trustsets.files.prediction import predict_file

    record = resolved(context)
    options: dict[str, Any] = {
        "alpha": alpha,
        "memory": parse_memory(memory),
        "ids": id or (),
        "record": record,
        "progress": partial(console.progress, "Prediction sets"),
    }
    columns = table.columns()
    if columns != type(columns)():
        options |= {"columns": columns}
    if max_size is not None or p_values is not None:
        options |= {"max_size": max_size, "p_values": p_values}
    with console.resumable():
        summary = predict_file(model, outputs, output, **options)
    how = {"alpha": alpha, "columns": columns}
    explanations = _explain(model, outputs, explain, **how) if explain else {}
    earlier = f"Continued an earlier run, which had done {summary.continued:,} samples."
    console.conclude(
        record | {"output": str(output)} | summary.to_dict() | explanations,
        *([earlier] if summary.continued else []),
        *summary.sentences(),
        f"Written to {output}.",
    )


def _explain(model: Path, outputs: Path, count: int, **how: Any) -> dict[str, Any]:
    """Print explanations, or return them for --json."""
    from trustsets.files.explanations import explain_file

    found = explain_file(model, outputs, count, **how)
    if console.settings.json:
        return {"explanations": [own.to_dict() for own in found]}
    for number, own in enumerate(found):
        console.print_lines([f"Sample {number}:", *own.summary.splitlines(), ""])
    return {}
