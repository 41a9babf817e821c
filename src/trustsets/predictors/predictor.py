"""`Predictor`: calibrate on labelled samples, then predict sets at any alpha.

Who fits what, and when:

1. The user fits the trust score, on training samples, before a predictor is made.
2. `calibrate` sets tuning samples aside, if there is anything to learn besides thresholds, and fits
   the class biases and then the temperature on them.
3. `calibrate` computes the nonconformity scores of the calibration labels, and `_fit` fits what the
   method needs: cells, bins or basis functions. Only then does the new state replace the old one,
   so an error leaves the predictor as it was.
4. `predict_set` computes the scores of all classes, asks `_thresholds`, and compares.

The class has four parts: what users call, in the order of use; the three methods that a predictor
writes; those that it may change; and what all predictors share.
"""

import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Context
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from trustsets import storage
from trustsets._arrays import Array, Codes, Floats, column, read_only, to_numpy
from trustsets._blocks import one_blas_thread
from trustsets._draws import Stream, resolve_seed, row_uniforms
from trustsets._parameters import (
    Alphas,
    Positive,
    Share,
    Temperature,
    check_alpha,
    check_alphas,
    check_arguments,
)
from trustsets._progress import progress_bar
from trustsets.basis import FittedBasis
from trustsets.engine import default_alphas
from trustsets.errors import InputError, StorageError, TrustSetsWarning
from trustsets.estimator import Estimator
from trustsets.outputs import ModelOutputs, SupportsTrust, require_outputs
from trustsets.predictors.class_facts import (
    class_names,
    classifier_doubts,
    classifier_sentence,
    missing_classes,
    uneven_prevalence,
)
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import Score
from trustsets.sets import PredictionSets
from trustsets.status import Thresholds
from trustsets.storage import require, require_numbers, storable

if TYPE_CHECKING:
    from trustsets.explain import Explanation, ThresholdCertificate
    from trustsets.predictors.quantiles import QuantileFit
    from trustsets.shift import AdaptedConformal

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# Each distinct alpha needs a fit, so alphas that no calibration sample shares are rounded down.
_ROUNDING = Context(prec=3, rounding=ROUND_DOWN)
# A larger alpha is probably a coverage.
_LARGEST_USUAL_ALPHA = 0.5
# With fewer calibration samples it is normal that a class has none; `summary` still names it.
_FEWEST_TO_WARN = 50


@final
@storable
@dataclass(frozen=True, eq=False)
class Calibration:
    """What a predictor learned: arrays with one entry per calibration sample, and constants."""

    classes: Array  # (K,): names, in the order of the columns.
    n_features: int | None
    rows: Codes  # (n,): identities of the samples.
    codes: Codes  # (n,): columns of the labels.
    scores: Floats  # (n,): nonconformity scores of the labels.
    is_correct: NDArray[np.bool_]  # (n,): whether the most likely class is the label.
    alphas: Floats | None  # (n,): where `calibrate` was given alphas.
    score: Score  # The nonconformity score in use.
    # What the outputs are recalibrated with before scores are computed.
    temperature: Temperature
    class_bias: ClassBias | None
    seed: int
    n_tuning: int
    tuning_rows: Codes  # Of tuning samples that were set aside from the calibration samples.
    reused: tuple[str, ...]  # What was learned from the calibration samples themselves, in words.
    # What `classifier_doubts` found.
    below_majority: bool
    reordered: float
    fitted: Any = None  # See `Predictor._fit`.

    def __post_init__(self) -> None:
        for name in ("classes", "rows", "codes", "scores", "is_correct", "alphas"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, read_only(getattr(self, name)))

    def check_state(self) -> None:
        """Refuse arrays that do not belong together, for `storage`."""
        require(len(self.classes) > 0, "Calibration.classes", "must not be empty")
        require_numbers(self.scores, "Calibration.scores", None)
        for name in ("rows", "codes"):
            require_numbers(getattr(self, name), f"Calibration.{name}", len(self.scores))
        inside = 0 <= self.codes.min() and self.codes.max() < len(self.classes)
        require(inside, "Calibration.codes", "must be columns of classes")
        fits = len(self.is_correct) == len(self.scores)
        require(fits, "Calibration.is_correct", "must have one entry per sample")
        if self.alphas is not None:
            require_numbers(self.alphas, "Calibration.alphas", len(self.scores))
        if self.class_bias is not None:
            fits = self.class_bias.bias_.size == len(self.classes)
            require(fits, "Calibration.class_bias", "must have a number for each class")
        if hasattr(self.fitted, "check_belongs"):
            self.fitted.check_belongs(self)

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def counts(self) -> Codes:
        """Number of calibration samples of each class, shape (K,)."""
        return np.bincount(self.codes, minlength=len(self.classes))

    @property
    def accuracy(self) -> float:
        """Share of the calibration samples whose most likely class is the label."""
        return float(self.is_correct.mean())

    def recalibrated(self, outputs: ModelOutputs) -> ModelOutputs:
        """Outputs with the class biases added to the logits; the temperature is left out."""
        if self.class_bias is None or not self.class_bias.bias_.any():
            return outputs
        return outputs.shifted(self.class_bias.bias_)

    def take(self, index: Codes) -> Self:
        """The same with some of the samples."""
        return replace(
            self,
            rows=self.rows[index],
            codes=self.codes[index],
            scores=self.scores[index],
            is_correct=self.is_correct[index],
            alphas=None if self.alphas is None else self.alphas[index],
            fitted=None if self.fitted is None else self.fitted.take(index),
        )

    def extended(self, more: ModelOutputs, scores: Floats) -> Self:
        """The same with more samples."""
        codes = more.require_labels("update")
        return replace(
            self,
            rows=np.concatenate([self.rows, more.rows]),
            codes=np.concatenate([self.codes, codes]),
            scores=np.concatenate([self.scores, scores]),
            is_correct=np.concatenate([self.is_correct, more.predicted_codes == codes]),
            fitted=None if self.fitted is None else self.fitted.extended(more, self),
        )

    def class_sentences(self, *, class_conditional: bool) -> list[str]:
        """All that a summary should say about classes and classifier."""
        named = self.classes.dtype.kind not in "iu"
        texts = [f"Columns of the outputs, in order: {class_names(self.classes)}." if named else ""]
        if not class_conditional:
            texts.append(missing_classes(self.classes, self.counts))
            texts.append(uneven_prevalence(self.classes, self.counts))
        return [text for text in (*texts, self._doubts()) if text]

    def warn_about_classes(self, *, class_conditional: bool) -> None:
        """Warn of missing classes and of a classifier that does not fit the labels."""
        expected = class_conditional or len(self) < _FEWEST_TO_WARN
        missing = "" if expected else missing_classes(self.classes, self.counts)
        for text in filter(None, (missing, self._doubts())):
            warnings.warn(text, TrustSetsWarning, stacklevel=3)

    def _doubts(self) -> str:
        return classifier_sentence(
            self.classes,
            self.counts,
            self.accuracy,
            below_majority=self.below_majority,
            reordered=self.reordered,
        )


class Predictor(Estimator, ABC):
    """A conformal predictor; see `StandardConformal` for the common parameters.

    `trust` is None and `randomized` is False for methods that have no such parameter.
    """

    score: Score | str
    temperature: float | TemperatureScaling | str | None
    class_bias: ClassBias | str | None
    allow_empty: bool
    tuning_fraction: float | str
    random_state: Any
    trust: SupportsTrust | None = None
    randomized: bool = False
    state_: Calibration
    _samples: ModelOutputs | None = None
    _cache: dict[str, Any] | None = None
    _population = "exchangeable new samples"
    _takes_alphas = False  # of calibration samples

    # 1. What users call.

    def calibrate(
        self, outputs: ModelOutputs, *, tuning: ModelOutputs | None = None, alphas: Any = None
    ) -> Self:
        """Learn thresholds from labelled samples that the classifier was not trained on.

        Parameters
        ----------
        outputs : ModelOutputs
            Calibration samples with labels.
        tuning : ModelOutputs, optional
            Other labelled samples, for what is learned besides the thresholds (temperature, bin
            edges). Without them a random `tuning_fraction` of the calibration samples is set aside,
            if there is anything to learn.
        alphas : array of shape (n,), optional
            Alpha of each of the samples, for `predict_set` with `sample_alphas`: one function of
            the inputs, not learned from these samples. Only for `ConditionalConformal`.
        """
        self.check_state()
        seed = resolve_seed(self.random_state)
        require_outputs(outputs, "outputs").require_labels("calibrate")
        if alphas is not None:
            if not self._takes_alphas:
                raise InputError("alphas of calibration samples are for ConditionalConformal.")
            alphas = _alphas_of_samples(alphas, "alphas", len(outputs))
        calibration, tuning, index = self._tuning_parts(outputs, tuning, seed)
        is_reused = tuning is calibration
        bias = _resolve_class_bias(self._default_class_bias(), tuning)
        state = Calibration(
            classes=outputs.classes,
            n_features=None if outputs.features is None else outputs.features.shape[1],
            rows=calibration.rows,
            codes=calibration.require_labels("calibrate"),
            scores=np.zeros(0),
            is_correct=calibration.predicted_codes == calibration.codes,
            alphas=None if alphas is None else alphas[index],
            score=self._default_score(outputs.n_classes),
            temperature=_resolve_temperature(
                self.temperature, tuning if bias is None else bias.transform(tuning)
            ),
            class_bias=bias,
            seed=seed,
            n_tuning=0 if is_reused else len(tuning),
            tuning_rows=tuning.rows if len(index) < len(outputs) else np.zeros(0, np.int64),
            reused=self._all_tuned() if is_reused else (),
            **classifier_doubts(calibration),
        )
        _log.info(
            "%s: calibrating on %d samples of %d classes, tuning on %d others",
            type(self).__name__, len(calibration), outputs.n_classes, state.n_tuning,
        )  # fmt: skip
        scores = self._label_scores(calibration, state, Stream.CALIBRATION_SCORE)
        state = replace(state, scores=scores)
        state = replace(state, fitted=self._fit(state, calibration, tuning))
        state.warn_about_classes(class_conditional=self.is_class_conditional)
        self._set_state(state, calibration)
        return self

    def predict_set(
        self,
        outputs: ModelOutputs,
        alpha: Any = 0.1,
        *,
        sample_alphas: Any = None,
        max_size: int | None = None,
    ) -> PredictionSets:
        """Return prediction sets with coverage at least 1 - alpha.

        Parameters
        ----------
        outputs : ModelOutputs
            New samples; labels are not used.
        alpha : float or sequence of float
            Miscoverage. A list or tuple gives sets for each alpha, nested in each other.
        sample_alphas : array of shape (m,), optional
            One alpha for each sample, a function of its inputs, instead of `alpha`. Where
            `ConditionalConformal` was calibrated with `alphas` of the same function, coverage
            weighted by any f >= 0 of the function class is at least the weighted mean of 1 - alpha.
            Otherwise each sample gets its set at that alpha, rounded down to three digits; coverage
            of the samples with one alpha is then guaranteed only if their indicator is in the
            function class, or if the alphas do not depend on the inputs.
        max_size : int, optional
            Largest size of a set. The alpha of a sample is raised where so few classes cannot reach
            it; `PredictionSets.alpha` says to what: 1, with a status, where nothing is guaranteed.
            Only for `ConditionalConformal` with tuning samples of its own.
        """
        outputs = self._prepare(outputs)  # class names and trust
        if max_size is not None:
            if isinstance(alpha, list | tuple) or np.ndim(alpha) or sample_alphas is not None:
                raise InputError("max_size takes one alpha for all samples, the smallest of any.")
            check_arguments(Positive, max_size=max_size)
        alphas, is_single = _nested_alphas(alpha)
        recalibrated, scores = self._score(outputs)  # of all classes, shape (m, K)
        if max_size is not None:
            return self._sized_sets(outputs, scores, alphas[0], int(max_size))
        if sample_alphas is not None:
            levels = _alphas_of_samples(sample_alphas, "sample_alphas", len(outputs))
            thresholds = self._sample_alpha_thresholds(outputs, scores, levels)
            return replace(self._sets(recalibrated, scores, thresholds, 1.0), alpha=levels)
        thresholds = self._thresholds(outputs, scores, alphas)
        return self._sets(recalibrated, scores, thresholds, alphas[0] if is_single else alphas)

    def predict_p(self, outputs: ModelOutputs, alphas: Any = None) -> Floats:
        """P-values of all classes, shape (m, K): the alpha at which each class leaves the set.

        For `StandardConformal` and `MondrianConformal` they are exact unless a grid is given:
        ``p(x, y) = (1 + number of i with s_i >= s(x, y)) / (n + 1)`` over the n calibration samples
        of the cell. For others, p is the smallest alpha of a grid at which y is not in the set, and
        1 if y is in all of the nested sets. ``predict_p(...) > alpha`` are the nested sets that
        `predict_set` gives for a list of alphas, and for the true class ``P(p <= a) <= a``,
        in the sense of coverage.

        Parameters
        ----------
        outputs : ModelOutputs
            New samples; labels are not used.
        alphas : sequence of float, optional
            The grid. Default where one is needed: 100 numbers from 0.001 to 0.98, finer near 0,
            without those that are too small for the calibration samples.

        Examples
        --------
        >>> from trustsets import APS, ModelOutputs, StandardConformal
        >>> logits = np.log([[0.7, 0.2, 0.1]] * 19)
        >>> outputs = ModelOutputs(logits=logits, labels=[0] * 14 + [1] * 4 + [2])
        >>> predictor = StandardConformal(score=APS(), allow_empty=True).calibrate(outputs)
        >>> predictor.predict_p(outputs[0]), predictor.predict_p(outputs[0], [0.05, 0.1, 0.3])
        (array([[1. , 0.3, 0.1]]), array([[1. , 0.3, 0.1]]))
        """
        grid = () if alphas is None else tuple(sorted(set(check_alphas(alphas)[0])))
        outputs = self._prepare(outputs)
        recalibrated, scores = self._score(outputs)
        p_values = None if grid else self._exact_p_values(outputs, scores)
        if p_values is None:
            p_values = self._grid_p_values(outputs, scores, grid)
        if not self.allow_empty:
            # As in `predict_set`: if the smallest set is empty, all sets get the class.
            empty = np.flatnonzero((p_values < 1.0).all(axis=1))
            p_values[empty, recalibrated.predicted_codes[empty]] = 1.0
        return p_values

    def leave_one_out(self, alpha: Any = 0.1) -> PredictionSets:
        """Sets of the calibration samples, each as if it had been left out of calibration.

        Each is exactly the set that the predictor calibrated on all other samples would give, so
        they show coverage and sizes without a test set. What was learned from tuning samples stays
        fixed. The order is that of `calibration_rows_`; `alpha` is that of `predict_set`.

        For `ClusteredConformal`, and with functions of the label, thresholds are computed anew for
        each sample, with a progress bar.

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
        alphas, is_single = check_alphas(alpha)
        recalibrated, scores = self._score(self.calibration_)
        thresholds = self._leave_one_out_thresholds(scores, alphas)
        return self._sets(recalibrated, scores, thresholds, alphas[0] if is_single else alphas)

    def explain(
        self, sample: ModelOutputs, alpha: float = 0.1, *, label: Any = None
    ) -> "Explanation":
        """Which calibration samples determine the threshold of a sample, how firmly, and words.

        The threshold is a weighted sum of the scores of a few calibration samples. For each of them
        the explanation says exactly how far its score could move before the set changes. For
        `ConditionalConformal`, `StandardConformal` and `MondrianConformal`.

        Parameters
        ----------
        sample : ModelOutputs
            One sample, such as ``test[0]``.
        alpha : float
        label : class name, optional
            Why this class is in the set, or is not; needed where each class has its own threshold.

        Examples
        --------
        >>> from trustsets import ModelOutputs, StandardConformal
        >>> logits = np.log([[0.7, 0.2, 0.1]] * 19)
        >>> outputs = ModelOutputs(logits=logits, labels=[0] * 14 + [1] * 4 + [2])
        >>> explanation = StandardConformal().calibrate(outputs).explain(outputs[0], alpha=0.1)
        >>> explanation.classes, explanation.samples[0].row, explanation.samples[0].weight
        ((0, 1), 14, 1.0)
        """
        from trustsets.explain import explain

        return explain(self, *self._one_sample(sample, alpha, label))

    def certificate(
        self, sample: ModelOutputs, alpha: float = 0.1, *, label: Any = None
    ) -> "ThresholdCertificate":
        """Numbers from which the threshold of a sample can be checked without this package.

        Parameters are those of `explain`; ``trustsets verify`` checks what its `save` writes.
        """
        from trustsets.explain import certify

        return certify(self, *self._one_sample(sample, alpha, label))

    def update(self, more: ModelOutputs) -> Self:
        """Add labelled samples to those that thresholds are computed from.

        Sets are then those of a new calibration on all the samples, while everything that was tuned
        stays as it is. If they share `rows` with those there are, they are numbered after them.

        Examples
        --------
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
        state = self._state()
        if state.alphas is not None:
            raise InputError(
                "samples cannot be added where calibration samples have alphas; calibrate again."
            )
        require_outputs(more, "more").require_labels("update")
        more = self._prepare(more, with_labels=True)
        # Random draws are keyed on rows, so no two samples may share one.
        taken = np.concatenate([state.rows, state.tuning_rows])
        scored = more
        if np.unique(more.rows).size < len(more) or np.isin(more.rows, taken).any():
            # Unsigned, so that rows beyond the largest integer are refused and do not wrap around.
            after = np.arange(1, len(more) + 1, dtype=np.uint64)
            more = more.replace(rows=taken.max().astype(np.uint64) + after)
        samples = self._samples
        if samples is not None:
            try:
                samples = ModelOutputs.concat([samples, more])
            except InputError as error:
                raise InputError(f"new samples must be like those of calibrate: {error}") from error
        # Draws of samples without given rows are made of their content, as in `calibrate`.
        scored = more if scored.has_given_rows else scored
        scores = self._label_scores(scored, state, Stream.CALIBRATION_SCORE)
        self._set_state(state.extended(more, scores), samples)
        return self

    def forget(self, rows: Any) -> Self:
        """Remove samples from those that thresholds are computed from.

        As with `update`, sets are then those of a new calibration, and what was tuned stays. `rows`
        are positions in the order of `calibration_rows_`: integers, booleans or a slice.
        """
        state = self._state()
        gone = _positions(rows, len(state))
        if not gone.size:
            return self
        if gone.size == len(state):
            raise InputError("rows are all calibration samples; at least one must stay.")
        rest = np.delete(np.arange(len(state)), gone)
        samples = None if self._samples is None else self._samples.take(rest)
        self._set_state(state.take(rest), samples)
        return self

    def adapt(
        self, unlabelled: ModelOutputs, *, shift: str = "label", of: Any = "statistics"
    ) -> "AdaptedConformal":
        """Return a predictor for another population than that of the calibration samples.

        With ``shift="label"``, calibration samples are weighted by the ratio of new to old class
        prevalences (`prevalence_`): right if the outputs within each class have stayed the same.
        With ``shift="covariate"``, the weights are the odds that a classifier gives to a sample's
        being a new one (`weights_`): right if labels and outputs of samples that agree in `of` have
        stayed the same. `adapt` warns where the samples speak against the weights.

        Parameters
        ----------
        unlabelled : ModelOutputs
            New samples, hundreds or more; labels are not used.
        shift : {"label", "covariate"}
            What has changed: the class prevalences, or the distribution of the inputs.
        of : {"statistics", "features"} or Basis
            What tells the populations apart, for ``shift="covariate"``: Conf, Trust and the
            statistics of the predictor; the first 64 principal components and their squares; or a
            function class that has the logarithm of the weight among its functions.

        Examples
        --------
        >>> from trustsets import ModelOutputs, StandardConformal
        >>> rng = np.random.default_rng(0)
        >>> def draw(prevalence, n):
        ...     labels = rng.choice(3, p=prevalence, size=n)
        ...     logits = rng.normal(size=(n, 3)) + 2.0 * np.eye(3)[labels]
        ...     return ModelOutputs(logits=2.0 * logits, labels=labels)
        >>> predictor = StandardConformal().calibrate(draw([0.6, 0.3, 0.1], 2000))
        >>> predictor.adapt(draw([0.1, 0.3, 0.6], 2000)).prevalence_.estimate.round(1)
        array([0.1, 0.3, 0.6])
        """
        from trustsets.shift import adapt

        check_arguments(Literal["label", "covariate"], shift=shift)
        return adapt(self, self._prepare(require_outputs(unlabelled, "unlabelled")), shift, of)

    def summary(self, sets: PredictionSets | None = None) -> str:
        """Say in words what is guaranteed, and what became of the sets of a prediction."""
        state = self._state()
        others = f" ({state.n_tuning:,} others were used for tuning)." if state.n_tuning else "."
        lines = [
            f"{type(self).__name__}, calibrated on {len(state):,} samples{others}",
            f"Guarantee: {self._guarantee()}",
            f"Coverage is marginal over calibration samples and {self._population}.",
        ]
        if state.reused:
            lines.append(
                f"The guarantee holds only approximately, because {' and '.join(state.reused)} "
                "came from the calibration samples."
            )
        lines += state.class_sentences(class_conditional=self.is_class_conditional)
        if sets is not None:
            if not isinstance(sets, PredictionSets):
                raise InputError(f"sets must be PredictionSets; got {type(sets).__name__}.")
            lines += sets.describe()
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the predictor to a file that `trustsets.load` reads; no pickle, atomic."""
        state = replace(self._state(), fitted=self._fitted_to_store())
        storage.write(path, self._with_state(state))

    def copy(self) -> Self:
        """A predictor with the same parameters and state, without samples and fits."""
        return copy(self)

    def scores(self, outputs: ModelOutputs) -> Floats:
        """Nonconformity scores of all classes of new samples, shape (m, K)."""
        return self._score(self._prepare(outputs))[1]

    @property
    def score_(self) -> Score:
        """The nonconformity score in use."""
        return self._state().score

    @property
    def classes_(self) -> Array:
        """Names of the classes, in the order of the columns."""
        return self._state().classes

    @property
    def temperature_(self) -> float:
        """Temperature that divides the logits before scores are computed."""
        return self._state().temperature

    @property
    def n_calibration_(self) -> int:
        """Number of calibration samples behind the thresholds, tuning samples not counted."""
        return len(self._state())

    @property
    def n_tuning_(self) -> int:
        """Number of samples that were set aside for tuning."""
        return self._state().n_tuning

    @property
    def class_counts_(self) -> Codes:
        """Number of calibration samples of each class, shape (K,)."""
        return self._state().counts

    @property
    def calibration_rows_(self) -> Codes:
        """Rows of the calibration samples, among those given to `calibrate` and `update`."""
        return self._state().rows

    @property
    def calibration_(self) -> ModelOutputs:
        """The calibration samples, which are kept in memory only."""
        self._state()
        if self._samples is None:
            from trustsets.errors import NotCalibratedError

            raise NotCalibratedError(
                "files and copies do not hold the calibration samples; call calibrate with them."
            )
        return self._samples

    @property
    def has_calibration(self) -> bool:
        """Whether the calibration samples are in memory."""
        return self._samples is not None

    @property
    def needed_groups(self) -> tuple[str, ...]:
        """Names of the group columns that thresholds of new samples depend on."""
        basis = self.conditions_on
        return () if basis is None else basis.needed_groups

    @property
    def uses_features(self) -> bool:
        """Whether thresholds of new samples may depend on their features."""
        basis = self.conditions_on
        return basis is not None and basis.uses_features

    @property
    def has_class_thresholds(self) -> bool:
        """Whether each class has a threshold of its own."""
        basis = self.conditions_on
        return self.is_class_conditional or (basis is not None and basis.uses_label)

    @property
    def draws_at_random(self) -> bool:
        """Whether sets depend on random draws, which are keyed on the rows of the samples."""
        return self.randomized or (isinstance(self.score, Score) and self.score.randomized)

    # 2. What a predictor writes.

    @abstractmethod
    def _fit(self, state: Calibration, calibration: ModelOutputs, tuning: ModelOutputs) -> Any:
        """Fit what thresholds depend on besides the scores in `state`; storable, or None.

        Its per-sample arrays are in the order of the calibration samples, and it has two methods:
        ``take(index)`` for some of the samples, and ``extended(outputs, state)`` for more.
        """

    @abstractmethod
    def _thresholds(self, outputs: ModelOutputs, scores: Floats, alphas: Alphas) -> Thresholds:
        """Thresholds of new samples with values of shape (m, A) or (m, K, A).

        `scores` are the nonconformity scores of all classes, shape (m, K).
        """

    @abstractmethod
    def _guarantee(self) -> str:
        """What is guaranteed, as a sentence about "the sets"."""

    # 3. What it may change. First what it says of itself, then how it computes.

    @property
    def is_class_conditional(self) -> bool:
        """Whether coverage is class-conditional, even for a class without calibration samples."""
        return False

    @property
    def conditions_on(self) -> FittedBasis | None:
        """What thresholds of a sample depend on; None where all samples have the same."""
        return None

    @property
    def batch_dependence(self) -> str | None:
        """Why the set of a sample depends on the others of its batch; None if it does not."""
        return None

    @property
    def smallest_alpha(self) -> float:
        """The smallest alpha that is worth asking for, where none is given."""
        return 0.0

    def _check_parameters(self) -> None:
        """Refuse wrong parameters, without data."""

    def _tuned(self) -> tuple[str, ...]:
        """What the method itself learns from tuning samples, in words."""
        return ()

    def _default_fraction(self, outputs: ModelOutputs) -> float:
        """Share of the samples that ``tuning_fraction="auto"`` sets aside."""
        return 0.2

    def _default_score(self, n_classes: int) -> Score:
        """The nonconformity score in use for so many classes; refuse what is no score."""
        if not isinstance(self.score, Score):
            raise InputError(
                f"score must be an instance such as APS() or Softmax(); got {self.score!r}. "
                "Names such as 'aps' and 'lac' are for TrustSetClassifier and the command line."
            )
        return self.score

    def _default_class_bias(self) -> ClassBias | str | None:
        """The class biases in use; ``"tuning"`` or an unfitted `ClassBias` learns them."""
        return self.class_bias

    def _fitted_to_store(self) -> Any:
        """What the method fitted, with anything that makes a loaded predictor faster."""
        return self._state().fitted

    def _exact_p_values(self, outputs: ModelOutputs, scores: Floats) -> Floats | None:
        """P-values of all classes, shape (m, K), in closed form; None where there is none."""
        return None

    def _sample_alpha_thresholds(
        self, outputs: ModelOutputs, scores: Floats, alphas: Floats
    ) -> Thresholds:
        """Thresholds of samples with an alpha each, values of shape (m, 1) or (m, K, 1)."""
        rounded = rounded_down(alphas)
        parts, order = [], []
        for alpha in np.unique(rounded).tolist():
            index = np.flatnonzero(rounded == alpha)
            parts.append(self._thresholds(outputs.take(index), scores[index], (alpha,)))
            order.append(index)
        back, joined = np.argsort(np.concatenate(order)), _joined(parts)
        return Thresholds(joined.values[back], joined.status[back])

    def _sized_sets(
        self, outputs: ModelOutputs, scores: Floats, alpha: float, size: int
    ) -> PredictionSets:
        """Sets of at most `size` classes, each with an alpha of its own."""
        raise InputError(
            f"max_size is for ConditionalConformal; {type(self).__name__} cannot give each sample "
            "an alpha of its own. ConditionalConformal(basis=Intercept()) gives all samples the "
            "same alpha."
        )

    def _leave_one_out_thresholds(self, scores: Floats, alphas: Alphas) -> Thresholds:
        """Thresholds of the calibration samples, each by the predictor without it."""
        state, samples, parts = self.state_, self.calibration_, []
        with progress_bar("leaving samples out", len(state)) as advance:
            for i in range(len(state)):
                other = self._with_state(state.take(np.delete(np.arange(len(state)), i)))
                parts.append(other._thresholds(samples[i], scores[[i]], alphas))
                advance(1)
        return _joined(parts)

    def check_weights(self) -> None:
        """Refuse `adapt` where the method has no weighted thresholds."""
        raise InputError(
            "adapt needs StandardConformal, MondrianConformal without paper_rules, or "
            f"ConditionalConformal with randomized=False; got {type(self).__name__}."
        )

    def weighted_thresholds(
        self, outputs: ModelOutputs, scores: Floats, alphas: Alphas, weights: Floats, new: Floats
    ) -> Thresholds:
        """Thresholds where calibration samples and new samples have weights, for `adapt`.

        If the new sample has density ratio w to calibration, sample k of all n + 1 in unknown order
        is the new one with probability proportional to its weight (Tibshirani, Barber, Candes and
        Ramdas 2019), which may depend on the label (Podkopaev and Ramdas 2021). `weights` has
        shape (n,); `new` has shape (m, 1), or (m, K) and equal rows for weights of the classes.
        """
        raise NotImplementedError

    def quantile_fits(
        self, outputs: ModelOutputs, alpha: float, code: int | None
    ) -> "tuple[list[QuantileFit], Codes]":
        """The quantile fits that decide the threshold of one sample, and the samples of the points.

        `code` is the candidate class, where each class has a threshold of its own.
        """
        raise InputError(
            f"{type(self).__name__} has no explanation of its thresholds; use "
            "ConditionalConformal, StandardConformal, or MondrianConformal without paper rules."
        )

    # 4. What all predictors share.

    def _state(self) -> Calibration:
        if not hasattr(self, "state_"):
            from trustsets.errors import NotCalibratedError

            raise NotCalibratedError(
                f"this {type(self).__name__} is not calibrated; call calibrate first."
            )
        return self.state_

    def _set_state(self, state: Calibration, samples: ModelOutputs | None) -> None:
        self.state_, self._samples, self._cache = state, samples, None

    def _with_state(self, state: Calibration) -> Self:
        """A copy of the predictor with another state, and without samples and fits."""
        other = copy(self)
        other._set_state(state, None)
        return other

    def _cached(self, key: str, make: Callable[[], _T]) -> _T:
        """Something that follows from the state, made once; neither copied nor saved."""
        cache = self._cache
        if cache is None:
            cache = self._cache = {}
        if key not in cache:
            cache[key] = make()
        result: _T = cache[key]
        return result

    def check_state(self) -> None:
        """Refuse wrong parameters, in `calibrate` and in `storage`."""
        self._default_score(n_classes=1)
        check_arguments(bool, allow_empty=self.allow_empty)
        self._check_parameters()

    def __sklearn_clone__(self) -> Self:
        # Parameters are shared: scores and bases are frozen, and a fitted trust score or
        # temperature is data to a predictor, which an unfitted copy could not stand in for.
        return type(self)(**self.get_params(deep=False))

    def __getstate__(self) -> Any:
        # Copies in other processes answer for new samples: they need neither the calibration
        # samples nor the fits, which they make again, to the same bits, when first needed.
        return {**vars(self), "_samples": None, "_cache": None}

    def _all_tuned(self) -> tuple[str, ...]:
        """Everything that is learned from tuning samples, in words."""
        bias = self._default_class_bias()
        unfitted = isinstance(bias, ClassBias) and not bias.is_fitted
        words = {
            "the temperature": isinstance(self.temperature, str),
            "the class biases": unfitted or (isinstance(bias, str) and bias == "tuning"),
        }
        return (*(name for name, is_learned in words.items() if is_learned), *self._tuned())

    def _tuning_parts(
        self, outputs: ModelOutputs, tuning: ModelOutputs | None, seed: int
    ) -> tuple[ModelOutputs, ModelOutputs, Codes]:
        """Calibration samples and tuning samples, with trust, and positions of the former.

        Both are the same samples where none are set aside.
        """
        outputs, everything = outputs.with_trust(self.trust), np.arange(len(outputs))
        self._warn_of_strange_classes(outputs)
        if tuning is not None:
            require_outputs(tuning, "tuning")
            if not np.array_equal(tuning.classes, outputs.classes):
                raise InputError(
                    "tuning samples name other classes, or the same in another order, than the "
                    "calibration samples; pass tuning= of the same classifier."
                )
            return outputs, tuning.with_trust(self.trust), everything
        fraction: Any = self.tuning_fraction
        tuned = self._all_tuned()
        if isinstance(fraction, str) and fraction == "auto":
            fraction = self._default_fraction(outputs)
        check_arguments(Share, tuning_fraction=fraction)
        if tuned and fraction > 0.0:
            # Not stratified: the calibration samples must stay exchangeable with new ones.
            aside, kept = outputs.split_indices(fraction, seed)
            return outputs.take(kept), outputs.take(aside), kept
        if tuned:
            warnings.warn(
                f"{' and '.join(tuned)} will be learned from the calibration samples themselves, "
                "so the coverage guarantee holds only approximately; pass tuning= or set "
                "tuning_fraction.",
                TrustSetsWarning,
                stacklevel=3,
            )
        return outputs, outputs, everything

    def _warn_of_strange_classes(self, outputs: ModelOutputs) -> None:
        """Warn where the trust score knows classes by other names than the outputs."""
        names = {*outputs.classes.tolist()}
        strange = [name for name in getattr(self.trust, "classes_", ()) if name not in names]
        if strange:
            warnings.warn(
                f"the trust score was fitted on training samples of class {strange[0]!s}, and the "
                "outputs have no such class. It compares names of classes: fit it on labels that "
                "name the columns of the outputs, or pass classes= to ModelOutputs.",
                TrustSetsWarning,
                stacklevel=4,
            )

    def _label_scores(self, outputs: ModelOutputs, state: Calibration, stream: Stream) -> Floats:
        """Scores of the labels, shape (n,); random draws are keyed on the rows."""
        draws = self._draw(outputs, state, stream) if state.score.randomized else None
        outputs = state.recalibrated(outputs)
        return state.score.of_labels(outputs, temperature=state.temperature, draws=draws)

    def _draw(self, outputs: ModelOutputs, state: Calibration, stream: Stream) -> Floats:
        """One uniform draw per sample, for a randomised score.

        Samples without given rows have draws made of their content, the same in calibration and
        prediction. The score is then a function of the sample, so samples stay exchangeable where
        inputs repeat, as those of a tree do.
        """
        stream = stream if outputs.has_given_rows else Stream.PREDICTION_SCORE
        return row_uniforms(state.seed, stream, outputs.draw_keys)

    def _prepare(self, outputs: ModelOutputs, *, with_labels: bool = False) -> ModelOutputs:
        """New samples with the class names of the calibration, and with trust.

        Raises if the samples cannot be of the same classifier, as far as shapes and names tell.
        """
        state = self._state()
        require_outputs(outputs, "outputs")
        if outputs.classes.size != state.classes.size:
            raise InputError(
                f"outputs have {outputs.n_classes} classes, but calibration had "
                f"{state.classes.size}."
            )
        features, width = outputs.features, state.n_features
        if features is not None and width not in (None, features.shape[1]):
            raise InputError(
                f"outputs have features of dimension {features.shape[1]}, but calibration had "
                f"{width}."
            )
        if not np.array_equal(outputs.classes, state.classes):
            if not np.array_equal(outputs.classes, np.arange(outputs.n_classes)):
                raise InputError(
                    "outputs name other classes, or the same in another order, than calibration "
                    "did."
                )
            if with_labels and state.classes.dtype.kind in "iu":
                raise InputError(
                    "labels may be names of classes or positions of columns, as the names are "
                    "integers and outputs have none; pass "
                    "ModelOutputs(..., classes=predictor.classes_)."
                )
            # The trust score knows classes by name.
            outputs = outputs.replace(classes=state.classes)
        return outputs.with_trust(self.trust)

    def _score(self, outputs: ModelOutputs) -> tuple[ModelOutputs, Floats]:
        """Prepared samples with class biases, and the scores of all classes, shape (m, K)."""
        state, draws = self.state_, None
        recalibrated = state.recalibrated(outputs)
        if state.score.randomized:
            draws = self._draw(recalibrated, state, Stream.PREDICTION_SCORE)
        matrix = state.score.matrix(recalibrated, temperature=state.temperature, draws=draws)
        return recalibrated, matrix

    def _sets(
        self, recalibrated: ModelOutputs, scores: Floats, thresholds: Thresholds, alpha: Any
    ) -> PredictionSets:
        return PredictionSets.from_scores(
            scores,
            thresholds,
            alpha,
            classes=self.state_.classes,
            predicted=recalibrated.predicted_codes,
            allow_empty=self.allow_empty,
            flavour=recalibrated.flavour,
        )

    def _grid_p_values(self, outputs: ModelOutputs, scores: Floats, grid: Alphas) -> Floats:
        """P-values of all classes, shape (m, K), from sets at increasing alphas."""
        if not grid:
            usual = default_alphas()
            grid = tuple(usual[usual >= min(self.smallest_alpha, usual[-1])].tolist())
        thresholds = self._thresholds(outputs, scores, grid).values
        counts = np.zeros(scores.shape, np.min_scalar_type(len(grid)))
        for number in range(len(grid)):
            limits = thresholds[..., number]
            counts += scores <= (limits[:, None] if limits.ndim == 1 else limits)
        return np.append(grid, 1.0)[counts]

    def _one_sample(
        self, sample: ModelOutputs, alpha: Any, label: Any
    ) -> tuple[ModelOutputs, float, int | None]:
        """Check the arguments of `explain` and `certificate`; the label becomes a column."""
        sample = self._prepare(require_outputs(sample, "sample"))
        if len(sample) != 1:
            raise InputError(f"sample must be one sample, such as test[0]; got {len(sample)}.")
        code = None
        if label is not None:
            names = self.classes_.tolist()
            label = label.item() if isinstance(label, np.generic) else label
            if isinstance(label, np.ndarray) or label not in names:
                raise InputError(f"label must be one of the classes; got {label!r:.60}.")
            code = names.index(label)
        elif self.has_class_thresholds:
            raise InputError(
                "label must name a class, because each class has a threshold of its own; pass "
                "label=."
            )
        return sample, check_alpha(alpha), code


def load(path: str | os.PathLike[str]) -> Any:
    """Read a predictor that was written by its `save`.

    A truncated, altered or foreign file gives a `StorageError`; nothing in a file is executed.
    """
    # Storage knows classes once their modules are imported.
    import trustsets.shift
    import trustsets.trust  # noqa: F401

    value = storage.read(path)
    if not isinstance(value, Predictor) or not hasattr(value, "state_"):
        kind = type(value).__name__
        raise StorageError(f"{path}: it holds a {kind}, not a predictor that is calibrated.")
    _log.info("%s: loaded a %s", path, type(value).__name__)
    return value


def _resolve_temperature(
    value: float | TemperatureScaling | str | None, tuning: ModelOutputs
) -> float:
    """The number to divide logits by, from any of the accepted forms."""
    if value is None:
        return 1.0
    if isinstance(value, TemperatureScaling) and hasattr(value, "temperature_"):
        return value.temperature_
    if isinstance(value, str) and value == "tuning":
        return TemperatureScaling().fit(tuning).temperature_
    if not isinstance(value, int | float | np.number):
        raise InputError(
            'temperature must be None, a number, a fitted TemperatureScaling or "tuning"; got '
            f"{value!r}."
        )
    check_arguments(Temperature, temperature=value)
    return float(value)


@one_blas_thread
def _resolve_class_bias(value: ClassBias | str | None, tuning: ModelOutputs) -> ClassBias | None:
    """The fitted class biases, or None where nothing is to be added."""
    if value is None or (isinstance(value, ClassBias) and value.is_fitted):
        return copy(value)  # its owner may fit it again
    if isinstance(value, ClassBias) or (isinstance(value, str) and value == "tuning"):
        return ClassBias(prevalence=getattr(value, "prevalence", 0.0)).fit(tuning)
    raise InputError(f'class_bias must be None, "tuning" or a ClassBias; got {value!r}.')


def _joined(parts: list[Thresholds]) -> Thresholds:
    """Thresholds of samples that follow each other."""
    return Thresholds(
        np.concatenate([part.values for part in parts]),
        np.concatenate([part.status for part in parts]),
    )


def _nested_alphas(alpha: Any) -> tuple[tuple[float, ...], bool]:
    """The alphas, and whether a single one was given."""
    if type(alpha) is float and 0.0 < alpha <= _LARGEST_USUAL_ALPHA:
        return (alpha,), True
    if isinstance(alpha, np.ndarray) and alpha.ndim:
        raise InputError(
            "alpha must be a number, or a list of numbers for nested sets; one alpha for each "
            "sample goes to sample_alphas=."
        )
    alphas, is_single = check_alphas(alpha)
    if is_single and alphas[0] > _LARGEST_USUAL_ALPHA:
        warnings.warn(
            f"alpha is the miscoverage: alpha={alphas[0]:g} asks for a coverage of "
            f"{1.0 - alphas[0]:.4g}. Was alpha={1.0 - alphas[0]:.4g} meant?",
            TrustSetsWarning,
            stacklevel=3,
        )
    return alphas, is_single


def _alphas_of_samples(alphas: Any, name: str, n: int) -> Floats:
    """One number strictly between 0 and 1 for each of n samples."""
    values = column(alphas, name, n)
    if values.dtype.kind != "f":
        raise InputError(f"{name} must hold numbers between 0 and 1; got type {values.dtype}.")
    # A float32 0.1 prints as 0.1: that decimal is meant, not the nearest float32.
    values = (values if values.dtype == np.float64 else values.astype(str)).astype(np.float64)
    wrong = ~((values > 0.0) & (values < 1.0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{name} must lie strictly between 0 and 1; sample {row} has {values[row]}."
        )
    return values


def rounded_down(alphas: Floats) -> Floats:
    """Alphas with three digits, so that there are not too many of them.

    >>> rounded_down(np.array([0.29, 0.12345, 0.019999, 0.21999999999999997]))
    array([0.29  , 0.123 , 0.0199, 0.22  ])
    """
    distinct, inverse = np.unique(alphas, return_inverse=True)
    # In decimals, because 0.29 is less than 29 hundredths in binary. The first rounding, to 12
    # digits, makes 0.22 of 0.21999999999999997, which sums and grids often give.
    cut = [float(_ROUNDING.create_decimal(f"{alpha:.12g}")) for alpha in distinct.tolist()]
    return np.array(cut)[inverse]


def _positions(rows: Any, n: int) -> Codes:
    """Sample numbers from integers, booleans or a slice."""
    if isinstance(rows, slice):
        index = np.arange(n)[rows]
    else:
        index = np.atleast_1d(to_numpy(rows, "rows"))
    if index.dtype == bool and index.shape == (n,):
        index = np.flatnonzero(index)
    if index.size == 0:
        return np.zeros(0, np.int64)
    if index.ndim == 1 and index.dtype.kind in "iu" and not ((index < -n) | (index >= n)).any():
        positions: Codes = index.astype(np.int64) % n  # n may not fit the type that came
        if np.unique(positions).size == positions.size:
            return positions
    raise InputError(
        f"rows must be different positions of calibration samples, from 0 to {n - 1} in the "
        f"order of calibration_rows_, or booleans for all {n}; got {rows!r:.60}."
    )
