"""``trustsets paper run``: outputs of a dataset to the paper's tables and figures."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trustsets.cli import console
from trustsets.cli.options import NOT_STORED, Alpha, argument, option

if TYPE_CHECKING:
    from trustsets.paper.options import Options

__all__ = ["Figures", "command_line", "run"]


@dataclass(frozen=True)
class RunOptions:
    """Options on which the numbers depend; the names are those of `trustsets.paper.options`."""

    alpha: Alpha = 0.1
    seeds: Annotated[str, option("LIST", "Seeds of the splits, such as 1-10 or 1,4.")] = "1-10"
    scores: Annotated[str, option("LIST", "Conformity scores.")] = "softmax,APS,RAPS"
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
    balls: Annotated[
        Literal["growing", "fixed"],
        option(
            None,
            "Balls that grow until they hold 10 samples (the authors' code), or of one "
            "radius around samples with 10 neighbours (the package's own).",
        ),
    ] = "growing"
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

    def parsed(self, dataset: str) -> "Options":
        """The same options with their texts read."""
        from trustsets.paper.options import Options, choose_bins, parse_edges, parse_numbers

        read = {
            "seeds": parse_numbers(self.seeds, "--seeds"),
            "scores": tuple(name.strip() for name in self.scores.split(",")),
            "degrees": parse_numbers(self.degrees, "--degrees"),
            "bins": choose_bins(self.bins, dataset),
            "rank_edges": parse_edges(self.rank_edges, "--rank-edges"),
        }
        return Options(**(vars(self) | read))


Dataset = Annotated[
    str,
    argument(
        "DATASET", "imagenet, imagenet-lt, places365, places365-lt, fitzpatrick17k; or any name."
    ),
]
Data = Annotated[
    Path | None,
    option(
        "PATH",
        "What 'paper extract' wrote (default: extracted/DATASET), a folder with "
        "DATASET_pool.npz and DATASET_train.npz, or a file of outputs.",
    ),
]
Train = Annotated[
    Path | None, option("FILE", "Features and labels of training samples, for trust.")
]
Output = Annotated[Path | None, option("DIR", "Default: results/DATASET.", "--output", "-o")]
Group = Annotated[
    list[str] | None, option("NAME", "An array that is a group column; may be given again.")
]
Cache = Annotated[
    Path | None, option("DIR", "Where stages are kept. Default: cache in the output.")
]
Figures = Annotated[bool, option(None, "Draw the figures.")]
Force = Annotated[bool, option(None, "Use nothing from the cache.", "--force")]


def run(
    context: typer.Context,
    dataset: Dataset,
    data: Data = None,
    train: Train = None,
    output: Output = None,
    group: Group = None,
    cache: Cache = None,
    figures: Figures = True,
    force: Force = False,
    *,
    options: RunOptions,
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
    from trustsets.paper.page import write_run
    from trustsets.paper.results import Made
    from trustsets.paper.sources import read_source
    from trustsets.paper.stages import StageCache

    folder = output or Path("results") / dataset
    stages, place = cache or folder / "cache", data or Path("extracted") / dataset
    kept, groups = StageCache(stages, force=force), tuple(group or ())
    chosen = options.parsed(dataset)
    with kept.timed("read"):
        source = read_source(dataset, place, train, groups)
    experiment = Experiment(source, chosen, kept)
    with console.progress(dataset, experiment.n_cells) as advance:
        found = experiment.run(advance=lambda: advance(1), say=console.say)
    points = None if train is None else str(train)
    made = Made(command_line(context), dataset, str(place), points, groups, str(stages))
    results, tables = write_run(found, folder, kept, figures=figures, made=made)
    _show(results, tables, kept, folder)


def command_line(context: typer.Context) -> str:
    """The command with every option that is not at its default, to be run again."""
    import shlex

    words = context.command_path.split()
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        # What a configuration file sets is written out.
        if parameter.name in NOT_STORED or value in (None, [], ()):
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


def _show(results: dict[str, Any], tables: list[tuple[str, str]], cache: Any, folder: Path) -> None:
    """Print the tables and the time of each stage."""
    from trustsets.paper.page import TIME_HEADER, time_rows

    if console.settings.json:
        console.print_json(results | {"output": str(folder)})
        return
    for title, table in tables:
        console.print_lines([title, "", *table.rstrip().splitlines(), ""])
    console.print_table(TIME_HEADER, time_rows(cache), title="Time by stage")
    console.say(f"Written to {folder}.")
