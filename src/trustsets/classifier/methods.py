"""Names of methods, and the predictors that they stand for."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from sklearn.base import clone

from trustsets.basis import Bins, Groups
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.predictors import (
    ClusteredConformal,
    ConditionalConformal,
    MondrianConformal,
    Predictor,
    StandardConformal,
)
from trustsets.statistics import Confidence
from trustsets.trust import TrustScore

__all__ = ["METHODS", "check_method", "predictor_for", "uses_features", "warn_of_left_out_groups"]

# The grid of "bins" grows with the calibration data: this many samples for each cell.
_SAMPLES_PER_CELL = 50
_LARGEST_SIDE = 5


def _bins(trust: TrustScore | None, n: int, seed: int) -> Predictor:
    side = min(_LARGEST_SIDE, max(1, int(np.sqrt(n / _SAMPLES_PER_CELL))))
    bins = Bins(counts=(side, side), spacing=("quantile", "quantile"))
    if trust is None:
        bins = Bins(of=(Confidence(),), counts=(side**2,), spacing=("quantile",))
    return MondrianConformal(bins, trust=trust, random_state=seed)


_WITH_TRUST: dict[str, Callable[[TrustScore | None, int, int], Predictor]] = {
    "conditional": lambda trust, n, seed: ConditionalConformal(trust=trust, random_state=seed),
    "bins": _bins,
    "mondrian": _bins,
    "paper": lambda trust, n, seed: ConditionalConformal.paper(trust, random_state=seed),
}
_WITHOUT_TRUST: dict[str, Callable[[TrustScore | None, int, int], Predictor]] = {
    "standard": lambda trust, n, seed: StandardConformal(random_state=seed),
    "class": lambda trust, n, seed: MondrianConformal(by="class", random_state=seed),
    "groups": lambda trust, n, seed: MondrianConformal(by=Groups(), random_state=seed),
    "clustered": lambda trust, n, seed: ClusteredConformal(random_state=seed),
}
METHODS = _WITH_TRUST | _WITHOUT_TRUST
"""Predictors by name, from a trust score, the number of calibration samples and a seed."""


def check_method(method: Any, *, has_groups: bool, has_features: bool) -> None:
    """Refuse unknown names, and methods that lack what they need."""
    if isinstance(method, Predictor):
        return
    if not isinstance(method, str) or method not in METHODS:
        names = ", ".join(f'"{name}"' for name in METHODS)
        raise InputError(f"method must be one of {names}, or a predictor; got {method!r}.")
    if method == "paper" and not has_features:
        raise InputError(f'method="{method}" needs a trust score; do not pass features=None.')
    if method == "groups" and not has_groups:
        raise InputError(
            'method="groups" needs groups: name columns of X with TrustSetClassifier(groups=...), '
            "or pass groups= with one value for each sample."
        )


def uses_features(method: Any) -> bool:
    """Whether sets of the method can depend on features of the samples."""
    if not isinstance(method, Predictor):
        return method in _WITH_TRUST
    if isinstance(method, MondrianConformal) and not isinstance(method.by, Bins):
        return method.draws_at_random
    # Random draws of a sample are made from its features, too.
    return "trust" in method.get_params(deep=False) or method.draws_at_random


def predictor_for(method: Any, trust: TrustScore | None, n: int, seed: int) -> Predictor:
    """A fresh predictor for n calibration samples."""
    if not isinstance(method, Predictor):
        return METHODS[method](trust, n, seed)
    predictor: Predictor = clone(method)
    if predictor.trust is None and "trust" in predictor.get_params(deep=False):
        predictor.set_params(trust=trust)
    return predictor


def warn_of_left_out_groups(predictor: Predictor, groups: Iterable[str]) -> None:
    """Name groups that ``basis="auto"`` left out, which the user gave to condition on."""
    if not isinstance(predictor, ConditionalConformal) or predictor.basis != "auto":
        return
    left_out = [name for name in groups if name not in predictor.needed_groups]
    if left_out:
        warnings.warn(
            f"coverage is not conditioned on the groups by {', '.join(left_out)}, because they "
            "have fewer than 10 tuning samples for each value, or one value only. Merge values, "
            'give more samples, or use method="groups".',
            TrustSetsWarning,
            stacklevel=4,
        )
