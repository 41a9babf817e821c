"""``trustsets paper extract`` and ``trustsets paper train``: work on the paper's images."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trustsets.cli import console
from trustsets.cli.options import Seed, argument, option, resolved

__all__ = ["extract", "train"]

# How many unreadable images are named on the screen.
SHOWN = 5
Dataset = Literal["imagenet", "imagenet-lt", "places365", "places365-lt", "fitzpatrick17k"]
Trained = Literal["places365", "fitzpatrick17k"]
_MACHINE = "Machine"


@dataclass(frozen=True)
class ImageOptions:
    """Options of both commands: which images there are, and where they are decoded and run."""

    images: Annotated[Path, option("DIR", "Folder of the images.")]
    lists: Annotated[
        Path | None,
        option(
            "DIR", "Folder of the lists or tables of the dataset; by default beside the images."
        ),
    ] = None
    image_size: Annotated[int, option("N", "Side of the images that the network sees.", min=1)] = (
        224
    )
    max_unreadable: Annotated[
        int, option("N", "How many images may be missing or damaged before it is an error.", min=0)
    ] = 100
    device: Annotated[
        str, option("NAME", "cpu, cuda, or auto: a GPU where there is one.", panel=_MACHINE)
    ] = "auto"
    workers: Annotated[
        int | None,
        option(
            "N",
            "Processes that decode images; with 0, the command itself does. Default: one per core.",
            min=0,
            panel=_MACHINE,
        ),
    ] = None

    def machine(self) -> dict[str, Any]:
        """How the work runs, in the words of `trustsets.paper.images`."""
        return {
            "device": self.device,
            "workers": self.workers,
            "max_unreadable": self.max_unreadable,
            "progress": False if console.settings.quiet else None,
        }


ExtractDataset = Annotated[Dataset, argument("DATASET", "One of the paper's five datasets.")]
ExtractWeights = Annotated[Path, option("FILE", "Checkpoint of the network.")]
ExtractOutput = Annotated[
    Path | None, option("DIR", "Where to write. Default: extracted/DATASET.", "--output", "-o")
]
ExtractSeed = Annotated[int, option("N", "Seed of the training split of fitzpatrick17k.", min=0)]
Resize = Annotated[
    int | None, option("N", "Shorter side before the crop. Default: as in the paper.", min=1)
]
MixedPrecision = Annotated[
    bool | None,
    option(
        None,
        "Run in half precision or not. Default: on a GPU only.",
        "--mixed-precision/--single-precision",
        panel=_MACHINE,
    ),
]
ExtractBatchSize = Annotated[
    int, option("N", "Images that are run together.", min=1, panel=_MACHINE)
]
ShardRows = Annotated[
    int,
    option(
        "N",
        "Images in one file of the result; an interruption loses at most so many.",
        min=1,
        panel=_MACHINE,
    ),
]


def extract(
    context: typer.Context,
    dataset: ExtractDataset,
    weights: ExtractWeights,
    options: ImageOptions,
    output: ExtractOutput = None,
    seed: ExtractSeed = 0,
    resize: Resize = None,
    mixed_precision: MixedPrecision = None,
    batch_size: ExtractBatchSize = 256,
    shard_rows: ShardRows = 16384,
) -> None:
    """Run a network of the paper over its images, and keep features and logits.

    If it is interrupted, run the same command again: it continues where it
    stopped, and gives the same files.

    Example:

      trustsets paper extract imagenet --images ILSVRC2012 --weights resnet50-0676ba61.pth
    """
    from trustsets.paper.images.extraction import ExtractionOptions, extract_dataset

    folder = output or Path("extracted") / dataset
    parts = extract_dataset(
        dataset,
        options.images,
        weights,
        folder,
        lists=options.lists,
        seed=seed,
        options=ExtractionOptions(
            resize=resize,
            size=options.image_size,
            mixed_precision="auto" if mixed_precision is None else mixed_precision,
            batch_size=batch_size,
            shard_rows=shard_rows,
            **options.machine(),
        ),
    )
    if console.settings.json:
        _print_json(context, folder, {"parts": [asdict(part) for part in parts]})
        return
    header = ["part", "images", "unreadable", "accuracy", "images/s"]
    console.print_table(header, [_part_row(part) for part in parts], title=dataset)
    _name_unreadable(folder)
    console.say(f"Written to {folder}.")


def _part_row(part: Any) -> list[str]:
    speed = f"{part.speed:,.0f}" if part.run else "done before"
    return [
        part.part, f"{part.images:,}", f"{part.unreadable:,}", f"{part.accuracy:.1%}", speed,
    ]  # fmt: skip


TrainDataset = Annotated[Trained, argument("DATASET", "Dataset whose network to train.")]
TrainWeights = Annotated[Path, option("FILE", "Checkpoint to start from, trained on ImageNet.")]
TrainOutput = Annotated[
    Path | None, option("DIR", "Where to write. Default: trained/DATASET.", "--output", "-o")
]
Epochs = Annotated[
    int | None, option("N", "Default: 50 for fitzpatrick17k, 10 for places365.", min=1)
]
TrainBatchSize = Annotated[int, option("N", "Images in one training step.", min=1)]
LearningRate = Annotated[
    float | None, option("RATE", "Default: 0.001 for fitzpatrick17k, 0.01 for places365.")
]
CheckpointSteps = Annotated[
    int,
    option(
        "N", "Steps between checkpoints; there is one after each epoch too.", min=1, panel=_MACHINE
    ),
]


def train(
    context: typer.Context,
    dataset: TrainDataset,
    weights: TrainWeights,
    options: ImageOptions,
    output: TrainOutput = None,
    seed: Seed = 0,
    epochs: Epochs = None,
    batch_size: TrainBatchSize = 256,
    learning_rate: LearningRate = None,
    checkpoint_steps: CheckpointSteps = 1000,
) -> None:
    """Fine-tune a network of the paper whose weights are not public.

    If it is interrupted, run the same command again: it continues at the last
    checkpoint, and on a CPU gives the same weights.

    Example:

      trustsets paper train fitzpatrick17k --images skin --weights resnet18-f37072fd.pth
    """
    from trustsets.paper.images.training import TrainingOptions, train_dataset

    folder = output or Path("trained") / dataset
    given = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    path, history = train_dataset(
        dataset,
        options.images,
        weights,
        folder,
        lists=options.lists,
        seed=seed,
        size=options.image_size,
        options=TrainingOptions(checkpoint_steps=checkpoint_steps, **options.machine()),
        **{name: value for name, value in given.items() if value is not None},
    )
    if console.settings.json:
        epoch_list = [{"loss": each.loss, "accuracy": each.accuracy} for each in history]
        _print_json(context, path, {"epochs": epoch_list})
        return
    rows = [[f"{each.epoch + 1}", f"{each.loss:.4f}", f"{each.accuracy:.1%}"] for each in history]
    console.print_table(["epoch", "loss", "accuracy"], rows, title=dataset)
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
