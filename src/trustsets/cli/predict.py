"""``trustsets predict``: outputs to prediction sets."""

from pathlib import Path
from typing import Annotated

import typer

from trustsets.cli import console
from trustsets.cli.options import Alpha, Config, Debug, Json, Quiet, resolved

__all__ = ["predict"]


def predict(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Saved by 'trustsets calibrate'.")],
    outputs: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUTS",
            help="New outputs: .npz, .parquet, .safetensors or a folder of .npy.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write: .parquet, .csv or .jsonl."
        ),
    ],
    alpha: Alpha = 0.1,
    id: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="NAME",
            help="An array to copy to the result; may be given again. 'id' always is.",
        ),
    ] = None,
    memory: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Memory for the samples at work, besides the program and the model.",
        ),
    ] = "1GB",
    config: Config = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a set of possible classes for every new sample.

    Works on files larger than memory. If it is interrupted, run the same
    command again: it continues where it stopped, and gives the same file.
    Until it is whole, nothing appears under the name of the result.

    Example:

      trustsets predict model.trustsets new.npz --alpha 0.1 -o sets.parquet
    """
    from trustsets.files.memory import parse_memory
    from trustsets.files.prediction import predict_file
    from trustsets.files.source import open_outputs

    record = resolved(context)
    with console.progress("Prediction sets", len(open_outputs(outputs))) as advance:
        summary = predict_file(
            model,
            outputs,
            output,
            alpha=alpha,
            memory=parse_memory(memory),
            ids=id or (),
            record=record,
            advance=advance,
        )
    if console.settings.json:
        console.print_json(record | {"output": str(output)} | summary.to_dict())
        return
    if summary.continued:
        console.say(f"Continued an earlier run, which had done {summary.continued:,} samples.")
    console.say("\n".join([*summary.sentences(), f"Written to {output}."]))
