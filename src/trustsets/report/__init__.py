"""One self-contained HTML page about evaluations, the parts it is made of, and the live page.

`write_report` makes the page, and `explore` serves the live one of `trustsets_explorer`. The
verdict (`judgement`), the tables and the charts (`content`) are plain data for other pages, too.
"""

import base64
import hashlib
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from trustsets._version import __version__
from trustsets.auditing import Regions
from trustsets.errors import InputError
from trustsets.metrics import Comparison, Evaluation, to_plain
from trustsets.outputs import ModelOutputs, require_outputs
from trustsets.plots import (
    Evaluations,
    Theme,
    css_variables,
    deepest_coverage,
    fixed,
    number,
    percent,
    range_of,
)
from trustsets.predictors import Predictor
from trustsets.report.content import (
    MOST_CLASSES,
    MOST_SAMPLES,
    bin_lists,
    division_names,
    divisions,
    equal_size,
    gap_chart,
    glance,
    grid_names,
    list_samples,
    other_measures,
    size_chart,
    worst_first,
)
from trustsets.report.judgement import ONE_METHOD, judge, verdict
from trustsets.sets import PredictionSets
from trustsets.storage import atomic_path, check_target

if TYPE_CHECKING:
    from trustsets_explorer import Explorer

__all__ = [
    "MOST_CLASSES",
    "bin_lists",
    "division_names",
    "divisions",
    "explore",
    "fixed",
    "gap_chart",
    "glance",
    "judge",
    "number",
    "page_styles",
    "percent",
    "range_of",
    "size_chart",
    "verdict",
    "worst_first",
    "write_report",
]

_SHEETS: dict[str, Theme] = {"report": "light", "dark": "dark"}


def write_report(
    path: str | os.PathLike[str],
    evaluations: Evaluation | Mapping[str, Evaluation],
    *,
    predictors: Predictor | Mapping[str, Predictor] | None = None,
    outputs: ModelOutputs | None = None,
    sets: PredictionSets | Mapping[str, PredictionSets] | None = None,
    regions: Regions | Mapping[str, Regions] | None = None,
    comparison: Comparison | None = None,
    title: str = "Coverage report",
    details: Mapping[str, Any] | None = None,
) -> Path:
    """Write evaluations as one HTML page that needs no network.

    The page starts with a verdict: whether marginal coverage reaches its target, in which groups
    and classes coverage does not, and what to do. It offers the numbers as JSON and CSV. Equal
    arguments give equal bytes.

    Parameters
    ----------
    path : path
        File to write, as a whole or not at all; its folder must exist.
    evaluations : Evaluation, or mapping of method name to Evaluation
        What `evaluate` returned, on the same test samples at the same alpha.
    predictors : predictor, or mapping of method name to predictor, optional
        What made the sets. Without them the verdict says nothing about guarantees.
    outputs : ModelOutputs, optional
        What was evaluated. With its `sets`, a cell of a heatmap lists its worst samples.
    sets : PredictionSets, or mapping of method name to PredictionSets, optional
        The sets that were evaluated.
    regions : Regions, or mapping of method name to Regions, optional
        What `trustsets.auditing.find_regions` found.
    comparison : Comparison, optional
        The methods at equal mean size: ``compare(predictors, outputs=outputs, equal_size=True)``.
    title : str
        Title of the page.
    details : mapping of str to any, optional
        Facts about the run to show at the end of the page.

    Examples
    --------
    >>> import tempfile
    >>> from trustsets import StandardConformal, evaluate
    >>> outputs = ModelOutputs(logits=np.eye(4)[np.arange(400) % 4], labels=np.arange(400) % 4)
    >>> predictor = StandardConformal().calibrate(outputs.take(slice(200)))
    >>> evaluation = evaluate(predictor, outputs.take(slice(200, 400)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_report(Path(folder) / "report.html", evaluation, predictors=predictor)
    ...     page.read_text(encoding="utf-8")[:15]
    '<!doctype html>'
    """
    check_target(path)
    target = Path(path)
    methods = _check_evaluations(evaluations)
    made_by: dict[str, Predictor] = _by_method("predictors", predictors, methods, Predictor)
    chosen = _check_samples(methods, outputs, sets)
    searched: dict[str, Regions] = _by_method("regions", regions, methods, Regions)
    _check_searches(methods, searched, comparison)
    facts = _facts(methods)
    if not isinstance(title, str) or not isinstance(details, Mapping | None):
        raise InputError(
            "title must be a text and details a mapping of names to values; got "
            f"{type(title).__name__} and {type(details).__name__}."
        )
    shown = {str(name): str(value) for name, value in (details or {}).items()}
    grids = grid_names(methods)
    numbers = {
        "title": title,
        "facts": facts | shown,
        "metrics": {method: to_plain(item.metrics) for method, item in methods.items()},
        "evaluations": {method: item.to_dict() for method, item in methods.items()},
        "equal_size": comparison and comparison.to_dict(),
        "samples": outputs and list_samples(methods, outputs, chosen, grids),
    }
    # Set sizes are the method's own choice, so the gap over their bins says nothing against it.
    goals = [name for name in division_names(methods) if name != "size_strata"]
    first = next(iter(methods.values()))
    page = _template().render(
        title=title,
        facts=facts,
        details=shown,
        methods=list(methods),
        verdict=verdict(methods, made_by, searched, comparison),
        guarantees=[
            (name, predictor.summary(chosen.get(name)).splitlines())
            for name, predictor in made_by.items()
        ],
        regions=searched,
        percent=percent,
        range_of=range_of,
        glance=glance(methods, goals),
        equal_size=comparison and equal_size(comparison, list(methods)),
        divisions=divisions(methods),
        gaps=gap_chart(methods, goals),
        sizes=size_chart(methods),
        bin_lists=bin_lists(methods),
        other=other_measures(methods),
        excess_risk=any("excess_risk.total" in item.more for item in methods.values()),
        correlated=any(item.correlation is not None for item in methods.values()),
        lists_samples=outputs is not None,
        left_out=all(item.left_out for item in methods.values()),
        target=f"{100.0 * (1.0 - first.alpha):g}%",
        deepest=f"{100.0 * deepest_coverage(1.0 - first.alpha):.3g}%",
        level=f"{100.0 * first.level:g}%",
        significance=f"{100.0 * (1.0 - first.level):.3g}%",
        half_significance=f"{50.0 * (1.0 - first.level):.3g}%",
        most_classes=MOST_CLASSES,
        most_samples=MOST_SAMPLES,
        version=__version__,
        data=htmlsafe_json_dumps(numbers, allow_nan=False, separators=(",", ":")),
        css=page_styles(),
        **_script(),
    )
    # A browser reads a carriage return as a line feed, so that a name in an attribute would
    # differ from the one in the data.
    text = page.replace("\r", "&#13;")
    with atomic_path(target) as temporary:
        # Names of files may hold bytes that are no text.
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
    return target


def _template() -> Template:
    """The page; everything is escaped but our own style sheets and script."""
    environment = Environment(
        loader=PackageLoader("trustsets.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html")


# ---- Style sheets, also of the explorer's page, and script ---------------------------------------


def page_styles() -> dict[str, Markup]:
    """The sheet of every page (``report``), and what dark screens add to it (``dark``)."""
    return {
        name: Markup(f":root {{\n{css_variables(theme)}}}\n{_read(f'{name}.css')}")
        for name, theme in _SHEETS.items()
    }


def _script() -> dict[str, Any]:
    """The script of the report, and the digest by which the page allows it."""
    # Within a function, what the script defines is out of reach of other scripts.
    script = "".join(("(() => {\n", _read("report.js"), "})();\n"))
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return {"script": Markup(script), "script_digest": base64.b64encode(digest).decode("ascii")}


def _read(name: str) -> str:
    folder = resources.files("trustsets.report") / "templates"
    return (folder / name).read_text(encoding="utf-8")


# ---- Arguments ----------------------------------------------------------------------------------


def _facts(evaluations: Evaluations) -> dict[str, str]:
    """What was measured, for the top of the page."""
    first = next(iter(evaluations.values()))
    facts = {
        "Calibration samples" if first.left_out else "Test samples": f"{first.n:,}",
        "Classes": f"{first.n_classes:,}",
        "Target coverage": f"{100.0 * (1.0 - first.alpha):g}% (α = {first.alpha:g})",
    }
    if len(evaluations) > 1 or ONE_METHOD not in evaluations:
        facts["Method" if len(evaluations) == 1 else "Methods"] = ", ".join(evaluations)
    return facts


def _check_evaluations(evaluations: Evaluation | Evaluations) -> dict[str, Evaluation]:
    """Methods by name, all of the same samples."""
    if isinstance(evaluations, Evaluation):
        return {ONE_METHOD: evaluations}
    if not isinstance(evaluations, Mapping) or not evaluations:
        raise InputError(
            "evaluations must be an Evaluation or a non-empty mapping of method names to them; "
            f"got {type(evaluations).__name__}. Make them with evaluate."
        )
    methods: dict[str, Evaluation] = _by_method("evaluations", evaluations, evaluations, Evaluation)
    settings = {(item.n, item.n_classes, item.alpha, item.level) for item in methods.values()}
    rows = [item.rows for item in methods.values() if item.rows is not None]
    if len(settings) > 1 or any(not np.array_equal(rows[0], other) for other in rows[1:]):
        raise InputError(
            "evaluations must share test samples in the same order, classes, alpha and level; "
            "evaluate every method on the same ModelOutputs, or write one report for each."
        )
    return methods


def _by_method(argument: str, values: Any, methods: Evaluations, kind: type[Any]) -> dict[str, Any]:
    """Arguments by name of their method; a single one is that of the only method."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        if len(methods) > 1:
            raise InputError(f"{argument} must be a mapping with names among {list(methods)}.")
        values = {next(iter(methods)): values}
    by_name = {str(name): item for name, item in values.items()}
    if not set(by_name) <= set(map(str, methods)):
        raise InputError(
            f"{argument} must name methods among {list(methods)}; got {list(by_name)}."
        )
    for name, item in by_name.items():
        if not isinstance(item, kind):
            raise InputError(
                f"{argument}[{name!r}] must be of type {kind.__name__}; got {type(item).__name__}."
            )
    return by_name


def _check_samples(
    methods: Evaluations,
    outputs: ModelOutputs | None,
    sets: PredictionSets | Mapping[str, PredictionSets] | None,
) -> dict[str, PredictionSets]:
    """Sets by method at the alpha of the page; none where there are no outputs either."""
    if outputs is None and sets is None:
        return {}
    if outputs is None or sets is None:
        raise InputError("listing samples needs both outputs= and sets=; one is missing.")
    require_outputs(outputs, "outputs")
    by_name = _by_method("sets", sets, methods, PredictionSets)
    if len(by_name) < len(methods):
        raise InputError(f"sets must name the methods {list(methods)}; got {list(by_name)}.")
    for name, evaluation in methods.items():
        by_name[name] = chosen = by_name[name].at(evaluation.alpha)
        if not (
            evaluation.set_sizes is not None
            and evaluation.rows is not None
            and np.array_equal(chosen.sizes, evaluation.set_sizes)
            and np.array_equal(outputs.rows, evaluation.rows)
        ):
            raise InputError(
                f"sets[{name!r}] and outputs are not what evaluations[{name!r}] was made from, or "
                "it was read from JSON, which keeps no samples; pass what evaluate was given."
            )
    return by_name


def _check_searches(
    methods: Evaluations, regions: Mapping[str, Regions], comparison: Comparison | None
) -> None:
    """Refuse regions of other samples, and a comparison without these methods at equal size."""
    alpha = next(iter(methods.values())).alpha
    for name, item in regions.items():
        if (item.n, item.alpha) != (methods[name].n, alpha):
            raise InputError(
                f"regions[{name!r}] are of {item.n} samples at alpha={item.alpha:g}; search the "
                "sets that were evaluated."
            )
    if comparison is None:
        return
    keys = comparison.keys if isinstance(comparison, Comparison) else (("",),)
    last = {key[-1] for key in keys if key[0] == keys[-1][0]}
    if len(keys[0]) != 2 or last != set(methods) or comparison.alpha != alpha:
        raise InputError(
            f"comparison must have rows at equal size of the methods {list(methods)} at alpha="
            f"{alpha:g}; make it with compare(predictors, outputs=outputs, alpha={alpha:g}, "
            "equal_size=True)."
        )


def explore(outputs: ModelOutputs, **options: Any) -> "Explorer":
    """Serve a local page that shows coverage and sizes live while parameters move.

    Parameters
    ----------
    outputs : ModelOutputs
        Held-out samples with labels. The page splits them into calibration and test samples.
    **options
        Those of `trustsets_explorer.explore`, such as ``train=(features, labels)`` for the trust
        score, ``images=`` and ``browser=True``.

    Returns
    -------
    trustsets_explorer.Explorer
        Its `url` is the address, and `stop` ends it.
    """
    from trustsets_explorer import explore as serve

    return serve(outputs, **options)
