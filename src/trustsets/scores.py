"""Conformity scores: how badly a label agrees with the classifier.

Every score here increases with the rank of the label among the softmax outputs. A score is thus
one formula on probabilities in decreasing order (`_raw` and `_tail`). `Score` derives from it the
scores of the true labels, the scores of all labels, and the labels up to a threshold.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Codes, Floats
from trustsets._common.blocks import for_each_block, row_numbers
from trustsets._common.ranks import count_up_to, most_likely, ranks_of
from trustsets._common.storage import storable
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs

__all__ = ["APS", "RAPS", "RankedScores", "Score", "Softmax"]


# In the tail scale a score of 1 would be infinite; it becomes -log of this instead.
_SMALLEST_TAIL = float(np.finfo(np.float64).tiny)


class _Block(NamedTuple):
    """Some samples: probabilities, the same in decreasing order, and the scores by rank."""

    rows: slice
    probabilities: Floats
    ranked: Floats
    by_rank: Floats


@final
@dataclass(frozen=True, eq=False)
class RankedScores:
    """Scores of n samples in increasing order; holds n x K float64 numbers.

    Attributes
    ----------
    by_rank : array of shape (n, K)
        Score of the label of rank 1, 2, ..., K.
    label_rank : int array of shape (n,)
        0-based rank of the true label.
    """

    by_rank: Floats
    label_rank: Codes

    def outcomes(self, thresholds: Floats, smallest: int = 0) -> tuple[Codes, NDArray[np.bool_]]:
        """Sizes of the sets of these thresholds, and whether they hold the true label.

        They equal those of `Score.sets`, but the sets themselves are not made.
        """
        n, width = self.by_rank.shape
        counted = row_numbers(
            lambda rows: count_up_to(self.by_rank[rows], thresholds[rows]), n, width, np.int64
        )
        sizes = np.maximum(counted, smallest)
        return sizes, self.label_rank < sizes


@dataclass(frozen=True, kw_only=True)
class Score(ABC):
    """A conformity score; lower agrees better.

    Parameters
    ----------
    scale : {"raw", "tail"}
        ``"raw"`` is the textbook score s. ``"tail"`` is ``-log(1 - s)`` (with s divided by
        its largest possible value where that is not 1): the same order of labels and the
        same guarantee, but scores close to 1 remain distinct. ``1 - s`` is summed from the
        smallest probability upwards, so that no digits are lost.
    """

    scale: Literal["raw", "tail"] = "raw"

    def __post_init__(self) -> None:
        if self.scale not in ("raw", "tail"):
            raise InputError(f'scale must be "raw" or "tail"; got {self.scale!r}.')

    @property
    @abstractmethod
    def randomized(self) -> bool:
        """Whether the score needs one uniform draw per sample."""

    @abstractmethod
    def _raw(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        """Raw scores by rank, from probabilities in decreasing order."""

    @abstractmethod
    def _tail(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        """``1 - s`` by rank, as a fraction of its largest possible value."""

    def of_labels(
        self, outputs: ModelOutputs, *, temperature: float = 1.0, draws: Floats | None = None
    ) -> Floats:
        """Scores of the true labels, shape (n,); never holds an n x K array.

        Examples
        --------
        >>> outputs = ModelOutputs(probabilities=[[0.6, 0.3, 0.1]], labels=[1])
        >>> APS().of_labels(outputs)
        array([0.6])
        """
        codes = outputs.require_labels("the score of the true labels")
        result = np.empty(len(outputs))

        def fill(block: _Block) -> None:
            rank = ranks_of(block.probabilities, codes[block.rows])
            own = np.take_along_axis(block.by_rank, rank[:, None], axis=1)
            result[block.rows] = own[:, 0]

        self._each_block(outputs, temperature, draws, fill)
        return result

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
        result = np.empty((len(outputs), outputs.n_classes))

        def fill(block: _Block) -> None:
            order = np.argsort(-block.probabilities, axis=1, kind="stable")
            np.put_along_axis(result[block.rows], order, block.by_rank, axis=1)

        self._each_block(outputs, temperature, draws, fill)
        return result

    def ranked(
        self, outputs: ModelOutputs, *, temperature: float = 1.0, draws: Floats | None = None
    ) -> RankedScores:
        """Scores by rank of labelled samples, with which many thresholds can be tried quickly.

        Examples
        --------
        >>> outputs = ModelOutputs(probabilities=[[0.25, 0.5, 0.25]], labels=[2])
        >>> ranked = APS().ranked(outputs)
        >>> ranked.by_rank, ranked.label_rank
        (array([[0.  , 0.5 , 0.75]]), array([2]))
        >>> ranked.outcomes(np.array([0.6]))
        (array([2]), array([False]))
        """
        codes = outputs.require_labels("the outcome of prediction sets")
        by_rank = np.empty((len(outputs), outputs.n_classes))
        label_rank = np.empty(len(outputs), dtype=np.int64)

        def fill(block: _Block) -> None:
            by_rank[block.rows] = block.by_rank
            label_rank[block.rows] = ranks_of(block.probabilities, codes[block.rows])

        self._each_block(outputs, temperature, draws, fill)
        return RankedScores(by_rank, label_rank)

    def sets(
        self,
        outputs: ModelOutputs,
        thresholds: Floats,
        *,
        temperature: float = 1.0,
        draws: Floats | None = None,
        smallest: int = 0,
    ) -> NDArray[np.bool_]:
        """Labels whose score is at most the threshold of their sample.

        Parameters
        ----------
        outputs : ModelOutputs
            n samples.
        thresholds : array of shape (n,) or (n, A)
            One threshold per sample, or one for each of A alphas.
        temperature : float
            Divides the logits.
        draws : array of shape (n,), optional
            Uniform draws for a randomised score.
        smallest : int
            Keep at least this many of the most likely labels.

        Returns
        -------
        mask : bool array of shape (n, K) or (n, K, A)
        """
        columns = thresholds.reshape(len(outputs), -1)
        mask = np.empty((len(outputs), outputs.n_classes, columns.shape[1]), dtype=bool)

        def fill(block: _Block) -> None:
            for place, own in enumerate(columns[block.rows].T):
                count = np.maximum(count_up_to(block.by_rank, own), smallest)
                mask[block.rows, :, place] = most_likely(block.probabilities, block.ranked, count)

        self._each_block(outputs, temperature, draws, fill)
        return mask if thresholds.ndim == 2 else mask[:, :, 0]

    def _each_block(
        self,
        outputs: ModelOutputs,
        temperature: float,
        draws: Floats | None,
        use: Callable[[_Block], None],
    ) -> None:
        """Call `use` on every block of samples, in threads."""
        if self.randomized and draws is None:
            raise InputError("a randomised score needs draws, one uniform number per sample.")

        def run(rows: slice) -> None:
            probabilities = outputs.block_probabilities(rows, temperature)
            ranked = np.sort(-probabilities, axis=1)
            np.negative(ranked, out=ranked)
            by_rank = self._scaled(ranked, None if draws is None else draws[rows])
            use(_Block(rows, probabilities, ranked, by_rank))

        for_each_block(run, len(outputs), outputs.n_classes)

    def _scaled(self, ranked: Floats, draws: Floats | None) -> Floats:
        if self.scale == "raw":
            return self._raw(ranked, draws)
        tail = np.maximum(self._tail(ranked, draws), _SMALLEST_TAIL)
        return -np.log(np.minimum(tail, 1.0)) + 0.0  # + 0.0 turns -0.0 into 0.0


@final
@storable
@dataclass(frozen=True, kw_only=True)
class Softmax(Score):
    """One minus the softmax output of the label: ``s = 1 - p_y`` (also called LAC).

    Examples
    --------
    >>> outputs = ModelOutputs(probabilities=[[0.75, 0.25]], labels=[0])
    >>> Softmax().of_labels(outputs)
    array([0.25])
    """

    randomized = False

    def _raw(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        return 1.0 - sorted_probabilities

    def _tail(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        return sorted_probabilities


@dataclass(frozen=True, kw_only=True)
class _Cumulative(Score):
    """Mass ranked above the label, a share of the label's own mass, and a penalty by rank."""

    own_mass: Literal["exclude", "include", "random"] = "exclude"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.own_mass not in ("exclude", "include", "random"):
            raise InputError(
                f'own_mass must be "exclude", "include" or "random"; got {self.own_mass!r}.'
            )

    @property
    def randomized(self) -> bool:
        """Whether a random share of the label's own mass counts."""
        return self.own_mass == "random"

    @abstractmethod
    def _penalty(self, n_classes: int) -> Floats:
        """What is added to the mass at each rank, shape (K,), never decreasing."""

    def _share(self, draws: Floats | None) -> Floats:
        """Share of the label's own mass that counts."""
        if draws is not None and self.randomized:
            return draws[:, None]
        return np.array(1.0 if self.own_mass == "include" else 0.0)

    def _raw(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        mass = np.zeros_like(sorted_probabilities)
        if self.own_mass == "include":
            np.cumsum(sorted_probabilities, axis=1, out=mass)
            # The last rank holds all the mass: exactly 1, not 1 up to rounding.
            np.minimum(mass, 1.0, out=mass)
            mass[:, -1] = 1.0
        else:
            np.cumsum(sorted_probabilities[:, :-1], axis=1, out=mass[:, 1:])
        if self.randomized:
            mass += self._share(draws) * sorted_probabilities
            # Increasing in exact arithmetic; with rounding, a worse rank could score lower.
            np.maximum.accumulate(mass, axis=1, out=mass)
        mass += self._penalty(mass.shape[1])
        return mass

    def _tail(self, sorted_probabilities: Floats, draws: Floats | None) -> Floats:
        rest = np.cumsum(sorted_probabilities[:, ::-1], axis=1)[:, ::-1]
        total = rest[:, :1].copy()
        if self.own_mass != "exclude":
            rest[:, :-1] = rest[:, 1:].copy()
            rest[:, -1] = 0.0
            rest += (1.0 - self._share(draws)) * sorted_probabilities
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

    APS plus a penalty on labels of high rank k: ``lam * max(0, k - 1 - k_reg)`` with the
    own mass excluded (the penalties of the labels ranked above), and the published
    ``lam * max(0, k - k_reg)`` with the own mass included or randomised.

    Parameters
    ----------
    scale : {"raw", "tail"}
        See `Score`; s is divided by its largest value, 1 plus the penalty of rank K.
    own_mass : {"exclude", "include", "random"}
        As in `APS`.
    lam, k_reg : float, int
        Penalty per rank, and the rank after which it starts; the paper uses 0.01 and 5.

    Examples
    --------
    >>> outputs = ModelOutputs(probabilities=[[0.5, 0.25, 0.25]], labels=[2])
    >>> RAPS(lam=0.1, k_reg=1).of_labels(outputs)
    array([0.85])
    """

    lam: float = 0.01
    k_reg: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (np.isfinite(self.lam) and self.lam >= 0.0):
            raise InputError(f"lam must be finite and not negative; got {self.lam}.")
        if self.k_reg < 0 or self.k_reg != int(self.k_reg):
            raise InputError(f"k_reg must be a whole number, 0 or more; got {self.k_reg}.")

    def _penalty(self, n_classes: int) -> Floats:
        counted = np.arange(n_classes) + (self.own_mass != "exclude")
        return np.asarray(self.lam * np.maximum(0.0, counted - float(self.k_reg)))
