"""``trustsets predict``: outputs to prediction sets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trustsets.cli import console
from trustsets.cli.options import Alpha, Config, Debug, Json, Quiet, Ray, resolved

if TYPE_CHECKING:
    from trustsets.files.prediction import PredictionSummary

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
    ray: Ray = None,
    config: Config = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a set of possible classes for every new sample.

    Works on files larger than memory. If it is interrupted, run the same
    command again: it continues where it stopped, and gives the same file.
    Until it is whole, nothing appears under the name of the result.

    With --ray, OUTPUTS may be a folder of Parquet files, and the result is one
    too: all machines must see both, and --memory is that of one worker.

    Example:

      trustsets predict model.trustsets new.npz --alpha 0.1 -o sets.parquet
    """
    from trustsets.files.memory import parse_memory

    record = resolved(context)
    options = {"alpha": alpha, "memory": parse_memory(memory), "ids": id or (), "record": record}
    if ray is None:
        summary = _predict_here(model, outputs, output, options)
    else:
        summary = _predict_on_ray(ray, model, outputs, output, options)
    if console.settings.json:
        console.print_json(record | {"output": str(output)} | summary.to_dict())
        return
    if summary.continued:
        console.say(f"Continued an earlier run, which had done {summary.continued:,} samples.")
    console.say(*summary.sentences(), f"Written to {output}.")


def _predict_here(
    model: Path, outputs: Path, output: Path, options: dict[str, Any]
) -> "PredictionSummary":
    from trustsets.files.prediction import predict_file
    from trustsets.files.source import open_outputs

    n = len(open_outputs(outputs))
    with console.resumable(), console.progress("Prediction sets", n) as advance:
        return predict_file(model, outputs, output, **options, advance=advance)


def _predict_on_ray(
    address: str, model: Path, outputs: Path, output: Path, options: dict[str, Any]
) -> "PredictionSummary":
    from trustsets.extras.ray import connected, count_rows, predict_files
    from trustsets.predictors import load

    predictor, total = load(model), count_rows(outputs)
    with connected(address), console.resumable():
        with console.progress("Prediction sets", total) as advance:
            return predict_files(predictor, outputs, output, **options, advance=advance)
