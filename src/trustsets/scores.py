"""Nonconformity scores: functions of the class probabilities and a label; lower agrees better."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal, final

import numpy as np

from trustsets._arrays import Codes, Floats, to_numpy
from trustsets._blocks import row_results
from trustsets._parameters import (
    Count,
    NotNegative,
    Rule,
    check_fields,
)
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs, require_outputs
from trustsets.storage import storable

__all__ = [
    "APS",
    "RAPS",
    "SAPS",
    "CustomScore",
    "MarginScore",
    "RankScore",
    "Score",
    "Softmax",
    "TopK",
]

# In the tail scale a score of 1 would be infinite; it becomes -log of this instead.
_SMALLEST_TAIL = float(np.finfo(np.float64).tiny)
_RANK_TOL = Fraction(1, 10**9)


@dataclass(frozen=True, kw_only=True)
class Score(ABC):
    """A nonconformity score; lower agrees better.

    To add one, subclass it (or `RankScore`) as a frozen dataclass and write `_matrix`.

    Parameters
    ----------
    scale : {"raw", "tail"}
        ``"raw"`` is the textbook score s. ``"tail"`` is ``-log(1 - s)``, with s divided by its
        largest possible value: the same order of labels and the same guarantee, but scores close
        to 1 remain distinct, because ``1 - s`` is summed from the smallest probability upwards.
    """

    scale: Literal["raw", "tail"] = "raw"

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def randomized(self) -> bool:
        """Whether the score needs one uniform draw per sample."""
        return False

    @abstractmethod
    def _matrix(self, probabilities: Floats, draws: Floats | None) -> Floats:
        """Scores of all labels of some samples, shape (n, K), from their probabilities."""

    def _of_labels(self, probabilities: Floats, codes: Codes, draws: Floats | None) -> Floats:
        """Scores of one label per sample, shape (n,)."""
        scores = self._matrix(probabilities, draws)
        return np.asarray(scores[np.arange(len(codes)), codes])

    def _check(self, outputs: ModelOutputs, temperature: float, draws: Floats | None) -> None:
        """Refuse wrong arguments of `of_labels` and `matrix`."""
        is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
        if not (is_number and 0.0 < temperature < np.inf):
            raise InputError(f"temperature must be positive and finite; got {temperature!r:.60}.")
        if draws is None and self.randomized:
            raise InputError("a randomised score needs draws, one uniform number per sample.")
        require_outputs(outputs, "outputs")
        is_array = isinstance(draws, np.ndarray)
        if draws is not None and not (is_array and draws.shape == (len(outputs),)):
            raise InputError(f"draws must be an array of shape ({len(outputs)},).")

    def of_labels(
        self, outputs: ModelOutputs, *, temperature: float = 1.0, draws: Floats | None = None
    ) -> Floats:
        """Scores of the true labels, shape (n,); never holds an n x K array."""
        self._check(outputs, temperature, draws)
        codes = outputs.require_labels("the score of the true labels")

        def of_rows(rows: slice) -> Floats:
            p = outputs.block_probabilities(rows, temperature)
            return self._of_labels(p, codes[rows], None if draws is None else draws[rows])

        return row_results(of_rows, len(outputs), outputs.n_classes)

    def matrix(
        self, outputs: ModelOutputs, *, temperature: float = 1.0, draws: Floats | None = None
    ) -> Floats:
        """Scores of all labels, shape (n, K).

        Examples
        --------
        >>> outputs = ModelOutputs(probabilities=[[0.25, 0.5, 0.25]])
        >>> APS().matrix(outputs)
        array([[0.5 , 0.  , 0.75]])
        """
        self._check(outputs, temperature, draws)
        if outputs.is_one_block:
            return self._matrix(outputs.block_probabilities(slice(None), temperature), draws)

        def of_rows(rows: slice) -> Floats:
            p = outputs.block_probabilities(rows, temperature)
            return self._matrix(p, None if draws is None else draws[rows])

        n_classes = outputs.n_classes
        return row_results(of_rows, len(outputs), n_classes, n_classes)


def _log_scale(tail: Floats) -> Floats:
    """``-log`` of 1 - s, which is between 0 and 1 up to rounding."""
    tail = np.maximum(tail, _SMALLEST_TAIL)
    return -np.log(np.minimum(tail, 1.0)) + 0.0  # + 0.0 turns -0.0 into 0.0


@final
@storable
@dataclass(frozen=True, kw_only=True)
class Softmax(Score):
    """One minus the softmax output of the label: ``s = 1 - p_y`` (also called LAC).

    Parameters
    ----------
    scale : {"raw", "tail"}
        See `Score`.
    floor : float
        Smaller scores are raised to it. Labels of a probability close to 1 then have equal scores,
        and fits are fast however sure the classifier is.

    Examples
    --------
    >>> outputs = ModelOutputs(probabilities=[[0.75, 0.25]])
    >>> Softmax().matrix(outputs), Softmax(floor=0.5).matrix(outputs)
    (array([[0.25, 0.75]]), array([[0.5 , 0.75]]))
    """

    floor: NotNegative = 0.0

    def _matrix(self, probabilities: Floats, draws: Floats | None) -> Floats:
        scores = 1.0 - probabilities if self.scale == "raw" else _log_scale(probabilities)
        return np.maximum(scores, self.floor, out=scores)


@final
@storable
@dataclass(frozen=True, kw_only=True)
class CustomScore(Score):
    """A score of your own: `function` maps probabilities of shape (n, K) to scores of that shape.

    The scores of a sample must depend on that sample alone. A predictor is saved with the *name* of
    the function: define it at the top of a module, and import that before the file is loaded.

    Examples
    --------
    >>> outputs = ModelOutputs(probabilities=[[0.75, 0.25]])
    >>> CustomScore(function=lambda p: p.max(axis=1, keepdims=True) - p).matrix(outputs)
    array([[0. , 0.5]])
    """

    scale: Literal["raw"] = "raw"
    function: Annotated[Callable[[Floats], Any], Rule("must map probabilities to scores", callable)]

    def _matrix(self, probabilities: Floats, draws: Floats | None) -> Floats:
        scores = to_numpy(self.function(probabilities), "what function returns")
        numbers = scores.dtype.kind in "fiub" and np.isfinite(scores).all()
        if scores.shape != probabilities.shape or not numbers:
            raise InputError(
                f"function must return finite numbers of shape {probabilities.shape}; got shape "
                f"{scores.shape} and type {scores.dtype}, or NaN or infinity."
            )
        return scores.astype(np.float64)


class RankScore(Score):
    """A score that never decreases with the rank of the label among the probabilities.

    Its formulas are on probabilities in decreasing order; of equals the lower column comes first.
    """

    @abstractmethod
    def _raw(self, ranked: Floats, draws: Floats | None) -> Floats:
        """Raw scores by rank, from probabilities in decreasing order."""

    @abstractmethod
    def _tail(self, ranked: Floats, draws: Floats | None) -> Floats:
        """``1 - s`` by rank, as a fraction of its largest possible value."""

    def _by_rank(self, ranked: Floats, draws: Floats | None) -> Floats:
        if self.scale == "raw":
            return self._raw(ranked, draws)
        return _log_scale(self._tail(ranked, draws))

    def _matrix(self, probabilities: Floats, draws: Floats | None) -> Floats:
        positions, ranked = _ranked(probabilities)
        scores = np.empty(probabilities.size)
        scores[positions] = self._by_rank(ranked, draws)
        return scores.reshape(probabilities.shape)

    def _of_labels(self, probabilities: Floats, codes: Codes, draws: Floats | None) -> Floats:
        by_rank = self._by_rank(np.sort(probabilities, axis=1)[:, ::-1], draws)
        return np.asarray(by_rank[np.arange(len(codes)), ranks_of(probabilities, codes)])


def _ranked(probabilities: Floats) -> tuple[Codes, Floats]:
    """Positions in the flat array by decreasing probability of each row, and the probabilities.

    Of equals the lower column comes first. Bits of non-negative numbers are in the order of the
    numbers. With the column in place of the lowest bits, a sort of integers gives the order, faster
    than `argsort`. It is wrong where two probabilities differ in those bits alone: such rows are
    sorted again.
    """
    n, width = probabilities.shape
    columns, column_bits = np.arange(width), (1 << (width - 1).bit_length()) - 1
    keys = (probabilities + 0.0).view(np.int64)  # + 0.0 turns -0.0 into 0.0
    # The upper bits inverted, so that large numbers come first, and the column in the lowest bits.
    keys |= column_bits
    keys ^= ~columns
    keys.sort(axis=1)
    keys &= column_bits
    # One index into the flat array is faster than a row and a column.
    keys += width * np.arange(n)[:, None]
    ranked = probabilities.take(keys)
    increases = np.zeros(ranked.shape, dtype=bool)
    np.greater(ranked.ravel()[1:], ranked.ravel()[:-1], out=increases.ravel()[:-1])
    increases[:, -1] = False  # that from the last of a row to the first of the next
    if increases.any():
        wrong = np.flatnonzero(increases.any(axis=1))
        order = np.argsort(-probabilities[wrong], axis=1, kind="stable")
        keys[wrong] = order + width * wrong[:, None]
        ranked[wrong] = np.take_along_axis(probabilities[wrong], order, axis=1)
    return keys, ranked


@dataclass(frozen=True, kw_only=True)
class _OwnMass(RankScore):
    """A score that counts a share of the label's own probability, or of its step by rank."""

    own_mass: Literal["exclude", "include", "random"] = "exclude"

    @property
    def randomized(self) -> bool:
        """As in `Score`."""
        return self.own_mass == "random"

    def _share(self, draws: Floats | None) -> Floats:
        """Share of the label's own probability that counts."""
        if draws is not None and self.randomized:
            return draws[:, None]
        return np.array(1.0 if self.own_mass == "include" else 0.0)


@dataclass(frozen=True, kw_only=True)
class _Cumulative(_OwnMass):
    """Probability ranked above the label, a share of the label's own, and a penalty by rank."""

    @abstractmethod
    def _penalty(self, n_classes: int) -> Floats:
        """What is added to the mass at each rank, shape (K,), never decreasing."""

    def _raw(self, ranked: Floats, draws: Floats | None) -> Floats:
        mass = np.empty_like(ranked)
        if self.own_mass == "include":
            np.cumsum(ranked, axis=1, out=mass)
            # The last rank holds all the mass: exactly 1, not 1 up to rounding.
            np.minimum(mass, 1.0, out=mass)
            mass[:, -1] = 1.0
        else:
            mass[:, 0] = 0.0
            np.cumsum(ranked[:, :-1], axis=1, out=mass[:, 1:])
        if self.randomized:
            mass += self._share(draws) * ranked
            # Increasing in exact arithmetic; with rounding, a worse rank could score lower.
            np.maximum.accumulate(mass, axis=1, out=mass)
        penalty = self._penalty(mass.shape[1])
        if penalty.any():
            mass += penalty
        return mass

    def _tail(self, ranked: Floats, draws: Floats | None) -> Floats:
        rest = np.cumsum(ranked[:, ::-1], axis=1)[:, ::-1]
        total = rest[:, :1].copy()
        if self.own_mass != "exclude":
            rest[:, :-1] = rest[:, 1:].copy()
            rest[:, -1] = 0.0
            rest += (1.0 - self._share(draws)) * ranked
            np.minimum.accumulate(rest, axis=1, out=rest)
        rest /= total
        penalty = self._penalty(rest.shape[1])
        rest += penalty[-1] - penalty
        rest /= 1.0 + penalty[-1]
        return rest


@final
@storable
@dataclass(frozen=True, kw_only=True)
class APS(_Cumulative):
    """Adaptive prediction sets (Romano, Sesia and Candès 2020).

    With k the rank of the label and p_(1) >= p_(2) >= ... the sorted probabilities,
    ``s = sum_{j<k} p_(j) + c p_(k)``.

    Parameters
    ----------
    scale : {"raw", "tail"}
        See `Score`.
    own_mass : {"exclude", "include", "random"}
        c = 0 (as the paper runs it), c = 1, or c = U with one uniform U per sample.

    Examples
    --------
    >>> outputs = ModelOutputs(probabilities=[[0.5, 0.25, 0.25]], labels=[2])
    >>> APS().of_labels(outputs), APS(own_mass="include").of_labels(outputs)
    (array([0.75]), array([1.]))
    """

    def _penalty(self, n_classes: int) -> Floats:
        return np.zeros(n_classes)


@final
@storable
@dataclass(frozen=True, kw_only=True)
class RAPS(_Cumulative):
    """Regularised adaptive prediction sets (Angelopoulos, Bates, Malik and Jordan 2021).

    APS plus a penalty on labels of high rank k: the published ``lam * max(0, k - k_reg)``, and
    ``lam * max(0, k - 1 - k_reg)`` with the own probability excluded.

    Parameters
    ----------
    scale, own_mass : str
        As in `APS`; in the tail scale s is divided by 1 plus the penalty of rank K.
    lam : float
        Penalty per rank; the paper uses 0.01.
    k_reg : int
        Rank after which the penalty starts; the paper uses 5.

    Examples
    --------
    >>> outputs = ModelOutputs(probabilities=[[0.5, 0.25, 0.25]], labels=[2])
    >>> RAPS(lam=0.1, k_reg=1).of_labels(outputs)
    array([0.85])
    """

    lam: NotNegative = 0.01
    k_reg: Count = 5

    def _penalty(self, n_classes: int) -> Floats:
        counted = np.arange(n_classes) + (self.own_mass != "exclude")
        return np.asarray(self.lam * np.maximum(0.0, counted - float(self.k_reg)))


@final
@storable
@dataclass(frozen=True, kw_only=True)
class SAPS(_OwnMass):
    """Sorted adaptive prediction sets (Huang, Xi, Zhang, Yao, Qiu and Wei 2024).

    Of the probabilities only the largest, p_(1), counts; every further rank adds `lam`. With k the
    rank of the label, ``s = c p_(1)`` for k = 1 and ``s = p_(1) + lam (k - 2 + c)`` else.

    Parameters
    ----------
    scale, own_mass : str
        As in `APS`; in the tail scale s is divided by ``1 + lam (K - 1)``. The published form has
        ``"random"``, TorchCP's deterministic one ``"include"``.
    lam : float
        What a rank adds. The authors choose among 0.02 to 0.6 on tuning samples.

    Examples
    --------
    >>> outputs = ModelOutputs(probabilities=[[0.5, 0.375, 0.125]])
    >>> SAPS(lam=0.25).matrix(outputs), SAPS(lam=0.25, own_mass="include").matrix(outputs)
    (array([[0.  , 0.5 , 0.75]]), array([[0.5 , 0.75, 1.  ]]))
    """

    lam: NotNegative = 0.2

    def _raw(self, ranked: Floats, draws: Floats | None) -> Floats:
        largest, share = ranked[:, :1], self._share(draws)
        raw = largest + self.lam * (np.arange(ranked.shape[1]) - 1.0 + share)
        raw[:, :1] = share * largest
        return raw

    def _tail(self, ranked: Floats, draws: Floats | None) -> Floats:
        n_classes, share = ranked.shape[1], self._share(draws)
        below = np.cumsum(ranked[:, ::-1], axis=1)
        # 1 - p_(1) is the sum of the others, from the smallest upwards: no digits are lost.
        others = below[:, -2:-1] / below[:, -1:] if n_classes > 1 else np.zeros_like(below)
        tail: Floats = others + self.lam * (n_classes - np.arange(n_classes) - share)
        most = self.lam * (n_classes - 1.0)
        tail[:, :1] = ((1.0 - share) + share * others) + most
        tail /= 1.0 + most
        np.minimum.accumulate(tail, axis=1, out=tail)
        return tail


@final
@storable
@dataclass(frozen=True, kw_only=True)
class TopK(_OwnMass):
    """The number of labels ranked above the label: ``s = k - 1 + c`` with k its rank.

    With `StandardConformal` and a fixed c, every set has the k most likely classes. Parameters are
    as in `APS`; in the tail scale s is divided by K.

    Examples
    --------
    >>> TopK().matrix(ModelOutputs(probabilities=[[0.25, 0.5, 0.25]]))
    array([[1., 0., 2.]])
    """

    def _raw(self, ranked: Floats, draws: Floats | None) -> Floats:
        raw = np.zeros_like(ranked)
        raw += np.arange(raw.shape[1]) + self._share(draws)
        return raw

    def _tail(self, ranked: Floats, draws: Floats | None) -> Floats:
        n_classes = ranked.shape[1]
        tail: Floats = (n_classes - self._raw(ranked, draws)) / n_classes
        return tail


@final
@storable
@dataclass(frozen=True, kw_only=True)
class MarginScore(RankScore):
    """The largest probability of another label minus that of the label.

    With ``p_(1) >= p_(2) >= ...`` the sorted probabilities, ``s = p_(2) - p_(1)`` for the most
    likely label and ``s = p_(1) - p_(k)`` for the label of rank k, between -1 and 1 (Johansson,
    Linusson, Löfström and Boström 2017). The tail scale is ``-log((1 - s) / 2)``.

    Examples
    --------
    >>> MarginScore().matrix(ModelOutputs(probabilities=[[0.625, 0.25, 0.125]]))
    array([[-0.375,  0.375,  0.5  ]])
    """

    def _raw(self, ranked: Floats, draws: Floats | None) -> Floats:
        raw = ranked[:, :1] - ranked
        raw[:, 0] = -_lead(ranked)
        return raw

    def _tail(self, ranked: Floats, draws: Floats | None) -> Floats:
        # 1 - p_(1) is the sum of the others, from the smallest upwards: no digits are lost.
        others = np.cumsum(ranked[:, :0:-1], axis=1)[:, -1:]
        tail = ranked.copy()
        tail[:, 1:] += others
        tail[:, 0] = 1.0 + _lead(ranked)
        tail /= 2.0
        # Decreasing in exact arithmetic; with rounding, a worse rank could score lower.
        np.minimum.accumulate(tail, axis=1, out=tail)
        return tail


def _lead(ranked: Floats) -> Floats:
    """How far the largest probability is above the second; a single class has no second."""
    second = ranked[:, 1] if ranked.shape[1] > 1 else 0.0
    lead: Floats = ranked[:, 0] - second
    return lead


def label_positions(outputs: ModelOutputs, temperature: float = 1.0) -> Codes:
    """0-based rank of each label by probability, shape (n,): the order by score."""
    codes = outputs.require_labels("Rank")

    def ranks(rows: slice) -> Codes:
        return ranks_of(outputs.block_probabilities(rows, temperature), codes[rows])

    return row_results(ranks, len(outputs), outputs.n_classes, dtype=np.int64)


def ranks_of(probabilities: Floats, codes: Codes) -> Codes:
    """0-based rank of one label per row; among equals the lower column comes first."""
    labels = np.take_along_axis(probabilities, codes[:, None], axis=1)
    ranks: Codes = np.count_nonzero(probabilities > labels, axis=1)
    equal = probabilities == labels
    if np.count_nonzero(equal) > len(codes):
        before = np.arange(probabilities.shape[1]) < codes[:, None]
        ranks += np.count_nonzero(equal & before, axis=1)
    return ranks


def conformal_rank(n: int, alpha: float) -> int:
    """Smallest k with k >= (n + 1)(1 - alpha); the threshold is the k-th smallest score.

    Alpha is read as the decimal number it prints as: ``100 * (1 - 0.45)`` is 55.00000000000001.
    As in the engine, a share within 1e-9 of k counts as k: 1 - 0.9 and 1 / 3 mean 0.1 and a third.
    """
    share = (n + 1) * (1 - Fraction(repr(float(alpha)))) - _RANK_TOL
    return -(-share.numerator // share.denominator)


def conformal_quantile(sorted_scores: Floats, alpha: float) -> float:
    """Finite-sample quantile of ascending scores; +inf when there are too few of them."""
    rank = conformal_rank(sorted_scores.size, alpha)
    return float(sorted_scores[rank - 1]) if rank <= sorted_scores.size else np.inf
