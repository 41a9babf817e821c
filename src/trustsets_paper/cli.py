"""``trustsets paper``: the paper's experiments, from images to tables."""

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from trustsets.cli import argument, console, expanded, option
from trustsets.errors import InputError
from trustsets_paper.authors import compare_trust as compare_released
from trustsets_paper.authors import released_files
from trustsets_paper.pages import write_overview, write_run
from trustsets_paper.protocol import (
    Experiment,
    Options,
    StageCache,
    parse_edges,
    parse_numbers,
)
from trustsets_paper.sources import PAPER_DATASETS, UNREADABLE, WorkOptions, read_source

__all__ = ["paper"]

paper = typer.Typer(name="paper")
Images = Annotated[Path, option("DIR", "Folder of the images.")]


@paper.command()
@expanded
def extract(
    dataset: Annotated[
        Literal["imagenet", "imagenet-lt", "places365", "places365-lt", "fitzpatrick17k"],
        argument("DATASET", "One of the paper's five datasets."),
    ],
    weights: Annotated[Path, option("FILE", "Checkpoint of the network.")],
    images: Images,
    options: WorkOptions,
    output: Annotated[
        Path | None, option("DIR", "Where to write. Default: extracted/DATASET.", "--output", "-o")
    ] = None,
    resize: Annotated[
        int | None, option("N", "Shorter side before the crop. Default: as in the paper.", min=1)
    ] = None,
) -> None:
    """Run a network of the paper over its images, and store features and logits.

    If it is interrupted, run the same command again: it continues where it
    stopped, and gives the same files.

    Example:

      trustsets paper extract imagenet --images ILSVRC2012 --weights resnet50-0676ba61.pth
    """
    from trustsets_paper.networks import extract_dataset

    folder = output or Path("extracted") / dataset
    shown: dict[str, Any] = {"options": options, "progress": console.progress}
    parts = extract_dataset(dataset, images, weights, folder, resize=resize, **shown)
    rows = []
    for part in parts:
        speed = f"{part['run'] / part['seconds']:,.0f}" if part["run"] else "done before"
        counts = [f"{part[name]:,}" for name in ("images", "unreadable")]
        rows.append([part["part"], *counts, f"{part['accuracy']:.1%}", speed])
    header = ["part", "images", "unreadable", "accuracy", "images/s"]
    _print_images({"output": str(folder), "parts": parts}, folder, dataset, header, rows)


@paper.command()
@expanded
def train(
    dataset: Annotated[
        Literal["places365", "fitzpatrick17k"],
        argument("DATASET", "Dataset whose network to train."),
    ],
    weights: Annotated[Path, option("FILE", "Checkpoint to start from, trained on ImageNet.")],
    images: Images,
    options: WorkOptions,
    output: Annotated[
        Path | None, option("DIR", "Where to write. Default: trained/DATASET.", "--output", "-o")
    ] = None,
    epochs: Annotated[
        int | None, option("N", "Default: 50 for fitzpatrick17k, 10 for places365.", min=1)
    ] = None,
    learning_rate: Annotated[
        float | None, option("RATE", "Default: 0.001 for fitzpatrick17k, 0.01 for places365.")
    ] = None,
) -> None:
    """Fine-tune a network of the paper whose weights are not public.

    If it is interrupted, run the same command again: it continues after the
    last whole epoch, and on a CPU gives the same weights.

    Example:

      trustsets paper train fitzpatrick17k --images skin --weights resnet18-f37072fd.pth
    """
    from trustsets_paper.networks import train_dataset

    folder = output or Path("trained") / dataset
    changes = {"epochs": epochs, "learning_rate": learning_rate}
    chosen: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    chosen |= {"options": options, "progress": console.progress}
    path, history = train_dataset(dataset, images, weights, folder, **chosen)
    rows = [
        [str(number), f"{epoch['loss']:.4f}", f"{epoch['accuracy']:.1%}"]
        for number, epoch in enumerate(history, 1)
    ]
    content = {"output": str(path), "epochs": history}
    _print_images(content, folder, dataset, ["epoch", "loss", "accuracy"], rows)


def _print_images(
    content: dict[str, Any], folder: Path, title: str, header: list[str], rows: list[list[str]]
) -> None:
    """Print a table, how many images could not be read, and where the output is."""
    if console.json:
        console.print_json(content)
        return
    console.print_table(header, rows, title=title)
    path = folder / UNREADABLE
    if path.exists():
        count = len(path.read_text(encoding="utf-8").splitlines())
        console.say(f"{count:,} images could not be read; they are named in {path}.")
    console.say(f"Written to {content['output']}.")


@dataclass(frozen=True)
class RunOptions:
    """Options on which the numbers depend; the names are those of `Options`."""

    alpha: Annotated[
        float,
        option("SHARE", "Share of sets that may miss the true class, between 0 and 1."),
    ] = 0.1
    seeds: Annotated[str, option("LIST", "Seeds of the splits, such as 1-10 or 1,4.")] = "1-10"
    splits: Annotated[
        Literal["package", "authors"],
        option(None, "Halves of this package, or those of the authors' code, seed by seed."),
    ] = "package"
    scores: Annotated[str, option("LIST", "Nonconformity scores.")] = "softmax,APS,RAPS"
    degrees: Annotated[str, option("LIST", "Degrees of CONDITIONAL with APS.")] = "1-5"
    degree: Annotated[int, option("N", "Degree of CONDITIONAL in the tables.", min=1)] = 5
    bins: Annotated[
        Literal["auto", "text", "code"],
        option(None, "Trust and Rank bins within each confidence bin (text), or for all (code)."),
    ] = "auto"
    rank_edges: Annotated[
        str | None,
        option("LIST", "Edges of the Rank bins: 0,1,2,4,1000 for ImageNet; or quantiles."),
    ] = None
    trust: Annotated[
        Literal["code", "text"],
        option(None, "Trust of the authors' code, or of the paper's text: plain distances."),
    ] = "code"
    balls: Annotated[
        Literal["package", "authors"],
        option(None, "The same centres for all radii; or new ones, and the first seed alone."),
    ] = "package"
    device: Annotated[
        str, option("NAME", "Where trust is computed: cpu, cuda, or auto: a GPU if there is one.")
    ] = "auto"

    def parsed(self, dataset: str) -> Options:
        """The same options with their texts read; automatic bins are those of printed numbers."""
        bins = "code" if dataset in PAPER_DATASETS else "text"
        texts: dict[str, Any] = {
            "seeds": parse_numbers(self.seeds, "--seeds"),
            "scores": tuple(name.strip() for name in self.scores.split(",")),
            "degrees": parse_numbers(self.degrees, "--degrees"),
            "bins": bins if self.bins == "auto" else self.bins,
            "rank_edges": parse_edges(self.rank_edges, "--rank-edges"),
        }
        return Options(**(vars(self) | texts))


Figures = Annotated[bool, option(None, "Draw the figures.")]


@paper.command()
@expanded
def run(
    dataset: Annotated[
        str,
        argument("DATASET", "One of the paper's five, with the printed numbers; or any name."),
    ],
    data: Annotated[
        Path | None,
        option("PATH", "Outputs: what 'paper extract' wrote, DATASET_pool.npz, or any file."),
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
    compare_trust: Annotated[
        Path | None,
        option("PATH", "Trust scores that the authors released: their folder, or one file."),
    ] = None,
    figures: Figures = True,
    *,
    options: RunOptions,
) -> None:
    """Run the paper's experiment and write its tables and figures.

    Stages are stored by the content of their inputs: an interrupted run
    continues, and a changed option redoes only what depends on it.

    Example:

      trustsets paper run imagenet --data extracted/imagenet
    """
    folder = output or Path("results") / dataset
    results_cache, chosen = StageCache(cache or folder / "cache"), options.parsed(dataset)
    files = [] if compare_trust is None else released_files(compare_trust, dataset)
    source = read_source(dataset, data or Path("extracted") / dataset, train, group or ())
    experiment = Experiment(source, chosen, results_cache)
    with console.progress(dataset, experiment.n_cells) as advance:
        result = experiment.run(advance=lambda: advance(1), say=console.say)
    parts = result.source.parts
    trust = {part: np.asarray(outputs.trust) for part, outputs in parts.items()}
    labels = None if result.source.fixed_split else parts["pool"].codes
    results, tables = write_run(
        result,
        folder,
        figures=figures,
        command=_command_line(),
        released=compare_released(files, trust, labels),
    )
    if console.json:
        console.print_json(results | {"output": str(folder)})
        return
    _print_tables(tables)
    console.say(f"Written to {folder}.")


@paper.command()
@expanded
def overview(
    datasets: Annotated[list[str], argument("DATASET...", "Names of the datasets.")],
    data: Annotated[
        Path, option("DIR", "Folder of what 'paper extract' wrote, or of pairs of files.")
    ] = Path("extracted"),
    output: Annotated[Path, option("DIR", "Folder of the page.", "--output", "-o")] = Path(
        "results/overview"
    ),
    cache: Annotated[
        Path | None, option("DIR", "Where stages are stored. Default: cache in the output.")
    ] = None,
    group: Annotated[
        list[str] | None,
        option("NAME", "A group column: NAME, or DATASET:NAME; may be given again."),
    ] = None,
    figures: Figures = True,
    *,
    options: RunOptions,
) -> None:
    """Judge every claim of the paper on several datasets, and ablate its method.

    Runs all methods, conditions on Conf alone and on Trust alone too, and
    writes one page with a block of each table for each dataset. Stages are
    stored as by 'paper run'.

    Example:

      trustsets paper overview cifar100 ham10000 --data bench -o results/overview
    """
    if len(set(datasets)) < len(datasets):
        raise InputError(f"an overview needs different datasets; got {datasets}.")
    stages, runs = StageCache(cache or output / "cache"), []
    for dataset in datasets:
        chosen = replace(options.parsed(dataset), ablation=True)
        pairs = [name.rpartition(":") for name in group or ()]
        groups = [name for owner, _, name in pairs if owner in ("", dataset)]
        source = read_source(dataset, data, groups=groups)
        experiment = Experiment(source, chosen, stages)
        with console.progress(dataset, experiment.n_cells) as advance:
            runs.append(experiment.run(advance=lambda: advance(1), say=console.say))
    tables = write_overview(runs, output, figures=figures, command=_command_line())
    if console.json:
        console.print_json({"output": str(output), "tables": dict(tables)})
        return
    _print_tables(tables)
    console.say(f"Written to {output}.")


def _print_tables(tables: list[tuple[str, str]]) -> None:
    for title, table in tables:
        console.print_lines([title, "", *table.rstrip().splitlines(), ""])


def _command_line() -> str:
    """What was typed, to be run again."""
    return shlex.join(["trustsets", *sys.argv[1:]])
