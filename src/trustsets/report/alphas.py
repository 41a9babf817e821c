"""The page at other alphas: what its slider shows, counted from p-values."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Floats
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.metrics.bins import BinTable
from trustsets.metrics.colours import PALETTES, deepest_coverage
from trustsets.metrics.inference import Estimate, Ints
from trustsets.metrics.result import Evaluation
from trustsets.metrics.summaries import summarise_sizes
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor
from trustsets.report.charts import size_chart
from trustsets.report.content import averages
from trustsets.report.samples import MOST_CLASSES, SampleSource

__all__ = ["describe_p", "follow_alphas", "p_and_confidence", "page_alphas"]

# Finer where most alphas are chosen. The time of a report grows with their number.
_PERCENTS = (0.5, *range(1, 11), *range(12, 21, 2), 25, 30, 35, 40, 50)
_ALPHAS = tuple(percent / 100 for percent in _PERCENTS)
# The page writes at how many alphas a class is in the set as one of these characters.
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

Evaluations = Mapping[str, Evaluation]


def page_alphas(own: float) -> tuple[float, ...]:
    """Alphas of the slider: some twenty round numbers up to 0.5, and the page's own.

    Examples
    --------
    >>> alphas = page_alphas(0.1)
    >>> len(alphas), alphas[0], alphas[-1], page_alphas(0.033).index(0.033)
    (21, 0.005, 0.5, 4)
    """
    return tuple(sorted({*_ALPHAS, own}))


def follow_alphas(
    evaluations: Evaluations, names: Sequence[str], listed: Mapping[str, Any], source: SampleSource
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers of the page at every alpha of the slider, and p-values of the listed samples.

    Parameters
    ----------
    evaluations : mapping of method name to Evaluation
        They know the bin of each sample, and the numbers at the page's own alpha.
    names : sequence of str
        Tables that are shown as heatmaps.
    listed : mapping
        What `list_samples` returned.
    source : SampleSource
        With the predictors of all methods that the slider moves.

    Returns
    -------
    two dicts
        The first: ``values`` and ``own`` (the place of the page's alpha), texts for each alpha,
        ``averages`` (alpha -> row -> text of each method), ``sizes`` (alpha -> `size_chart`),
        ``methods`` (name -> table -> ``covered`` and ``size``: alpha -> sums over each bin).
        The second: method -> sample -> `describe_p`.
    """
    alphas = page_alphas(next(iter(evaluations.values())).alpha)
    counted, p_values = {}, {}
    for method, predictor in source.predictors.items():
        with warnings.catch_warnings():
            # Too few samples for the smallest alphas: nobody asked for them, and full sets show it.
            warnings.simplefilter("ignore", TrustSetsWarning)
            trust = source.trust if predictor.trust is None else None
            p, sure = p_and_confidence(predictor, source.outputs, alphas, trust)
        _check_made_by(p, source, method, evaluations[method].alpha)
        counted[method] = _count(p, evaluations[method], source.outputs, alphas)
        rows = [int(row) for row in listed["methods"][method]["sets"]]
        p_values[method] = _listed_p(p, sure, rows, source.outputs, alphas)
    moved = [_page_at(place, evaluations, counted) for place in range(len(alphas))]
    tables = {
        method: {
            name: own.by_bin(evaluations[method].tables[name])
            for name in names
            if name in evaluations[method].tables
        }
        for method, own in counted.items()
    }
    numbers = _texts(alphas) | {
        "own": alphas.index(next(iter(evaluations.values())).alpha),
        "methods": tables,
        "averages": [[[text for text, _ in row] for _, row in averages(page)] for page in moved],
        "sizes": [size_chart(page) for page in moved],
        "palettes": PALETTES,
        "most_classes": MOST_CLASSES,
    }
    return numbers, p_values


def _texts(alphas: tuple[float, ...]) -> dict[str, Any]:
    """The alphas, and what the page writes at each of them and for each p-value."""
    texts = [_decimals(alpha) for alpha in alphas]
    rests = [
        _decimals(1.0 - alpha, len(text) - 2) for alpha, text in zip(alphas, texts, strict=True)
    ]
    lowest = [deepest_coverage(1.0 - alpha) for alpha in alphas]
    return {
        "values": alphas,
        "texts": texts,
        "targets": [f"{100.0 * (1.0 - alpha):g}%" for alpha in alphas],
        "lowest": lowest,
        "deepest": [f"{100.0 * share:.3g}%" for share in lowest],
        # By the number of alphas at which the class is in the set.
        "p": [f"≤{texts[0]}", *texts[1:], f">{texts[-1]}"],
        "confidence": [f"≥{rests[0]}", *rests[1:], f"<{rests[-1]}"],
    }


def _decimals(share: float, digits: int = 2) -> str:
    """A share with at least so many digits, and more if it has more.

    Examples
    --------
    >>> _decimals(0.1), _decimals(0.005), _decimals(0.0333)
    ('0.10', '0.005', '0.0333')
    """
    text = f"{round(share, 12):f}".rstrip("0")
    return text + "0" * (digits + 2 - len(text))


def p_and_confidence(
    predictor: Predictor,
    outputs: ModelOutputs,
    alphas: tuple[float, ...],
    trust: Floats | None = None,
) -> tuple[Floats, Floats]:
    """What `predict_p` gives, (m, K), and the p-values behind confidence and credibility, (m, 2).

    These are the second largest and the largest one before a class is added so that no set is
    empty. A call of `predict_confidence` would take as long again.
    """
    plain = copy.copy(predictor)
    plain.allow_empty = True
    p = plain.predict_p(outputs, alphas, trust=trust)
    # A class that is in no set stands in for the second of one.
    several = p if p.shape[1] > 1 else np.pad(p, ((0, 0), (1, 0)))
    sure = np.partition(several, -2, axis=1)[:, -2:]
    empty = np.flatnonzero(sure[:, 1] < 1.0)
    if empty.size and not predictor.allow_empty:
        # Bins of some methods depend on all samples that are predicted together.
        rows = np.arange(len(outputs)) if predictor.batch_dependence else empty
        own = None if trust is None else trust[rows]
        # At the largest alpha alone, the set of such a sample is the class that is added.
        added = predictor.predict_p(outputs.take(rows), alphas[-1:], trust=own).argmax(axis=1)
        p[empty, added[np.isin(rows, empty)]] = 1.0
    return p, sure


def _check_made_by(p: Floats, source: SampleSource, method: str, alpha: float) -> None:
    """Refuse a predictor that cannot have made the sets of its method."""
    sets = source.sets[method]
    # Nested sets hold every class of the set at one alpha. A set of one class may only hold it
    # so as not to be empty.
    missing = (sets.mask & (p <= alpha)).any(axis=1) & (sets.sizes > 1)
    if missing.any():
        raise InputError(
            f"predictors[{method!r}] did not make sets[{method!r}]: {np.count_nonzero(missing):,} "
            f"sets hold classes that its sets at alpha={alpha:g} lack. Pass the predictor whose "
            "predict_set gave the sets."
        )


@final
@dataclass(frozen=True, eq=False)
class _Counted:
    """Which samples are covered at each alpha, and the sizes of their sets; both (n, A)."""

    covered: NDArray[np.bool_]
    sizes: Ints

    def by_bin(self, table: BinTable) -> dict[str, list[list[int]]]:
        """Covered samples and classes in the sets, summed over each bin: alpha -> bin."""
        assert table.cells is not None  # checked: made by evaluate
        inside = table.cells >= 0
        cells, n_bins = table.cells[inside], table.count.size

        def sums(values: NDArray[Any]) -> list[list[int]]:
            columns = values[inside].T.astype(np.float64)
            # Whole numbers, far below the largest that floating point holds exactly.
            found = [np.bincount(cells, weights=own, minlength=n_bins) for own in columns]
            return [own.astype(np.int64).tolist() for own in found]

        return {"covered": sums(self.covered), "size": sums(self.sizes)}


def _count(
    p: Floats, evaluation: Evaluation, outputs: ModelOutputs, alphas: tuple[float, ...]
) -> _Counted:
    codes = outputs.require_labels("the slider")
    covered = p[np.arange(len(p)), codes][:, None] > np.array(alphas)
    sizes = np.stack([np.count_nonzero(p > alpha, axis=1) for alpha in alphas], axis=1)
    # The sets that were evaluated were made for their alpha alone. Nested ones can be larger.
    own = alphas.index(evaluation.alpha)
    covered[:, own], sizes[:, own] = evaluation.covered, evaluation.set_sizes
    return _Counted(covered, sizes)


def _page_at(
    place: int, evaluations: Evaluations, counted: Mapping[str, _Counted]
) -> dict[str, Evaluation]:
    """Coverage and sizes at one alpha; methods without a predictor stay as they are."""

    def moved(item: Evaluation, own: _Counted) -> Evaluation:
        share = Estimate(float(own.covered[:, place].mean()))
        sizes = summarise_sizes(own.sizes[:, place], item.n_classes)
        return Evaluation(item.alpha, item.level, item.n, item.n_classes, share, sizes, {})

    return {
        method: moved(item, counted[method]) if method in counted else item
        for method, item in evaluations.items()
    }


def _listed_p(
    p: Floats, sure: Floats, rows: list[int], outputs: ModelOutputs, alphas: tuple[float, ...]
) -> dict[str, list[Any]]:
    """P-values of samples by their place among the outputs; see `describe_p`."""
    if not rows:
        return {}
    held = np.searchsorted(alphas, p[rows])
    ends = np.searchsorted(alphas, sure[rows]).tolist()
    described = describe_p(held, outputs.take(rows))
    return {str(row): [*own, *more] for row, own, more in zip(rows, described, ends, strict=True)}


def describe_p(held: NDArray[np.int64], outputs: ModelOutputs) -> list[list[Any]]:
    """What the page needs to write the set of each sample at every alpha.

    Parameters
    ----------
    held : int array of shape (m, K)
        At how many alphas each class is in the set. P-values are in increasing order of it.
    outputs : ModelOutputs
        The samples, with their labels.

    Returns
    -------
    list
        For each sample the classes that are written out at any alpha by decreasing probability;
        their `held` as one string of digits; that of the true class; and how many of the others
        are in the sets of 1, 2, ... alphas.
    """
    order = np.argsort(-outputs.probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(held, order, axis=1)
    shown = np.zeros(ranked.shape, dtype=bool)
    for number in range(1, int(held.max(initial=0)) + 1):
        # The set of such a class is smallest at the last alpha that holds it.
        inside = ranked >= number
        shown |= (ranked == number) & (np.cumsum(inside, axis=1) <= MOST_CLASSES)
    rest = np.where(shown, 0, ranked)
    labels = held[np.arange(len(held)), outputs.require_labels("the list of samples")]
    return [
        [
            codes[own].tolist(),
            "".join(_DIGITS[number] for number in numbers[own].tolist()),
            int(label),
            np.bincount(others)[1:].tolist(),
        ]
        for codes, numbers, own, label, others in zip(
            order, ranked, shown, labels, rest, strict=True
        )
    ]
