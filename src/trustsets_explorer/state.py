"""What the page may ask for: one or two methods, an alpha and a split, strictly checked."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, final

from trustsets.errors import InputError
from trustsets.predictors import Predictor
from trustsets.recipes import SCORES, STATISTICS, make_predictor
from trustsets.trust import TrustScore

__all__ = ["Knobs", "Setting", "State"]

_LARGEST_SEED = 2**31 - 1
_LARGEST_DEGREE = 8
_LARGEST_PENALTY = 1000.0
_TEMPERATURES = (0.05, 20.0)
_ALPHAS = (0.001, 0.999)
_BASES = ("auto", "polynomial", "bins", "intercept")
_PER_CLASS = {"auto": None, "yes": True, "no": False}
_METHODS = ("conditional", "standard", "mondrian", "groups", "class", "clustered")


@final
@dataclass(frozen=True)
class Knobs:
    """What the data allow: methods, statistics and group columns, and the number of classes."""

    methods: tuple[str, ...]
    statistics: tuple[str, ...]
    groups: tuple[str, ...]
    n_classes: int
    scores: tuple[str, ...] = tuple(SCORES)

    @classmethod
    def of(cls, groups: tuple[str, ...], n_classes: int, *, has_trust: bool) -> Self:
        """Leave out what needs a trust score or groups where there are none."""
        methods = [name for name in _METHODS if name != "groups" or groups]
        known = [name for name in STATISTICS if name != "trust" or has_trust]
        return cls(tuple(methods), tuple(known), groups, n_classes)


@final
@dataclass(frozen=True)
class Setting:
    """One method with all its knobs, in the names of `trustsets.recipes`.

    `basis` is ``"auto"`` or one function class, to which indicators of `groups` are added.
    `max_size` is None for sets of any size.
    """

    method: str = "conditional"
    score: str = "aps"
    scale: str = "tail"
    temperature: float | str | None = None
    basis: str = "auto"
    degree: int = 5
    penalty: float = 10.0
    statistics: tuple[str, ...] = ("confidence", "trust")
    groups: tuple[str, ...] = ()
    per_class: str = "auto"
    max_size: int | None = None

    @classmethod
    def read(cls, data: Any, knobs: Knobs) -> Self:
        """Check what a page sent; unknown names, types and values out of range are refused."""
        given = _fields(data, cls.__dataclass_fields__)
        return cls(
            method=_choice(given, "method", knobs.methods),
            score=_choice(given, "score", knobs.scores),
            scale=_choice(given, "scale", ("raw", "tail")),
            temperature=_temperature(given["temperature"]),
            basis=_choice(given, "basis", _BASES),
            degree=_whole(given, "degree", 0, _LARGEST_DEGREE),
            penalty=_number(given, "penalty", 0.0, _LARGEST_PENALTY),
            statistics=_choices(given, "statistics", knobs.statistics, fewest=1),
            groups=_choices(given, "groups", knobs.groups),
            per_class=_choice(given, "per_class", tuple(_PER_CLASS)),
            max_size=None
            if given["max_size"] is None
            else _whole(given, "max_size", 1, knobs.n_classes),
        )

    @property
    def used(self) -> Self:
        """The same with every knob that does not matter at its default, so that equals are equal.

        A knob that a method does not have is shown as disabled on the page.
        """
        plain, off = Setting(), dict[str, Any]()
        own_basis = self.method == "conditional" and self.basis != "auto"
        if not own_basis:
            off |= {"basis": plain.basis if self.method == "conditional" else "auto"}
        if not own_basis or self.basis != "polynomial":
            off |= {"degree": plain.degree, "penalty": plain.penalty}
        if self.method != "mondrian" and (not own_basis or self.basis == "intercept"):
            off |= {"statistics": plain.statistics}
        if self.method != "groups" and not own_basis:
            off |= {"groups": ()}
        if self.method != "conditional":
            off |= {"per_class": "auto", "max_size": None}
        return replace(self, **off)

    @property
    def recipe(self) -> dict[str, Any]:
        """The predictor by names and numbers, as ``trustsets calibrate`` takes it."""
        own, bases = self.used, tuple[str, ...]()
        if own.method == "conditional" and own.basis != "auto":
            bases = (own.basis, *(["groups"] if own.groups else []))
        polynomial = "polynomial" in bases
        uses_statistics = own.method == "mondrian" or (bases and own.basis != "intercept")
        return dict(
            method=own.method,
            score=own.score,
            scale=own.scale,
            temperature=own.temperature,
            basis=bases or None,
            degree=own.degree if polynomial else None,
            penalty=own.penalty if polynomial else None,
            statistics=own.statistics if uses_statistics else (),
            groups=own.groups,
            per_class=_PER_CLASS[own.per_class],
        )

    def build(self, trust: TrustScore | None) -> Predictor:
        """The predictor, not calibrated."""
        return make_predictor(**self.recipe, trust=trust)


@final
@dataclass(frozen=True)
class State:
    """All that determines what the page shows."""

    settings: tuple[Setting, ...]
    alpha: float = 0.1
    seed: int = 0

    @classmethod
    def read(cls, data: Any, knobs: Knobs) -> Self:
        """Check what a page sent."""
        given = _fields(data, cls.__dataclass_fields__)
        settings = given["settings"]
        if not isinstance(settings, list) or not 1 <= len(settings) <= 2:
            raise InputError("settings must be a list of one or two methods.")
        return cls(
            tuple(Setting.read(own, knobs) for own in settings),
            _number(given, "alpha", *_ALPHAS),
            _whole(given, "seed", 0, _LARGEST_SEED),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What the page calls the methods; letters tell two of a kind apart."""
        words = [own.method for own in self.settings]
        if len(words) == 1:
            return (words[0],)
        return tuple(f"{letter}: {word}" for letter, word in zip("AB", words, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `read` takes."""
        found = asdict(self)
        found["settings"] = [
            {name: list(own) if isinstance(own, tuple) else own for name, own in setting.items()}
            for setting in found["settings"]
        ]
        return found


def _fields(data: Any, names: Any) -> dict[str, Any]:
    if not isinstance(data, dict) or set(data) != set(names):
        raise InputError(f"expected exactly the names {', '.join(names)}.")
    return data


def _choice(given: dict[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    value = given[name]
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}.")
    return value


def _choices(
    given: dict[str, Any], name: str, allowed: tuple[str, ...], fewest: int = 0
) -> tuple[str, ...]:
    values = given[name]
    known = isinstance(values, list) and all(
        isinstance(own, str) and own in allowed for own in values
    )
    if not known or len(values) < fewest or len(set(values)) != len(values):
        raise InputError(f"{name} must be {fewest} or more of {', '.join(allowed) or 'none'}.")
    # In a fixed order, so that the same choice is the same state.
    return tuple(own for own in allowed if own in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(given: dict[str, Any], name: str, low: float, high: float) -> float:
    value = given[name]
    # Compared before it is converted: a whole number of a thousand digits has no float.
    if not _is_number(value) or not low <= value <= high or math.isnan(value):
        raise InputError(f"{name} must be a number between {low:g} and {high:g}.")
    return float(value)


def _whole(given: dict[str, Any], name: str, low: int, high: int) -> int:
    value = given[name]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name} must be a whole number between {low} and {high}.")
    return value


def _temperature(value: Any) -> float | str | None:
    if value is None or (isinstance(value, str) and value == "tuning"):
        return None if value is None else "tuning"
    return _number({"temperature": value}, "temperature", *_TEMPERATURES)
