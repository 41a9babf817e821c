"""`compare`: methods side by side over seeds, as asked for or at the mean size of one of them."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy import stats

from trustsets._arrays import Flavour
from trustsets._frames import frame_of_rows
from trustsets._parameters import NotNegative, check_alpha, check_arguments
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.metrics.catalogue import markdown_table, number_of, split_name, title
from trustsets.metrics.evaluation import Evaluation, evaluate, is_predictor
from trustsets.metrics.inference import Estimate, bootstrap_gaps
from trustsets.metrics.plain import PlainData
from trustsets.metrics.risk import FEWEST, excess_risk
from trustsets.outputs import ModelOutputs, require_outputs
from trustsets.sets import PredictionSets

if TYPE_CHECKING:
    from trustsets.predictors import Predictor

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
    "class": (*_GAP_PARTS[:2], "macro"),
    "group": (*_GAP_PARTS[:2], "worst"),
}
# What a table of predictors shows by default: how many points of coverage are missing, by bins and
# by what a classifier can tell from the samples.
_MEASURED = {
    "": ("alpha", *_MARGINAL),
    "conf_trust": _GAP_PARTS[:2],
    "class": _GAP_PARTS[:2],
    "group": (*_GAP_PARTS[1:2], "worst"),
    "excess_risk": ("total", "under"),
}
_NAMES = {0: [], 1: ["dataset"], 2: ["dataset", "score"]}
_PERFECT = "perfect (noise floor)"


@final
@dataclass(frozen=True)
class Entry:
    """One metric of one method over seeds.

    The interval of the mean is a bootstrap over seeds and samples for gaps and their halves, and
    Student's t over seeds otherwise; with one seed, that of the evaluation. `best` says whether it
    is within 0.1 percentage points of the best of its block.
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

    `keys` name the rows. The last part is the method; rows that share the other parts are one
    block, and the best is marked within each block. `columns` are names of metrics, `entries` has a
    tuple for each row, and `parts` are heads of the name columns.
    """

    alpha: float
    level: float
    keys: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    entries: tuple[tuple[Entry, ...], ...]
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return self.to_markdown()

    def to_frame(self, flavour: Flavour | None = None) -> Any:
        """One row per method and metric, with interval and noise floor."""
        rows = [
            dict(zip(self.parts, key, strict=True)) | {"metric": column} | vars(entry)
            for key, entries in zip(self.keys, self.entries, strict=True)
            for column, entry in zip(self.columns, entries, strict=True)
        ]
        return frame_of_rows(rows, flavour)

    def to_markdown(self, floor: bool = True) -> str:
        """Pipe table of mean (standard error); `floor` adds a row for a perfect method."""
        check_arguments(bool, floor=floor)
        header = [*map(str.capitalize, self.parts), *map(title, self.columns)]
        return markdown_table(header, self._rows(floor), n_names=len(self.parts))

    def _rows(self, floor: bool) -> list[list[str]]:
        rows = []
        for block in _block_rows(self.keys):
            cells = [[*self.keys[row], *self._cells(row)] for row in block]
            if floor:
                # Mean noise floor of the methods, whose bins are mostly the same.
                values = [[entry.floor for entry in self.entries[row]] for row in block]
                floors = zip(self.columns, np.mean(values, axis=0), strict=True)
                names = [""] * (len(self.parts) - 1) + [_PERFECT]
                cells.append(names + [_number(*pair) for pair in floors])
            # Only the first row of a block names it.
            for later in cells[1:]:
                later[: len(self.parts) - 1] = [""] * (len(self.parts) - 1)
            rows += cells
        return rows

    def _cells(self, row: int) -> list[str]:
        cells = []
        for column, entry in zip(self.columns, self.entries[row], strict=True):
            text = _number(column, entry.mean)
            text = f"**{text}**" if entry.best else text
            error = _number(column, entry.standard_error)
            cells.append(f"{text} ({error})" if error else text)
        return cells


def compare(
    results: "Mapping[Any, Any]",
    *,
    outputs: ModelOutputs | Sequence[ModelOutputs] | None = None,
    alpha: float = 0.1,
    equal_size: bool | str = False,
    columns: Sequence[str] | None = None,
    n_bootstrap: int = 1000,
) -> Comparison:
    """Put methods side by side: mean (standard error) over seeds, with the best in bold.

    Larger sets cover more. With `equal_size`, a second block of rows has every method at the alpha
    that gives the mean set size of the reference, judged against the same target 1 - alpha.

    Parameters
    ----------
    results : mapping of name to Evaluation or calibrated predictor, or to a list of them over seeds
        The name of an evaluation is a string, or a tuple such as ``("ImageNet", "APS",
        "standard")`` whose last part is the method; the best is then found among rows that share
        the rest. The name of a predictor is a string.
    outputs : ModelOutputs, or sequence of them over seeds
        Labelled test samples, where `results` are predictors.
    alpha : float
        Miscoverage asked for, where `results` are predictors.
    equal_size : bool or str
        Add rows at equal mean size, which needs predictors: the name of the reference method, or
        True for the last one. See `sets_of_size`.
    columns : sequence of str, optional
        Names in ``Evaluation.metrics``. Default: the main ones that every evaluation has; of
        predictors also alpha and the excess risk.
    n_bootstrap : int
        Resamples of seeds and of samples within each, behind the intervals of gaps.

    Examples
    --------
    >>> from trustsets import APS, ConditionalConformal, ModelOutputs, StandardConformal
    >>> rng = np.random.default_rng(0)
    >>> logits = 2.0 * rng.normal(size=(2000, 4))
    >>> labels = (logits + rng.gumbel(size=(2000, 4))).argmax(axis=1)
    >>> outputs = ModelOutputs(logits=logits, labels=labels)
    >>> calibration, test = outputs.split(0.5)
    >>> methods = {"split": StandardConformal(), "conditional": ConditionalConformal()}
    >>> predictors = {name: one.calibrate(calibration) for name, one in methods.items()}
    >>> table = compare(predictors, outputs=test, equal_size="conditional")
    >>> table.keys[2:]
    (('size of conditional', 'split'), ('size of conditional', 'conditional'))
    >>> table.columns[:5]
    ('alpha', 'coverage', 'size', 'class.gap', 'class.shortfall')
    """
    if not isinstance(results, Mapping):
        raise InputError(
            "results must be a mapping of names to evaluations, such as "
            f'{{"standard": evaluate(sets, outputs)}}; got {type(results).__name__}.'
        )
    if not isinstance(equal_size, bool | str):
        raise InputError(f"equal_size must be True, False or a name; got {equal_size!r:.60}.")
    if len({_key(name) for name in results}) < len(results):
        raise InputError("names in results must differ as texts, too: 1 and '1' are the same name.")
    shown, parts = _MAIN, None
    if any(is_predictor(item) for items in results.values() for item in _listed(items)):
        results = _evaluated(results, outputs, alpha, equal_size, n_bootstrap)
        shown = _MEASURED
        parts = ("sets", "method") if equal_size else ("method",)
    elif equal_size or outputs is not None:
        raise InputError(
            "outputs and equal_size need calibrated predictors, whose alpha can be changed; got "
            "evaluations. Pass the predictors that made them."
        )
    runs = {_key(name): _as_list(name, items) for name, items in results.items()}
    _check_runs(runs)
    everything = [item for items in runs.values() for item in items]
    shared = set.intersection(*(set(item.metrics) for item in everything))
    chosen = _columns(columns, everything[0], shared, shown)
    numbers = [
        [_summarise(items, column, n_bootstrap) for column in chosen] for items in runs.values()
    ]
    keys = tuple(runs)
    width = len(keys[0])
    names = _NAMES.get(width - 1, [f"part {i}" for i in range(1, width)])
    return Comparison(
        alpha=everything[0].alpha,
        level=everything[0].level,
        keys=keys,
        columns=chosen,
        entries=_mark_best(keys, chosen, numbers),
        parts=parts or (*names, "method"),
    )


# ---- Equal mean size ------------------------------------------------------------------------


def sets_of_size(predictor: "Predictor", outputs: ModelOutputs, size: float) -> PredictionSets:
    """Return the sets of a predictor at the alpha whose mean set size is nearest to `size`.

    Labels are not used. A bisection finds it among the alphas (j + 1/2) / (n + 1), j = 0..n, for n
    calibration samples, which are all that split conformal thresholds can tell apart.
    """
    check_arguments(NotNegative, size=size)
    n = predictor.n_calibration_
    low, high = 0, n
    nearest, distance = None, math.inf
    while low <= high:
        middle = (low + high) // 2
        with warnings.catch_warnings():
            # Full sets of small groups are no news at alphas that nobody asked for.
            warnings.simplefilter("ignore", TrustSetsWarning)
            sets = predictor.predict_set(outputs, alpha=(middle + 0.5) / (n + 1))
        difference = float(sets.sizes.mean()) - size
        if abs(difference) < distance:
            nearest, distance = sets, abs(difference)
        if difference > 0.0:
            low = middle + 1
        else:
            high = middle - 1
    assert nearest is not None  # the loop runs at least once
    return nearest


def _evaluated(
    predictors: Mapping[Any, Any],
    outputs: ModelOutputs | Sequence[ModelOutputs] | None,
    alpha: float,
    equal_size: bool | str,
    n_bootstrap: int,
) -> dict[Key, list[Evaluation]]:
    """Evaluations of predictors at alpha and, if asked for, at the mean size of the reference."""
    alpha = check_alpha(alpha)
    methods = {str(name): _listed(items) for name, items in predictors.items()}
    samples = _listed(outputs)
    if not all(is_predictor(item) for items in methods.values() for item in items):
        raise InputError("results must be all predictors or all evaluations, not some of each.")
    if {len(items) for items in methods.values()} != {len(samples)} or outputs is None:
        raise InputError(
            "outputs must be the labelled test samples of the predictors, as many as each method "
            f"has predictors; got {[len(items) for items in methods.values()]} predictors and "
            f"{0 if outputs is None else len(samples)} outputs."
        )
    reference = list(methods)[-1] if equal_size is True else equal_size
    if reference and reference not in methods:
        raise InputError(f"equal_size must name one of {list(methods)}; got {reference!r}.")
    asked: dict[Key, list[Evaluation]] = {}
    matched: dict[Key, list[Evaluation]] = {}
    for number, test in enumerate(samples):
        require_outputs(test, "outputs").require_labels("compare")
        drawn = {name: items[number] for name, items in methods.items()}
        sets = {name: one.predict_set(test, alpha=alpha) for name, one in drawn.items()}
        # Every method is judged by the same bins and columns.
        scores = [one.trust for one in drawn.values() if one.trust is not None]
        judged = test.with_trust(scores[0]) if scores else test
        for name, one in drawn.items():
            key = (f"alpha = {alpha:g}", name) if reference else (name,)
            measured = _measured(sets[name], judged, alpha, n_bootstrap)
            asked.setdefault(key, []).append(measured)
            if reference:
                key = (f"size of {reference}", name)
                if name != reference:
                    same_size = sets_of_size(one, test, float(sets[reference].sizes.mean()))
                    measured = _measured(same_size, judged, alpha, n_bootstrap)
                matched.setdefault(key, []).append(measured)
    return asked | matched


def _measured(
    sets: PredictionSets, outputs: ModelOutputs, alpha: float, n_bootstrap: int
) -> Evaluation:
    """Judge sets, whatever their own alpha, against the target 1 - alpha."""
    covered = sets.covers(outputs.labels)
    metrics = ["class"]
    metrics += ["conf_trust"] if outputs.trust is not None else []
    metrics += ["groups"] if outputs.groups else []
    options: dict[str, Any] = {"metrics": metrics, "n_bootstrap": n_bootstrap}
    evaluation = evaluate(covered, outputs, alpha=alpha, sizes=sets.sizes, **options)
    more = {"alpha": Estimate(float(np.asarray(sets.alpha)))}
    if len(outputs) >= FEWEST:
        # Without set sizes, which differ by method, among the inputs of the classifier.
        more |= excess_risk(covered, outputs, alpha=alpha, n_permutations=0).metrics
    return replace(evaluation, more=more)


# ---- Tables ---------------------------------------------------------------------------------


def _summarise(runs: Sequence[Evaluation], column: str, n_bootstrap: int) -> Entry:
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
    if number_of(column).form in ("share", "rare"):
        lower, upper = max(lower, 0.0), min(upper, 1.0)
    table, part = split_name(column)
    if part in _GAP_PARTS and table in runs[0].tables:
        counts = [(run.tables[table].count, run.tables[table].covered) for run in runs]
        divisor = runs[0].tables[table].divisor
        ends = bootstrap_gaps(counts, runs[0].alpha, divisor, runs[0].level, n_bootstrap)
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


def _columns(
    asked: Sequence[str] | None,
    first: Evaluation,
    shared: set[str],
    shown: Mapping[str, Sequence[str]],
) -> tuple[str, ...]:
    if asked is None:
        names = [name for name in first.metrics if name in shared and _is_shown(name, shown)]
        # The alpha that was used comes before what it gave.
        return tuple(sorted(names, key=lambda name: name != "alpha"))
    if isinstance(asked, str) or not isinstance(asked, Iterable):
        raise InputError(f"columns must be a sequence of names; write columns=({asked!r:.60},).")
    asked = tuple(asked)
    for name in asked:
        if not isinstance(name, str) or name not in shared:
            raise InputError(
                f"columns asks for {name!r}, which not every evaluation has; "
                f"all have {', '.join(sorted(shared))}."
            )
    return asked


def _is_shown(name: str, shown: Mapping[str, Sequence[str]]) -> bool:
    table, part = split_name(name)
    return part in shown.get("group" if table.startswith("group:") else table, ())


def _key(name: Any) -> Key:
    return tuple(str(part) for part in name) if isinstance(name, tuple) else (str(name),)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _as_list(name: Any, value: Any) -> list[Evaluation]:
    items = _listed(value)
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


def _number(column: str, value: float) -> str:
    """A number with the digits of its kind; empty where undefined."""
    digits = 3 if number_of(column).form == "share" else 2
    return "" if math.isnan(value) else f"{value:.{digits}f}"
