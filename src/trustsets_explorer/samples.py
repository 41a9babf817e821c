"""Samples behind a number: those of a cell, one with its set and reasons, and regions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trustsets.auditing import find_regions
from trustsets.errors import InputError
from trustsets.metrics import to_plain
from trustsets.outputs import ModelOutputs
from trustsets.report import MOST_CLASSES, percent, range_of, worst_first
from trustsets.sets import PredictionSets
from trustsets.status import Status
from trustsets.trust import TrustScore
from trustsets_explorer.gallery import Gallery
from trustsets_explorer.session import Check, Session
from trustsets_explorer.state import State

Array = NDArray[Any]
Floats = NDArray[np.float64]

__all__ = ["describe", "list_cell", "p_values", "regions"]

_MOST_LISTED = 20
_NEIGHBOURS = 3
# Few, because each may need a fit; these are kept.
_P_ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


def list_cell(
    session: Session, state: State, place: int, table: Any, number: Any, check: Check
) -> dict[str, Any]:
    """The worst samples of a cell, or of all where no table is named; see `worst_first`."""
    evaluation, split = session.evaluation(state, place, check), session.split(state.seed)
    members, title = np.ones(len(split.places), bool), "All test samples"
    if table is not None:
        own = evaluation.tables.get(table) if isinstance(table, str) else None
        known = isinstance(number, int) and not isinstance(number, bool)
        if own is None or not known or not 0 <= number < own.count.size:
            raise InputError("table and bin must name a bin of the page.")
        assert own.cells is not None  # made by `tabulate` just now
        members, title = own.cells == number, own.labels[number]
    test = split.test
    codes = test.require_labels("the list of samples")
    likely = test.probabilities[np.arange(len(test)), codes]
    order = worst_first(evaluation, likely)
    rows = order[members[order]][:_MOST_LISTED]
    check()
    sets = session.sets(state, place, rows)
    return {
        "title": title,
        "count": int(members.sum()),
        "rows": [_row(session, state, sets, i, int(row)) for i, row in enumerate(rows)],
    }


def _row(session: Session, state: State, sets: PredictionSets, i: int, row: int) -> dict[str, Any]:
    split = session.split(state.seed)
    test, names = split.test, texts_of(split.test.classes)
    code = int(test.require_labels("the list of samples")[row])
    probabilities = test.block_probabilities(slice(row, row + 1))[0]
    order = np.argsort(-np.where(sets.mask[i], probabilities, -1.0), kind="stable")
    size = int(sets.sizes[i])
    return {
        "row": row,
        "number": int(test.rows[row]),
        "label": names[code],
        "covered": bool(sets.mask[i, code]),
        "size": size,
        "set": [names[k] for k in order[: min(size, MOST_CLASSES)].tolist()],
        "confidence": float(test.confidence[row]),
        "trust": float(split.test.trust[row]) if split.test.trust is not None else None,
    }


def p_values(
    session: Session, state: State, place: int, rows: NDArray[np.int64], check: Check
) -> list[Any]:
    """P-values of the most probable classes of samples, and of the label, at a few alphas.

    A p-value is the smallest of these alphas at which the class leaves the set.
    """
    split = session.split(state.seed)
    predictor = session.predictor(state.settings[place], state.seed)
    alphas = sorted({*_P_ALPHAS, state.alpha})
    part = split.test.take(rows)
    for alpha in alphas:
        check()
        predictor.prepare(alpha)
    p = predictor.predict_p(part, alphas)
    names, codes = texts_of(part.classes), part.require_labels("the p-values")
    order = np.argsort(-part.probabilities, axis=1, kind="stable")[:, :MOST_CLASSES]
    found = []
    for i, row in enumerate(rows.tolist()):
        chosen = dict.fromkeys([*order[i].tolist(), int(codes[i])])
        texts = [[names[k], _p_text(float(p[i, k]), alphas)] for k in chosen]
        found.append({"row": row, "label": names[codes[i]], "classes": texts})
    return found


def _p_text(p: float, alphas: list[float]) -> str:
    if p >= 1.0:
        return f">{alphas[-1]:g}"
    return f"≤{p:g}" if p <= alphas[0] else f"{p:g}"


def describe(
    session: Session, gallery: Gallery, state: State, place: int, row: int
) -> dict[str, Any]:
    """One test sample: image or text, set, threshold, reasons, nearest training samples."""
    split = session.split(state.seed)
    sample, at = split.test.take([row]), int(split.places[row])
    sets = session.sets(state, place, np.array([row]))
    plain: dict[str, Any] = to_plain(
        _row(session, state, sets, 0, row)
        | {
            "predicted": texts_of(sample.predicted)[0],
            "threshold": _threshold(sets, sample),
            "status": Status(int(sets.status[0])).sentence,
            "alpha": float(np.atleast_1d(sets.alpha)[0]),
            "image": f"/image/held_out/{at}" if gallery.has_image("held_out", at) else None,
            "text": gallery.text("held_out", at),
            "groups": {name: str(own[0]) for name, own in sample.groups.items()},
            "why": _why(session, state, place, row),
            "neighbours": _neighbours(session, gallery, sample),
        }
    )
    return plain


def _threshold(sets: PredictionSets, sample: ModelOutputs) -> float | None:
    """The threshold of the sample, or of its label where each class has its own."""
    own = sets.thresholds[0]
    if np.ndim(own):
        own = own[sample.require_labels("the threshold")[0]]
    return float(own)


def _why(session: Session, state: State, place: int, row: int) -> str:
    """The explanation in words, or why there is none."""
    split, setting = session.split(state.seed), state.settings[place].used
    if setting.max_size is not None:
        return "Sets of limited size have no explanation; leave the size limit out for one."
    predictor = session.predictor(setting, state.seed)
    sample = split.test.take([row])
    try:
        needs_label = predictor.has_class_thresholds and sample.labels is not None
        label = sample.labels[0] if needs_label and sample.labels is not None else None
        return predictor.explain(sample, state.alpha, label=label).summary()
    except InputError as error:
        return f"There is no explanation: {error}"


def _neighbours(session: Session, gallery: Gallery, sample: ModelOutputs) -> list[dict[str, Any]]:
    """Nearest training samples of the predicted class and of others, which Trust compares."""
    train, trust = gallery.train, session.trust_score
    if train is None or sample.features is None:
        return []
    normalize = trust.normalize if isinstance(trust, TrustScore) else True
    gaps = _distances(np.asarray(train.features), np.asarray(sample.features[0]), normalize)
    own = train.labels == sample.predicted[0]
    names, found = texts_of(train.labels), []
    for kind, members in (("predicted class", own), ("other classes", ~own)):
        there = np.flatnonzero(members)
        for row in there[np.argsort(gaps[there], kind="stable")[:_NEIGHBOURS]].tolist():
            found.append(
                {
                    "kind": kind,
                    "row": row,
                    "label": names[row],
                    "distance": float(gaps[row]),
                    "image": f"/image/train/{row}" if gallery.has_image("train", row) else None,
                    "text": gallery.text("train", row),
                }
            )
    return found


def texts_of(values: Array) -> list[str]:
    """Class names as texts."""
    return [str(value) for value in values.tolist()]


def _distances(train: Array, sample: Array, normalize: bool) -> Floats:
    """Euclidean distances of one sample to all training samples, block by block."""
    point, gaps = sample.astype(np.float64), np.empty(len(train))
    for start in range(0, len(train), 4096):
        block = train[start : start + 4096].astype(np.float64)
        other = point
        if normalize:
            norms = np.linalg.norm(block, axis=1, keepdims=True)
            block = block / np.where(norms > 0.0, norms, 1.0)
            other = point / (np.linalg.norm(point) or 1.0)
        gaps[start : start + 4096] = np.linalg.norm(block - other, axis=1)
    return gaps


def regions(session: Session, state: State, place: int, check: Check) -> dict[str, Any]:
    """Under-covered regions of a method, as the audit finds them."""
    outcome, split = session.outcome(state, place, check), session.split(state.seed)
    check()
    found = find_regions(outcome.covered, split.test, alpha=state.alpha)
    return {
        "searched": ", ".join(found.columns),
        "found": [
            {
                "name": own.name,
                "sentence": own.sentence,
                "coverage": percent(own.coverage.value),
                "interval": range_of(own.coverage.lower, own.coverage.upper),
                "share": percent(own.share),
                "rows": own.examples.tolist(),
            }
            for own in found.found
        ],
    }
