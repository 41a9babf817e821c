"""`write_report`: checks what came, collects what is shown, fills the template."""

import base64
import hashlib
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from numpy.typing import NDArray

from trustsets._version import __version__
from trustsets.errors import InputError
from trustsets.metrics.result import Evaluation
from trustsets.outputs import ModelOutputs
from trustsets.report import content
from trustsets.report.charts import ball_chart, gap_chart, size_chart
from trustsets.report.colours import deepest_share
from trustsets.report.samples import MOST_CLASSES, SampleSource, list_samples
from trustsets.report.text import percent
from trustsets.report.verdict import verdict
from trustsets.sets import PredictionSets
from trustsets.statistics import Observed, SupportsTrust
from trustsets.storage import atomic_path

__all__ = ["render_report", "write_report"]

Floats = NDArray[np.float64]

_TITLE = "Coverage report"
_ONE_METHOD = "this method"
# Bins of set size follow from the method: their gap is no goal, so it is only listed.
_NOT_A_GOAL = "size_strata"


def write_report(
    path: str | os.PathLike[str],
    evaluations: Evaluation | Mapping[str, Evaluation],
    *,
    outputs: ModelOutputs | None = None,
    sets: PredictionSets | Mapping[str, PredictionSets] | None = None,
    trust: SupportsTrust | Floats | None = None,
    title: str = _TITLE,
    guarantee: str | Mapping[str, str] | None = None,
    details: Mapping[str, Any] | None = None,
    date: str | None = None,
    samples_per_cell: int = 20,
) -> Path:
    """Write evaluations as one HTML page that needs no network.

    The page shows what was run, a verdict in one sentence, a table of the methods,
    heatmaps that answer to mouse and keyboard, coverage gaps against chance, set sizes,
    tables by class and group that sort and filter, and offers the numbers as JSON and CSV.
    The same arguments give the same bytes.

    Parameters
    ----------
    path : path
        File to write, all of it or nothing; its folder must exist.
    evaluations : Evaluation, or mapping of method name to Evaluation
        What `evaluate` returned, on the same test samples at the same alpha.
    outputs, sets : ModelOutputs, and PredictionSets or mapping of method name to them
        What was evaluated. With both, a cell of a heatmap lists its worst samples.
    trust : TrustScore, or array of shape (n,), optional
        Trust of the listed samples.
    title : str
        Title of the page.
    guarantee : str, or mapping of method name to str, optional
        What is guaranteed, in words, such as ``predictor.summary()``.
    details : mapping, optional
        Facts about the run to show at the top: data, model, score, calibration size.
    date : str, optional
        Shown as it is. Left out by default, so that the page depends on its input alone.
    samples_per_cell : int
        Most samples listed for one cell.

    Returns
    -------
    Path
        Where the page is.

    Examples
    --------
    >>> import tempfile
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
    text = render_report(
        evaluations,
        outputs=outputs,
        sets=sets,
        trust=trust,
        title=title,
        guarantee=guarantee,
        details=details,
        date=date,
        samples_per_cell=samples_per_cell,
    )
    with atomic_path(target) as temporary:
        temporary.write_bytes(text.encode("utf-8"))
    return target


def render_report(
    evaluations: Evaluation | Mapping[str, Evaluation],
    *,
    outputs: ModelOutputs | None = None,
    sets: PredictionSets | Mapping[str, PredictionSets] | None = None,
    trust: SupportsTrust | Floats | None = None,
    title: str = _TITLE,
    guarantee: str | Mapping[str, str] | None = None,
    details: Mapping[str, Any] | None = None,
    date: str | None = None,
    samples_per_cell: int = 20,
) -> str:
    """Return the page of `write_report` as text; the parameters are the same."""
    own = _check_evaluations(evaluations)
    source = _check_samples(own, outputs, sets, trust, samples_per_cell)
    first = next(iter(own.values()))
    shown = content.divisions(own)
    goals = [name for name in content.division_names(own) if name != _NOT_A_GOAL]
    facts = _facts(own, details, date)
    return _environment().get_template("report.html").render(
        title=title,
        version=__version__,
        facts=facts,
        verdict=verdict(own),
        guarantees=_guarantees(guarantee, own),
        methods=list(own),
        first=first,
        target=percent(1.0 - first.alpha, 0 if _is_whole(100.0 * first.alpha) else 1),
        deepest=percent(deepest_share(1.0 - first.alpha), 0),
        level=f"{100.0 * first.level:g}%",
        significance=f"{100.0 * (1.0 - first.level):.3g}%",
        glance=content.glance(own, goals),
        divisions=shown,
        lists_samples=source is not None,
        samples_per_cell=samples_per_cell,
        most_classes=MOST_CLASSES,
        gaps=gap_chart(own, goals),
        sizes=size_chart(own),
        bin_lists=content.bin_lists(own),
        balls=ball_chart(own),
        other=content.other_measures(own),
        **_assets(),
        data=htmlsafe_json_dumps(
            {
                "title": title,
                "facts": dict(facts),
                "evaluations": {method: item.to_dict() for method, item in own.items()},
                "samples": source
                and list_samples(own, [division.name for division in shown], source),
            },
            allow_nan=False,
            separators=(",", ":"),
        ),
    )


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("trustsets.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _assets() -> dict[str, Any]:
    """Style and script as they stand in the page, and the digest that allows the script."""
    folder = resources.files("trustsets.report") / "templates"
    texts = {
        name.replace(".", "_"): (folder / name).read_text(encoding="utf-8")
        for name in ("report.css", "dark.css", "report.js")
    }
    digest = hashlib.sha256(texts["report_js"].encode("utf-8")).digest()
    # These files are ours; everything else that reaches the page is escaped.
    return {name: Markup(text) for name, text in texts.items()} | {
        "script_digest": base64.b64encode(digest).decode("ascii")
    }


def _facts(
    evaluations: Mapping[str, Evaluation], details: Mapping[str, Any] | None, date: str | None
) -> list[tuple[str, str]]:
    """What was run, as pairs of name and value."""
    first = next(iter(evaluations.values()))
    known = {
        "Test samples": f"{first.n:,}",
        "Classes": f"{first.n_classes:,}",
        "Target coverage": f"{100.0 * (1.0 - first.alpha):g}% (α = {first.alpha:g})",
        "Intervals": f"{100.0 * first.level:g}%",
    }
    if len(evaluations) > 1 or _ONE_METHOD not in evaluations:
        known["Method" if len(evaluations) == 1 else "Methods"] = ", ".join(evaluations)
    given = {str(name): str(value) for name, value in (details or {}).items()}
    return list((known | given | ({} if date is None else {"Date": date})).items())


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


def _is_whole(value: float) -> bool:
    return abs(value - round(value)) < 1e-9


def _check_evaluations(
    evaluations: Evaluation | Mapping[str, Evaluation],
) -> dict[str, Evaluation]:
    """Methods by name, all of the same samples."""
    if isinstance(evaluations, Evaluation):
        return {_ONE_METHOD: evaluations}
    if not isinstance(evaluations, Mapping) or not evaluations:
        raise InputError(
            "evaluations must be an Evaluation or a non-empty mapping of method names to them; "
            f"got {type(evaluations).__name__}. Make them with evaluate."
        )
    for name, item in evaluations.items():
        if not isinstance(item, Evaluation):
            raise InputError(
                f"evaluations[{name!r}] must be an Evaluation; got {type(item).__name__}. Make it "
                "with evaluate, one per method (a report shows one seed)."
            )
    found = {str(name): item for name, item in evaluations.items()}
    _check_same_samples(found)
    return found


def _check_same_samples(evaluations: Mapping[str, Evaluation]) -> None:
    settings = {(item.n, item.n_classes, item.alpha, item.level) for item in evaluations.values()}
    if len(settings) > 1:
        raise InputError(
            "evaluations must share test samples, classes, alpha and level; got (n, K, alpha, "
            f"level) = {sorted(settings)}. Write one report for each."
        )
    rows = [item.rows for item in evaluations.values() if item.rows is not None]
    if any(not np.array_equal(rows[0], other) for other in rows[1:]):
        raise InputError(
            "evaluations must be of the same test samples in the same order; their rows differ. "
            "Evaluate every method on the same ModelOutputs."
        )


def _check_samples(
    evaluations: Mapping[str, Evaluation],
    outputs: ModelOutputs | None,
    sets: PredictionSets | Mapping[str, PredictionSets] | None,
    trust: SupportsTrust | Floats | None,
    most: int,
) -> SampleSource | None:
    """What samples can be listed from, or None where neither outputs nor sets came."""
    if (outputs is None) != (sets is None):
        missing = "outputs" if outputs is None else "sets"
        raise InputError(f"listing samples needs both outputs= and sets=; {missing}= is missing.")
    if outputs is None or sets is None:
        return None
    if most < 1:
        raise InputError(f"samples_per_cell must be 1 or more; got {most}.")
    outputs.require_labels("the list of samples")
    given = {_ONE_METHOD: sets} if isinstance(sets, PredictionSets) else sets
    if isinstance(sets, PredictionSets) and len(evaluations) == 1:
        given = dict.fromkeys(evaluations, sets)
    if set(map(str, given)) != set(evaluations):
        raise InputError(
            f"sets must name the methods {list(evaluations)}; got {list(given)}. Use the same "
            "names in evaluations and sets."
        )
    own = {str(name): item for name, item in given.items()}
    for name, evaluation in evaluations.items():
        own[name] = _check_sets(name, own[name], outputs, evaluation)
    return SampleSource(outputs, own, _check_trust(trust, outputs), most)


def _check_sets(
    name: str, sets: PredictionSets, outputs: ModelOutputs, evaluation: Evaluation
) -> PredictionSets:
    """The sets at the level of the evaluation, if they are those that were evaluated."""
    if evaluation.covered is None:
        raise InputError(
            f"evaluations[{name!r}] was read from JSON, which does not keep single samples; "
            "evaluate anew, or leave out outputs= and sets=."
        )
    own = sets.at(evaluation.alpha)
    same = len(own) == len(outputs) == evaluation.n and (
        np.array_equal(own.sizes, evaluation.set_sizes)
        and np.array_equal(outputs.rows, evaluation.rows)
    )
    if not same:
        raise InputError(
            f"sets[{name!r}] and outputs are not what evaluations[{name!r}] was made from "
            f"({len(own)} sets, {len(outputs)} samples, {evaluation.n} evaluated); pass the same "
            "objects as to evaluate."
        )
    return own


def _check_trust(trust: SupportsTrust | Floats | None, outputs: ModelOutputs) -> Floats | None:
    """Trust of each sample, from a trust score or as given."""
    if trust is None:
        return None
    if not isinstance(trust, np.ndarray):
        return Observed(outputs, trust).trust
    if trust.shape != (len(outputs),) or np.isnan(trust).any():
        raise InputError(
            f"trust must be a fitted trust score, or an array of shape ({len(outputs)},) without "
            f"NaN; got shape {trust.shape}."
        )
    return trust
