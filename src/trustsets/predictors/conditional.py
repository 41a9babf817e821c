"""CONDITIONAL: coverage over a whole class of functions.

The method of Gibbs, Cherian and Candès (2023) with the function classes of Kaur, Jordan
and Alaa (2025); the thresholds themselves come from `trustsets.engine`.
"""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._arrays import Codes, Floats, read_only
from trustsets._draws import Stream, row_uniforms
from trustsets._parameters import Alphas, check_arguments
from trustsets.basis import Basis, Classes, FittedBasis, Polynomial
from trustsets.errors import InputError
from trustsets.learned import FEWEST_TO_LEARN, BasisChoice, choose_basis
from trustsets.outputs import ModelOutputs, SupportsTrust
from trustsets.predictors.predictor import Calibration, Predictor, rounded_down
from trustsets.predictors.quantiles import (
    CalibrationProblem,
    CandidateRows,
    QuantileFit,
    candidate_rows,
    candidate_thresholds,
    limited,
    nested_thresholds,
    worst_status,
)
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, Score, Softmax, label_positions
from trustsets.sets import PredictionSets
from trustsets.status import Status, Thresholds
from trustsets.storage import require, require_numbers, storable

# Tuning samples of ``tuning_fraction="auto"``: enough to estimate ranks, to compare function
# classes, and some of each class for its bias. Where a fifth of the samples is enough to learn
# functions from their scores, it takes that fifth, up to a number beyond which more is worth less
# than in calibration.
_TUNING_SAMPLES = 200
_TUNING_PER_CLASS = 20
_LARGEST_TUNING_SHARE = 0.2
_MOST_TO_LEARN_FROM = 5000
# From so many classes on, thresholds of the probability itself give sets that are smaller by 2% to
# 24% at the same conditional coverage; with fewer the two scores do not differ.
_MANY_CLASSES = 20
# How strongly rare classes are up-weighted: of the values measured, the smallest that halved the
# under-coverage by class on skin lesions; with 1, sets were 12% larger.
_PREVALENCE = 0.75
# The random weight of the new sample must lie strictly inside (-alpha, 1 - alpha).
_SMALLEST_DRAW = 2.0**-40
# Randomised thresholds are exact for scores without ties. Adding a uniform draw times this number
# to the score of every sample leaves none; it changes no score by more than rounding to 5 digits.
_TIE_SPREAD = 1e-5
# Thresholds after a division by the weight of a class, or of a sample, err upwards by so much.
_RAISED = 1.0 + 2.0**-50
_RAISED_MORE = 1.0 + 2.0**-40


@final
@storable
@dataclass(frozen=True, eq=False)
class FittedFunctions:
    """The fitted function class, and its values at the calibration samples."""

    basis: FittedBasis
    phi: Floats  # (n, p)
    penalty: Floats  # (q, p): rows w of the penalties ``|w' beta|``.
    group_penalty: Floats | None  # Those of the fits that limit the thresholds of groups.
    choice: BasisChoice | None
    size_limits: "SizeLimits | None"
    # Alpha, multiple of the group penalty and basic points of fits that were made before saving.
    starts: tuple[tuple[float, float, Codes], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "phi", read_only(self.phi))

    def check_belongs(self, state: Calibration) -> None:
        """Refuse arrays of other shapes, for `storage`."""
        require_numbers(self.phi, "FittedFunctions.phi", len(state), None)
        width = self.phi.shape[1]
        for rows in (self.penalty, self.group_penalty):
            if rows is not None:
                require(rows.ndim == 2, "FittedFunctions.penalty", "must have two dimensions")
                require_numbers(rows, "FittedFunctions.penalty", len(rows), width)
        if self.size_limits is not None:
            self.size_limits.check_belongs(len(state), width)
        for _, _, basic in self.starts:
            # Whether the points are optimal is found out, and proven, by the fit.
            fits = basic.ndim == 1 and basic.dtype.kind == "i" and basic.size <= width
            require(fits, "FittedFunctions.starts", "must be basic points")

    def take(self, index: Codes) -> Self:
        """The same with some of the samples."""
        limits = self.size_limits
        if limits is not None:
            limits = replace(limits, label_ranks=limits.label_ranks[index])
        _check_enough(len(index), self.phi.shape[1])
        return replace(self, phi=self.phi[index], size_limits=limits, starts=())

    def extended(self, outputs: ModelOutputs, state: Calibration) -> Self:
        """The same with more samples."""
        unseen = self.basis.unseen_groups(outputs)
        if unseen.any():
            raise InputError(
                f"sample {int(np.argmax(unseen))} is of a group that calibration lacks; call "
                "calibrate with all samples."
            )
        limits = self.size_limits
        if limits is not None:
            ranks = label_positions(state.recalibrated(outputs), state.temperature)
            limits = replace(limits, label_ranks=np.concatenate([limits.label_ranks, ranks]))
        phi = np.vstack([self.phi, self.basis.design(outputs)])
        return replace(self, phi=phi, size_limits=limits, starts=())


@final
@storable
@dataclass(eq=False, repr=False)
class ConditionalConformal(Predictor):
    """Sets whose coverage holds over every function of a class, not only marginally.

    With basis phi, calibration scores s_i and pinball loss l, the threshold of a new x is
    ``S*(x) = sup {s : s <= g_s(x)}``, where g_s minimises ``sum_i l(s_i - g(x_i)) +
    l(s - g(x))`` over g = phi' beta. Then E[f(X) (covered - (1 - alpha))] >= 0 for every
    non-negative f = phi' beta: with indicators in the basis, coverage within each group; with
    polynomials of confidence and trust, or components of the embedding, coverage that does not
    drift with them. Coverage conditional on the input is not guaranteed, and cannot be without
    assumptions.

    Parameters
    ----------
    score : Score or "auto"
        ``"auto"`` (default) is ``Softmax(scale="tail", floor=0.01)`` from 20 classes on, which
        gives smaller sets, and ``APS(scale="tail")`` with fewer; see `Score` for the scale, and
        `score_` for the one in use.
    basis : Basis or "auto"
        Function class. ``"auto"`` (default): polynomials in the ranks of Conf and, with a
        trust score, Trust, whose curvature is penalised; where the outputs have features, also
        linear functions of their leading principal components, penalised too, and, from 500
        tuning samples on, a quantile of the score that is learned from them (`Learned`). Held-out
        pinball loss within the tuning samples decides about degree, penalty and the learned
        function, and whether constants or cells of Conf x Trust do better. Indicators of all groups
        that the outputs carry are added, limited as `Groups` describes. `choice_` and `summary` say
        what was compared, what was chosen and why.
    trust : TrustScore, optional
        Fitted trust score; needed where the basis depends on Trust.
    temperature, allow_empty, random_state
        As in `StandardConformal`.
    class_bias : "auto", "tuning", ClassBias or None
        As in `StandardConformal`. ``"auto"`` (default) is ``ClassBias(prevalence=0.75)`` with
        ``basis="auto"``, which up-weights rare classes, without a guarantee for them, and None
        with a basis of your own. Conf and Trust stay those of the outputs as given.
    randomized : bool
        Draw the weight of the new sample at random (Theorem 2 of the paper), and break ties
        among scores by draws too small to matter otherwise. With ``allow_empty=True`` and one
        alpha at a time, coverage over the function class is then exactly 1 - alpha; without, it is
        at least that, because the most likely class is kept. Thresholds of groups are not limited.
    per_class : bool
        True adds `Classes()` to the basis: coverage is then at least 1 - alpha given each class
        too, every class has thresholds of its own, of shape (m, K), and a class with too few
        calibration samples for that is in every set. ``Classes(penalty=...)`` in a basis of your
        own asks for less, at smaller sets. Where no score lies between the fitted value and the
        exact threshold, a number just below the fitted value stands for it.
    tuning_fraction : float or "auto"
        As in `StandardConformal`; ``"auto"`` (default) takes 200 samples, or 20 per class if
        that is more, but never more than a fifth. With ``basis="auto"`` and features, it takes a
        fifth of 2,500 to 25,000 samples, and 5,000 of more.

    References
    ----------
    I. Gibbs, J. Cherian and E. Candès. Conformal prediction with conditional guarantees. 2023.

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

    _: KW_ONLY
    score: Score | str = "auto"
    basis: Basis | str = "auto"
    trust: SupportsTrust | None = None
    temperature: float | TemperatureScaling | str | None = None
    class_bias: ClassBias | str | None = "auto"
    randomized: bool = False
    allow_empty: bool = False
    tuning_fraction: float | str = "auto"
    random_state: Any = 0
    per_class: bool = False

    _takes_alphas = True

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Return the paper's own setting.

        APS without the label's own probability, powers up to degree 5 of Conf (of the unscaled
        softmax) and Trust, a temperature fitted on the calibration samples themselves (so
        `calibrate` warns), and sets that may be empty. `changes` are parameters that should differ,
        such as the authors' ``trust=TrustScore(neighbour=2, squared=True)``.
        """
        setting: dict[str, Any] = {
            "score": APS(),
            "basis": Polynomial(degree=5),
            "temperature": "tuning",
            "class_bias": None,
            "tuning_fraction": 0.0,
            "allow_empty": True,
        }
        return cls(**(setting | changes))

    @property
    def choice_(self) -> BasisChoice | None:
        """What ``basis="auto"`` compared and chose; None for a given basis."""
        return self._functions.choice

    @property
    def conditions_on(self) -> FittedBasis:
        """The function class."""
        return self._functions.basis

    @property
    def _functions(self) -> FittedFunctions:
        fitted: FittedFunctions = self._state().fitted
        return fitted

    @property
    def is_class_conditional(self) -> bool:
        """Whether an indicator of each class is in the function class, without a penalty."""
        basis = self.basis
        return self.per_class or (isinstance(basis, Basis) and Classes() in basis.summands)

    @property
    def smallest_alpha(self) -> float:
        """With fewer samples than this leaves, thresholds are mostly infinite, and slow."""
        n, width = self._functions.phi.shape
        # Coefficients with a penalty stay at zero where samples are too few for them.
        return float(max(1, width - len(self._functions.penalty)) / n)

    def _check_parameters(self) -> None:
        is_auto = isinstance(self.basis, str) and self.basis == "auto"
        if not is_auto and not isinstance(self.basis, Basis):
            rule = 'basis must be "auto" or a function class such as Polynomial()'
            raise InputError(f"{rule}; got {self.basis!r}.")
        check_arguments(bool, per_class=self.per_class, randomized=self.randomized)
        if self.per_class and self.randomized:
            raise InputError("per_class=True needs randomized=False.")

    def _tuned(self) -> tuple[str, ...]:
        learns = isinstance(self.basis, str) or self.basis.learns
        return ("the function class",) if learns else ()

    def _default_fraction(self, outputs: ModelOutputs) -> float:
        n = len(outputs)
        wanted = max(_TUNING_SAMPLES, _TUNING_PER_CLASS * outputs.n_classes)
        learns = isinstance(self.basis, str) and outputs.features is not None
        if learns and _LARGEST_TUNING_SHARE * n >= FEWEST_TO_LEARN:
            wanted = max(wanted, _MOST_TO_LEARN_FROM)
        return min(_LARGEST_TUNING_SHARE, wanted / n)

    def _default_score(self, n_classes: int) -> Score:
        if isinstance(self.score, str) and self.score == "auto":
            many = n_classes >= _MANY_CLASSES
            return Softmax(scale="tail", floor=0.01) if many else APS(scale="tail")
        return super()._default_score(n_classes)

    def _default_class_bias(self) -> ClassBias | str | None:
        if isinstance(self.class_bias, str) and self.class_bias == "auto":
            return ClassBias(prevalence=_PREVALENCE) if isinstance(self.basis, str) else None
        return self.class_bias

    def _fit(
        self, state: Calibration, calibration: ModelOutputs, tuning: ModelOutputs
    ) -> FittedFunctions:
        choice, basis = None, self.basis
        scores = state.scores
        if tuning is not calibration:
            scores = self._label_scores(tuning, state, Stream.TUNING_SCORE)
        training = getattr(self.trust, "training_features_", None)
        if isinstance(basis, str):
            choice = choose_basis(tuning, scores, training)
            basis = choice.basis
        if self.per_class:
            basis = basis + Classes()
        fitted = basis.fit_parts(calibration, tuning, scores=scores, training=training)
        phi = fitted.design(calibration)
        _check_enough(*phi.shape)
        group_penalty = fitted.bounding_rows(calibration)
        limits = None
        if tuning is not calibration and not fitted.uses_label:
            # Tuning samples of groups that no calibration sample has tell nothing.
            seen = ~fitted.unseen_groups(tuning)
            if seen.any():
                limits = SizeLimits.fit(
                    label_positions(state.recalibrated(calibration), state.temperature),
                    label_positions(state.recalibrated(tuning), state.temperature)[seen],
                    fitted.design(tuning)[seen],
                    scores,
                )
        return FittedFunctions(
            basis=fitted,
            phi=phi,
            penalty=fitted.penalty_rows(calibration),
            group_penalty=group_penalty if len(group_penalty) else None,
            choice=choice,
            size_limits=limits,
        )

    @property
    def _problem(self) -> CalibrationProblem:
        """The calibration problem with all fits made so far."""
        return self._cached(f"problem, randomized={self.randomized}", self._make_problem)

    def _make_problem(self) -> CalibrationProblem:
        state, fitted = self._state(), self._functions
        if self.randomized and fitted.basis.uses_label:
            raise InputError(
                "randomized=True needs basis functions of the sample alone; leave out those of the "
                "label, or set randomized=False."
            )
        limits = fitted.size_limits
        ties = (None if limits is None else limits.label_ranks, state.alphas)
        return CalibrationProblem(
            fitted.phi,
            self._untied(state),
            fitted.penalty,
            fitted.group_penalty,
            ties=tuple(column for column in ties if column is not None),
            uses_label=fitted.basis.uses_label,
            starts=fitted.starts,
        )

    def _untied(self, state: Calibration) -> Floats:
        """Scores of the calibration samples, with ties broken by small draws where asked for."""
        if not self.randomized:
            return state.scores
        draws = row_uniforms(state.seed, Stream.CALIBRATION_TIES, state.rows)
        return state.scores + _TIE_SPREAD * draws

    def _fitted_to_store(self) -> FittedFunctions:
        return replace(self._functions, starts=self._problem.all_starts())

    def _thresholds(self, outputs: ModelOutputs, scores: Floats, alphas: Alphas) -> Thresholds:
        basis, problem = self.state_.fitted.basis, self._problem
        if problem.uses_label:
            candidates = candidate_rows(problem, basis, outputs)
            parts = _by_class(problem, candidates, scores, alphas)
            return nested_thresholds(parts, alphas)
        draws, ties = self._draws(outputs)
        thresholds = problem.thresholds(basis.design(outputs), alphas, draws)
        return Thresholds(thresholds.values - ties[:, None], thresholds.status)

    def _draws(self, outputs: ModelOutputs) -> tuple[Floats | None, Floats]:
        """Draws u in (0, 1), if any, and what is subtracted from the thresholds to break ties.

        The random weight of a new sample is u - alpha. Its scores are compared as calibration
        scores are: s + draw <= threshold, with the draw on the other side.
        """
        if not self.randomized:
            return None, np.zeros(1)
        seed, keys = self._state().seed, outputs.draw_keys
        draws = row_uniforms(seed, Stream.PREDICTION_LEVEL, keys)
        draws = np.clip(draws, _SMALLEST_DRAW, 1.0 - _SMALLEST_DRAW)
        return draws, _TIE_SPREAD * row_uniforms(seed, Stream.PREDICTION_TIES, keys)

    def _leave_one_out_thresholds(self, scores: Floats, alphas: Alphas) -> Thresholds:
        if self.conditions_on.uses_label:
            return super()._leave_one_out_thresholds(scores, alphas)
        draws, ties = self._draws(self.calibration_)
        thresholds = self._problem.leave_one_out(alphas, draws)
        return Thresholds(thresholds.values - ties[:, None], thresholds.status)

    def _sample_alpha_thresholds(
        self, outputs: ModelOutputs, scores: Floats, alphas: Floats
    ) -> Thresholds:
        state, problem = self._state(), self._problem
        if state.alphas is None:
            problem.prepare_along(tuple(np.unique(rounded_down(alphas)).tolist()))
            return super()._sample_alpha_thresholds(outputs, scores, alphas)
        fits = problem.sample_alpha_fits("alphas", self._untied(state), state.alphas)
        if not self.conditions_on.uses_label:
            return self._solve(fits, outputs, alphas)
        candidates = candidate_rows(problem, self.conditions_on, outputs)
        cells = [
            problem.sample_alpha_thresholds(fits, candidates.rows(cell), alphas)
            for cell in range(candidates.n_cells)
        ]
        values = np.stack([part.values for part in cells], axis=1)[:, candidates.cells]
        status = worst_status(np.stack([part.status for part in cells], axis=1))
        return Thresholds(values[..., None], status[:, None])

    def _solve(
        self, fits: list[tuple[float, Any]], outputs: ModelOutputs, alphas: Floats
    ) -> Thresholds:
        """Thresholds where every sample has an alpha, without functions of the label."""
        draws, ties = self._draws(outputs)
        phi = self.conditions_on.design(outputs)
        thresholds = self._problem.sample_alpha_thresholds(fits, phi, alphas, draws)
        return Thresholds((thresholds.values - ties)[:, None], thresholds.status[:, None])

    def _sized_sets(
        self, outputs: ModelOutputs, scores: Floats, alpha: float, size: int
    ) -> PredictionSets:
        recalibrated = self.state_.recalibrated(outputs)
        if size >= recalibrated.n_classes:
            thresholds = self._thresholds(outputs, scores, (alpha,))
            sets = self._sets(recalibrated, scores, thresholds, alpha)
            return replace(sets, alpha=np.full(len(sets), alpha))
        thresholds, alphas = self._sized_thresholds(outputs, alpha, size)
        sets = self._sets(recalibrated, scores, thresholds, alpha)
        p = recalibrated.block_probabilities(slice(0, len(sets)), self.state_.temperature)
        # The `size` most likely classes, of equals the first columns. Where so few classes cannot
        # reach alpha, the set holds all of them.
        mask = np.zeros(p.shape, dtype=bool)
        np.put_along_axis(mask, np.argsort(-p, axis=1, kind="stable")[:, :size], True, axis=1)
        mask &= sets.mask | (alphas > alpha)[:, None]
        return replace(sets, mask=mask, status=thresholds.status[:, 0], alpha=alphas)

    def _sized_thresholds(
        self, outputs: ModelOutputs, alpha: float, size: int
    ) -> tuple[Thresholds, Floats]:
        """Thresholds of sets of at most `size` classes, and the alpha of each sample."""
        fitted, limits = self._functions, self._functions.size_limits
        if fitted.basis.uses_label:
            raise InputError(
                "max_size needs basis functions of the sample alone; leave out those of the label "
                "(per_class=False, no Classes() in the basis)."
            )
        if limits is None:
            raise InputError("max_size needs tuning samples; calibrate again with tuning=.")
        alphas = limits.alphas(fitted.basis.design(outputs), alpha, size)
        fits = self._problem.sample_alpha_fits(
            ("max_size", alpha, size),
            limits.truncated_scores(self._untied(self._state()), size),
            limits.alphas(fitted.phi, alpha, size),
        )
        thresholds = self._solve(fits, outputs, alphas)
        lost = limits.reaches(thresholds.values[:, 0])
        status = np.where(lost[:, None], np.int8(Status.NO_GUARANTEE), thresholds.status)
        return Thresholds(thresholds.values, status), np.where(lost, 1.0, alphas)

    def check_weights(self) -> None:
        """Random weights of the new sample and weights of samples do not go together."""
        if self.randomized:
            super().check_weights()

    def weighted_thresholds(
        self, outputs: ModelOutputs, scores: Floats, alphas: Alphas, weights: Floats, new: Floats
    ) -> Thresholds:
        """Thresholds of the weighted problem.

        The weighted loss ``sum_i w_i l(s_i - g(x_i)) + w l(s - g(x))`` is positively homogeneous:
        the problem is that of rows ``w_i phi_i`` and scores ``w_i s_i`` with the new row
        ``w phi``, whose threshold is w times the one wanted. Penalties have no weights.
        """
        basis = self.conditions_on
        kept, name = self._cached("weighted", dict[bytes, CalibrationProblem]), weights.tobytes()
        problem = kept.get(name)
        if problem is None:
            problem = self._problem.weighted(weights)
            kept.clear()  # a problem with its fits takes megabytes
            kept[name] = problem
        by_class = new.shape[1] > 1
        factor = _RAISED if by_class else _RAISED_MORE
        if not (by_class or basis.uses_label):
            thresholds = problem.thresholds(basis.design(outputs) * new, alphas)
            return _divided(thresholds, new, factor)
        candidates = _weighted_candidates(problem, basis, outputs, new)
        parts = _by_class(problem, candidates, scores * new, alphas)
        return nested_thresholds([_divided(part, new, factor) for part in parts], alphas)

    def quantile_fits(
        self, outputs: ModelOutputs, alpha: float, code: int | None
    ) -> tuple[list[QuantileFit], Codes]:
        """The plain fit and, where thresholds are limited, the lower and the upper one."""
        problem = self._problem
        row = self.conditions_on.design_for(outputs, np.array([code]))[0]
        draws, _ = self._draws(outputs)
        limits, share = problem.limits, 1.0
        if draws is not None:
            limits, share = limits[:1], float(draws[0])
        fits = []
        for factor, multiple in limits:
            phi, scores = problem.points(multiple)
            fit = QuantileFit(phi, scores, factor * alpha, row, share - factor * alpha)
            vars(fit)["model"] = problem.fit(factor * alpha, multiple)  # it is made already
            fits.append(fit)
        return fits, problem.order

    def _guarantee(self) -> str:
        fitted = self._functions
        exact = "equals" if self.randomized and self.allow_empty else "is at least"
        count = fitted.phi.shape[1]
        text = (
            f"for every non-negative {fitted.basis.description}, the coverage of the sets "
            f"weighted by it {exact} 1 - alpha ({count} basis function{'s' * (count > 1)})."
        )
        if fitted.penalty.size:
            largest = np.abs(fitted.penalty).max() / (len(fitted.phi) + 1)
            text += (
                " Coverage weighted by a penalised function can differ from 1 - alpha by at most "
                f"{largest:.3g} times the sum of the absolute values of its penalised coefficients."
            )
        if fitted.group_penalty is not None and not self.randomized:
            text += (
                " The coverage of a group with m expected calibration samples can be lower than "
                f"1 - alpha by at most {np.abs(fitted.group_penalty).max():.3g} / m."
            )
        return text if fitted.choice is None else f"{text}\n{fitted.choice.sentence}"


def _check_enough(n: int, width: int) -> None:
    if n < width:
        raise InputError(
            f"{n} calibration samples cannot determine {width} basis functions; use a smaller "
            "basis or more samples."
        )


def _by_class(
    problem: CalibrationProblem, candidates: CandidateRows, scores: Floats, alphas: Alphas
) -> list[Thresholds]:
    """Thresholds of all classes, shape (m, K), with the worst status; one for each alpha."""
    parts = []
    for models in problem.fits_along(alphas):
        cells = limited([candidate_thresholds(model, candidates, scores) for model in models])
        parts.append(Thresholds(cells.values[:, candidates.cells], worst_status(cells.status)))
    return parts


def _weighted_candidates(
    problem: CalibrationProblem, basis: FittedBasis, outputs: ModelOutputs, new_weights: Floats
) -> CandidateRows:
    """Weighted rows of new samples; without functions of the label, equal weights share a cell."""
    by_class = np.broadcast_to(new_weights, (len(new_weights), outputs.n_classes))
    codes = cells = np.arange(outputs.n_classes)
    shared = None
    if not basis.uses_label:
        _, codes, cells = np.unique(by_class[0], return_index=True, return_inverse=True)
        shared = basis.design(outputs)

    def rows(cell: int) -> Floats:
        code = codes[cell]
        phi = basis.design_for(outputs, np.full(len(outputs), code)) if shared is None else shared
        return np.asarray(by_class[:, [code]] * phi)

    return CandidateRows(rows, cells, problem.scale)


def _divided(part: Thresholds, weights: Floats, factor: float) -> Thresholds:
    """Thresholds after a division: a score that was equal to one must not exceed it."""
    values = part.values / weights
    return Thresholds(np.where(values > 0.0, values * factor, values / factor), part.status)


# Sets of at most k classes, each with an alpha that k classes can reach.
#
# With M a number that does not depend on the calibration samples, the truncated score is
# s'(x, y) = s(x, y) if y is among the k most likely classes of x, and M (or slightly more, so that
# there are no ties) otherwise. It is a score like any other, and its sets have at most k classes
# wherever the threshold is below M. Such a threshold exists where alpha is larger than the
# probability that the label is not among these classes. So the alpha of a sample is the larger of
# the alpha asked for and an estimate of that probability, learned from tuning samples: a function
# of the inputs, as thresholds with an alpha for each sample need it (Cherian, Gibbs and Candès
# 2024). Where alpha was raised, the set contains all k classes, which can only add coverage.

# The guaranteed coverage is never less than 1 - this: thresholds need an alpha below 1.
_MAX_ALPHA = 0.99
# Standard errors by which the estimate is raised. With fewer, some calibrations of few samples left
# most samples without a guarantee; with more, all guarantees are weaker (`studies/max_size.py`).
ERRORS = 1.0
_RIDGES = (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
# How far scores beyond M spread out.
_SPREAD = 1e-5
_MOST_STEPS, _SMALLEST_STEP = 100, 1e-9
# A threshold this close to M, as a share of M, may have been M before rounding.
_CLOSE = 1e-9


@final
@storable
@dataclass(frozen=True, eq=False)
class SizeLimits:
    """What the alphas of sets of limited size are learned from."""

    label_ranks: Codes  # (n,): 0-based ranks of the calibration labels by probability.
    tuning_ranks: Codes  # (t,)
    tuning_phi: Floats  # (t, p): basis functions of the tuning samples.
    # M: twice the largest tuning score; more would make fits slower and thresholds steeper.
    beyond: float

    @classmethod
    def fit(
        cls, label_ranks: Codes, tuning_ranks: Codes, tuning_phi: Floats, tuning_scores: Floats
    ) -> Self:
        """Keep what is learned from; tuning samples are sorted, so their order does not count."""
        order = np.lexsort((*tuning_phi.T, tuning_ranks))
        beyond = 2.0 * float(np.abs(tuning_scores).max(initial=0.0)) or 1.0
        return cls(label_ranks, tuning_ranks[order], tuning_phi[order], beyond)

    def check_belongs(self, n: int, width: int) -> None:
        """Refuse arrays of other samples or functions, for `storage`."""
        require_numbers(self.label_ranks, "SizeLimits.label_ranks", n)
        require_numbers(self.tuning_phi, "SizeLimits.tuning_phi", None, width)
        require_numbers(self.tuning_ranks, "SizeLimits.tuning_ranks", len(self.tuning_phi))

    def truncated_scores(self, scores: Floats, size: int) -> Floats:
        """Scores of the calibration labels, M for those beyond the `size` most likely classes."""
        # M or more, without ties where the scores have none, as randomised thresholds need it.
        beyond = self.beyond + _SPREAD * (1.0 + scores / (1.0 + np.abs(scores)))
        return np.where(self.label_ranks < size, scores, beyond)

    def alphas(self, phi: Floats, alpha: float, size: int) -> Floats:
        """The larger of alpha and the estimated probability that the label is left out."""
        missed = miss_probability(self.tuning_phi, self.tuning_ranks >= size, phi)
        return np.maximum(alpha, np.minimum(missed, _MAX_ALPHA))

    def reaches(self, thresholds: Floats) -> NDArray[np.bool_]:
        """Where thresholds are M or more, up to rounding: all classes would be in these sets."""
        return np.asarray(thresholds >= (1.0 - _CLOSE) * self.beyond)


def miss_probability(tuning_phi: Floats, happened: NDArray[np.bool_], phi: Floats) -> Floats:
    """Upper estimates of a probability at rows of `phi`, by ridge logistic regression.

    They are ``sigmoid(z'b + c sqrt(z'H^-1 z))`` with z the standardised basis functions and a
    constant, b the coefficients, H the Hessian of the penalised loss at b, and c = 1 standard
    error.
    """
    from scipy.special import expit

    centre, spread = tuning_phi.mean(axis=0), tuning_phi.std(axis=0)
    # A constant column, up to rounding, has no spread: it is left out.
    spread = np.where(spread > 1e-12 * np.abs(tuning_phi).max(axis=0), spread, np.inf)
    rows = _with_constant((tuning_phi - centre) / spread)
    # Half an average sample of each kind keeps the intercept finite.
    average = np.eye(1, rows.shape[1])[[0, 0]]
    rows, targets = np.vstack([rows, average]), np.append(happened, [0.0, 1.0])
    weights = np.append(np.ones(len(tuning_phi)), [0.5, 0.5])
    # The ridge that the samples make most likely.
    tried = [_newton(rows, targets, weights, ridge) for ridge in _RIDGES]
    coefficients, hessian, _ = max(tried, key=lambda one: one[2])
    root = np.linalg.inv(np.linalg.cholesky(hessian))
    with np.errstate(over="ignore", invalid="ignore"):
        rows = _with_constant((phi - centre) / spread)
        # Not matrix products: the last digits of one depend on the other rows of its batch.
        centres = np.einsum("ij,j->i", rows, coefficients)
        errors = np.sqrt((np.einsum("ij,kj->ik", rows, root) ** 2).sum(axis=1))
        share = expit(centres + ERRORS * errors)
    # Where numbers overflow, nothing is known.
    return np.asarray(np.where(np.isnan(share), 1.0, share))


def _with_constant(rows: Floats) -> Floats:
    return np.column_stack([np.ones(len(rows)), rows])


def _newton(
    rows: Floats, targets: Floats, weights: Floats, ridge: float
) -> tuple[Floats, Floats, float]:
    """Coefficients of the smallest penalised loss, the Hessian there, and the log evidence.

    The evidence is Laplace's approximation of the probability of the targets if coefficients, the
    intercept apart, were normal with variance ``1 / ridge``.
    """
    from scipy.special import expit

    penalty = ridge * np.append(0.0, np.ones(rows.shape[1] - 1))

    def loss(at: Floats) -> float:
        margins = rows @ at
        fit = weights @ (np.logaddexp(0.0, margins) - targets * margins)
        return float(fit + 0.5 * penalty @ at**2)

    beta = np.zeros(rows.shape[1])
    for _ in range(_MOST_STEPS):
        shares = expit(rows @ beta)
        slope = rows.T @ (weights * (shares - targets)) + penalty * beta
        curvature = weights * shares * (1.0 - shares)
        hessian = (rows * curvature[:, None]).T @ rows + np.diag(penalty)
        step = np.linalg.solve(hessian, slope)
        # The loss is convex, so halving finds a lower one unless rounding hides it.
        length = 1.0
        while length > _SMALLEST_STEP and loss(beta - length * step) > loss(beta):
            length *= 0.5
        if length * np.abs(step).max() < _SMALLEST_STEP:
            break
        beta = beta - length * step
    prior = 0.5 * (rows.shape[1] - 1) * np.log(ridge)
    return beta, hessian, float(prior - loss(beta) - 0.5 * np.linalg.slogdet(hessian)[1])
