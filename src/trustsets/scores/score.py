"""`Score`: what all conformity scores share.

Every score increases with the rank of the label among the softmax outputs. A score is thus
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
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs

__all__ = ["RankedScores", "Score"]


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
        >>> from trustsets import APS
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
        >>> from trustsets import APS
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
        >>> from trustsets import APS
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
