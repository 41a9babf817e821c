"""``trustsets paper extract`` and ``trustsets paper train``: work on the paper's images."""

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["extract", "train"]

# How many unreadable images are named on the screen.
SHOWN = 5

Dataset = Literal["imagenet", "imagenet-lt", "places365", "places365-lt", "fitzpatrick17k"]
Trained = Literal["places365", "fitzpatrick17k"]
Images = Annotated[Path, typer.Option(help="Folder of the images.", show_default=False)]
Lists = Annotated[
    Path | None,
    typer.Option(help="Folder of lists or tables; by default beside the images."),
]
Seed = Annotated[int, typer.Option(help="Of the training split of fitzpatrick17k.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")]
Workers = Annotated[
    int | None, typer.Option(help="Processes that decode images; default: one per core.")
]
Size = Annotated[int, typer.Option(help="Side of the images that the network sees.")]
Unreadable = Annotated[
    int, typer.Option(help="How many images may be missing or damaged before it is an error.")
]


def extract(
    dataset: Annotated[Dataset, typer.Argument(help="Which dataset.", show_default=False)],
    images: Images,
    weights: Annotated[Path, typer.Option(help="Checkpoint of the network.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the outputs; default: extracted/DATASET.")
    ] = None,
    lists: Lists = None,
    seed: Seed = 0,
    device: Device = "auto",
    mixed_precision: Annotated[
        bool | None,
        typer.Option(help="Half precision; default: on a GPU.", show_default=False),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images that are run together.")] = 256,
    workers: Workers = None,
    image_size: Size = 224,
    resize: Annotated[
        int | None,
        typer.Option(help="Shorter side before the crop; default: as in the paper."),
    ] = None,
    max_unreadable: Unreadable = 100,
    shard_rows: Annotated[
        int, typer.Option(help="Images a shard; a killed run loses less than one shard.")
    ] = 16384,
) -> None:
    """Run the paper's network over its images; features and logits go to a folder.

    A run that was killed continues when it is started again with the same options.
    """
    from trustsets.paper.extraction import extract_dataset
    from trustsets.paper.machine import decoding_workers, pick_device

    folder = out or Path("extracted") / dataset
    summaries = extract_dataset(
        dataset,
        images,
        weights,
        folder,
        lists=lists,
        seed=seed,
        resize=resize,
        size=image_size,
        device=pick_device(device),
        mixed_precision="auto" if mixed_precision is None else mixed_precision,
        batch_size=batch_size,
        workers=decoding_workers(workers),
        max_unreadable=max_unreadable,
        shard_rows=shard_rows,
    )
    for part in summaries:
        speed = f"{part.speed:,.0f} images/s" if part.run else "from an earlier run"
        typer.echo(f"{part.part}: {part.images:,} images, accuracy {part.accuracy:.1%}, {speed}")
    _name_unreadable(folder)
    typer.echo(f"Outputs of {dataset} are in {folder}")


def train(
    dataset: Annotated[Trained, typer.Argument(help="Which dataset.", show_default=False)],
    images: Images,
    weights: Annotated[
        Path,
        typer.Option(help="Checkpoint to start from, trained on ImageNet.", show_default=False),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder of checkpoints; default: trained/DATASET.")
    ] = None,
    lists: Lists = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    epochs: Annotated[int | None, typer.Option(help="Default: 50 for skin, 10 for places.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images a step.")] = 256,
    learning_rate: Annotated[
        float | None, typer.Option(help="Default: 0.001 for skin, 0.01 for places.")
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
    image_size: Size = 224,
    checkpoint_steps: Annotated[
        int, typer.Option(help="Steps between checkpoints; also one after each epoch.")
    ] = 1000,
    max_unreadable: Unreadable = 100,
) -> None:
    """Fine-tune the paper's network where no public weights exist.

    A run that was killed continues when it is started again with the same options.
    """
    from trustsets.paper.machine import decoding_workers, pick_device
    from trustsets.paper.training import TrainingOptions, train_dataset

    folder = out or Path("trained") / dataset
    given = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    path, history = train_dataset(
        dataset,
        images,
        weights,
        folder,
        lists=lists,
        seed=seed,
        size=image_size,
        options=TrainingOptions(
            device=pick_device(device),
            workers=decoding_workers(workers),
            checkpoint_steps=checkpoint_steps,
            max_unreadable=max_unreadable,
        ),
        **{name: value for name, value in given.items() if value is not None},
    )
    for epoch in history:
        typer.echo(f"epoch {epoch.epoch + 1}: loss {epoch.loss:.4f}, accuracy {epoch.accuracy:.1%}")
    _name_unreadable(folder)
    typer.echo(f"Weights for {dataset} are in {path}")


def _name_unreadable(folder: Path) -> None:
    """Say which images were left out: the first few, and where all of them are."""
    from trustsets.paper.layout import UNREADABLE

    path = folder / UNREADABLE
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if lines:
        typer.echo(f"{len(lines)} images could not be read; all are named in {path}:", err=True)
        for line in lines[:SHOWN]:
            typer.echo("  " + line.replace("\t", "  "), err=True)
