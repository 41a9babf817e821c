"""`write_report`: check the arguments, collect what is shown, fill the template."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.utils import htmlsafe_json_dumps

from trustsets._common.arrays import Floats
from trustsets._common.storage import atomic_path
from trustsets._version import __version__
from trustsets.auditing import Regions
from trustsets.errors import InputError
from trustsets.metrics.colours import deepest_coverage
from trustsets.metrics.plain import to_plain
from trustsets.metrics.result import Evaluation
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor
from trustsets.report import content
from trustsets.report.alphas import follow_alphas
from trustsets.report.audit_part import audit_part
from trustsets.report.charts import ball_chart, gap_chart, size_chart
from trustsets.report.checks import check_evaluations, check_samples
from trustsets.report.explanations import explain_samples
from trustsets.report.samples import MOST_CLASSES, SampleSource, list_samples
from trustsets.report.styles import page_environment, page_scripts, page_styles
from trustsets.report.terms import explained
from trustsets.report.verdict import ONE_METHOD, verdict
from trustsets.sets import PredictionSets
from trustsets.statistics import SupportsTrust

__all__ = ["write_report"]


def write_report(
    path: str | os.PathLike[str],
    evaluations: Evaluation | Mapping[str, Evaluation],
    *,
    outputs: ModelOutputs | None = None,
    sets: PredictionSets | Mapping[str, PredictionSets] | None = None,
    trust: SupportsTrust | Floats | None = None,
    regions: Regions | Mapping[str, Regions] | None = None,
    title: str = "Coverage report",
    guarantee: str | Mapping[str, str] | None = None,
    details: Mapping[str, Any] | None = None,
    date: str | None = None,
    samples_per_cell: int = 20,
    predictors: Predictor | Mapping[str, Predictor] | None = None,
    slider: bool = True,
) -> Path:
    """Write evaluations as one HTML page that needs no network.

    The page starts with a paragraph for readers who are no statisticians: what was promised,
    whether it was kept, for whom not, and what to do. Then come a table of the methods, heatmaps
    for mouse and keyboard, coverage gaps against their noise floors, set sizes, and tables by class
    and group that sort and filter. It offers the numbers as JSON and CSV. The same arguments give
    the same bytes.

    Parameters
    ----------
    path : path
        File to write, as a whole or not at all; its folder must exist.
    evaluations : Evaluation, or mapping of method name to Evaluation
        What `evaluate` returned, on the same test samples at the same alpha.
    outputs, sets : ModelOutputs, and PredictionSets or mapping of method name to them
        What was evaluated. With both, a cell of a heatmap lists its worst samples.
    trust : TrustScore, or array of shape (n,), optional
        Trust of the listed samples.
    regions : Regions, or mapping of method name to Regions, optional
        What `trustsets.auditing.find_regions` found; shown after the verdict.
    title : str
        Title of the page.
    guarantee : str, or mapping of method name to str, optional
        What is guaranteed, in words, such as ``predictor.summary()``.
    details : mapping, optional
        Facts about the run to show at the end: data, model, score, calibration size.
    date : str, optional
        Shown as given. By default there is none, so that the page depends on its input alone.
    samples_per_cell : int
        Most samples listed for one cell.
    predictors : predictor, or mapping of method name to predictor, optional
        What made the sets. With them, the page explains the sets of the worst samples in the worst
        cells (`Predictor.explain`). It needs `outputs` and `sets`.
    slider : bool
        Let the reader move alpha over some 20 values up to 0.5, which moves heatmaps, averages, set
        sizes and the sets of listed samples, and list p-values. Methods without a predictor stay at
        their alpha. This takes most of the time of a report.

    Returns
    -------
    Path
        Where the page is.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from trustsets import StandardConformal, evaluate
    >>> rng = np.random.default_rng(0)
    >>> logits = 2.0 * rng.normal(size=(1000, 4))
    >>> labels = (logits + rng.gumbel(size=(1000, 4))).argmax(axis=1)
    >>> calibration, test = ModelOutputs(logits=logits, labels=labels).split(0.5)
    >>> sets = StandardConformal().calibrate(calibration).predict_set(test)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_report(
    ...         Path(folder) / "report.html",
    ...         {"standard": evaluate(sets, test)},
    ...         outputs=test,
    ...         sets={"standard": sets},
    ...         details={"Score": "APS"},
    ...     )
    ...     page.read_text(encoding="utf-8")[:15]
    '<!doctype html>'
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError(f"path must lie in a folder that exists; {target.parent} does not.")
    own = check_evaluations(evaluations)
    source = check_samples(own, outputs, sets, trust, samples_per_cell, predictors)
    known, given = _facts(own), _details(details, date)
    numbers = {
        "title": title,
        "facts": known | given,
        "metrics": {method: to_plain(item.metrics) for method, item in own.items()},
        "evaluations": {method: item.to_dict() for method, item in own.items()},
        **_samples(own, source, slider),
    }
    page = _template().render(
        title=title,
        facts=known,
        details=given,
        guarantees=_guarantees(guarantee, own),
        lists_samples=source is not None,
        explains=bool(numbers["explanations"]),
        alphas=numbers["alphas"],
        samples_per_cell=samples_per_cell,
        data=htmlsafe_json_dumps(numbers, allow_nan=False, separators=(",", ":")),
        css=page_styles(),
        **_words(next(iter(own.values()))),
        **_parts(own),
        **audit_part(own, regions, source),
        **page_scripts(),
    )
    return _write(target, page)


def _write(target: Path, page: str) -> Path:
    # A browser reads a carriage return as a line feed, so that a name in an attribute would
    # differ from the one in the data.
    text = page.replace("\r", "&#13;")
    with atomic_path(target) as temporary:
        # Names of files may hold bytes that are no text.
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
    return target


def _samples(
    evaluations: Mapping[str, Evaluation], source: SampleSource | None, slider: bool
) -> dict[str, Any]:
    """Listed samples, explanations of some, and what the slider shows; None for what is not."""
    found: dict[str, Any] = dict.fromkeys(("samples", "explanations", "alphas", "p_values"))
    if source is not None:
        names = content.grid_names(evaluations)
        listed = found["samples"] = list_samples(evaluations, names, source)
        found["explanations"] = explain_samples(evaluations, names, source, listed)
        if source.predictors and slider:
            found["alphas"], found["p_values"] = follow_alphas(evaluations, names, listed, source)
    return found


def _words(first: Evaluation) -> dict[str, Any]:
    """Words that the notes on the page use."""
    return {
        "version": __version__,
        "target": f"{100.0 * (1.0 - first.alpha):g}%",
        "deepest": f"{100.0 * deepest_coverage(1.0 - first.alpha):.3g}%",
        "level": f"{100.0 * first.level:g}%",
        "significance": f"{100.0 * (1.0 - first.level):.3g}%",
        "most_classes": MOST_CLASSES,
    }


def _parts(evaluations: Mapping[str, Evaluation]) -> dict[str, Any]:
    """Tables and charts, in the order of the page."""
    # Set sizes are the method's own choice, so the gap over their bins says nothing against it.
    goals = [name for name in content.division_names(evaluations) if name != "size_strata"]
    return {
        "methods": list(evaluations),
        "verdict": verdict(evaluations),
        "glance": content.glance(evaluations, goals),
        "divisions": content.divisions(evaluations),
        "gaps": gap_chart(evaluations, goals),
        "sizes": size_chart(evaluations),
        "bin_lists": content.bin_lists(evaluations),
        "balls": ball_chart(evaluations),
        "other": content.other_measures(evaluations),
        "terms": content.terms(evaluations),
    }


def _template() -> Template:
    environment = page_environment("trustsets.report", keep_trailing_newline=True)
    environment.filters["explained"] = explained
    return environment.get_template("report.html")


def _facts(evaluations: Mapping[str, Evaluation]) -> dict[str, str]:
    """What was measured, for the top of the page."""
    first = next(iter(evaluations.values()))
    known = {
        "Calibration samples" if first.left_out else "Test samples": f"{first.n:,}",
        "Classes": f"{first.n_classes:,}",
        "Target coverage": f"{100.0 * (1.0 - first.alpha):g}% (α = {first.alpha:g})",
    }
    if len(evaluations) > 1 or ONE_METHOD not in evaluations:
        known["Method" if len(evaluations) == 1 else "Methods"] = ", ".join(evaluations)
    return known


def _details(details: Mapping[str, Any] | None, date: str | None) -> dict[str, str]:
    """What was run, for the end of the page."""
    given = {str(name): str(value) for name, value in (details or {}).items()}
    return given | ({} if date is None else {"Date": date})


def _guarantees(
    guarantee: str | Mapping[str, str] | None, evaluations: Mapping[str, Evaluation]
) -> list[tuple[str, list[str]]]:
    """Pairs of method (empty for all) and paragraphs."""
    if guarantee is None:
        return []
    given = {"": guarantee} if isinstance(guarantee, str) else dict(guarantee)
    unknown = [name for name in given if name and name not in evaluations]
    if unknown:
        raise InputError(
            f"guarantee names {unknown}, but the methods are {list(evaluations)}; use their names."
        )
    return [(name, str(text).splitlines()) for name, text in given.items()]
