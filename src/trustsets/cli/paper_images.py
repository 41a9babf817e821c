"""``trustsets paper extract`` and ``trustsets paper train``: work on the paper's images."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from trustsets.cli import console
from trustsets.cli.options import Config, Debug, Json, Quiet, resolved

__all__ = ["extract", "train"]

# How many unreadable images are named on the screen.
SHOWN = 5


class Dataset(StrEnum):
    """Datasets of the paper."""

    IMAGENET = "imagenet"
    IMAGENET_LT = "imagenet-lt"
    PLACES365 = "places365"
    PLACES365_LT = "places365-lt"
    FITZPATRICK17K = "fitzpatrick17k"


class Trained(StrEnum):
    """Datasets whose networks are not public."""

    PLACES365 = "places365"
    FITZPATRICK17K = "fitzpatrick17k"


_MACHINE = "Machine"
Images = Annotated[Path, typer.Option("--images", metavar="DIR", help="Folder of the images.")]
Lists = Annotated[
    Path | None,
    typer.Option(
        "--lists",
        metavar="DIR",
        help="Folder of the lists or tables of the dataset; by default beside the images.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME",
        rich_help_panel=_MACHINE,
        help="cpu, cuda, or auto: a GPU where there is one.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=0,
        rich_help_panel=_MACHINE,
        help="Processes that decode images; 0: none but this. Default: one per core.",
    ),
]
Size = Annotated[
    int,
    typer.Option(
        "--image-size", metavar="N", min=1, help="Side of the images that the network sees."
    ),
]
Unreadable = Annotated[
    int,
    typer.Option(
        "--max-unreadable",
        metavar="N",
        min=0,
        help="How many images may be missing or damaged before it is an error.",
    ),
]


ExtractDataset = Annotated[
    Dataset, typer.Argument(metavar="DATASET", help="One of the paper's five.")
]
ExtractWeights = Annotated[
    Path, typer.Option("--weights", metavar="FILE", help="Checkpoint of the network.")
]
ExtractOutput = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="DIR", help="Where to write; default: extracted/DATASET."
    ),
]
ExtractSeed = Annotated[
    int,
    typer.Option("--seed", metavar="N", min=0, help="Of the training split of fitzpatrick17k."),
]
Resize = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Shorter side before the crop; default: as in the paper."
    ),
]
MixedPrecision = Annotated[
    bool | None,
    typer.Option(
        "--mixed-precision/--single-precision",
        rich_help_panel=_MACHINE,
        help="Half precision, or not; default: on a GPU.",
    ),
]
ExtractBatchSize = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, rich_help_panel=_MACHINE, help="Images that are run together."
    ),
]
ShardRows = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        rich_help_panel=_MACHINE,
        help="Images a file; what a kill can cost.",
    ),
]


def extract(
    context: typer.Context,
    dataset: ExtractDataset,
    images: Images,
    weights: ExtractWeights,
    output: ExtractOutput = None,
    lists: Lists = None,
    seed: ExtractSeed = 0,
    image_size: Size = 224,
    resize: Resize = None,
    max_unreadable: Unreadable = 100,
    device: Device = "auto",
    mixed_precision: MixedPrecision = None,
    batch_size: ExtractBatchSize = 256,
    workers: Workers = None,
    shard_rows: ShardRows = 16384,
    config: Config = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run a network of the paper over its images, and keep features and logits.

    If it is interrupted, run the same command again: it continues where it
    stopped, and gives the same files.

    Example:

      trustsets paper extract imagenet --images ILSVRC2012 --weights resnet50-0676ba61.pth
    """
    from trustsets.paper.images.extraction import ExtractionOptions, extract_dataset

    folder = output or Path("extracted") / dataset.value
    parts = extract_dataset(
        dataset.value,
        images,
        weights,
        folder,
        lists=lists,
        seed=seed,
        options=ExtractionOptions(
            resize=resize,
            size=image_size,
            device=device,
            mixed_precision="auto" if mixed_precision is None else mixed_precision,
            batch_size=batch_size,
            workers=workers,
            max_unreadable=max_unreadable,
            shard_rows=shard_rows,
            progress=False if quiet else None,
        ),
    )
    if console.settings.json:
        _print_json(context, folder, {"parts": [asdict(part) for part in parts]})
        return
    header = ["part", "images", "unreadable", "accuracy", "images/s"]
    rows = [
        [
            part.part,
            f"{part.images:,}",
            f"{part.unreadable:,}",
            f"{part.accuracy:.1%}",
            f"{part.speed:,.0f}" if part.run else "done before",
        ]
        for part in parts
    ]
    console.print_table(header, rows, title=dataset.value)
    _name_unreadable(folder)
    console.say(f"Written to {folder}.")


TrainDataset = Annotated[Trained, typer.Argument(metavar="DATASET", help="Whose network to make.")]
TrainWeights = Annotated[
    Path,
    typer.Option("--weights", metavar="FILE", help="Checkpoint to start from, of ImageNet."),
]
TrainOutput = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Where to write; default: trained/DATASET."),
]
TrainSeed = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, help="Of everything that is drawn.")
]
Epochs = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Default: 50 for fitzpatrick17k, 10 for places365."),
]
TrainBatchSize = Annotated[int, typer.Option(metavar="N", min=1, help="Images a step.")]
LearningRate = Annotated[
    float | None,
    typer.Option(metavar="RATE", help="Default: 0.001 for fitzpatrick17k, 0.01 for places365."),
]
CheckpointSteps = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        rich_help_panel=_MACHINE,
        help="Steps between checkpoints; there is one after each epoch too.",
    ),
]


def train(
    context: typer.Context,
    dataset: TrainDataset,
    images: Images,
    weights: TrainWeights,
    output: TrainOutput = None,
    lists: Lists = None,
    seed: TrainSeed = 0,
    epochs: Epochs = None,
    batch_size: TrainBatchSize = 256,
    learning_rate: LearningRate = None,
    image_size: Size = 224,
    max_unreadable: Unreadable = 100,
    device: Device = "auto",
    workers: Workers = None,
    checkpoint_steps: CheckpointSteps = 1000,
    config: Config = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fine-tune a network of the paper whose weights are not public.

    If it is interrupted, run the same command again: it continues at the last
    checkpoint, and on a CPU gives the same weights.

    Example:

      trustsets paper train fitzpatrick17k --images skin --weights resnet18-f37072fd.pth
    """
    from trustsets.paper.images.training import TrainingOptions, train_dataset

    folder = output or Path("trained") / dataset.value
    given = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    path, history = train_dataset(
        dataset.value,
        images,
        weights,
        folder,
        lists=lists,
        seed=seed,
        size=image_size,
        options=TrainingOptions(
            device=device,
            workers=workers,
            checkpoint_steps=checkpoint_steps,
            max_unreadable=max_unreadable,
            progress=False if quiet else None,
        ),
        **{name: value for name, value in given.items() if value is not None},
    )
    if console.settings.json:
        epoch_list = [{"loss": each.loss, "accuracy": each.accuracy} for each in history]
        _print_json(context, path, {"epochs": epoch_list})
        return
    rows = [[f"{each.epoch + 1}", f"{each.loss:.4f}", f"{each.accuracy:.1%}"] for each in history]
    console.print_table(["epoch", "loss", "accuracy"], rows, title=dataset.value)
    _name_unreadable(folder)
    console.say(f"Written to {path}.")


def _print_json(context: typer.Context, output: Path, result: dict[str, Any]) -> None:
    console.print_json(resolved(context) | {"output": str(output)} | result)


def _name_unreadable(folder: Path) -> None:
    """Say which images were left out: the first few, and where all of them are."""
    from trustsets.paper.layout import UNREADABLE

    path = folder / UNREADABLE
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if lines:
        console.say(f"{len(lines):,} images could not be read; all are named in {path}:")
        console.say(*("  " + line.replace("\t", "  ") for line in lines[:SHOWN]))
