"""The methods that the paper compares, as the authors ran them. Imports predictors.

Each is a predictor of this package; here are their names in the tables and what they look at
(so that only what depends on a change is worked on again). The package's own rows follow: its
default, and its groupwise method, whose names say so. Those of related work are in `related`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from trustsets.basis import Basis, FittedBasis, Groups, Polynomial, PrincipalComponents
from trustsets.errors import InputError
from trustsets.predictors.base import Predictor
from trustsets.predictors.conditional import ConditionalConformal
from trustsets.predictors.mondrian import MondrianConformal
from trustsets.predictors.related import PluginConformal
from trustsets.predictors.standard import StandardConformal
from trustsets.scores import APS, RAPS, Score, Softmax
from trustsets.statistics import Observed

__all__ = [
    "ATYPICALITY",
    "CLUSTERED",
    "CONDITIONAL",
    "DEFAULT",
    "GROUPWISE",
    "NAIVE",
    "ORACLE",
    "OWN_GROUPWISE",
    "PAPER_DEGREE",
    "PCA",
    "PLUGIN",
    "RELATED",
    "SCORES",
    "STANDARD",
    "Method",
    "SharedBasis",
    "conditional",
    "describe",
    "groupwise",
    "paper_methods",
]

STANDARD, NAIVE, CONDITIONAL = "STANDARD", "CONDITIONAL (NAIVE)", "CONDITIONAL"
GROUPWISE, PCA, DEFAULT = "GROUPWISE", "PCA FEATURES", "package default"
OWN_GROUPWISE = "package groupwise"
"""As GROUPWISE, with the finite-sample quantile of each group."""
PLUGIN, CLUSTERED, ATYPICALITY, ORACLE = "PLUG-IN", "CLUSTERED", "ATYPICALITY", "ORACLE"
RELATED = (PLUGIN, CLUSTERED, ATYPICALITY, ORACLE)
"""Methods that the paper's related work names."""
SCORES: dict[str, Score] = {"softmax": Softmax(), "APS": APS(), "RAPS": RAPS()}
"""Scores by their names in table 5."""
PAPER_DEGREE = 5
"""Degree of all tables of the paper."""
_COMPONENTS = 20
# The authors fit the temperature on the calibration samples and let sets be empty.
_AS_PAPER: dict[str, Any] = {"temperature": 1.0, "tuning_fraction": 0.0, "allow_empty": True}


@final
@dataclass(frozen=True)
class SharedBasis(Basis):
    """A function class that was fitted before, so that several scores share the work."""

    fitted: FittedBasis

    @property
    def learns(self) -> bool:
        """No more."""
        return False

    def fit(self, observed: Observed) -> FittedBasis:
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
        Of the polynomials, for CONDITIONAL and PLUG-IN.
    group : str or None
        Column that GROUPWISE looks at.
    n_components : int
        Principal components, for PCA FEATURES.
    n_functions : int
        Calibration samples needed at the very least.
    """

    name: str
    degree: int | None = None
    group: str | None = None
    n_components: int = _COMPONENTS
    n_functions: int = 1

    @property
    def uses_trust(self) -> bool:
        """Whether sets depend on trust scores."""
        return self.name in {NAIVE, CONDITIONAL, PLUGIN, DEFAULT}

    @property
    def uses_features(self) -> bool:
        """Whether sets depend on features besides by trust scores."""
        return self.name in {PCA, ATYPICALITY}

    @property
    def as_paper(self) -> bool:
        """Whether it shares the temperature and the scores of the paper's methods."""
        return self.name not in {DEFAULT, CLUSTERED, ATYPICALITY, ORACLE}

    @property
    def basis(self) -> Basis:
        """Function class of CONDITIONAL and PCA FEATURES."""
        if self.name == PCA:
            return PrincipalComponents(self.n_components)
        return Polynomial(degree=self.degree or PAPER_DEGREE)

    def predictor(self, score: Score, basis: Basis | None = None) -> Predictor:
        """Return the predictor; one of the paper's takes the temperature from the task.

        `basis`, if given, takes the place of the method's own function class.
        """
        if self.name == DEFAULT:
            return ConditionalConformal(type(score)(scale="tail"))
        if self.name == STANDARD:
            return StandardConformal(score, **_AS_PAPER)
        if self.group is not None:
            own = self.name.startswith(OWN_GROUPWISE)
            make = MondrianConformal if own else MondrianConformal.paper
            return make(by=Groups(self.group), score=score, **_AS_PAPER)
        if self.name == NAIVE:
            return MondrianConformal.paper(score=score, **_AS_PAPER)
        if self.name == PLUGIN:
            return PluginConformal(score, self.basis, **_AS_PAPER)
        return ConditionalConformal.paper(score=score, basis=basis or self.basis, **_AS_PAPER)


def conditional(degree: int) -> Method:
    """CONDITIONAL with polynomials of this degree."""
    if degree < 1:
        raise InputError(f"degree must be 1 or more; got {degree}.")
    return Method(CONDITIONAL, degree=degree, n_functions=(degree + 1) * (degree + 2) // 2)


def groupwise(columns: Sequence[str], name: str = GROUPWISE) -> list[Method]:
    """GROUPWISE, or the package's own, for each group column; the paper has one."""
    if len(columns) == 1:
        return [Method(name, group=columns[0])]
    return [Method(f"{name} by {column}", group=column) for column in columns]


def paper_methods(
    groups: Sequence[str], *, trust: bool, features: int, degrees: Sequence[int]
) -> list[Method]:
    """All methods that the data allow, in the order of the tables, the package's own last.

    Parameters
    ----------
    groups : sequence of str
        Group columns.
    trust : bool
        Whether there are trust scores.
    features : int
        Most principal components that the features can have; 0 for none.
    degrees : sequence of int
        Degrees of CONDITIONAL.
    """
    found = [Method(STANDARD), *groupwise(groups)]
    if trust:
        found += [Method(NAIVE), *(conditional(degree) for degree in degrees)]
    if features:
        n_components = min(features, _COMPONENTS)
        found.append(Method(PCA, n_components=n_components, n_functions=n_components + 1))
    found += groupwise(groups, OWN_GROUPWISE)
    if trust:
        wanted = conditional(PAPER_DEGREE).n_functions
        # A fifth of the calibration samples is set aside for tuning.
        found.append(Method(DEFAULT, n_functions=int(np.ceil(wanted / 0.8)) + 1))
    return found


def describe(predictor: Predictor) -> str:
    """All options of a method as one text; equal texts mean equal methods.

    Options that are None are left out, so that a new one which is off changes no text.

    Examples
    --------
    >>> describe(StandardConformal(APS())) == describe(StandardConformal(APS()))
    True
    >>> describe(StandardConformal(APS())) == describe(StandardConformal(RAPS()))
    False
    """
    options = predictor.get_params(deep=False)
    options.pop("trust", None)
    used = [(name, value) for name, value in sorted(options.items()) if value is not None]
    own = ", ".join(f"{name}={value!r}" for name, value in used)
    return f"{type(predictor).__name__}({own})"
