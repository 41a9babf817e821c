"""`calibrate_file`: from the name of a method and labelled outputs to a saved predictor."""

import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal, final

import numpy as np

from trustsets._common import storage
from trustsets._common.arrays import Array
from trustsets._common.atomic import StrPath
from trustsets.basis import Basis, Bins, Groups, Intercept, Polynomial, PrincipalComponents
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.files.memory import check_fits
from trustsets.files.naming import PLAIN, TableColumns
from trustsets.files.paths import Snapshot, check_output
from trustsets.files.source import OutputsFile, open_outputs, read_classes, read_training
from trustsets.outputs import ModelOutputs
from trustsets.predictors import (
    ClusteredConformal,
    ConditionalConformal,
    MondrianConformal,
    Predictor,
    StandardConformal,
)
from trustsets.recalibration import ClassBias
from trustsets.scores import APS, RAPS, SAPS, MarginScore, Score, Softmax, TopK
from trustsets.statistics import Confidence, Entropy, Margin, Statistic, Trust
from trustsets.trust import TrustScore

STATISTICS: dict[str, type[Statistic]] = {
    "confidence": Confidence,
    "trust": Trust,
    "entropy": Entropy,
    "margin": Margin,
}
"""What coverage can be conditioned on, by name."""
SCORES: dict[str, Callable[..., Score]] = {
    "aps": APS,
    "raps": RAPS,
    "saps": SAPS,
    "topk": TopK,
    "softmax": Softmax,
    "margin": MarginScore,
}
"""Conformity scores by name."""
_SCORES_WITH = {"own_mass": ("aps", "raps", "saps", "topk"), "lam": ("raps", "saps")}
METHODS = ("conditional", "standard", "bins", "groups", "class", "clustered")
"""Ways to set thresholds, by name."""
BASES = ("polynomial", "bins", "groups", "components", "intercept")
"""Function classes by name."""


@final
@dataclass(frozen=True)
class Recipe:
    """Which predictor to make, by names and numbers; None leaves a choice to the method.

    Attributes
    ----------
    method : str
        One of `METHODS`.
    score, scale, own_mass : str
        Score by name, its scale (``raw`` or ``tail``), and for APS, RAPS, SAPS and TopK the share
        of the label's own mass (``exclude``, ``include``, ``random``).
    lam : float
        What a rank adds to RAPS and SAPS.
    basis : tuple of str
        Function classes of the methods ``conditional``, by name; they are added
        up. If none of `basis`, `degree`, `penalty`, `statistics` and `transform` is chosen, the
        method has its own default.
    degree, components : int
        Degree of the polynomial (default 5), and number of principal components.
    penalty : float
        That of the polynomial (default 0); see `Polynomial`.
    statistics : tuple of str
        What polynomial and bins are functions of, by name; default confidence and trust.
    transform : str
        How the polynomial transforms a statistic: ``rank`` (default), ``log`` or ``raw``.
    groups : tuple of str
        Group columns to condition on; none means all there are.
    temperature : float, "tuning" or None
        See `StandardConformal`.
    prevalence : float
        Learn class biases on the tuning part, shifted by this power of the class shares; see
        `ClassBias`.
    per_class : bool
        Whether the method ``conditional`` covers each class; see `ConditionalConformal`.
    paper : bool
        The paper's own setting, for the methods ``conditional`` and ``bins``.
    """

    method: str = "conditional"
    score: str | None = None
    scale: str | None = None
    own_mass: str | None = None
    lam: float | None = None
    basis: tuple[str, ...] = ()
    degree: int | None = None
    penalty: float | None = None
    components: int = 20
    statistics: tuple[str, ...] = ()
    transform: str | None = None
    groups: tuple[str, ...] = ()
    temperature: float | str | None = None
    prevalence: float | None = None
    per_class: bool | None = None
    tuning_fraction: float | None = None
    randomized: bool = False
    allow_empty: bool = False
    paper: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        _check_name("method", self.method, METHODS)
        if self.score is not None:
            _check_name("score", self.score, tuple(SCORES))
        for name in self.basis:
            _check_name("basis", name, BASES)
        for name in self.statistics:
            _check_name("statistics", name, tuple(STATISTICS))
        if self.paper and self.method not in ("conditional", "bins"):
            raise InputError(
                f"paper has settings for the methods conditional and bins; got {self.method!r}."
            )
        if self.per_class is not None and self.method != "conditional":
            raise InputError(
                f"per_class belongs to the method conditional; got {self.method!r}. The method "
                "class has thresholds of its own for each class."
            )

    @property
    def uses_trust(self) -> bool:
        """Whether the method uses the trust score."""
        if self.statistics and "trust" not in self.statistics:
            return False
        if self.method == "conditional":
            return not self.basis or bool({"polynomial", "bins"} & {*self.basis})
        return self.method == "bins"

    def build(self, trust: TrustScore | None) -> Predictor:
        """Return the predictor, not calibrated."""
        common = self._common()
        if self.method == "conditional":
            return self._regression(trust, common)
        if self.method == "standard":
            return StandardConformal(**common)
        if self.method == "clustered":
            return ClusteredConformal(**common)
        if self.method == "bins":
            if self.paper:
                return MondrianConformal.paper(trust, **common)
            return MondrianConformal(by=self._bins(), trust=trust, **common)
        by: Any = "class" if self.method == "class" else Groups(*self.groups)
        return MondrianConformal(by=by, **common)

    def _regression(self, trust: TrustScore | None, common: dict[str, Any]) -> Predictor:
        if self.paper:
            if self.degree is not None:
                common["basis"] = Polynomial(self.degree)
            return ConditionalConformal.paper(trust, randomized=self.randomized, **common)
        polynomial = {self.degree, self.penalty, self.transform} != {None}
        if self.basis or self.statistics or polynomial:
            common["basis"] = self._basis()
        return ConditionalConformal(trust=trust, randomized=self.randomized, **common)

    def _common(self) -> dict[str, Any]:
        """Arguments of every predictor; what is not chosen is left to its default."""
        bias = None if self.prevalence is None else ClassBias(prevalence=self.prevalence)
        scored = {self.score, self.scale, self.own_mass, self.lam} != {None}
        chosen = {
            "random_state": self.seed,
            "allow_empty": self.allow_empty if self.allow_empty or not self.paper else None,
            "temperature": self.temperature,
            "class_bias": bias,
            "per_class": self.per_class,
            "tuning_fraction": self.tuning_fraction,
            "score": self._score() if scored else None,
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def _score(self) -> Score:
        regression = self.method == "conditional" and not self.paper
        scale = self.scale or ("tail" if regression else "raw")
        name = self.score or "aps"
        chosen = {"own_mass": self.own_mass, "lam": self.lam}
        for option, scores in _SCORES_WITH.items():
            if chosen[option] is not None and name not in scores:
                raise InputError(
                    f"{option} belongs to {', '.join(scores)}; the score {name} has none."
                )
        own = {option: value for option, value in chosen.items() if value is not None}
        return SCORES[name](scale=scale, **own)

    def _statistics(self, transform: str) -> tuple[Statistic, ...]:
        names = self.statistics or ("confidence", "trust")
        return tuple(STATISTICS[name](transform=transform) for name in names)  # type: ignore[arg-type]

    def _bins(self) -> Bins:
        of = self._statistics("raw")
        if self.statistics in ((), ("confidence", "trust")):
            return Bins()
        spacing: list[Literal["uniform", "quantile"]] = ["quantile"] * len(of)
        counts = [10] + [4] * (len(of) - 1)
        return Bins(of=of, counts=tuple(counts), spacing=tuple(spacing))

    def _basis(self) -> Basis:
        makers: dict[str, Callable[[], Basis]] = {
            "polynomial": lambda: Polynomial(
                5 if self.degree is None else self.degree,
                of=self._statistics(self.transform or "rank"),
                penalty=self.penalty or 0.0,
            ),
            "bins": self._bins,
            "groups": lambda: Groups(*self.groups),
            "components": lambda: PrincipalComponents(self.components),
            "intercept": Intercept,
        }
        names = dict.fromkeys(self.basis or ("polynomial",))
        return reduce(operator.add, (makers[name]() for name in names))


@final
@dataclass(frozen=True)
class Adaptation:
    """Another population to predict for: a file of unlabelled outputs, and what is different.

    `shift` and `of` are as in `Predictor.adapt`.
    """

    outputs: StrPath
    shift: str = "label"
    of: str = "statistics"

    def apply(
        self, predictor: Predictor, calibration: ModelOutputs, columns: TableColumns = PLAIN
    ) -> Predictor:
        """Adapt a predictor that was calibrated on these samples."""
        # Labels that a table calls by another name are left out, too.
        source = open_outputs(self.outputs, columns=replace(columns, label=None)).without_labels()
        source = _of_same_classes(source, calibration)
        _check_memory(source)
        return predictor.adapt(source.read(), shift=self.shift, of=self.of)


def calibrate_file(
    outputs: StrPath,
    result: StrPath,
    recipe: Recipe,
    *,
    train: StrPath | None = None,
    tuning: StrPath | None = None,
    classes: StrPath | None = None,
    neighbour: int = 1,
    adaptation: Adaptation | None = None,
    columns: TableColumns = PLAIN,
    record: dict[str, Any] | None = None,
) -> Predictor:
    """Calibrate a predictor on a file of labelled outputs and save it.

    Parameters
    ----------
    outputs : path
        Labelled outputs; see `open_outputs`. All of it is read into memory.
    result : path
        Where the predictor goes, a ``.trustsets`` file.
    recipe : Recipe
        Which predictor.
    train : path, optional
        ``features`` and ``labels`` of the training samples, for the trust score.
    tuning : path, optional
        Other labelled outputs, for what is learned besides the thresholds.
    classes : path, optional
        Class names; see `read_classes`.
    neighbour : int
        The trust score measures the distance to the N-th nearest neighbour of a class; this is N.
    adaptation : Adaptation, optional
        Another population than that of the labelled outputs, which the predictor is for.
    columns : TableColumns, optional
        Which columns of tables hold what.
    record : dict, optional
        Options to store with the predictor.
    """
    inputs = [outputs, train, tuning, classes]
    inputs += [] if adaptation is None else [adaptation.outputs]
    target = check_output(result, (".trustsets",), inputs)
    before = Snapshot(*inputs)
    names = None if classes is None else read_classes(classes)
    source = open_outputs(outputs, groups=recipe.groups, classes=names, columns=columns)
    calibration = load_labelled(source, "calibration")
    trust = None
    if recipe.uses_trust:
        trust = fit_trust(source, train, calibration, neighbour, columns)
    other = None
    if tuning is not None:
        other = load_tuning(tuning, recipe.groups, names, calibration, columns)
    predictor: Predictor = recipe.build(trust).calibrate(calibration, tuning=other)
    if adaptation is not None:
        predictor = adaptation.apply(predictor, calibration, columns)
    before.check()
    storage.write(target, predictor, record)
    return predictor


def load_labelled(source: OutputsFile, purpose: str) -> ModelOutputs:
    """All samples of a file, which must have labels and fit into memory."""
    if source.roles.labels is None:
        raise InputError(
            f"{source.path}: there is no array 'labels', and {purpose} needs the true classes. "
            "Add them, or name their column (--label-column)."
        )
    _check_memory(source)
    return source.read()


def _check_memory(source: OutputsFile) -> None:
    # Once as they are, once in float64 for scores, and the sets.
    check_fits(source.path, len(source) * (2 * source.row_bytes + 9 * source.n_classes))


def load_tuning(
    path: StrPath,
    groups: Sequence[str],
    names: Array | None,
    calibration: ModelOutputs,
    columns: TableColumns = PLAIN,
) -> ModelOutputs:
    """Tuning samples, which must be of the same classes in the same order."""
    source = open_outputs(path, groups=groups, classes=names, columns=columns)
    return load_labelled(_of_same_classes(source, calibration), "tuning")


def _of_same_classes(source: OutputsFile, calibration: ModelOutputs) -> OutputsFile:
    """Outputs of the same classes in the same order, or without names."""
    own = source.classes
    if own is None:
        return source.with_classes(calibration.classes)
    if not np.array_equal(own, calibration.classes):
        raise InputError(
            f"{source.path}: its classes are not those of the calibration samples, or in another "
            "order. Use outputs of the same classifier."
        )
    return source


def fit_trust(
    source: OutputsFile,
    train: StrPath | None,
    calibration: ModelOutputs,
    neighbour: int,
    columns: TableColumns = PLAIN,
) -> TrustScore:
    """The trust score of the training samples."""
    if train is None:
        raise InputError(
            "the trust score needs training samples: give a file with their features and labels "
            "(--train FILE), or condition on confidence alone (--statistic confidence)."
        )
    if calibration.features is None:
        raise InputError(
            f"{source.path}: there is no array 'features', which the trust score needs. Save the "
            "embeddings with the logits, name their columns (--feature-columns), or condition on "
            "confidence alone (--statistic confidence)."
        )
    features, labels = read_training(train, calibration.classes, columns)
    if source.path.samefile(train):
        warnings.warn(
            f"{train} is both the calibration file and the training file. Coverage is guaranteed "
            "only for a calibration on samples that the classifier was not trained on, and that "
            "are not their own neighbours in the trust score. Give another file.",
            TrustSetsWarning,
            stacklevel=2,
        )
    if features.shape[1] != calibration.features.shape[1]:
        raise InputError(
            f"{train}: array 'features' has {features.shape[1]} columns, and {source.path} has "
            f"{calibration.features.shape[1]}. Use the same layer of the same model."
        )
    unknown = np.setdiff1d(labels, calibration.classes)
    if unknown.size:
        raise InputError(
            f"{train}: array 'labels' holds {unknown[0]!r}, which is no class of {source.path}. "
            "Use the same class names in both."
        )
    return TrustScore(neighbour=neighbour).fit(features, labels)


def _check_name(what: str, name: str, allowed: tuple[str, ...]) -> None:
    if name not in allowed:
        raise InputError(f"{what} must be one of {', '.join(allowed)}; got {name!r}.")
