"""``trustsets paper run``: outputs of a dataset to the paper's tables and figures."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trustsets.cli import console
from trustsets.cli.options import Alpha, Config, Debug, Json, Quiet

__all__ = ["run"]


Dataset = Annotated[
    str,
    typer.Argument(
        metavar="DATASET",
        help="imagenet, imagenet-lt, places365, places365-lt, fitzpatrick17k; or any name.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="What 'paper extract' wrote (default: extracted/DATASET), a folder with "
        "DATASET_pool.npz and DATASET_train.npz, or a file of outputs.",
    ),
]
Train = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Features and labels of training points, for trust."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Default: results/DATASET."),
]
Group = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="An array that is a group column; may be given again."),
]
Seeds = Annotated[str, typer.Option(metavar="LIST", help="Splits, such as 1-10 or 1,4.")]
Scores = Annotated[str, typer.Option(metavar="LIST", help="Scores.")]
Degrees = Annotated[
    str, typer.Option(metavar="LIST", help="Degrees of CONDITIONAL; the paper stops at 5.")
]
Degree = Annotated[int, typer.Option(metavar="N", min=1, help="Degree in the tables.")]
Bins = Annotated[
    Literal["auto", "text", "code"],
    typer.Option(
        help="Trust and Rank bins within each confidence bin (text), or the same for all "
        "(code). auto: code for the paper's datasets, whose printed numbers were made so."
    ),
]
RankEdges = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Edges of the Rank bins by hand, such as the authors' 0,1,2,4,1000 for ImageNet "
        "(the default there); each bin holds its upper edge.",
    ),
]
BallRule = Annotated[
    Literal["growing", "fixed"],
    typer.Option(
        help="Balls that grow until they hold 10 samples (the authors' code), or of one radius "
        "around samples with 10 neighbours (the package's own)."
    ),
]
Normalize = Annotated[
    bool, typer.Option(help="Divide features by their L2 norm in Trust, as the authors did.")
]
Related = Annotated[
    bool, typer.Option(help="Run the methods that the paper's related work names, too.")
]
Neighbour = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=1,
        help="Which neighbour stands for a class in Trust: 2 in the authors' code, 1 in the text.",
    ),
]
Squared = Annotated[bool, typer.Option(help="Squared distances in Trust, as in the authors' code.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="Where trust is computed: cpu or cuda.")]
Cache = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where stages are kept. Default: cache in the output."),
]
Figures = Annotated[bool, typer.Option(help="Draw the figures.")]
# How the command talks; what a configuration file sets is spelt out.
_SAID_ELSEWHERE = {"config", "json", "quiet", "debug"}
Force = Annotated[bool, typer.Option("--force", help="Use nothing from the cache.")]


def run(
    context: typer.Context,
    dataset: Dataset,
    data: Data = None,
    train: Train = None,
    output: Output = None,
    group: Group = None,
    alpha: Alpha = 0.1,
    seeds: Seeds = ("1-10"),
    scores: Scores = "softmax,APS,RAPS",
    degrees: Degrees = "1-8",
    degree: Degree = 5,
    bins: Bins = "auto",
    rank_edges: RankEdges = None,
    balls: BallRule = "growing",
    normalize: Normalize = True,
    neighbour: Neighbour = 2,
    squared: Squared = True,
    related: Related = False,
    device: Device = "cpu",
    cache: Cache = None,
    figures: Figures = True,
    force: Force = False,
    config: Config = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run the paper's experiment and write its tables and figures.

    Works on the outputs of any classifier, with the numbers that the paper
    prints beside ours for its own five datasets. Every stage is kept by the
    content of its inputs: after a change of an option only what depends on
    it is worked on again, and an interrupted run continues.

    Example:

      trustsets paper run imagenet --data extracted/imagenet
    """
    from trustsets.paper.experiment import Experiment
    from trustsets.paper.options import Options, choose_bins, parse_edges, parse_numbers
    from trustsets.paper.page import write_run
    from trustsets.paper.results import Made
    from trustsets.paper.sources import read_source
    from trustsets.paper.stages import StageCache

    folder = output or Path("results") / dataset
    options = Options(
        alpha=alpha,
        seeds=parse_numbers(seeds, "--seeds"),
        scores=tuple(name.strip() for name in scores.split(",")),
        degrees=parse_numbers(degrees, "--degrees"),
        degree=degree,
        bins=choose_bins(bins, dataset),
        rank_edges=parse_edges(rank_edges, "--rank-edges"),
        balls=balls,
        normalize=normalize,
        neighbour=neighbour,
        squared=squared,
        related=related,
        device=device,
    )
    stages, place = cache or folder / "cache", data or Path("extracted") / dataset
    kept, groups = StageCache(stages, force=force), tuple(group or ())
    with kept.timed("read"):
        source = read_source(dataset, place, train, groups)
    experiment = Experiment(source, options, kept)
    with console.progress(dataset, experiment.n_cells) as advance:
        found = experiment.run(advance=lambda: advance(1), say=console.say)
    points = None if train is None else str(train)
    words = command_line(context)
    made = Made(words, dataset, str(place), points, groups, str(stages))
    _show(write_run(found, folder, kept, figures=figures, made=made), kept, folder)


def command_line(context: typer.Context) -> str:
    """The command with every option that is not at its default, to be run again."""
    import shlex

    words = context.command_path.split()
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in _SAID_ELSEWHERE or value in (None, [], ()):
            continue
        if parameter.param_type_name == "argument":
            words += [str(item) for item in (value if isinstance(value, list | tuple) else [value])]
        elif isinstance(value, bool):
            names = parameter.opts if value else parameter.secondary_opts
            words += [max(names, key=len)] if value != parameter.default else []
        elif value != parameter.default:
            name = max(parameter.opts, key=len)
            items = value if isinstance(value, list | tuple) else [value]
            words += [word for item in items for word in (name, str(item))]
    return shlex.join(words)


def _show(written: Any, cache: Any, folder: Path) -> None:
    """Print the tables and the time of each stage."""
    from trustsets.paper.page import TIME_HEADER, time_rows

    if console.settings.json:
        console.print_json(written.results | {"output": str(folder)})
        return
    for title, table in written.tables:
        console.print_lines([title, "", *table.rstrip().splitlines(), ""])
    console.print_table(TIME_HEADER, time_rows(cache), title="Time by stage")
    console.say(f"Written to {folder}.")
