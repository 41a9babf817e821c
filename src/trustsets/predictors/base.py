"""`Predictor`: what a calibrated predictor answers besides sets, and how it takes more samples.

How it is calibrated and predicts sets is in `set_predictor`.
"""

import logging
import os
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from trustsets._common import storage
from trustsets._common.arrays import Floats
from trustsets._common.quantiles import check_alphas
from trustsets.errors import InputError, StorageError
from trustsets.outputs import ModelOutputs
from trustsets.predictors.calibrated import Learned, Scoring, Task
from trustsets.predictors.leave_one_out import relearn
from trustsets.predictors.making_sets import sets_of
from trustsets.predictors.p_values import (
    PointPredictions,
    count_alphas,
    grid_of,
    p_from_counts,
    point_predictions,
)
from trustsets.predictors.set_predictor import SetPredictor, as_calibrated
from trustsets.predictors.thresholds import SampleThresholds
from trustsets.predictors.updating import (
    KeptSamples,
    changed_state,
    read_numbers,
    task_of,
    with_new_rows,
)
from trustsets.sets import PredictionSets

if TYPE_CHECKING:
    from trustsets.predictors.certificate import ThresholdCertificate
    from trustsets.predictors.explanation import Explanation
    from trustsets.predictors.shift import AdaptedConformal

__all__ = ["Predictor", "load", "thresholds_from"]


_log = logging.getLogger(__name__)


class Predictor(SetPredictor):
    """A conformal predictor; see `StandardConformal` for the common parameters."""

    def leave_one_out(self, alpha: Any = 0.1) -> PredictionSets:
        """Sets of the calibration samples, each as if it had been left out of calibration.

        They are exact: each is the set that the predictor calibrated on all other samples would
        give, so they show coverage and sizes without a test set. What was learned from tuning
        samples (temperature, class biases, bin edges, the choice of a basis) stays fixed, and
        tuning samples have no sets here. The order is that of `calibration_rows_`.

        In closed form for `StandardConformal` and `MondrianConformal`, and by one path for each
        sample for `ConditionalConformal`. Where basis functions depend on the label, and for the
        other predictors, all is learned again for each sample, with a progress bar.

        Parameters
        ----------
        alpha : float or sequence of float
            As in `predict_set`.

        Examples
        --------
        >>> from trustsets import ModelOutputs, StandardConformal
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(500, 5))
        >>> labels = (logits + rng.gumbel(size=(500, 5))).argmax(axis=1)
        >>> outputs = ModelOutputs(logits=logits, labels=labels)
        >>> sets = StandardConformal().calibrate(outputs).leave_one_out(alpha=0.1)
        >>> float(sets.covers(labels).mean())
        0.9
        """
        task, (alphas, single) = self._kept_task(), check_alphas(alpha)
        found = self._thresholds_without(self._state().learned, task, alphas)
        sets = sets_of(self, self._state(), task.calibration, found, alphas)
        return sets.at(alphas[0]) if single else sets

    def explain(
        self, sample: ModelOutputs, alpha: float = 0.1, *, label: Any = None, trust: Any = None
    ) -> "Explanation":
        """Which calibration samples carry the threshold of a sample, how firmly, and words.

        The threshold is a weighted sum of the scores of a few calibration samples. For each of them
        the explanation says how far its score could move, because its label is wrong, say, before
        the set changes. That range is exact: vertices are followed beyond the first change.

        For `ConditionalConformal`, `StandardConformal` and `MondrianConformal`.

        Parameters
        ----------
        sample : ModelOutputs
            One sample, such as ``test[0]``.
        alpha : float
            As in `predict_set`.
        label : class name, optional
            Explain why this class is in the set, or is not. Needed where each class has a threshold
            of its own.
        trust : array of shape (1,), optional
            As in `predict_set`.

        Examples
        --------
        >>> from trustsets import ModelOutputs, StandardConformal
        >>> logits = np.log([[0.7, 0.2, 0.1]] * 19)
        >>> outputs = ModelOutputs(logits=logits, labels=[0] * 14 + [1] * 4 + [2])
        >>> found = StandardConformal().calibrate(outputs).explain(outputs[0], alpha=0.1)
        >>> found.classes, found.samples[0].row, found.samples[0].weight
        ((0, 1), 14, 1.0)
        """
        from trustsets.predictors.explain import explain

        return explain(self, sample, alpha, label, trust)

    def certificate(
        self, sample: ModelOutputs, alpha: float = 0.1, *, label: Any = None, trust: Any = None
    ) -> "ThresholdCertificate":
        """Numbers from which the threshold of a sample can be checked without this package.

        Parameters are those of `explain`. ``certificate(...).save("certificate.json")`` writes
        what ``trustsets verify certificate.json`` checks.
        """
        from trustsets.predictors.explain import certify

        return certify(self, sample, alpha, label, trust)

    @property
    def n_calibration_(self) -> int:
        """Number of calibration samples behind the thresholds, tuning samples not counted."""
        return self._state().n

    @property
    def calibration_rows_(self) -> NDArray[np.int64]:
        """Rows of the samples whose scores were kept, among those given to `calibrate`."""
        return self._kept_task().calibration.rows

    def _thresholds_without(
        self, learned: Any, task: Task, alphas: tuple[float, ...]
    ) -> SampleThresholds:
        """Thresholds of the calibration samples, each without itself."""
        scoring = self._state().scoring(self.score)

        def thresholds(rest: Task, sample: ModelOutputs) -> SampleThresholds:
            return self._thresholds(self._learn(rest), sample, alphas, scoring)

        return relearn(task, thresholds)

    def update(self, more: ModelOutputs, *, trust: Any = None) -> Self:
        """Add labelled samples to those that thresholds are computed from.

        Sets are then those of a new calibration on all the samples, exactly, but it takes less
        time: fits start from the present ones when the next sets are asked for. Temperature,
        class biases, bin edges, the chosen basis, its ranks and ranges, and everything else that
        was tuned stay as they are until `calibrate` is called again. So do the doubts of `summary`
        about the order of the columns.

        A loaded predictor can be updated, too. Only groups that calibration lacked, and
        `ClusteredConformal` and `RankCalibratedConformal`, need the calibration samples in memory.

        Parameters
        ----------
        more : ModelOutputs
            Samples with labels. Those without `rows` are numbered after the ones there are.
        trust : array of shape (m,), optional
            As in `calibrate`.

        Examples
        --------
        A window of the last 100 samples:

        >>> from trustsets import ModelOutputs, StandardConformal
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.normal(size=(120, 5))
        >>> labels = (logits + rng.gumbel(size=(120, 5))).argmax(axis=1)
        >>> outputs = ModelOutputs(logits=logits, labels=labels)
        >>> predictor = StandardConformal().calibrate(outputs.take(slice(0, 100)))
        >>> newer = outputs.take(slice(100, 120))
        >>> predictor.update(newer).forget(slice(0, 20)).calibration_rows_[[0, -1]]
        array([ 20, 119])
        """
        state, kept = self._state(), self._kept
        more = as_calibrated(state, more, uses_labels=True)
        added = task_of(state, self.score, with_new_rows(state, kept, more), self._trust_of(trust))
        kept = None if kept is None else kept.plus(added)
        return self._replace(state.learned.with_samples(added), kept, added, 1)

    def forget(self, rows: Any, *, trust: Any = None) -> Self:
        """Remove samples from those that thresholds are computed from.

        As with `update`, sets are then exactly those of a new calibration on the rest, and what
        was tuned stays as it is.

        Parameters
        ----------
        rows : array of int or bool, slice, or ModelOutputs
            Numbers of the samples in the order of `calibration_rows_`, in which those of `update`
            come last. A loaded predictor does not hold its samples: give them again then, as
            ModelOutputs with their labels.
        trust : array, optional
            Trust of the samples given as ModelOutputs, where it is known already.
        """
        state, kept = self._state(), self._kept
        if isinstance(rows, ModelOutputs):
            rows = as_calibrated(state, rows, uses_labels=True)
            gone = task_of(state, self.score, rows, self._trust_of(trust))
            kept = None if kept is None else kept.minus(kept.find(gone))
        else:
            kept, numbers = self._samples(), read_numbers(rows, state.n)
            if not numbers.size:
                return self
            gone, kept = kept.take(numbers), kept.minus(numbers)
        return self._replace(state.learned.without_samples(gone), kept, gone, -1)

    def adapt(
        self,
        unlabelled: ModelOutputs,
        *,
        shift: str = "label",
        of: Any = "statistics",
        trust: Any = None,
    ) -> "AdaptedConformal":
        """Return a predictor for another population than that of the calibration samples.

        With ``shift="label"``, the class shares are estimated from the outputs of unlabelled
        samples, and each calibration sample gets the ratio of new to old share of its class as
        weight. That is right if the outputs given the class have stayed the same; `adapt` warns
        where the outputs speak against it. `shares_` of the new predictor has the estimates with
        intervals. Where coverage holds given each class, as with ``MondrianConformal(by="class")``
        or ``per_class=True``, it holds for all class shares, without weights and estimates. Adapted
        sets are often smaller.

        With ``shift="covariate"``, each calibration sample gets the odds that a classifier gives to
        its being a new one as weight, from a model that did not see it. That is right if labels and
        outputs of samples that agree in `of` have stayed the same. No unlabelled sample can show
        whether the labels have; `adapt` warns where weights do not make calibration samples look
        like the new ones, where it clipped them, and where new samples are unlike all calibration
        samples. `weights_` of the new predictor has the weights and their effective sample size.

        This predictor does not change.

        Parameters
        ----------
        unlabelled : ModelOutputs
            New samples, hundreds or more; labels are not used.
        shift : {"label", "covariate"}
            What has changed: the shares of the classes, or the distribution of the inputs.
        of : {"statistics", "features"}, Basis or callable
            What tells the populations apart, for ``shift="covariate"``. ``"statistics"`` are Conf,
            Trust where there is a trust score, and those that the predictor depends on.
            ``"features"`` are the first 64 principal components and their squares. A function
            class, such as ``Groups("site")``, has the logarithm of the weight among its functions.
            A function of `ModelOutputs` returns columns of shape (n, d); squares are added.
        trust : array of shape (m,), optional
            Trust of the unlabelled samples, where it is known already.

        Examples
        --------
        >>> from trustsets import ModelOutputs, StandardConformal
        >>> rng = np.random.default_rng(0)
        >>> def draw(shares, n):
        ...     labels = rng.choice(3, p=shares, size=n)
        ...     logits = rng.normal(size=(n, 3)) + 2.0 * np.eye(3)[labels]
        ...     return ModelOutputs(logits=2.0 * logits, labels=labels)
        >>> predictor = StandardConformal().calibrate(draw([0.6, 0.3, 0.1], 2000))
        >>> predictor.adapt(draw([0.1, 0.3, 0.6], 2000)).shares_.shares.round(1)
        array([0.1, 0.3, 0.6])
        """
        from trustsets.predictors.shift import adapted

        if shift not in ("label", "covariate"):
            raise InputError(
                'shift must be "label" (other class shares) or "covariate" (other inputs); got '
                f"{shift!r}."
            )
        unlabelled = as_calibrated(self._state(), unlabelled)
        new = unlabelled.with_trust(self._trust_of(trust))
        return adapted(self, self._kept_task(), new, shift, of)

    def _trust_of(self, trust: Any) -> Any:
        return self.trust if trust is None else trust

    def _replace(
        self, learned: Learned | None, kept: KeptSamples | None, task: Task, sign: int
    ) -> Self:
        """Take what was learned from other samples, or learn it from all of them."""
        if learned is None:
            learned = self._learn((self._samples() if kept is None else kept).whole())
        self.state_, self._kept = changed_state(self._state(), learned, task, sign), kept
        return self

    def predict_p(self, outputs: ModelOutputs, alphas: Any = None, *, trust: Any = None) -> Floats:
        """P-values of all classes, shape (m, K): the alpha at which each class leaves the set.

        The p-value of the true class is at most a with probability at most a, for every a, and
        over the function class, the groups or the classes in the same sense as coverage. The sets
        ``predict_p(outputs, alphas) > alpha`` are those of ``predict_set(outputs, alphas)`` at
        every alpha of the grid. (A single ``predict_set(outputs, alpha)`` can be smaller where
        thresholds at neighbouring alphas cross.) Unless `allow_empty` is set, the most likely
        class is in every set, so its p-value is 1 where a set would be empty.

        Parameters
        ----------
        outputs : ModelOutputs
            New samples; labels are not used.
        alphas : sequence of float, optional
            The grid. P-values are among these numbers and 1. Default: 100 numbers from 0.001 to
            0.98, finer near 0, without those that are too small for the calibration samples.
        trust : array of shape (m,), optional
            As in `predict_set`.

        Examples
        --------
        >>> from trustsets import APS, ModelOutputs, StandardConformal
        >>> logits = np.log([[0.7, 0.2, 0.1]] * 19)
        >>> outputs = ModelOutputs(logits=logits, labels=[0] * 14 + [1] * 4 + [2])
        >>> predictor = StandardConformal(APS(), allow_empty=True).calibrate(outputs)
        >>> predictor.predict_p(outputs.take([0]), [0.05, 0.1, 0.2, 0.3, 0.5])
        array([[1. , 0.3, 0.1]])
        """
        grid = grid_of(alphas, self._state().learned.smallest_alpha)
        counts = self._count_alphas(outputs, grid, trust)[0]
        if not self.allow_empty:
            # As in `predict_set`: if the smallest set is empty, all sets get the class.
            empty = np.flatnonzero(~(counts == len(grid)).any(axis=1))
            top = self._state().scoring(self.score).corrected(outputs).predicted_codes
            counts[empty, top[empty]] = len(grid)
        return p_from_counts(counts, grid)

    def predict_confidence(
        self, outputs: ModelOutputs, alphas: Any = None, *, trust: Any = None
    ) -> PointPredictions:
        """The most plausible class of each sample with its confidence and credibility.

        Parameters are those of `predict_p`. Classes that are in a set only because it would be
        empty do not count, so that a low credibility shows a sample that no class suits.
        """
        grid = grid_of(alphas, self._state().learned.smallest_alpha)
        counts, scores = self._count_alphas(outputs, grid, trust)
        return point_predictions(p_from_counts(counts, grid), scores, self.classes_)

    def _count_alphas(
        self, outputs: ModelOutputs, grid: tuple[float, ...], trust: Any
    ) -> tuple[NDArray[np.int64], Floats]:
        """At how many alphas each class is within the threshold, and all scores; both (m, K)."""
        state = self._state()
        outputs = as_calibrated(state, outputs)
        outputs = outputs.with_trust(self.trust if trust is None else trust)
        scoring = state.scoring(self.score)
        found = self._thresholds(state.learned, outputs, grid, scoring)
        scores = scoring.matrix(outputs)
        return count_alphas(scores, found), scores


def thresholds_from(
    predictor: Predictor, task: Task, outputs: ModelOutputs, alphas: tuple[float, ...]
) -> SampleThresholds:
    """Thresholds that `calibrate` and `predict_set` would use, from a given calibration task.

    Several methods can share the scores and statistics of a task. The predictor is not changed. Its
    function class must not depend on the label.
    """
    predictor._checked_method()
    scoring, learned = Scoring(predictor.score, None, 1.0, task.seed), predictor._learn(task)
    if learned.conditions_on is not None and learned.conditions_on.uses_label:
        raise InputError("thresholds from a task need basis functions of the sample alone.")
    return predictor._thresholds(learned, outputs, alphas, scoring)


def load(path: str | os.PathLike[str]) -> Any:
    """Read a predictor that was written by its `save`.

    A file that is truncated, altered, foreign or of a newer format gives a
    `StorageError`; nothing in a file is ever executed.
    """
    # A file may hold a trust score, which is known to storage once its module is imported.
    import trustsets.trust  # noqa: F401

    value = storage.read(path)
    if not isinstance(value, Predictor):
        raise StorageError(f"{path}: it holds a {type(value).__name__}, not a predictor.")
    _log.info("%s: loaded a %s", path, type(value).__name__)
    return value
