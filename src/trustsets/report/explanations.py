"""Why a few of the listed samples have their sets, in words."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from trustsets._common.arrays import Floats
from trustsets.errors import InputError
from trustsets.metrics.bins import BinTable
from trustsets.metrics.result import Evaluation
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor
from trustsets.predictors.explain import CarryingSample, Explanation, needs_label
from trustsets.report.samples import SampleSource
from trustsets.report.text import joined

__all__ = ["explain_samples", "in_words"]

# An explanation follows paths for each of some 30 calibration samples, about half a second of work.
MOST_EXPLAINED = 6
_MOST_ROWS = 3


def explain_samples(
    evaluations: Mapping[str, Evaluation], names: Sequence[str], source: SampleSource, listed: Any
) -> dict[str, dict[str, str]]:
    """Explanations of the worst sample in each of the worst cells, by method and sample.

    Parameters
    ----------
    evaluations : mapping of method name to Evaluation
    names : sequence of str
        Tables that are shown as heatmaps; the cells are those of the first.
    source : SampleSource
        With the predictors of the methods that are explained.
    listed : mapping
        What `list_samples` returned.
    """
    found = {}
    for method, predictor in source.predictors.items():
        item = evaluations[method]
        tables = [name for name in names if name in item.tables]
        # A left-out sample has its set from another predictor, and sets that depend on the batch
        # would differ for a single sample.
        if tables and not item.left_out and not predictor.batch_dependence:
            cells = listed["methods"][method]["bins"][tables[0]]
            chosen = _worst(item.tables[tables[0]], cells)
            found[method] = _explained(predictor, item.alpha, source, method, chosen)
    return {method: own for method, own in found.items() if own}


def _worst(table: BinTable, cells: Sequence[Sequence[int]]) -> list[int]:
    """The first sample of each cell; cells with the most evidence of under-coverage first."""
    order = np.lexsort((table.coverage, table.p_value)).tolist()
    return list(islice((cells[place][0] for place in order if cells[place]), MOST_EXPLAINED))


def _explained(
    predictor: Predictor, alpha: float, source: SampleSource, method: str, chosen: Sequence[int]
) -> dict[str, str]:
    found, sets = {}, source.sets[method]
    for row in chosen:
        trust = None if source.trust is None else source.trust[[row]]
        own = _explanation(predictor, source.outputs.take([row]), alpha, trust)
        if own is not None and own.classes == tuple(sets.classes[sets.mask[row]].tolist()):
            found[str(row)] = in_words(own)
    return found


def _explanation(
    predictor: Predictor, sample: ModelOutputs, alpha: float, trust: Floats | None
) -> Explanation | None:
    """The explanation, or None: not every predictor has a threshold that can be explained."""
    # Predictors without a trust score of their own may have been calibrated with trust as numbers.
    for given in (None, trust):
        with suppress(InputError):
            code = sample.require_labels("an explanation")[0]
            label = sample.classes[code] if needs_label(predictor) else None
            return predictor.explain(sample, alpha, label=label, trust=given)
    return None


def in_words(explanation: Explanation) -> str:
    """Why the set is as it is, and how firmly, in two or three sentences."""
    sentences = [explanation.summary.splitlines()[0].removesuffix(":").removesuffix(".") + "."]
    samples = explanation.samples
    if samples:
        rows = [_name(own) for own in samples[:_MOST_ROWS]]
        most = f", most of all {joined(rows)}" if len(samples) > _MOST_ROWS else f": {joined(rows)}"
        many = f"{len(samples):,} calibration sample{'s' if len(samples) > 1 else ''}"
        sentences += [f"The threshold rests on {many}{most}.", _firmness(samples)]
    return " ".join(sentences)


def _firmness(samples: Sequence[CarryingSample]) -> str:
    """Which single score would change the outcome first, if any can."""
    moves = [min(own.score - own.low, own.high - own.score) for own in samples]
    first = int(np.argmin(moves))
    if not np.isfinite(moves[first]):
        who = "None of them alone could" if len(samples) > 1 else "It could not"
        return f"{who} change the outcome, whatever its score were."
    own = samples[first]
    falls = own.score - own.low <= own.high - own.score
    end = f"below {own.low:.3g}" if falls else f"above {own.high:.3g}"
    return (
        f"The outcome would change first if the score of {_name(own)}, {own.score:.3g}, went "
        f"{end}, for example because its label is wrong."
    )


def _name(own: CarryingSample) -> str:
    return f"place {own.place}" if own.row is None else f"row {own.row}"
