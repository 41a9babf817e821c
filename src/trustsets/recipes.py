"""Predictors, scores and bases by name, for those who choose them by a word.

The command line, the scikit-learn front, the explorer and the paper's runs take the same words.
"""

import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial, reduce
from typing import Any

import numpy as np

from trustsets._frames import as_names
from trustsets._parameters import Count, Positive, check_arguments
from trustsets.basis import Basis, Bins, Groups, Intercept, Polynomial, PrincipalComponents
from trustsets.errors import InputError, TrustSetsWarning
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

__all__ = [
    "ALIASES",
    "AUTHORS_METHODS",
    "AUTHORS_TRUST",
    "BASES",
    "METHODS",
    "SCORES",
    "STATISTICS",
    "make_basis",
    "make_bins",
    "make_predictor",
    "make_score",
    "method_name",
    "score_name",
    "uses_trust",
    "warn_of_unused_groups",
]

METHODS: dict[str, type[Predictor]] = {
    "conditional": ConditionalConformal,
    "standard": StandardConformal,
    "mondrian": MondrianConformal,
    "groups": MondrianConformal,
    "class": MondrianConformal,
    "clustered": ClusteredConformal,
    "paper": ConditionalConformal,
    "naive": MondrianConformal,
}
"""Predictors by name: ``mondrian`` has a threshold for each cell of a grid of confidence and trust;
``paper`` and ``naive`` are CONDITIONAL and NAIVE as the paper's authors run them."""
AUTHORS_METHODS = ("paper", "naive")
AUTHORS_TRUST = {"neighbour": 2, "squared": True}
"""Parameters of the trust score in the authors' runs of these methods."""
SCORES: dict[str, type[Score]] = {
    "aps": APS,
    "raps": RAPS,
    "saps": SAPS,
    "topk": TopK,
    "softmax": Softmax,
    "margin": MarginScore,
}
"""Nonconformity scores by name."""
STATISTICS: dict[str, type[Statistic]] = {
    "confidence": Confidence,
    "trust": Trust,
    "entropy": Entropy,
    "margin": Margin,
}
"""What coverage can be conditioned on, by name."""
BASES = ("polynomial", "bins", "groups", "components", "intercept")
"""Function classes by name."""
ALIASES = {"lac": "softmax", "bins": "mondrian"}
"""Other names of scores and methods."""

_OF_BASIS = ("degree", "penalty", "transform", "components")
_OF_SCORE = {field.name for kind in SCORES.values() for field in fields(kind)}
_WITH_TRUST = ("conditional", "mondrian", "paper", "naive")
# The grid of "mondrian" grows with the calibration data: this many samples for each cell.
_SAMPLES_PER_CELL = 50
_LARGEST_SIDE = 5


def method_name(method: str) -> str:
    """The one name of a method, in small letters; refuse what is none."""
    return _checked("method", method, METHODS)


def score_name(score: str) -> str:
    """The one name of a nonconformity score, in small letters; refuse what is none."""
    return _checked("score", score, SCORES)


def uses_trust(
    method: str, basis: str | Sequence[str] | None = None, statistics: Sequence[str] = ()
) -> bool:
    """Whether a method can use a trust score, with this choice of basis and statistics."""
    chosen, names = as_names(statistics, "statistics"), as_names(basis, "basis")
    if chosen and "trust" not in map(str, chosen):
        return False
    if names and "auto" not in names:
        return bool({"polynomial", "bins"} & set(names))
    return method_name(method) in _WITH_TRUST


def warn_of_unused_groups(predictor: Predictor, groups: Iterable[str]) -> None:
    """Name groups that the user asked to condition on and that the predictor does not need."""
    unused = [name for name in groups if name not in predictor.needed_groups]
    if unused:
        warnings.warn(
            f"coverage is not conditioned on {', '.join(unused)}: the method does without groups, "
            "or their values have fewer than 10 tuning samples each. Use the method groups, merge "
            "values, or give more samples.",
            TrustSetsWarning,
            stacklevel=3,
        )


def make_score(name: str = "aps", **parameters: Any) -> Score:
    """Return a nonconformity score by name, with its parameters; None leaves the default."""
    kind = SCORES[score_name(name)]
    chosen = {key: value for key, value in parameters.items() if value is not None}
    _check_parameters(f"the score {name!r}", kind, chosen)
    return kind(**chosen)


def make_bins(statistics: Sequence[str] = ("confidence", "trust"), n: int | None = None) -> Bins:
    """Return a grid of quantile bins, of at most 25 cells of at least 50 of `n` samples each."""
    side, statistics = _LARGEST_SIDE, as_names(statistics, "statistics")
    if n is not None:
        check_arguments(Positive, n=n)
        side = min(side, max(1, int(np.sqrt(n / _SAMPLES_PER_CELL))))
    counts = (side**2,) if len(statistics) == 1 else (side,) * len(statistics)
    return Bins(*_statistics(statistics, "raw"), counts=counts, spacing="quantile")


def make_basis(
    names: str | Sequence[str] = "polynomial",
    *,
    statistics: Sequence[str] = ("confidence", "trust"),
    degree: int = 5,
    penalty: float = 0.0,
    transform: str = "rank",
    groups: Sequence[str] = (),
    components: int = 20,
    n: int | None = None,
) -> Basis:
    """Return the sum of function classes by name, each of `BASES`.

    `statistics` are what polynomial and bins are functions of; `degree`, `penalty` and `transform`
    belong to the polynomial, `components` is their number, and `n` as in `make_bins`. Columns of
    `groups` are part of the sum whatever the names; none means all.

    Examples
    --------
    >>> make_basis("intercept", groups=["site"])
    Intercept() + Groups(columns=('site',), penalty=0.0)
    """
    names, groups = as_names(names, "basis"), as_names(groups, "groups")
    chosen = list(dict.fromkeys(_checked("basis", name, BASES) for name in names))
    if (groups and "groups" not in chosen) or not chosen:
        chosen.append("groups")
    check_arguments(Count, degree=degree)
    of = _statistics(statistics, transform)
    makers: dict[str, Callable[[], Basis]] = {
        "polynomial": partial(Polynomial, degree, of=of, penalty=penalty),
        "bins": partial(make_bins, statistics, n),
        "groups": partial(Groups, *groups),
        "components": partial(PrincipalComponents, components),
        "intercept": Intercept,
    }
    return reduce(operator.add, [makers[name]() for name in chosen])


def make_predictor(
    method: str = "conditional",
    *,
    score: Score | str | None = None,
    trust: Any = None,
    basis: Basis | str | Sequence[str] | None = None,
    statistics: Sequence[str] = (),
    groups: Sequence[str] = (),
    n: int | None = None,
    **parameters: Any,
) -> Predictor:
    """Return a predictor by name, one of `METHODS`, not calibrated.

    Parameters
    ----------
    method : str
        Its name, in any case; ``"bins"`` is another name of ``"mondrian"``.
    score : Score or str, optional
        A score, or its name; the method chooses the scale of one that is named, and the score
        itself for ``"auto"`` (default).
    trust : TrustScore, optional
        Without one, ``"conditional"`` and ``"mondrian"`` depend on confidence alone.
    basis : Basis, str or sequence of str, optional
        Function class of ``"conditional"`` and ``"paper"``: ``"auto"``, or names of `BASES`.
    statistics : sequence of str
        What basis and bins are functions of; default confidence and, with a trust score, trust.
    groups : sequence of str
        Group columns to condition on; none means all that the outputs carry.
    n : int, optional
        Number of calibration samples; see `make_bins`.
    **parameters
        Other parameters of the predictor, of a named score or of `make_basis`, and `prevalence`,
        that of `ClassBias`; None leaves the default.

    Examples
    --------
    >>> make_predictor("standard", score="lac").score
    Softmax(scale='raw', floor=0.0)
    >>> make_predictor("groups", groups=["site"]).by
    Groups(columns=('site',), penalty=0.0)
    """
    name = method_name(method)
    kind: Any = METHODS[name]
    is_conditional = kind is ConditionalConformal
    statistics, groups = as_names(statistics, "statistics"), as_names(groups, "groups")
    bases: Any = [basis] if isinstance(basis, Basis) else as_names(basis, "basis")
    chosen = {key: value for key, value in parameters.items() if value is not None}
    of_basis = {key: chosen.pop(key) for key in _OF_BASIS if key in chosen}
    of_score = {key: chosen.pop(key) for key in _OF_SCORE if key in chosen}
    if "prevalence" in chosen:
        chosen["class_bias"] = ClassBias(prevalence=chosen.pop("prevalence"))
    _check_parameters(f"the method {method!r}", kind, chosen)
    if not is_conditional and (of_basis or bases):
        raise InputError(
            f"basis and {', '.join(of_basis) or 'its parameters'} belong to the method conditional;"
            f" got {method!r}."
        )
    if statistics and not is_conditional and name != "mondrian":
        raise InputError(
            f"statistics belong to the methods conditional and mondrian; got {method!r}."
        )
    is_made = isinstance(basis, Basis) or bases == ["auto"]
    lost = [*of_basis, *(["statistics"] if statistics else [])] if is_made else []
    lost += of_score if isinstance(score, Score) else []
    if lost:
        raise InputError(f"{', '.join(lost)} would have no effect with this score or basis.")
    score = None if isinstance(score, str) and score.lower() == "auto" else score
    if isinstance(score, str) or (score is None and of_score):
        scale = "tail" if name == "conditional" else None
        score = make_score(score or "aps", **({"scale": scale} | of_score))
    if score is not None:
        chosen["score"] = score
    if trust is not None and name in _WITH_TRUST:
        chosen["trust"] = trust
    of = statistics or (("confidence",) if trust is None else ("confidence", "trust"))
    if is_made:
        chosen["basis"] = bases[0]
    elif is_conditional and (bases or of_basis or statistics):
        of_basis = ({"transform": "raw"} if name == "paper" else {}) | of_basis
        names = bases or "polynomial"
        chosen["basis"] = make_basis(names, statistics=of, groups=groups, n=n, **of_basis)
    elif kind is MondrianConformal and name != "naive" and "by" not in chosen:
        by: dict[str, Any] = {"groups": Groups(*groups), "class": "class"}
        chosen["by"] = by[name] if name in by else make_bins(of, n)
    predictor: Predictor = (kind.paper if name in AUTHORS_METHODS else kind)(**chosen)
    return predictor


def _statistics(names: Sequence[str], transform: Any) -> tuple[Statistic, ...]:
    return tuple(
        STATISTICS[_checked("statistics", name, STATISTICS)](transform=transform)
        for name in as_names(names, "statistics")
    )


def _checked(what: str, name: Any, allowed: Iterable[str]) -> str:
    """The name itself, or what it is another name of."""
    choices, small = list(allowed), str(name).lower()
    usual = small if small in choices else ALIASES.get(small, small)
    if usual not in choices:
        raise InputError(f"{what} must be one of {', '.join(choices)}; got {name!r}.")
    return usual


def _check_parameters(what: str, kind: Any, parameters: dict[str, Any]) -> None:
    """Refuse parameters that a class does not have."""
    allowed = [field.name for field in fields(kind) if field.init]
    for name in parameters:
        if name not in allowed:
            raise InputError(f"{what} has no parameter {name!r}; it has {', '.join(allowed)}.")
