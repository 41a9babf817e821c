"""The pages of the experiments: one for a run, and an overview of the runs of several datasets.

A page is Markdown, with its tables in files of their own and its figures as images.
``results.json`` has the numbers of a run.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trustsets import __version__
from trustsets.metrics import markdown_table, title
from trustsets_paper.authors import AUTHORS, ReleasedTrust, released_rows
from trustsets_paper.claims import ablation_table, claims_rows, size_table, trust_table
from trustsets_paper.figures import draw_figures
from trustsets_paper.protocol import (
    DEFAULT,
    MATCHED,
    PACKAGE_GROUPWISE,
    Options,
    Run,
    StageCache,
    Tally,
)
from trustsets_paper.sources import PAPER_DATASETS, write_text
from trustsets_paper.tables import (
    MARK,
    CorrelationTable,
    PaperTable,
    correlation_table,
    cross_tables,
    paper_tables,
    printed_source,
    share_by_chance,
)

__all__ = ["time_rows", "write_overview", "write_run"]

TIME_HEADER = ("Stage", "made", "reused", "seconds", "seconds saved", "processor seconds")
"""Heads of the table that `time_rows` fills."""


def write_run(
    run: Run,
    folder: str | os.PathLike[str],
    cache: StageCache,
    *,
    figures: bool = True,
    command: str | None = None,
    released: Sequence[ReleasedTrust] = (),
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Write everything into a folder; each file is written whole or not at all.

    `released` are the authors' trust scores next to ours.
    """
    root = Path(folder)
    with cache.timed("tables"):
        tables = paper_tables(run)
    captions = {}
    if figures:
        with cache.timed("figures"):
            captions = draw_figures([run], root / "figures")
    results = plain_results(run, tables) | {"released_trust": _plain(list(released))}
    left_out = "Left out:\n\n" + "\n".join(f"- {text}" for text in run.left_out)
    texts = _write_page(
        root,
        [
            f"# {run.source.name}: the paper's tables and figures",
            what_was_run([run]),
            _command(command),
            f"{_samples(run)} {setting(run)}",
            _reading([run]),
            left_out if run.left_out else "",
        ],
        [*tables, correlation_table([run])],
        captions,
        [_released(released), _comparison(run, results["comparison"]), _times(cache)],
    )
    _write_json(root / "results.json", results)
    return results, texts


def write_overview(
    runs: Sequence[Run],
    folder: str | os.PathLike[str],
    cache: StageCache,
    seeds: Sequence[int],
    *,
    figures: bool = True,
    command: str | None = None,
) -> list[tuple[str, str]]:
    """Write a page over several datasets: claims, ablations, and the tables as the paper has them.

    `seeds` are those of the tables by trust samples and by calibration samples.
    """
    root, settings = Path(folder), {run.source.name: setting(run) for run in runs}
    if len(set(settings.values())) == 1:  # options are stated once
        listed = "\n".join(f"- **{run.source.name}.** {_samples(run)}" for run in runs)
        facts = [listed, setting(runs[0])]
    else:
        facts = [f"**{run.source.name}.** {_samples(run)} {setting(run)}" for run in runs]
    header, rows = claims_rows(runs)
    claims = markdown_table(header, rows, n_names=len(header))
    free = [run for run in runs if run.source.has_trust and not run.source.fixed_split]
    texts = _write_page(
        root,
        [
            "# The paper's claims, tables and figures, dataset by dataset",
            what_was_run(runs),
            _command(command),
            *facts,
            f"## Claims\n\n{_verdicts(rows, len(runs))}\n\n{claims}",
            f"## How to read the tables\n\n{_reading(runs)}",
        ],
        [
            ablation_table(runs),
            trust_table(free, cache, seeds),
            size_table(free, cache, seeds),
            *cross_tables(runs),
            correlation_table(runs),
        ],
        draw_figures(runs, root / "figures") if figures else {},
    )
    write_text(root / "tables" / "claims.md", claims)
    return [("Claims", claims), *texts]


def _verdicts(rows: Sequence[Sequence[str]], n_runs: int) -> str:
    """How verdicts are found, and how many there are."""
    words = [text.partition(":")[0] for row in rows for text in row[-n_runs:]]
    counts = ", ".join(f"{words.count(word)} {word}" for word in ("yes", "no", "undecided"))
    return (
        "A claim holds (*yes*) where the mean difference over seeds exceeds two standard errors on "
        "the claimed side, is contradicted (*no*) where it does so on the other side, and is "
        "*undecided* in between. Differences are paired: both methods have the same samples in "
        "every seed. The halves of different seeds overlap, so that the errors do not contain the "
        "choice of the samples themselves. *Printed* applies the same rule to the numbers that "
        f"the paper prints. In all: {counts}."
    )


def _write_page(
    root: Path,
    introduction: Sequence[str],
    tables: Sequence[PaperTable | CorrelationTable],
    captions: Mapping[str, str],
    closing: Sequence[str] = (),
) -> list[tuple[str, str]]:
    """Write the tables, and the page that shows them in the order of the paper."""
    (root / "tables").mkdir(parents=True, exist_ok=True)
    texts = []
    for table in sorted(tables, key=lambda table: table.number or 0):
        if table.rows:
            texts.append((table.heading, table.to_markdown()))
            write_text(root / "tables" / f"{table.slug}.md", texts[-1][1])
    parts = [*introduction, *(f"## {heading}\n\n{text}" for heading, text in texts)]
    parts += ["## Figures"] if captions else []
    parts += [
        f"Figure {name.removeprefix('figure')}. {text}.\n\n![{text}](figures/{name}.png)"
        for name, text in captions.items()
    ]
    whole = "\n\n".join(part.rstrip() for part in [*parts, *closing] if part)
    write_text(root / "README.md", whole + "\n")
    return texts


def _write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


# --- numbers


def plain_results(run: Run, tables: Sequence[PaperTable]) -> dict[str, Any]:
    """Content of ``results.json``."""
    source = run.source
    content: dict[str, Any] = _plain(
        {
            "trustsets": __version__,
            "dataset": source.name,
            "samples": {part: len(outputs) for part, outputs in source.parts.items()},
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
            "balls": {cell.method: curves for cell, curves in run.balls.items()},
            "comparison": differences(tables),
        }
    )
    return content


def _plain(value: Any) -> Any:
    """Lists, dicts, strings and numbers that JSON has; None for NaN and infinities."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def differences(tables: Sequence[PaperTable]) -> list[dict[str, Any]]:
    """Every number that the paper prints too: where it is, ours, printed, difference, verdict."""
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
            "notebook": number.printed.exact_mean,
            "difference": number.difference,
            "differs": number.differs,
        }
        for table in tables
        for row in table.rows
        for column, number in zip(table.columns, row.numbers, strict=True)
        if number.printed is not None
    ]


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


def _comparison(run: Run, compared: list[dict[str, Any]]) -> str:
    if not compared:
        return ""
    header = ["Table", "Score", "Method", "Column", "ours", "printed", "notebook", "difference"]
    rows = [
        [
            *(str(item["table"]), item["score"], item["method"], title(item["column"])),
            *(f"{item['mean']:.4f}", f"{item['printed']:.2f}"),
            "" if item["notebook"] is None else f"{item['notebook']:.6f}",
            f"{item['difference']:+.4f}" + f" {MARK}" * item["differs"],
        ]
        for item in compared
    ]
    outside, paired = sum(item["differs"] for item in compared), run.source.fixed_split
    chance = share_by_chance(len(Options().seeds), paired=paired)
    return (
        f"## Difference from the printed tables\n\n{outside} of {len(compared)} numbers differ by "
        "more than two standard errors. If both sides estimated the same, about "
        f"{100 * chance:.0f}% of them, {chance * len(compared):.0f}, would be marked by chance; "
        "numbers of one row are dependent. The difference is from the number with most digits."
        f"\n\n{markdown_table(header, rows, n_names=4)}"
    )


def _released(compared: Sequence[ReleasedTrust]) -> str:
    if not compared:
        return ""
    header = ["File", "samples", "Spearman", "median difference", "largest difference"]
    return (
        "## Trust scores next to the authors'\n\nDifferences are relative.\n\n"
        f"{markdown_table(header, released_rows(compared))}"
    )


def _times(cache: StageCache) -> str:
    return (
        "## Time by stage\n\n*Seconds* were spent in this run. *Seconds saved* were spent when the "
        "results that it reused were made. *Processor seconds* are those of all cores for both."
        f"\n\n{markdown_table(TIME_HEADER, time_rows(cache))}"
    )


def time_rows(cache: StageCache) -> list[list[str]]:
    """Rows of the table of times: stages, what they are made of, and the sum."""
    rows = []
    for name, tally in cache.tallies.items():
        rows.append(_time_row(name, tally))
        details = cache.details.get(name, {})
        rows += [_time_row(f"- {label}", part) for label, part in details.items()]
    return [*rows, _time_row("everything", sum(cache.tallies.values(), Tally()))]


def _time_row(name: str, tally: Tally) -> list[str]:
    times = (f"{value:.1f}" for value in (tally.seconds, tally.saved, tally.cpu))
    return [name, f"{tally.made:,}", f"{tally.reused:,}", *times]


# --- sentences


def what_was_run(runs: Sequence[Run]) -> str:
    """Say which datasets were run, the paper's own or others."""
    names = [run.source.name for run in runs]
    others = [name for name in names if name not in PAPER_DATASETS]
    if not others:
        return ""
    listed = f"`{'`, `'.join(others)}`"
    return (
        f"**The paper's five datasets were not run for this page.** {listed} stand in for them, "
        "with other images and other networks, so that the numbers are not to be compared with "
        "those that the paper prints. The authors' own code is at "
        f"[{AUTHORS['repository'].removeprefix('https://')}]({AUTHORS['repository']}) "
        f"(commit `{AUTHORS['commit'][:10]}`), with its trust scores and a notebook of its numbers."
    )


def _command(command: str | None) -> str:
    return f"Made by `{command or 'trustsets_paper.pages'}`, trustsets {__version__}."


def _samples(run: Run) -> str:
    """Samples of a run in words."""
    source = run.source
    sizes = ", ".join(f"{len(outputs):,} ({part})" for part, outputs in source.parts.items())
    train = "none" if source.train is None else f"{len(source.train[0]):,}"
    return (
        f"Samples: {sizes}. Training samples for the trust score: {train}. Classes: "
        f"{source.tested.n_classes}. Accuracy: {100 * source.accuracy:.1f}%."
    )


def setting(run: Run) -> str:
    """Options of a run in words."""
    options = run.options
    scores, degrees = ", ".join(options.scores), ", ".join(map(str, options.degrees))
    return (
        f"{_split(run)}\n\nalpha = {options.alpha:g}; scores {scores}; degrees {degrees}, of which "
        f"{options.degree} is in the tables. {_trust(options)} {_bins(run)} Balls "
        f"grow until they hold 10 other samples (the authors' code); {_centres(options)}."
    )


def _centres(options: Options) -> str:
    if options.balls == "authors":
        return "the first seed has balls, with new centres for every radius (the authors' code)"
    return "all seeds have balls, with the same centres for all radii (this package's choice)"


def _split(run: Run) -> str:
    if run.source.fixed_split:
        return (
            "The split into calibration and test samples is fixed and the temperature is the exact "
            "maximum-likelihood one, so that a second run would give the same numbers. Errors in "
            "parentheses are those of sampling the test samples."
        )
    first, last = run.seeds[0], run.seeds[-1]
    seeds = f"seed {first}" if len(run.seeds) == 1 else f"seeds {first} to {last}"
    rule = "those of the authors' code" if run.options.splits == "authors" else "this package's"
    return (
        f"Calibration and test samples are halves stratified by class ({rule}), {seeds}. Standard "
        "errors over seeds are in parentheses (the plain standard deviation, divided by the root "
        "of the number of seeds)."
    )


def _trust(options: Options) -> str:
    rows = "features divided by their L2 norm" if options.normalize else "features as they are"
    distances = "squared" if options.squared else "plain"
    text = f"Trust: {rows}, neighbour {options.neighbour} of each class, {distances} distances"
    kinds = {(True, 2, True): "the authors' code", (False, 1, False): "the paper's text"}
    kind = kinds.get((options.normalize, options.neighbour, options.squared))
    return f"{text} ({kind})." if kind else f"{text}."


def _bins(run: Run) -> str:
    text = {
        "text": "divided within each confidence bin (the paper's text)",
        "code": "divided by the same quantiles in all confidence bins (the authors' code)",
    }[run.options.bins]
    edges = run.options.edges_by_hand(run.source.name)
    if edges is None:
        return f"Trust and Rank bins are {text}."
    listed = ", ".join(f"{edge:g}" for edge in edges)
    return f"Trust bins are {text}; Rank bins have the edges {listed}."


def _reading(runs: Sequence[Run]) -> str:
    """How to read the tables, and what was run in them."""
    text = (
        "The paper's methods are run as the authors ran them. The temperature is fitted on the "
        "calibration samples, Conf is taken of the unscaled softmax, and sets may be empty. NAIVE "
        "and GROUPWISE use plain quantiles, and give empty sets where there are no calibration "
        "samples. STANDARD takes the authors' quantile, one order statistic above the text's. "
        "Two choices are this package's: the temperature is the exact maximum-likelihood "
        "one, where the authors took gradient steps, and the components of PCA FEATURES come from "
        "the calibration samples, which the paper does not specify. "
        f"*{MATCHED}* has one threshold for all samples, chosen without labels so that its sets "
        f"have the mean size of CONDITIONAL's. *{DEFAULT}* is `ConditionalConformal` with its "
        "default parameters and the score in the "
        "tail scale; it uses the group columns, if there are any. Its sets are never empty, so "
        "that coverage exceeds 1 - alpha where the accuracy of the classifier does."
    )
    if any(run.source.groups for run in runs):
        text += (
            f" *{PACKAGE_GROUPWISE}* is GROUPWISE with the finite-sample quantile of each group."
        )
    text += (
        " Bold: best of the paper's methods, or within 0.1 of it; rows in lower case do not "
        "compete. *Perfect* is the noise floor of these bins."
    )
    if any(run.source.name in PAPER_DATASETS for run in runs):
        text += (
            f" *Printed* are the numbers of {printed_source()}; {MARK} marks ours where the two "
            "differ by more than two standard errors of the difference and the rounding of print. "
            "Long-tail sets have the same test samples on both sides, so that only the authors' "
            "error over temperatures counts there."
        )
    return text
