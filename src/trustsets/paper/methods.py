"""The methods of the paper's tables, each a predictor of this package.

The paper's own methods are run as the authors ran them. The package's default, its groupwise method
and the methods of related work follow under names of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from trustsets.basis import Basis, FittedBasis, Groups, Polynomial, PrincipalComponents
from trustsets.outputs import ModelOutputs
from trustsets.paper.options import PAPER_DEGREE, Options
from trustsets.paper.sources import Source
from trustsets.predictors.base import Predictor
from trustsets.predictors.conditional import ConditionalConformal
from trustsets.predictors.mondrian import MondrianConformal
from trustsets.predictors.related import PluginConformal
from trustsets.predictors.standard import StandardConformal
from trustsets.scores import Score

__all__ = ["Method", "SharedBasis", "choose_methods", "describe"]

STANDARD, NAIVE, CONDITIONAL = "STANDARD", "CONDITIONAL (NAIVE)", "CONDITIONAL"
GROUPWISE, PCA, DEFAULT = "GROUPWISE", "PCA FEATURES", "package default"
OWN_GROUPWISE = "package groupwise"
"""As GROUPWISE, with the finite-sample quantile of each group."""
PLUGIN, CLUSTERED, ATYPICALITY, ORACLE = "PLUG-IN", "CLUSTERED", "ATYPICALITY", "ORACLE"
RELATED = (PLUGIN, CLUSTERED, ATYPICALITY, ORACLE)
"""Methods that the paper's related work names."""
_COMPONENTS = 20
# The default sets this share of the calibration samples aside for tuning.
_TUNING_SHARE = 0.2
# The authors fit the temperature on the calibration samples and let sets be empty.
_AS_PAPER: dict[str, Any] = {"temperature": 1.0, "tuning_fraction": 0.0, "allow_empty": True}


@final
@dataclass(frozen=True)
class SharedBasis(Basis):
    """A function class that was fitted before, so that several scores share the work."""

    fitted: FittedBasis

    @property
    def learns(self) -> bool:
        """Nothing is learned any more."""
        return False

    def fit(self, outputs: ModelOutputs) -> FittedBasis:
        """Return what was fitted."""
        return self.fitted


@final
@dataclass(frozen=True)
class Method:
    """One row of a table.

    Attributes
    ----------
    name : str
        As the paper prints it.
    degree : int or None
        Degree of the polynomials, for CONDITIONAL and PLUG-IN.
    group : str or None
        Group column of GROUPWISE.
    n_functions : int
        Smallest number of calibration samples that the method needs: one for each function.
    """

    name: str
    degree: int | None = None
    group: str | None = None
    n_functions: int = 1

    @property
    def title(self) -> str:
        """Name with the degree, if there is one."""
        return self.name if self.degree is None else f"{self.name} of degree {self.degree}"

    @property
    def uses_trust(self) -> bool:
        """Whether sets depend on trust scores."""
        return self.name in {NAIVE, CONDITIONAL, PLUGIN, DEFAULT}

    @property
    def uses_features(self) -> bool:
        """Whether sets depend on features other than through trust scores."""
        return self.name in {PCA, ATYPICALITY}

    @property
    def as_paper(self) -> bool:
        """Whether it shares the temperature and the scores of the paper's methods."""
        return self.name not in {DEFAULT, CLUSTERED, ATYPICALITY, ORACLE}

    @property
    def basis(self) -> Basis:
        """Function class of CONDITIONAL, PLUG-IN and PCA FEATURES."""
        if self.name == PCA:
            return PrincipalComponents(self.n_functions - 1)  # besides a constant
        return Polynomial(degree=self.degree or PAPER_DEGREE)

    def predictor(self, score: Score, basis: Basis | None = None) -> Predictor:
        """Return the predictor of the default or of a method that is run as in the paper.

        `basis`, if given, takes the place of the method's own function class.
        """
        if self.name == DEFAULT:
            return ConditionalConformal(score=type(score)(scale="tail"))
        if self.name == STANDARD:
            return StandardConformal(score=score, **_AS_PAPER)
        if self.group is not None:
            own = self.name.startswith(OWN_GROUPWISE)
            make = MondrianConformal if own else MondrianConformal.paper
            return make(by=Groups(self.group), score=score, **_AS_PAPER)
        if self.name == NAIVE:
            return MondrianConformal.paper(score=score, **_AS_PAPER)
        if self.name == PLUGIN:
            return PluginConformal(score, self.basis, **_AS_PAPER)
        return ConditionalConformal.paper(score=score, basis=basis or self.basis, **_AS_PAPER)


def choose_methods(source: Source, options: Options) -> tuple[list[Method], list[str]]:
    """Methods that the data allow, in the order of the tables, and in words what they do not."""
    found, n = _paper_methods(source, options), source.n_calibration
    left_out = []
    if not source.has_trust:
        lacking = "training samples" if source.train is None else "features"
        left_out.append(f"Everything that needs trust scores: there are no {lacking}.")
    if options.related:
        found += _related_methods(source, options)
        if source.label_probabilities is None:
            left_out.append(
                f"{ORACLE}: the true probabilities of the classes are not known (no array "
                "label_probabilities in the file of outputs)."
            )
    left_out += [
        f"{method.title}: needs {method.n_functions} calibration samples of {n}."
        for method in found
        if method.n_functions > n
    ]
    return [method for method in found if method.n_functions <= n], left_out


def _paper_methods(source: Source, options: Options) -> list[Method]:
    found = [Method(STANDARD), *_groupwise(GROUPWISE, source.groups)]
    if source.has_trust:
        found += [Method(NAIVE), *(_polynomial(CONDITIONAL, d) for d in options.all_degrees)]
    if source.tested.features is not None:
        width = min(_COMPONENTS, source.n_calibration, source.tested.features.shape[1])
        found.append(Method(PCA, n_functions=width + 1))
    found += _groupwise(OWN_GROUPWISE, source.groups)
    if source.has_trust:
        needed = _polynomial(CONDITIONAL, PAPER_DEGREE).n_functions
        found.append(Method(DEFAULT, n_functions=int(np.ceil(needed / (1 - _TUNING_SHARE))) + 1))
    return found


def _related_methods(source: Source, options: Options) -> list[Method]:
    found = [Method(CLUSTERED)]
    if source.has_trust:
        found = [_polynomial(PLUGIN, options.degree), *found, Method(ATYPICALITY)]
    return found if source.label_probabilities is None else [*found, Method(ORACLE)]


def _polynomial(name: str, degree: int) -> Method:
    return Method(name, degree=degree, n_functions=(degree + 1) * (degree + 2) // 2)


def _groupwise(name: str, columns: Sequence[str]) -> list[Method]:
    """One method for each group column; the paper has one column."""
    if len(columns) == 1:
        return [Method(name, group=columns[0])]
    return [Method(f"{name} by {column}", group=column) for column in columns]


def describe(predictor: Predictor) -> str:
    """All options of a predictor as one text; equal texts mean equal methods.

    Options that are None are left out, so that a new option which is off changes no text.

    Examples
    --------
    >>> from trustsets import APS, RAPS
    >>> describe(StandardConformal(score=APS())) == describe(StandardConformal(score=APS()))
    True
    >>> describe(StandardConformal(score=APS())) == describe(StandardConformal(score=RAPS()))
    False
    """
    options = predictor.get_params(deep=False)
    options.pop("trust", None)
    used = [(name, value) for name, value in sorted(options.items()) if value is not None]
    own = ", ".join(f"{name}={value!r}" for name, value in used)
    return f"{type(predictor).__name__}({own})"
