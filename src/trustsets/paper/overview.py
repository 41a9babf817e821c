"""One page over several datasets, as the paper prints it. Imports page and cross_figures.

Tables 1, 3, 4 and 5 have one block for each dataset. Table 2 is about the groups of a dataset,
which have names of their own, so each dataset with groups has one.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from trustsets._version import __version__
from trustsets.errors import InputError
from trustsets.paper.cross_figures import CROSS_CAPTIONS, draw_cross_figures
from trustsets.paper.experiment import Experiment, Run
from trustsets.paper.page import read_made, write_text
from trustsets.paper.sources import read_source
from trustsets.paper.stages import StageCache
from trustsets.paper.tables import PaperTable, Row, correlation_table, paper_tables
from trustsets.paper.words import figure_text, reading, samples, setting

__all__ = ["cross_tables", "find_run", "write_overview"]

PAGE = "README.md"


def find_run(folder: str | os.PathLike[str]) -> Run:
    """The run that left its results in a folder, from the stages that it kept.

    Paths of the data are those that were given then, so they must hold from here too.
    """
    made, options = read_made(folder)
    train = None if made.train is None else Path(made.train)
    source = read_source(made.dataset, Path(made.data), train, made.groups)
    return Experiment(source, options, StageCache(made.cache)).run()


def write_overview(
    runs: Sequence[Run],
    folder: str | os.PathLike[str],
    *,
    figures: bool = True,
    command: str | None = None,
) -> list[tuple[str, str]]:
    """Write the page, its tables and its figures; gives titles and texts of the tables.

    Parameters
    ----------
    runs : sequence of Run
        One for each dataset, in the order of the page.
    folder : path
        Made if it does not exist. It gets ``README.md``, ``tables/`` and ``figures/``.
    figures : bool
        Draw the figures.
    command : str, optional
        What is making the page.
    """
    names = [run.source.name for run in runs]
    if not runs or len(set(names)) < len(names):
        raise InputError(f"an overview needs runs of different datasets; got {names}.")
    root = Path(folder)
    (root / "tables").mkdir(parents=True, exist_ok=True)
    texts: list[tuple[float, str, str]] = []
    for table in cross_tables(runs):
        write_text(root / "tables" / f"{table.slug}.md", table.to_markdown())
        write_text(root / "tables" / f"{table.slug}.tex", table.to_latex())
        texts.append((table.number or math.inf, table.title, table.to_markdown()))
    correlations = correlation_table(runs)
    if correlations.rows:
        write_text(root / "tables" / "table3.md", correlations.to_markdown())
        write_text(root / "tables" / "table3.tex", correlations.to_latex())
        texts.append((3, "Table 3: correlation of Trust and Rank", correlations.to_markdown()))
    titled = [(title, text) for _, title, text in sorted(texts)]
    drawn = draw_cross_figures(runs, root / "figures") if figures else {}
    write_text(root / PAGE, _page(runs, titled, list(drawn), command))
    return titled


def cross_tables(runs: Sequence[Run]) -> list[PaperTable]:
    """Tables 1, 2, 4 and 5, and that of related work, over all runs."""
    found = {run.source.name: {table.slug: table for table in paper_tables(run)} for run in runs}
    tables = []
    for slug in ("table1", "table4", "table5", "related"):
        own = {name: made[slug] for name, made in found.items() if slug in made}
        if own:
            tables.append(_joined(own, slug))
    groups = {name: made["table2"] for name, made in found.items() if "table2" in made}
    return tables + [_of_groups(name, table) for name, table in groups.items()]


def _joined(own: dict[str, PaperTable], slug: str) -> PaperTable:
    """The same table of several datasets, with the columns that all of them have."""
    first = next(iter(own.values()))
    shared = [
        name for name in first.columns if all(name in table.columns for table in own.values())
    ]
    by_score = slug == "table5"
    rows = []
    for name, table in own.items():
        at = [table.columns.index(column) for column in shared]
        for row in table.rows:
            names = (name, *row.names) if by_score else (name, row.name)
            rows.append(Row(names, tuple(row.numbers[place] for place in at)))
    heads = ("Dataset", *first.heads) if by_score else ("Dataset", first.heads[-1])
    title = f"Table {first.number}: {first.title}" if first.number else first.title
    return PaperTable(first.number, slug, title, heads, tuple(shared), tuple(rows))


def _of_groups(name: str, table: PaperTable) -> PaperTable:
    title = f"Table 2: {table.title}, {name}"
    return PaperTable(2, f"table2-{name}", title, table.heads, table.columns, table.rows)


def _page(
    runs: Sequence[Run], tables: list[tuple[str, str]], figures: list[str], command: str | None
) -> str:
    how = "`write_overview` of `trustsets.paper.overview`" if command is None else f"`{command}`"
    parts = ["# The paper's tables and figures, dataset by dataset"]
    parts.append(f"Made by {how}, trustsets {__version__}.")
    parts += _settings(runs)
    parts.append(reading(runs))
    parts += [f"## {title}\n\n{text}" for title, text in tables]
    parts += ["## Figures"] if figures else []
    parts += [figure_text(name, CROSS_CAPTIONS[name]) for name in figures]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _settings(runs: Sequence[Run]) -> list[str]:
    """Samples of each dataset, and options: once, where they are the same."""
    data = {run.source.name: samples(run) for run in runs}
    options = {run.source.name: setting(run) for run in runs}
    if len(set(options.values())) > 1:
        return [f"**{name}.** {text} {options[name]}" for name, text in data.items()]
    listed = "\n".join(f"- **{name}.** {text}" for name, text in data.items())
    return [listed, next(iter(options.values()))]
