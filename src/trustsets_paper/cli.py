"""``trustsets paper``: the paper's experiments, from images to tables."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trustsets.cli import argument, console, expanded, option
from trustsets_paper.datasets import SHOWN
from trustsets_paper.pages import (
    TIME_HEADER,
    Origin,
    find_run,
    time_rows,
    write_overview,
    write_run,
)
from trustsets_paper.protocol import (
    Experiment,
    Options,
    StageCache,
    choose_bins,
    parse_edges,
    parse_numbers,
)
from trustsets_paper.sources import UNREADABLE, read_source

__all__ = ["paper"]

paper = typer.Typer(name="paper")
_MACHINE = "Machine"
# They say how a command talks, not what it computes.
_NOT_STATED = {"config", "json", "quiet", "debug"}


@dataclass(frozen=True)
class ImageOptions:
    """Options of the commands on images: which there are, and where they are decoded and run."""

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

    def work(self, **more: Any) -> Any:
        """How the work runs."""
        from trustsets_paper.networks import WorkOptions

        return WorkOptions(
            device=self.device,
            workers=self.workers,
            max_unreadable=self.max_unreadable,
            progress=False if console.settings.quiet else None,
            **more,
        )


@paper.command()
@expanded
def extract(
    dataset: Annotated[
        Literal["imagenet", "imagenet-lt", "places365", "places365-lt", "fitzpatrick17k"],
        argument("DATASET", "One of the paper's five datasets."),
    ],
    weights: Annotated[Path, option("FILE", "Checkpoint of the network.")],
    options: ImageOptions,
    output: Annotated[
        Path | None, option("DIR", "Where to write. Default: extracted/DATASET.", "--output", "-o")
    ] = None,
    seed: Annotated[int, option("N", "Seed of the training split of fitzpatrick17k.", min=0)] = 0,
    resize: Annotated[
        int | None, option("N", "Shorter side before the crop. Default: as in the paper.", min=1)
    ] = None,
    mixed_precision: Annotated[
        bool | None,
        option(
            None,
            "Run in half precision or not. Default: on a GPU only.",
            "--mixed-precision/--single-precision",
            panel=_MACHINE,
        ),
    ] = None,
    batch_size: Annotated[
        int, option("N", "Images that are run together.", min=1, panel=_MACHINE)
    ] = 256,
    shard_rows: Annotated[
        int,
        option(
            "N",
            "Images in one file of the result; an interruption loses at most so many.",
            min=1,
            panel=_MACHINE,
        ),
    ] = 16384,
) -> None:
    """Run a network of the paper over its images, and store features and logits.

    If it is interrupted, run the same command again: it continues where it
    stopped, and gives the same files.

    Example:

      trustsets paper extract imagenet --images ILSVRC2012 --weights resnet50-0676ba61.pth
    """
    from trustsets_paper.networks import extract_dataset

    folder = output or Path("extracted") / dataset
    precision = "auto" if mixed_precision is None else mixed_precision
    parts = extract_dataset(
        dataset,
        options.images,
        weights,
        folder,
        lists=options.lists,
        seed=seed,
        size=options.image_size,
        resize=resize,
        batch_size=batch_size,
        options=options.work(mixed_precision=precision, shard_rows=shard_rows),
    )
    if console.settings.json:
        console.print_json({"output": str(folder), "parts": [asdict(part) for part in parts]})
        return
    rows = [
        [
            part.part,
            f"{part.images:,}",
            f"{part.unreadable:,}",
            f"{part.accuracy:.1%}",
            f"{part.run / part.seconds:,.0f}" if part.run else "done before",
        ]
        for part in parts
    ]
    header = ["part", "images", "unreadable", "accuracy", "images/s"]
    console.print_table(header, rows, title=dataset)
    _name_unreadable(folder)
    console.say(f"Written to {folder}.")


@paper.command()
@expanded
def train(
    dataset: Annotated[
        Literal["places365", "fitzpatrick17k"],
        argument("DATASET", "Dataset whose network to train."),
    ],
    weights: Annotated[Path, option("FILE", "Checkpoint to start from, trained on ImageNet.")],
    options: ImageOptions,
    output: Annotated[
        Path | None, option("DIR", "Where to write. Default: trained/DATASET.", "--output", "-o")
    ] = None,
    seed: Annotated[int, option("N", "Seed of everything that is drawn at random.", min=0)] = 0,
    epochs: Annotated[
        int | None, option("N", "Default: 50 for fitzpatrick17k, 10 for places365.", min=1)
    ] = None,
    batch_size: Annotated[int, option("N", "Images in one training step.", min=1)] = 256,
    learning_rate: Annotated[
        float | None, option("RATE", "Default: 0.001 for fitzpatrick17k, 0.01 for places365.")
    ] = None,
    checkpoint_steps: Annotated[
        int,
        option(
            "N",
            "Steps between checkpoints; there is one after each epoch too.",
            min=1,
            panel=_MACHINE,
        ),
    ] = 1000,
) -> None:
    """Fine-tune a network of the paper whose weights are not public.

    If it is interrupted, run the same command again: it continues at the last
    checkpoint, and on a CPU gives the same weights.

    Example:

      trustsets paper train fitzpatrick17k --images skin --weights resnet18-f37072fd.pth
    """
    from trustsets_paper.networks import train_dataset

    folder = output or Path("trained") / dataset
    changes = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    path, history = train_dataset(
        dataset,
        options.images,
        weights,
        folder,
        lists=options.lists,
        seed=seed,
        size=options.image_size,
        options=options.work(checkpoint_steps=checkpoint_steps),
        **{name: value for name, value in changes.items() if value is not None},
    )
    if console.settings.json:
        losses = [{"loss": epoch.loss, "accuracy": epoch.accuracy} for epoch in history]
        console.print_json({"output": str(path), "epochs": losses})
        return
    rows = [
        [f"{epoch.epoch + 1}", f"{epoch.loss:.4f}", f"{epoch.accuracy:.1%}"] for epoch in history
    ]
    console.print_table(["epoch", "loss", "accuracy"], rows, title=dataset)
    _name_unreadable(folder)
    console.say(f"Written to {path}.")


def _name_unreadable(folder: Path) -> None:
    """Say which images were left out: the first few, and where all of them are."""
    path = folder / UNREADABLE
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if lines:
        console.say(f"{len(lines):,} images could not be read; all are named in {path}:")
        console.say(*("  " + line.replace("\t", "  ") for line in lines[:SHOWN]))


@dataclass(frozen=True)
class RunOptions:
    """Options on which the numbers depend; the names are those of `Options`."""

    alpha: Annotated[
        float,
        option("SHARE", "Share of sets that may miss the true class, between 0 and 1."),
    ] = 0.1
    seeds: Annotated[str, option("LIST", "Seeds of the splits, such as 1-10 or 1,4.")] = "1-10"
    scores: Annotated[str, option("LIST", "Nonconformity scores.")] = "softmax,APS,RAPS"
    degrees: Annotated[str, option("LIST", "Degrees of CONDITIONAL; the paper stops at 5.")] = "1-8"
    degree: Annotated[int, option("N", "Degree of CONDITIONAL in the tables.", min=1)] = 5
    bins: Annotated[
        Literal["auto", "text", "code"],
        option(
            None,
            "Trust and Rank bins within each confidence bin (text), or the same for all "
            "(code). auto: code for the paper's datasets, whose printed numbers were made so.",
        ),
    ] = "auto"
    rank_edges: Annotated[
        str | None,
        option(
            "LIST",
            "Edges of the Rank bins by hand, such as the authors' 0,1,2,4,1000 for ImageNet "
            "(the default there); each bin holds its upper edge.",
        ),
    ] = None
    normalize: Annotated[
        bool, option(None, "Divide features by their L2 norm in Trust, as the authors did.")
    ] = True
    neighbour: Annotated[
        int,
        option(
            "N",
            "Trust measures the distance to the N-th nearest neighbour of a class: 2 in the "
            "authors' code, 1 in the text.",
            min=1,
        ),
    ] = 2
    squared: Annotated[
        bool, option(None, "Squared distances in Trust, as in the authors' code.")
    ] = True
    related: Annotated[
        bool, option(None, "Also run the methods that the paper names as related work.")
    ] = False
    device: Annotated[str, option("NAME", "Where trust is computed: cpu or cuda.")] = "cpu"

    def parsed(self, dataset: str) -> Options:
        """The same options with their texts read."""
        texts: dict[str, Any] = {
            "seeds": parse_numbers(self.seeds, "--seeds"),
            "scores": tuple(name.strip() for name in self.scores.split(",")),
            "degrees": parse_numbers(self.degrees, "--degrees"),
            "bins": choose_bins(self.bins, dataset),
            "rank_edges": parse_edges(self.rank_edges, "--rank-edges"),
        }
        return Options(**(vars(self) | texts))


Figures = Annotated[bool, option(None, "Draw the figures.")]


@paper.command()
@expanded
def run(
    context: typer.Context,
    dataset: Annotated[
        str,
        argument(
            "DATASET",
            "imagenet, imagenet-lt, places365, places365-lt, fitzpatrick17k; or any name.",
        ),
    ],
    data: Annotated[
        Path | None,
        option(
            "PATH",
            "What 'paper extract' wrote (default: extracted/DATASET), a folder with "
            "DATASET_pool.npz and DATASET_train.npz, or a file of outputs.",
        ),
    ] = None,
    train: Annotated[
        Path | None, option("FILE", "Features and labels of training samples, for trust.")
    ] = None,
    output: Annotated[
        Path | None, option("DIR", "Default: results/DATASET.", "--output", "-o")
    ] = None,
    group: Annotated[
        list[str] | None, option("NAME", "An array that is a group column; may be given again.")
    ] = None,
    cache: Annotated[
        Path | None, option("DIR", "Where stages are stored. Default: cache in the output.")
    ] = None,
    figures: Figures = True,
    force: Annotated[bool, option(None, "Use nothing from the cache.", "--force")] = False,
    *,
    options: RunOptions,
) -> None:
    """Run the paper's experiment and write its tables and figures.

    Works on the outputs of any classifier, with the numbers that the paper
    prints beside ours for its own five datasets. Every stage is stored by the
    content of its inputs: after a change of an option only what depends on
    it is worked on again, and an interrupted run continues.

    Example:

      trustsets paper run imagenet --data extracted/imagenet
    """
    folder = output or Path("results") / dataset
    stages, path = cache or folder / "cache", data or Path("extracted") / dataset
    results_cache, groups = StageCache(stages, force=force), tuple(group or ())
    chosen = options.parsed(dataset)
    with results_cache.timed("read"):
        source = read_source(dataset, path, train, groups)
    experiment = Experiment(source, chosen, results_cache)
    with console.progress(dataset, experiment.n_cells) as advance:
        result = experiment.run(advance=lambda: advance(1), say=console.say)
    origin = Origin(
        command=_command_line(context),
        dataset=dataset,
        data=str(path),
        train=None if train is None else str(train),
        groups=groups,
        cache=str(stages),
    )
    results, tables = write_run(result, folder, results_cache, figures=figures, origin=origin)
    if console.settings.json:
        console.print_json(results | {"output": str(folder)})
        return
    _print_tables(tables)
    console.print_table(TIME_HEADER, time_rows(results_cache), title="Time by stage")
    console.say(f"Written to {folder}.")


@paper.command()
@expanded
def overview(
    context: typer.Context,
    folders: Annotated[
        list[Path], argument("DIR...", "Folders that 'paper run' wrote, one a dataset.")
    ],
    output: Annotated[Path, option("DIR", "Folder of the page.", "--output", "-o")] = Path(
        "results/overview"
    ),
    figures: Figures = True,
) -> None:
    """Put the results of several datasets on one page, as the paper prints them.

    Tables have one block for each dataset, figures one panel. Everything comes
    from the stages that the runs stored, so it takes seconds; run it from the
    same folder as them.

    Example:

      trustsets paper overview results/imagenet results/places365 -o results/all
    """
    runs = []
    for folder in folders:
        runs.append(find_run(folder))
        console.say(f"{folder}: {len(runs[-1].evaluations)} rows of {runs[-1].source.name}.")
    tables = write_overview(runs, output, figures=figures, command=_command_line(context))
    if console.settings.json:
        console.print_json({"output": str(output), "tables": dict(tables)})
        return
    _print_tables(tables)
    console.say(f"Written to {output}.")


def _print_tables(tables: list[tuple[str, str]]) -> None:
    for title, table in tables:
        console.print_lines([title, "", *table.rstrip().splitlines(), ""])


def _command_line(context: typer.Context) -> str:
    """The command with every option that is not at its default, to be run again."""
    words = context.command_path.split()
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in _NOT_STATED or value in (None, [], ()):
            continue
        items = [str(item) for item in (value if isinstance(value, list | tuple) else [value])]
        if parameter.param_type_name == "argument":
            words += items
        elif isinstance(value, bool):
            names = parameter.opts if value else parameter.secondary_opts
            words += [max(names, key=len)] if value != parameter.default else []
        elif value != parameter.default:
            name = max(parameter.opts, key=len)
            words += [word for item in items for word in (name, item)]
    return shlex.join(words)
