"""``trustsets extract``: inputs to model outputs, through a PyTorch or ONNX model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from trustsets.cli import console
from trustsets.cli.options import Classes, argument, option, resolved

__all__ = ["extract"]


@dataclass(frozen=True)
class ExtractionOptions:
    """How the model is run; the names are those of `trustsets.extras.extraction.extract_file`."""

    weights: Annotated[Path | None, option("FILE", "Weights of the model, as .safetensors.")] = None
    layer: Annotated[
        str | None,
        option(
            "NAME",
            "Module or output that gives the features. Default: the input of the last linear "
            "layer.",
        ),
    ] = None
    features: Annotated[
        str | None,
        option(
            "POLICY",
            "One vector of many: cls, mean, 'last token', pool or flatten.",
        ),
    ] = None
    transform: Annotated[
        str | None,
        option(
            "MODULE:FUNCTION",
            "Turns a PIL image into a tensor or array. Default: colours between 0 and 1.",
        ),
    ] = None
    classes: Classes = None
    batch_size: Annotated[int, option("N", "Samples that are run together.", min=1)] = 64
    device: Annotated[str | None, option("NAME", "Where to run, such as cuda.")] = None


Model = Annotated[
    str,
    argument(
        "MODEL",
        "MODULE:FUNCTION that returns the torch model; the module may lie in the current folder. "
        "Or an .onnx file.",
    ),
]
Inputs = Annotated[
    Path,
    argument(
        "INPUTS",
        "A folder of images, one subfolder a class; or a file with the arrays "
        "'inputs' and, if known, 'labels'; or an .npy file of inputs.",
    ),
]
Output = Annotated[
    Path,
    option(
        "FILE",
        "Where to write: .npz, .parquet, .safetensors, or a folder of shards.",
        "--output",
        "-o",
    ),
]


def extract(
    context: typer.Context, model: Model, inputs: Inputs, output: Output, options: ExtractionOptions
) -> None:
    """Run a PyTorch or ONNX model and keep its logits, features and labels.

    Needs torch, or onnxruntime. MODULE:FUNCTION runs your own code, so name only
    what you trust; no file is ever unpickled. If it is interrupted, run the same
    command again: it continues where it stopped.

    Example:

      trustsets extract my_model:build photos/ -o held_out.npz
    """
    from trustsets.extras.extraction import extract_file

    record = resolved(context)
    bar = False if console.settings.quiet else None
    with console.resumable():
        outputs = extract_file(model, inputs, output, **vars(options), record=record, progress=bar)
    result = record | {"output": str(output), "n": len(outputs), "n_classes": outputs.n_classes}
    result |= {"n_features": None if outputs.features is None else outputs.features.shape[1]}
    console.conclude(result, str(outputs), f"Written to {output}.")
