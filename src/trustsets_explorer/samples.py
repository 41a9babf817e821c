"""Samples behind a number: those of a cell, one with its set and reasons, images, regions."""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets.auditing import find_regions
from trustsets.errors import InputError
from trustsets.metrics import to_plain
from trustsets.outputs import ModelOutputs
from trustsets.report import MOST_CLASSES, worst_first
from trustsets.sets import PredictionSets
from trustsets.status import Status
from trustsets.trust import TrustScore
from trustsets_explorer.session import Check, Session
from trustsets_explorer.state import State

Array = NDArray[Any]
Floats = NDArray[np.float64]


_MOST_LISTED = 20
_MOST_MISSES = 8
_NEIGHBOURS = 3
_LONGEST_TEXT = 5000
_LARGEST_IMAGE = 512
_MOST_PIXELS = 50_000_000
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


@final
@dataclass(frozen=True, eq=False)
class Gallery:
    """Images and texts of samples, by part (``held_out`` or ``train``) and row.

    `train` are features and labels. `images` are names of files within `folder`, outside which
    nothing is ever read, or arrays where there is no folder.
    """

    train: tuple[Array, Array] | None = None
    folder: Path | None = None
    images: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def has_image(self, part: str, row: int) -> bool:
        """Whether there is an image of a sample."""
        return row < len(self.images.get(part, ()))

    def text(self, part: str, row: int) -> str | None:
        """The text of a sample, or None."""
        texts = self.texts.get(part, ())
        return str(texts[row])[:_LONGEST_TEXT] if row < len(texts) else None

    def image(self, part: str, row: int) -> bytes | None:
        """The image of a sample, made anew as a small PNG; None where there is none."""
        from PIL import Image

        if not self.has_image(part, row):
            return None
        try:
            if self.folder is None:
                return _small_png(Image.fromarray(_pixels(self.images[part][row])))
            path = _inside(self.folder, str(self.images[part][row]))
            if path is None:
                return None
            with Image.open(path, formats=_FORMATS) as image:
                width, height = image.size
                # Before anything is unpacked: a small file may claim a huge image.
                return None if width * height > _MOST_PIXELS else _small_png(image)
        except Exception:
            # Files that are no images fail in as many ways as there are formats.
            return None


def _inside(folder: Path, name: str) -> Path | None:
    """The file of an image, if links and dots do not lead out of the folder."""
    folder = folder.resolve()
    # Unlike Path.resolve, this reports a loop of links as an OSError in every Python.
    path = Path(os.path.realpath(folder / name, strict=True))
    return path if path.is_relative_to(folder) and path.is_file() else None


def _pixels(values: Array) -> NDArray[np.uint8]:
    """Grey or colour values as bytes; real numbers are taken to lie between 0 and 1."""
    if values.dtype == np.uint8:
        return values
    return np.asarray(np.rint(255.0 * np.clip(np.nan_to_num(values), 0.0, 1.0)), dtype=np.uint8)


def _small_png(image: Any) -> bytes:
    image.thumbnail((_LARGEST_IMAGE, _LARGEST_IMAGE))
    out = io.BytesIO()
    image.convert("RGB").save(out, format="PNG")
    return out.getvalue()


def list_cell(
    session: Session, state: State, index: int, table: Any, number: Any, check: Check
) -> dict[str, Any]:
    """The worst samples of a cell, or of all where no table is named; see `worst_first`."""
    evaluation, split = session.evaluation(state, index, check), session.split(state.seed)
    members, title = np.ones(len(split.positions), bool), "All test samples"
    if table is not None:
        bins = evaluation.tables.get(table) if isinstance(table, str) else None
        is_whole = isinstance(number, int) and not isinstance(number, bool)
        if bins is None or not is_whole or not 0 <= number < bins.count.size:
            raise InputError("table and bin must name a bin of the page.")
        assert bins.cells is not None  # made by `tabulate` just now
        members, title = bins.cells == number, bins.labels[number]
    test = split.test
    codes = test.require_labels("the list of samples")
    likely = test.probabilities[np.arange(len(test)), codes]
    order = worst_first(evaluation, likely)
    rows = order[members[order]][:_MOST_LISTED]
    check()
    sets = session.sets(state, index, rows)
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


def describe(
    session: Session, gallery: Gallery, state: State, index: int, row: int
) -> dict[str, Any]:
    """One test sample: image or text, set, threshold, reasons, nearest training samples."""
    split = session.split(state.seed)
    sample, at = split.test.take([row]), int(split.positions[row])
    sets = session.sets(state, index, np.array([row]))
    plain: dict[str, Any] = to_plain(
        _row(session, state, sets, 0, row)
        | {
            "predicted": texts_of(sample.predicted)[0],
            "threshold": _threshold(sets, sample),
            "status": Status(int(sets.status[0])).sentence,
            "alpha": float(np.atleast_1d(sets.alpha)[0]),
            "image": f"/image/held_out/{at}" if gallery.has_image("held_out", at) else None,
            "text": gallery.text("held_out", at),
            "groups": {name: str(values[0]) for name, values in sample.groups.items()},
            "why": _why(session, state, index, row),
            "neighbours": _neighbours(session, gallery, sample),
        }
    )
    return plain


def _threshold(sets: PredictionSets, sample: ModelOutputs) -> float | None:
    threshold = sets.thresholds[0]
    if np.ndim(threshold):
        threshold = threshold[sample.require_labels("the threshold")[0]]
    return float(threshold)


def _why(session: Session, state: State, index: int, row: int) -> str:
    predictor = session.predictor(state.settings[index], state.seed)
    sample = session.split(state.seed).test.take([row])
    try:
        needs_label = predictor.has_class_thresholds and sample.labels is not None
        label = sample.labels[0] if needs_label and sample.labels is not None else None
        return predictor.explain(sample, state.alpha, label=label).summary()
    except InputError as error:
        return f"There is no explanation: {error}"


def _neighbours(session: Session, gallery: Gallery, sample: ModelOutputs) -> list[dict[str, Any]]:
    """Nearest training samples of the predicted class and of others, which Trust compares."""
    if gallery.train is None or sample.features is None:
        return []
    (features, labels), trust = gallery.train, session.trust_score
    normalize = trust.normalize if isinstance(trust, TrustScore) else True
    gaps = _distances(np.asarray(features), np.asarray(sample.features[0]), normalize)
    is_predicted = labels == sample.predicted[0]
    names, neighbours = texts_of(labels), list[dict[str, Any]]()
    for kind, members in (("predicted class", is_predicted), ("other classes", ~is_predicted)):
        rows = np.flatnonzero(members)
        for row in rows[np.argsort(gaps[rows], kind="stable")[:_NEIGHBOURS]].tolist():
            neighbours.append(
                {
                    "kind": kind,
                    "row": row,
                    "label": names[row],
                    "distance": float(gaps[row]),
                    "image": f"/image/train/{row}" if gallery.has_image("train", row) else None,
                    "text": gallery.text("train", row),
                }
            )
    return neighbours


def texts_of(values: Array) -> list[str]:
    """Names as texts."""
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


def regions(session: Session, state: State, index: int, check: Check) -> dict[str, Any]:
    """Under-covered regions of a method, as the audit finds them, with their surest misses."""
    covered = session.evaluation(state, index, check).covered
    test = session.split(state.seed).test
    check()
    search = find_regions(covered, test, alpha=state.alpha)

    def misses(members: Any) -> Any:
        missed = members[~np.asarray(covered)[members]]
        order = np.argsort(-test.confidence[missed], kind="stable")
        return missed[order][:_MOST_MISSES].tolist()

    listed = [{"sentence": item.sentence, "rows": misses(item.members)} for item in search.regions]
    return {"searched": ", ".join(search.columns), "regions": listed}
