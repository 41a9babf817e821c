"""What a run stores besides its page: ``results.json``, and ``run.json`` to find the run again."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from trustsets._version import __version__
from trustsets.errors import InputError
from trustsets.metrics.plain import to_plain
from trustsets.paper.experiment import Experiment, Run
from trustsets.paper.layout import write_json
from trustsets.paper.options import Options
from trustsets.paper.sources import read_source
from trustsets.paper.stages import StageCache
from trustsets.paper.tables import PaperTable

__all__ = ["Made", "differences", "find_run", "plain_results"]

_MADE = "run.json"


@final
@dataclass(frozen=True)
class Made:
    """Where a run came from: enough to find it again in its cache.

    Attributes
    ----------
    command : str
        The command, with every option that is not at its default.
    dataset, data, train, groups
        As for `read_source`.
    cache : str
        Folder of the stages.
    """

    command: str
    dataset: str
    data: str
    train: str | None
    groups: tuple[str, ...]
    cache: str

    def write(self, options: Options, folder: Path) -> None:
        """Store it, with the options of the run, for `find_run`."""
        write_json(folder / _MADE, to_plain(self) | {"options": to_plain(options)})


def find_run(folder: str | os.PathLike[str]) -> Run:
    """Return the run that left its results in a folder, from the stages that it stored.

    Paths of the data are those that were given to the run. They must be valid in the current
    folder too.
    """
    path = Path(folder) / _MADE
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_hook=_with_tuples)
    except FileNotFoundError:
        raise InputError(
            f"{path}: there is no such file; name folders that trustsets paper run wrote."
        ) from None
    options, made = Options(**content.pop("options")), Made(**content)
    train = None if made.train is None else Path(made.train)
    source = read_source(made.dataset, Path(made.data), train, made.groups)
    return Experiment(source, options, StageCache(made.cache)).run()


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }


def differences(tables: Sequence[PaperTable]) -> list[dict[str, Any]]:
    """Every number that the paper prints too: place, ours, printed, difference, verdict."""
    return [
        {
            "table": table.number,
            "score": row.block[-1],
            "method": row.name,
            "column": column,
            "mean": number.mean,
            "standard_error": number.standard_error,
            "printed": number.printed.mean,
            "printed_standard_error": number.printed.standard_error,
            "difference": number.difference,
            "differs": number.differs,
        }
        for table in tables
        for row in table.rows
        for column, number in zip(table.columns, row.numbers, strict=True)
        if number.printed is not None
    ]


def plain_results(run: Run, tables: Sequence[PaperTable]) -> dict[str, Any]:
    """Content of ``results.json``."""
    source = run.source
    content = {
        "trustsets": __version__,
        "dataset": source.name,
        "samples": {part: len(own) for part, own in source.parts.items()},
        "training_points": 0 if source.train is None else len(source.train[0]),
        "classes": source.tested.n_classes,
        "groups": source.groups,
        "accuracy": source.accuracy,
        "options": run.options,
        "seeds": run.seeds,
        "temperatures": run.temperatures,
        "left_out": run.left_out,
        "tables": [_plain_table(table) for table in tables],
        "correlations": run.correlations,
        "balls": {
            cell.method: [item.balls for item in own]
            for cell, own in run.evaluations.items()
            if own[0].balls is not None
        },
        "comparison": differences(tables),
    }
    plain: dict[str, Any] = to_plain(content)
    return plain


def _plain_table(table: PaperTable) -> dict[str, Any]:
    rows = []
    for row in table.rows:
        names = zip(map(str.lower, table.heads), (*row.block, row.name), strict=True)
        metrics = {
            column: {
                "mean": number.mean,
                "standard_error": number.standard_error,
                "noise_floor": number.floor,
                "best": number.best,
            }
            for column, number in zip(table.columns, row.numbers, strict=True)
        }
        rows.append(dict(names) | {"metrics": metrics})
    return {"number": table.number, "title": table.title, "rows": rows}
