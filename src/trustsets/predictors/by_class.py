"""Other ways to thresholds by class: RC3P, and INTERP-Q between marginal and class-conditional."""

from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from math import ceil
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Codes, Floats
from trustsets._common.blocks import for_each_block, row_numbers
from trustsets._common.ranks import ranks_of
from trustsets._common.storage import require, require_increasing, require_numbers, storable
from trustsets._common.validation import check_number
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.predictors.base import Predictor
from trustsets.predictors.calibrated import Calibrated, Learned, Scoring, Task
from trustsets.predictors.mondrian import MondrianLearned
from trustsets.predictors.thresholds import SampleThresholds, quantile_table, side_by_side
from trustsets.predictors.tuning import Method
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, RAPS, SAPS, Score, TopK
from trustsets.status import Status

__all__ = ["InterpolatedConformal", "RankCalibratedConformal"]


@final
@storable
@dataclass(frozen=True)
class RankLearned(Learned):
    """Scores of the labels by class, and their ranks, increasing within each class."""

    by_class: MondrianLearned
    ranks: Codes

    def check_state(self) -> None:
        """Refuse ranks that no calibration gives."""
        require(self.by_class.partition is None, "RankLearned.by_class", "must be by class")
        require_numbers(self.ranks, "RankLearned.ranks", self.by_class.scores.size)
        known = self.ranks.dtype.kind == "i" and self.ranks.min() >= 0
        width = self.by_class.start.size - 1
        require(known and self.ranks.max() < width, "RankLearned.ranks", "must be ranks of classes")
        for own in self.by_class.split(self.ranks):
            require_increasing(own, "RankLearned.ranks")

    def check_belongs(self, n: int, n_classes: int) -> None:
        """Refuse what cannot come from so many samples and classes."""
        self.by_class.check_belongs(n, n_classes)

    @property
    def conditions_on(self) -> None:
        """Nothing that is known of a sample."""

    def prepare(self, alpha: float) -> None:
        """Nothing: ranks and quantiles are read off."""

    def rules(self, alpha: float) -> tuple[Codes, Floats]:
        """Largest rank and largest score of each class, both of shape (K,)."""
        pairs = zip(self.by_class.by_cell(), self.by_class.split(self.ranks), strict=True)
        found = [_rank_and_threshold(scores, ranks, alpha) for scores, ranks in pairs]
        ranks, thresholds = zip(*found, strict=True)
        return np.array(ranks, dtype=np.int64), np.array(thresholds)


def _rank_and_threshold(scores: Floats, ranks: Codes, alpha: float) -> tuple[int, float]:
    """Smallest rank with an error below alpha, and the quantile at what is left of alpha."""
    n, wanted = scores.size, Fraction(repr(alpha))
    if n == 0:
        return np.iinfo(np.int64).max, np.inf
    # The largest number of samples that is less than alpha n may have a larger rank.
    largest = int(ranks[n - ceil(wanted * n)])
    error = Fraction(int(np.count_nonzero(ranks > largest)), n)
    place = ceil((n + 1) * (1 - (wanted - error)))
    return largest, float(scores[place - 1]) if place <= n else np.inf


@final
@storable
@dataclass(eq=False, repr=False)
class RankCalibratedConformal(Predictor):
    r"""Class-conditional thresholds joined with the largest rank of each class (RC3P).

    Of the :math:`n_y` calibration samples of class y, let :math:`\epsilon_y^k` be the share in
    which more than k - 1 classes are more likely than y. With :math:`k_y` the smallest k such that
    :math:`\epsilon_y^k < \alpha`, and :math:`q_y` the finite-sample quantile of the scores of class
    y at :math:`\alpha - \epsilon_y^{k_y}` in the place of alpha, the set of x holds y if
    s(x, y) is at most :math:`q_y` and y is among the :math:`k_y` most likely classes of x.

    Sets are smaller than those of ``MondrianConformal(by="class")`` where ranks tell more about a
    class than scores do. If the shares were the true probabilities of such ranks, coverage would
    be at least 1 - alpha given each class. They are estimates from the calibration samples, so
    that **nothing is guaranteed in finite samples**: coverage given a class can be lower than
    1 - alpha by up to about :math:`1 / (n_y + 1)`. With fewer than 1 / alpha - 1 samples of y
    the largest of their ranks decides alone, and y is covered with probability
    :math:`n_y / (n_y + 1)` at least. A class without calibration samples is in every set.

    Parameters
    ----------
    score, temperature, allow_empty, tuning_fraction, random_state
        As in `StandardConformal`.

    References
    ----------
    Y. Shi, S. Ghosh, T. Belkhouja, J. R. Doppa and Y. Yan. Conformal prediction for class-wise
    coverage via augmented label rank calibration. NeurIPS 2024.

    Examples
    --------
    >>> from trustsets import ModelOutputs
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 5))
    >>> labels = (2 * logits + rng.gumbel(size=(2000, 5))).argmax(axis=1)
    >>> calibration, test = ModelOutputs(logits=logits, labels=labels).split(0.5)
    >>> predictor = RankCalibratedConformal().calibrate(calibration)
    >>> predictor.largest_ranks(alpha=0.1)  # a label is among the first three nine times in ten
    array([3, 3, 3, 3, 3])
    >>> predictor.predict_set(test, alpha=0.1)
    PredictionSets(1000 samples, 5 classes, alpha=0.1, mean size 2.72)
    """

    score: Score = APS()
    _: KW_ONLY
    temperature: float | TemperatureScaling | str | None = None
    allow_empty: bool = False
    tuning_fraction: float = 0.2
    random_state: Any = 0

    def largest_ranks(self, alpha: float = 0.1) -> Codes:
        """Largest rank of each class at which it can be in a set, shape (K,); 1 is the first."""
        learned: RankLearned = self._state().learned
        return np.minimum(learned.rules(alpha)[0], self.classes_.size - 1) + 1

    def _method(self) -> Method:
        return Method()

    def _learn(self, task: Task) -> RankLearned:
        outputs = task.calibration
        codes = outputs.require_labels("calibrate")
        ranks = row_numbers(
            lambda block: ranks_of(outputs.block_probabilities(block), codes[block]),
            len(outputs),
            outputs.n_classes,
            np.int64,
        )
        return RankLearned(MondrianLearned.of_classes(task), ranks[np.lexsort((ranks, codes))])

    def _could_learn(self, learned: Learned) -> bool:
        return isinstance(learned, RankLearned)

    def _thresholds(
        self,
        learned: RankLearned,
        outputs: ModelOutputs,
        alphas: tuple[float, ...],
        scoring: Scoring,
    ) -> SampleThresholds:
        ranks, seen = _all_ranks(outputs), np.diff(learned.by_class.start) > 0
        status = np.full(len(ranks), Status.EXACT if seen.all() else Status.UNSEEN_GROUP, np.int8)
        rules = [learned.rules(alpha) for alpha in alphas]
        found = [(np.where(ranks <= largest, own, -np.inf), status) for largest, own in rules]
        return side_by_side(found, alphas)

    def _guarantee(self, state: Calibrated) -> str:
        return (
            "none in finite samples. The coverage given a class with n calibration samples can be "
            "lower than 1 - alpha by up to about 1 / (n + 1)."
        )


@final
@storable
@dataclass(eq=False, repr=False)
class InterpolatedConformal(Predictor):
    r"""Thresholds between that of all samples and that of each class (INTERP-Q).

    With q the finite-sample quantile of all calibration scores and :math:`q_y` that of the scores
    of class y, class y has the threshold

    .. math:: \tau q_y + (1 - \tau) q .

    `tau` is a dial between `StandardConformal` (0) and ``MondrianConformal(by="class")`` (1).
    A class with too few samples for a quantile has :math:`q_y = 1`, the largest score.

    Coverage is at least **1 - 2 alpha on average**, for every `tau`: no threshold is below the
    smaller of the two, and each of them misses with probability alpha at most. With ``tau=0``
    it is at least 1 - alpha on average, with ``tau=1`` given each class. In between nothing is
    guaranteed given the class.

    Parameters
    ----------
    tau : float
        Between 0 and 1; the published choice depends on how much larger the sets may be.
    score : Score
        `APS()` (default) or `Softmax()`, in the raw scale: scores of at most 1.
    temperature, class_bias, allow_empty, tuning_fraction, random_state
        As in `StandardConformal`.

    References
    ----------
    T. Ding, J.-B. Fermanian and J. Salmon. Conformal prediction for long-tailed classification.
    2025.

    Examples
    --------
    >>> from trustsets import ModelOutputs, Softmax
    >>> p = np.array([0.9, 0.8, 0.7, 0.6])  # scores .1 .2 .3 .4 of class 0, .6 .7 .8 .9 of class 1
    >>> outputs = ModelOutputs(probabilities=np.stack([p, 1 - p], axis=1)[[0, 1, 2, 3] * 2],
    ...                        labels=[0] * 4 + [1] * 4)
    >>> predictor = InterpolatedConformal(tau=0.5, score=Softmax()).calibrate(outputs)
    >>> predictor.predict_set(outputs, alpha=0.2).thresholds[0]  # 0.9 for all; 0.4 and 0.9
    array([0.65, 0.9 ])
    """

    tau: float = 0.5
    _: KW_ONLY
    score: Score = APS()
    temperature: float | TemperatureScaling | str | None = None
    class_bias: ClassBias | str | None = None
    allow_empty: bool = False
    tuning_fraction: float = 0.2
    random_state: Any = 0

    def _method(self) -> Method:
        check_number(self.tau, "tau", 1.0)
        if self.score.scale != "raw" or isinstance(self.score, RAPS | SAPS | TopK):
            raise InputError(
                "InterpolatedConformal needs scores of at most 1: APS() or Softmax() in the raw "
                f"scale; got {self.score!r}."
            )
        return Method(class_bias=self.class_bias, covers_each_class=self.tau == 1.0)

    def _learn(self, task: Task) -> MondrianLearned:
        return MondrianLearned.of_classes(task)

    def _could_learn(self, learned: Learned) -> bool:
        return isinstance(learned, MondrianLearned) and learned.partition is None

    def _thresholds(
        self,
        learned: MondrianLearned,
        outputs: ModelOutputs,
        alphas: tuple[float, ...],
        scoring: Scoring,
    ) -> SampleThresholds:
        m, own = len(outputs), quantile_table(learned.by_cell(), alphas)
        if self.tau == 1.0:
            return own.of_classes(m)
        shared = quantile_table([np.sort(learned.scores)], alphas)
        # In this form, equal quantiles give exactly the same threshold.
        steps = np.minimum(own.values, 1.0) - np.minimum(shared.values, 1.0)
        status = np.broadcast_to(shared.status, steps.shape)
        columns = zip((shared.values + self.tau * steps).T, status.T, strict=True)
        return side_by_side(list(columns), alphas).of_classes(m)

    def _guarantee(self, state: Calibrated) -> str:
        text = "the sets hold the true class with probability at least 1 - "
        if self.tau == 0.0:
            return f"{text}alpha."
        return f"{text}alpha within every class." if self.tau == 1.0 else f"{text}2 alpha."


def _all_ranks(outputs: ModelOutputs) -> NDArray[np.int64]:
    """0-based rank of every class of every sample, shape (m, K)."""
    ranks = np.empty((len(outputs), outputs.n_classes), dtype=np.int64)

    def fill(block: slice) -> None:
        order = np.argsort(-outputs.block_probabilities(block), axis=1, kind="stable")
        np.put_along_axis(ranks[block], order, np.arange(outputs.n_classes)[None, :], axis=1)

    for_each_block(fill, len(outputs), outputs.n_classes)
    return ranks
