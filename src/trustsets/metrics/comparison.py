"""`compare`: methods side by side over seeds, in the form of the paper's tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from scipy import stats

from trustsets._frames import Flavour, frame_of_rows
from trustsets._plain import PlainData
from trustsets.errors import InputError
from trustsets.metrics.catalogue import (
    bold,
    escape_latex,
    latex_table,
    markdown_table,
    number_of,
    split_name,
    title,
)
from trustsets.metrics.evaluation import Evaluation
from trustsets.metrics.inference import bootstrap_gaps

Key = tuple[str, ...]

# The paper sets in bold what is within 0.1 percentage points of the best, which is 0.001 for
# shares. The slack allows for rounding of sums.
_CLOSE = {"points": 0.1, "share": 0.001}
_SLACK = 1e-9
_MARGINAL = ("coverage", "size")
_GAP_PARTS = ("gap", "shortfall", "excess")
# What a table shows by default, by the name of the table of bins.
_MAIN = {
    "": _MARGINAL,
    "conf_trust": _GAP_PARTS[:2],
    "conf_rank": _GAP_PARTS[:2],
    "class": (*_GAP_PARTS[:2], "macro", "below_"),
    "group": (*_GAP_PARTS[:2], "worst"),
}
_NAMES = {0: [], 1: ["dataset"], 2: ["dataset", "score"]}
_PERFECT = "perfect (noise floor)"


@final
@dataclass(frozen=True)
class Entry:
    """One metric of one method over S seeds.

    The interval of the mean is a bootstrap over seeds and samples for gaps and their halves, and
    Student's t over seeds otherwise; with one seed, that of the evaluation. `best` says whether it
    is the best of its block or within 0.1 percentage points of it.
    """

    mean: float
    standard_error: float
    lower: float
    upper: float
    floor: float
    best: bool
    n_seeds: int


@final
@dataclass(frozen=True)
class Comparison(PlainData):
    """A table of methods by metrics; `compare` makes it.

    `keys` name the rows. The last part is the method; rows that share the other parts (data set,
    score) are one block, and the best is marked within each block. `columns` are names of metrics
    as in ``Evaluation.metrics``, and `entries` has a tuple for each row.
    """

    alpha: float
    level: float
    keys: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    entries: tuple[tuple[Entry, ...], ...]

    def to_frame(self, flavour: Flavour | None = None) -> Any:
        """One row per method and metric, with interval and noise floor."""
        rows = [
            dict(zip(self._names, key, strict=True)) | {"metric": column} | vars(entry)
            for key, entries in zip(self.keys, self.entries, strict=True)
            for column, entry in zip(self.columns, entries, strict=True)
        ]
        return frame_of_rows(rows, flavour)

    def to_markdown(self, floor: bool = True) -> str:
        """Pipe table of mean (standard error); `floor` adds a row for a perfect method."""
        header = [*(name.capitalize() for name in self._names), *map(title, self.columns)]
        rows = [row for block in self._blocks(floor, latex=False) for row in block]
        return markdown_table(header, rows, n_names=len(self._names))

    def to_latex(self, floor: bool = True) -> str:
        """Booktabs table in the paper's form."""
        names = [bold(name.capitalize(), latex=True) for name in self._names]
        header = names + [escape_latex(title(column)) for column in self.columns]
        marginal = sum(column in _MARGINAL for column in self.columns)
        parts = (("Marginal", marginal), ("Conditional", len(self.columns) - marginal))
        spans = [(text, width) for text, width in parts if width]
        in_order = all(column in _MARGINAL for column in self.columns[:marginal])
        return latex_table(
            header,
            self._blocks(floor, latex=True),
            n_names=len(names),
            spans=spans if in_order else (),
        )

    @property
    def _names(self) -> list[str]:
        """Heads of the name columns."""
        width = len(self.keys[0])
        return [*_NAMES.get(width - 1, [f"part {i}" for i in range(1, width)]), "method"]

    def _blocks(self, floor: bool, *, latex: bool) -> list[list[list[str]]]:
        blocks = []
        for rows in _block_rows(self.keys):
            cells = [self._cells(row, latex) for row in rows]
            if floor:
                cells.append(self._floor_cells(rows, latex))
            # Only the first row of a block names it.
            for later in cells[1:]:
                later[: len(self._names) - 1] = [""] * (len(self._names) - 1)
            blocks.append(cells)
        return blocks

    def _cells(self, row: int, latex: bool) -> list[str]:
        names = [escape_latex(part) if latex else part for part in self.keys[row]]
        return names + [_cell(entry, latex) for entry in self.entries[row]]

    def _floor_cells(self, rows: Sequence[int], latex: bool) -> list[str]:
        """Mean noise floor of the methods, whose bins are mostly the same."""
        names = [""] * (len(self._names) - 1) + [_PERFECT]
        floors = np.mean([[entry.floor for entry in self.entries[row]] for row in rows], axis=0)
        return names + ["" if math.isnan(value) else f"{value:.2f}" for value in floors]


def compare(
    results: Mapping[Any, Evaluation | Sequence[Evaluation]],
    *,
    columns: Sequence[str] | None = None,
    n_bootstrap: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Put methods side by side: mean (standard error) over seeds, with the best in bold.

    Parameters
    ----------
    results : mapping of name to Evaluation, or to a list of them over seeds
        A name is a string, or a tuple such as ``("ImageNet", "APS", "standard")`` whose
        last part is the method; the best is then found among rows that share the rest.
    columns : sequence of str, optional
        Metrics to show, by their names in ``Evaluation.metrics``. Default: coverage, size, the
        gaps over Conf x Trust, Conf x Rank, classes and groups with their shortfalls, the worst
        group, and the macro coverage of the classes, as far as every evaluation has them.
    n_bootstrap, seed : int
        Resamples of seeds and of samples within each, behind the intervals of gaps; their seed.

    Examples
    --------
    >>> from trustsets import APS, ModelOutputs, Softmax, StandardConformal, evaluate
    >>> rng = np.random.default_rng(0)
    >>> logits = 2.0 * rng.normal(size=(2000, 4))
    >>> labels = (logits + rng.gumbel(size=(2000, 4))).argmax(axis=1)
    >>> outputs = ModelOutputs(logits=logits, labels=labels)
    >>> def run(score, seed):
    ...     calibration, test = outputs.split(0.5, seed=seed)
    ...     predictor = StandardConformal(score=score).calibrate(calibration)
    ...     return evaluate(predictor, test, metrics=["class"])
    >>> table = compare({
    ...     "APS": [run(APS(), seed) for seed in range(3)],
    ...     "softmax": [run(Softmax(), seed) for seed in range(3)],
    ... })
    >>> table.columns
    ('coverage', 'size', 'class.gap', 'class.shortfall', 'class.macro', 'class.below_0.5')
    """
    if not isinstance(results, Mapping):
        raise InputError(
            "results must be a mapping of names to evaluations, such as "
            f'{{"standard": evaluate(sets, outputs)}}; got {type(results).__name__}.'
        )
    runs = {_key(name): _as_list(name, items) for name, items in results.items()}
    _check_runs(runs)
    everything = [item for items in runs.values() for item in items]
    shared = set.intersection(*(set(item.metrics) for item in everything))
    chosen = _columns(columns, everything[0], shared)
    numbers = [
        [_summarise(items, column, n_bootstrap, seed) for column in chosen]
        for items in runs.values()
    ]
    keys = tuple(runs)
    return Comparison(
        alpha=everything[0].alpha,
        level=everything[0].level,
        keys=keys,
        columns=chosen,
        entries=_mark_best(keys, chosen, numbers),
    )


def _summarise(runs: Sequence[Evaluation], column: str, n_bootstrap: int, seed: int) -> Entry:
    """Mean over seeds; which is best is not known yet."""
    estimates = [run.metrics[column] for run in runs]
    values = np.array([item.value for item in estimates])
    floor = float(np.mean([item.floor for item in estimates]))
    mean, n = float(values.mean()), len(runs)
    if n == 1:
        return Entry(mean, math.nan, estimates[0].lower, estimates[0].upper, floor, False, 1)
    error = float(values.std(ddof=1) / np.sqrt(n))
    half = float(stats.t.ppf(0.5 + runs[0].level / 2.0, n - 1)) * error
    lower, upper = mean - half, mean + half
    table, part, _ = split_name(column)
    if part in _GAP_PARTS and table in runs[0].tables:
        tables = [run.tables[table] for run in runs]
        ends = bootstrap_gaps(
            [(item.count, item.covered) for item in tables],
            runs[0].alpha,
            divisor=tables[0].divisor,
            level=runs[0].level,
            n_bootstrap=n_bootstrap,
            seed=seed,
        )
        lower, upper = ends[_GAP_PARTS.index(part)]
    return Entry(mean, error, lower, upper, floor, False, n)


def _mark_best(
    keys: tuple[Key, ...], columns: tuple[str, ...], rows: list[list[Entry]]
) -> tuple[tuple[Entry, ...], ...]:
    """Mark what is the best of its block or close to it, where a number has a better end."""
    marked = [list(row) for row in rows]
    for block in _block_rows(keys):
        for j, column in enumerate(columns):
            number = number_of(column)
            if number.best is None:
                continue
            sign = -1.0 if number.best == "high" else 1.0
            costs = {i: sign * rows[i][j].mean for i in block}
            largest = min(costs.values()) + _CLOSE[number.form] + _SLACK
            for i in block:
                marked[i][j] = replace(rows[i][j], best=costs[i] <= largest)
    return tuple(tuple(row) for row in marked)


def _block_rows(keys: tuple[Key, ...]) -> list[list[int]]:
    """Rows that share all but the last part of their name, in order of appearance."""
    blocks: dict[Key, list[int]] = {}
    for i, key in enumerate(keys):
        blocks.setdefault(key[:-1], []).append(i)
    return list(blocks.values())


def _columns(asked: Sequence[str] | None, first: Evaluation, shared: set[str]) -> tuple[str, ...]:
    if asked is None:
        return tuple(name for name in first.metrics if name in shared and _is_main(name))
    for name in asked:
        if name not in shared:
            raise InputError(
                f"columns asks for {name!r}, which not every evaluation has; "
                f"all have {', '.join(sorted(shared))}."
            )
    return tuple(asked)


def _is_main(name: str) -> bool:
    table, part, _ = split_name(name)
    return part in _MAIN.get("group" if table.startswith("group:") else table, ())


def _key(name: Any) -> Key:
    return tuple(str(part) for part in name) if isinstance(name, tuple) else (str(name),)


def _as_list(name: Any, value: Any) -> list[Evaluation]:
    items = list(value) if isinstance(value, list | tuple) else [value]
    if not items or not all(isinstance(item, Evaluation) for item in items):
        kind = type(items[0]).__name__ if items else "an empty list"
        raise InputError(
            f"results[{name!r}] must be an Evaluation or a non-empty list of them; got {kind}. "
            "Wrap it: evaluate(sets, ModelOutputs(logits=..., labels=...))."
        )
    return items


def _check_runs(runs: Mapping[Key, Sequence[Evaluation]]) -> None:
    if not runs:
        raise InputError("results must name at least one method.")
    if len({len(key) for key in runs}) > 1:
        raise InputError(f"names in results must have equally many parts; got {list(runs)}.")
    settings = {(item.alpha, item.level) for items in runs.values() for item in items}
    if len(settings) > 1:
        raise InputError(
            f"results must share alpha and level to be compared; got {sorted(settings)}."
        )


def _cell(entry: Entry, latex: bool) -> str:
    text = f"{entry.mean:.2f}"
    text = bold(text, latex=latex) if entry.best else text
    return text if math.isnan(entry.standard_error) else f"{text} ({entry.standard_error:.2f})"
