"""CONDITIONAL: coverage over a whole class of functions.

The method of Gibbs, Cherian and Candès (2023) with the function classes of Kaur, Jordan
and Alaa (2025); the thresholds themselves come from `trustsets.engine`.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Floats
from trustsets._common.draws import Stream, row_uniforms
from trustsets._common.storage import storable
from trustsets.basis import Basis, BasisChoice, Classes, Polynomial, Sum
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.predictors.base import Predictor
from trustsets.predictors.calibrated import Calibrated, Learned, Scoring, Task
from trustsets.predictors.conditional_fit import TIE_SPREAD, ConditionalLearned
from trustsets.predictors.leave_one_out import relearn
from trustsets.predictors.making_sets import each_alpha, rounded_down
from trustsets.predictors.max_size import OwnAlphas, reaches
from trustsets.predictors.thresholds import SampleThresholds, SizedThresholds, side_by_side
from trustsets.predictors.tuning import Method
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, Score
from trustsets.statistics import SupportsTrust
from trustsets.status import Status

__all__ = ["ConditionalConformal", "tuned_by", "weight_draws"]

# Tuning samples that ``tuning_fraction="auto"`` takes: enough to place ranks and to compare
# function classes, and some of each class for its bias; the rest is worth more in calibration.
_TUNING_SAMPLES = 200
_TUNING_PER_CLASS = 20
_LARGEST_TUNING_SHARE = 0.2
# How strongly rare classes are raised: of the values measured, the smallest that halved the
# under-coverage by class on skin lesions; with 1, sets were 11% larger.
_PREVALENCE = 0.75
# The random weight of the new sample must lie strictly inside (-alpha, 1 - alpha).
_SMALLEST_DRAW = 2.0**-40


@final
@storable
@dataclass(eq=False, repr=False)
class ConditionalConformal(Predictor):
    """Sets whose coverage holds over every function of a class, not only on average.

    With basis phi, calibration scores s_i and pinball loss l, the threshold of a new x is
    ``S*(x) = sup {s : s <= g_s(x)}``, where g_s minimises ``sum_i l(s_i - g(x_i)) +
    l(s - g(x))`` over g = phi' beta. Then E[f(X) (covered - (1 - alpha))] >= 0 for every
    non-negative f = phi' beta: with indicators in the basis, coverage within each group;
    with polynomials of confidence and trust, coverage that does not drift with them.

    Of all settings measured, the defaults gave the most even coverage with the smallest sets;
    ``docs/defaults.md`` says what each of them does.

    Parameters
    ----------
    score : Score
        Default ``APS(scale="tail")``; see `Score` for the scale. ``Softmax(scale="tail")``
        gives smaller sets whose coverage falls off faster with the rank of the label.
    basis : Basis or "auto"
        Function class. ``"auto"`` (default): polynomials in the ranks of Conf and, with a
        trust score, Trust, whose curvature is penalised; degree and penalty are chosen by
        held-out loss within the tuning part. Indicators of all groups that the outputs
        carry are added, and thresholds are limited as `Groups` describes, so that groups with
        few or no calibration samples have finite ones. `choice_` and `summary` say what was
        chosen and why.
    trust : TrustScore, optional
        Fitted trust score; needed where the basis depends on Trust.
    temperature, allow_empty, random_state
        As in `StandardConformal`. Rank transforms, bin edges and principal components are
        learned from the tuning part.
    class_bias : "auto", "tuning", ClassBias or None
        Constants added to the logits of the classes before scores are computed, for
        classifiers trained on other shares of the classes than they meet. ``"tuning"``, or a
        `ClassBias` that is not fitted, such as ``ClassBias(prevalence=1.0)``, learns them from
        the tuning part, where they may turn out to be zero; ``"auto"`` (default) does so with
        ``basis="auto"`` and adds nothing to a basis of your own.
        Conf and Trust stay those of the outputs as given.
    randomized : bool
        Draw the weight of the new sample at random (Theorem 2 of the paper), and break ties
        among scores by draws too small to matter otherwise. With ``allow_empty=True`` and one
        alpha at a time, coverage over the function class is then exactly 1 - alpha, with ties
        or without. Without `allow_empty` it is at least that: the most likely class is kept,
        and a classifier that is right for 98% of samples covers at least 98%. Thresholds of
        groups are not limited then.
    per_class : bool or "auto"
        True adds `Classes()` to the basis: coverage is then at least 1 - alpha given each class
        too, every class has thresholds of its own, and a class with too few calibration samples
        for that is in every set. ``Classes(penalty=...)`` in a basis of your own asks for less,
        at smaller sets. ``"auto"`` (default) raises rare classes by class biases of prevalence
        0.75 where `class_bias` is ``"auto"``, too: their coverage is then much nearer to that of
        the others, without a promise. False treats all classes alike. With functions of the
        label, the thresholds of the sets have shape (m, K). Where no score lies between the fitted
        value and the exact threshold, a number just below the fitted value stands for it: the set
        is the same.
    tuning_fraction : float or "auto"
        As in `StandardConformal`; ``"auto"`` (default) takes 200 samples, or 20 a class if
        that is more, but never more than a fifth.

    Examples
    --------
    >>> from trustsets import Confidence, ModelOutputs, Polynomial
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 5))
    >>> labels = (logits + rng.gumbel(size=(2000, 5))).argmax(axis=1)
    >>> calibration, test = ModelOutputs(logits=logits, labels=labels).split(0.5)
    >>> predictor = ConditionalConformal(basis=Polynomial(degree=2, of=(Confidence(),)))
    >>> predictor.calibrate(calibration).predict_set(test, alpha=0.1)
    PredictionSets(1000 samples, 5 classes, alpha=0.1, mean size 3.37)
    """

    score: Score = APS(scale="tail")
    basis: Basis | str = "auto"
    trust: SupportsTrust | None = None
    _: KW_ONLY
    temperature: float | TemperatureScaling | str | None = None
    class_bias: ClassBias | str | None = "auto"
    randomized: bool = False
    allow_empty: bool = False
    tuning_fraction: float | str = "auto"
    random_state: Any = 0
    per_class: bool | str = "auto"

    @classmethod
    def paper(cls, trust: SupportsTrust | None = None, **changes: Any) -> Self:
        """Return the paper's own setting.

        APS without the own mass, raw powers up to degree 5 of Conf (of the unscaled
        softmax) and Trust, a temperature fitted on the calibration samples themselves (so
        `calibrate` warns), and sets that may be empty. The authors' numbers also need
        their trust score, ``TrustScore(neighbour=2, squared=True)``.

        Parameters
        ----------
        trust : TrustScore
            Fitted trust score.
        **changes
            Any parameters of the constructor that should differ.
        """
        setting: dict[str, Any] = {
            "score": APS(),
            "basis": Polynomial(degree=5),
            "temperature": "tuning",
            "class_bias": None,
            "tuning_fraction": 0.0,
            "allow_empty": True,
        }
        return cls(trust=trust, **(setting | changes))

    @property
    def choice_(self) -> BasisChoice | None:
        """What ``basis="auto"`` compared and chose; None for a given basis."""
        choice: BasisChoice | None = self._state().learned.choice
        return choice

    @property
    def _tie_spread(self) -> float:
        return TIE_SPREAD if self.randomized else 0.0

    def _method(self) -> Method:
        if self.per_class not in (True, False, "auto"):
            raise InputError(f'per_class must be True, False or "auto"; got {self.per_class!r}.')
        bias = self.class_bias
        if isinstance(bias, str) and bias == "auto":
            prevalence = 0.0 if self.per_class is False else _PREVALENCE
            bias = ClassBias(prevalence=prevalence) if isinstance(self.basis, str) else None
        if self.per_class is True and self.randomized:
            raise InputError("per_class=True needs randomized=False.")
        return Method(
            tuned_by(self.basis),
            bias,
            _auto_fraction,
            covers_each_class=self._covers_each_class,
            own_alphas=self._own_thresholds,
            sized=self._sized_thresholds,
        )

    @property
    def _covers_each_class(self) -> bool:
        parts = self.basis.parts if isinstance(self.basis, Sum) else (self.basis,)
        return self.per_class is True or Classes() in parts

    @property
    def _classes(self) -> Classes | None:
        """The functions of the label that `per_class` adds."""
        return Classes() if self.per_class is True else None

    def _learn(self, task: Task) -> ConditionalLearned:
        own = self.basis, task, self._tie_spread, self._classes
        return ConditionalLearned.of(*own, with_ranks=True)

    def _could_learn(self, learned: Learned) -> bool:
        if not isinstance(learned, ConditionalLearned):
            return False
        return learned.could_come_from(self.basis, self._tie_spread, self._classes)

    def _thresholds(
        self,
        learned: ConditionalLearned,
        outputs: ModelOutputs,
        alphas: tuple[float, ...],
        scoring: Scoring,
    ) -> SampleThresholds:
        if learned.basis.uses_label:
            return self._candidate_thresholds(learned, outputs, alphas, scoring)
        phi = learned.basis.design(outputs)
        if not self.randomized:
            return side_by_side(learned.thresholds(phi, alphas), alphas)
        draws, ties = self._draws(learned, outputs, scoring)
        # Thresholds are not limited: limited ones would cover more than exactly 1 - alpha.
        fits = (own[0] for own in learned.fits_along(alphas))
        found = [fit.thresholds(phi, weight=draws - fit.alpha) for fit in fits]
        return side_by_side([(own.values - ties, own.status) for own in found], alphas)

    def _thresholds_without(
        self, learned: ConditionalLearned, task: Task, alphas: tuple[float, ...]
    ) -> SampleThresholds:
        if learned.basis.uses_label:
            return self._relearned(learned, task, alphas)
        order = np.lexsort((*learned.basis.design(task.calibration).T, learned.used_scores(task)))
        outputs, seed = task.calibration, task.seed
        draws = weight_draws(outputs, seed)[order] if self.randomized else None
        found = side_by_side(learned.thresholds_without(alphas, draws), alphas)
        values, status = np.empty_like(found.values), np.empty_like(found.status)
        values[order], status[order] = found.values, found.status
        if self.randomized:
            ties = row_uniforms(seed, Stream.PREDICTION_TIES, outputs.draw_keys)
            values -= learned.tie_spread * ties[:, None]
        return SampleThresholds(values, status)

    def _relearned(
        self, learned: ConditionalLearned, task: Task, alphas: tuple[float, ...]
    ) -> SampleThresholds:
        """Thresholds without each sample by a fit for each; the chosen basis stays."""
        scoring, classes = self._state().scoring(self.score), self._classes
        basis = self.basis if learned.choice is None else learned.choice.basis

        def thresholds(rest: Task, sample: ModelOutputs) -> SampleThresholds:
            own = ConditionalLearned.of(basis, rest, self._tie_spread, classes)
            return self._thresholds(own, sample, alphas, scoring)

        return relearn(task, thresholds)

    def _draws(
        self, learned: ConditionalLearned, outputs: ModelOutputs, scoring: Scoring
    ) -> tuple[Floats, Floats]:
        """Draws for the weights, and what is subtracted from the thresholds to break ties."""
        draws, keys = weight_draws(outputs, scoring.seed), outputs.draw_keys
        # s + draw <= threshold, as in calibration, with the draw on the other side.
        return draws, learned.tie_spread * row_uniforms(scoring.seed, Stream.PREDICTION_TIES, keys)

    def _own_thresholds(
        self, learned: ConditionalLearned, outputs: ModelOutputs, alphas: Floats, scoring: Scoring
    ) -> SampleThresholds:
        """Thresholds where every sample has an alpha of its own."""
        if learned.alphas is None:
            rounded = rounded_down(alphas)
            learned.prepare_along(tuple(np.unique(rounded).tolist()))
            return each_alpha(
                lambda part, alpha: self._thresholds(learned, part, (alpha,), scoring),
                outputs,
                rounded,
            )
        problem = OwnAlphas("alphas", learned.scores, learned.alphas, alphas)
        if learned.basis.uses_label:
            self._refuse_random_labels()
            found = learned.own_candidate_thresholds(problem, learned.candidates(outputs))
            return _one_column(*found)
        return self._solve(learned, problem, outputs, scoring)

    def _sized_thresholds(
        self,
        learned: ConditionalLearned,
        outputs: ModelOutputs,
        alpha: float,
        size: int,
        scoring: Scoring,
    ) -> SizedThresholds:
        """Thresholds of sets of at most `size` classes, and what these promise."""
        if learned.basis.uses_label:
            raise InputError(
                "max_size needs basis functions of the sample alone; leave out those of the label "
                "(per_class=False, no Classes() in the basis)."
            )
        if learned.ranks is None:
            raise InputError(
                "max_size needs tuning samples of their own, to learn what sets of so few classes "
                "can promise, and this predictor has none (or was saved by an earlier version); "
                "calibrate again with tuning=."
            )
        phi = learned.basis.design(outputs)
        problem = learned.ranks.problem((learned.phi, learned.scores), phi, alpha, size)
        found = self._solve(learned, problem, outputs, scoring)
        lost = reaches(found.values[:, 0], learned.ranks.beyond)
        status = np.where(lost[:, None], np.int8(Status.NO_PROMISE), found.status)
        return SizedThresholds(
            SampleThresholds(found.values, status), np.where(lost, 1.0, problem.alphas)
        )

    def _solve(
        self,
        learned: ConditionalLearned,
        problem: OwnAlphas,
        outputs: ModelOutputs,
        scoring: Scoring,
    ) -> SampleThresholds:
        """Thresholds of a problem with alphas of its own, without functions of the label."""
        phi = learned.basis.design(outputs)
        if not self.randomized:
            return _one_column(*learned.own_thresholds(problem, phi))
        draws, ties = self._draws(learned, outputs, scoring)
        values, status = learned.own_thresholds(problem, phi, draws - problem.alphas)
        return _one_column(values - ties, status)

    def _candidate_thresholds(
        self,
        learned: ConditionalLearned,
        outputs: ModelOutputs,
        alphas: tuple[float, ...],
        scoring: Scoring,
    ) -> SampleThresholds:
        """Thresholds of every class, where the basis functions depend on the label."""
        self._refuse_random_labels()
        candidates = learned.candidates(outputs)
        scores = scoring.matrix(outputs)
        found = learned.candidate_thresholds(candidates, scores, alphas)
        return side_by_side(found, alphas)

    def _refuse_random_labels(self) -> None:
        if self.randomized:
            raise InputError(
                "randomized=True needs basis functions of the sample alone; leave out those of the "
                "label, or set randomized=False."
            )

    def _guarantee(self, state: Calibrated) -> str:
        learned: Any = state.learned
        exact = "equals" if learned.tie_spread and self.allow_empty else "is at least"
        text = (
            f"for every non-negative {learned.basis.description}, the coverage of the sets "
            f"weighted by it {exact} 1 - alpha ({learned.phi.shape[1]} basis functions)."
        )
        if learned.penalty.size:
            largest = np.abs(learned.penalty).max() / (len(learned.phi) + 1)
            text += (
                " Coverage weighted by a penalised function can differ from 1 - alpha by at most "
                f"{largest:.3g} times the sum of the absolute values of its penalised coefficients."
            )
        if learned.group_penalty is not None and not self.randomized:
            text += (
                " The coverage of a group with m expected calibration samples can be lower than "
                f"1 - alpha by at most {np.abs(learned.group_penalty).max():.3g} / m."
            )
        return text if learned.choice is None else f"{text}\n{learned.choice.sentence}"


def tuned_by(basis: Basis | str) -> tuple[str, ...]:
    """What is learned from tuning samples for a basis, in words; refuse what is no basis."""
    if basis != "auto" and not isinstance(basis, Basis):
        raise InputError(
            f'basis must be "auto" or a function class such as Polynomial(); got {basis!r}.'
        )
    return ("the function class",) if isinstance(basis, str) or basis.learns else ()


def _one_column(values: Floats, status: NDArray[np.int8]) -> SampleThresholds:
    return SampleThresholds(values[..., None], status[:, None])


def weight_draws(outputs: ModelOutputs, seed: int) -> Floats:
    """Draws u in (0, 1), shape (m,); the random weight of a new sample is u - alpha."""
    draws = row_uniforms(seed, Stream.PREDICTION_LEVEL, outputs.draw_keys)
    return np.clip(draws, _SMALLEST_DRAW, 1.0 - _SMALLEST_DRAW)


def _auto_fraction(outputs: ModelOutputs) -> float:
    wanted = max(_TUNING_SAMPLES, _TUNING_PER_CLASS * outputs.n_classes)
    return min(_LARGEST_TUNING_SHARE, wanted / len(outputs))
