"""What the page may ask for: one or two methods, an alpha and a split, strictly checked."""

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, final

from trustsets.errors import InputError
from trustsets.predictors import Predictor
from trustsets.recipes import SCORES, STATISTICS, make_predictor
from trustsets.trust import TrustScore

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
class Parameters:
    """What the data allow: methods, statistics and group columns."""

    methods: tuple[str, ...]
    statistics: tuple[str, ...]
    groups: tuple[str, ...]
    scores: tuple[str, ...] = ("auto", *SCORES)

    @classmethod
    def of(cls, groups: tuple[str, ...], *, has_trust: bool) -> Self:
        """Leave out what needs a trust score or groups where there are none."""
        methods = [name for name in _METHODS if name != "groups" or groups]
        statistics = [name for name in STATISTICS if name != "trust" or has_trust]
        return cls(tuple(methods), tuple(statistics), groups)


@final
@dataclass(frozen=True)
class Setting:
    """One method with all its parameters, in the names of `trustsets.recipes`.

    `score` is ``"auto"`` for that of the method, which has its own scale. `basis` is ``"auto"`` or
    one function class, to which indicators of `groups` are added.
    """

    method: str = "conditional"
    score: str = "auto"
    scale: str = "tail"
    temperature: float | str | None = None
    basis: str = "auto"
    degree: int = 5
    penalty: float = 10.0
    statistics: tuple[str, ...] = ("confidence", "trust")
    groups: tuple[str, ...] = ()
    per_class: str = "auto"

    @classmethod
    def read(cls, data: Any, allowed: Parameters) -> Self:
        """Check what a page sent; unknown names, types and values out of range are refused."""
        values = _fields(data, cls.__dataclass_fields__)
        return cls(
            method=_choice(values, "method", allowed.methods),
            score=_choice(values, "score", allowed.scores),
            scale=_choice(values, "scale", ("raw", "tail")),
            temperature=_temperature(values["temperature"]),
            basis=_choice(values, "basis", _BASES),
            degree=_whole(values, "degree", 0, _LARGEST_DEGREE),
            penalty=_number(values, "penalty", 0.0, _LARGEST_PENALTY),
            statistics=_choices(values, "statistics", allowed.statistics, fewest=1),
            groups=_choices(values, "groups", allowed.groups),
            per_class=_choice(values, "per_class", tuple(_PER_CLASS)),
        )

    @property
    def used(self) -> Self:
        """The same with parameters that do not matter at their defaults, so that equals are equal.

        A parameter that a method does not have is shown as disabled on the page.
        """
        plain, off = Setting(), dict[str, Any]()
        has_basis = self.method == "conditional" and self.basis != "auto"
        if self.score == "auto":
            off |= {"scale": plain.scale}
        if not has_basis:
            off |= {"basis": plain.basis if self.method == "conditional" else "auto"}
        if not has_basis or self.basis != "polynomial":
            off |= {"degree": plain.degree, "penalty": plain.penalty}
        if self.method != "mondrian" and (not has_basis or self.basis == "intercept"):
            off |= {"statistics": plain.statistics}
        if self.method != "groups" and not has_basis:
            off |= {"groups": ()}
        if self.method != "conditional":
            off |= {"per_class": "auto"}
        return replace(self, **off)

    @property
    def recipe(self) -> dict[str, Any]:
        """The predictor by names and numbers, as ``trustsets calibrate`` takes it."""
        used, bases = self.used, tuple[str, ...]()
        if used.method == "conditional" and used.basis != "auto":
            bases = (used.basis, *(["groups"] if used.groups else []))
        polynomial = "polynomial" in bases
        uses_statistics = used.method == "mondrian" or (bases and used.basis != "intercept")
        return dict(
            method=used.method,
            score=used.score,
            scale=None if used.score == "auto" else used.scale,
            temperature=used.temperature,
            basis=bases or None,
            degree=used.degree if polynomial else None,
            penalty=used.penalty if polynomial else None,
            statistics=used.statistics if uses_statistics else (),
            groups=used.groups,
            per_class=_PER_CLASS[used.per_class],
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
    def read(cls, data: Any, allowed: Parameters) -> Self:
        """Check what a page sent."""
        values = _fields(data, cls.__dataclass_fields__)
        settings = values["settings"]
        if not isinstance(settings, list) or not 1 <= len(settings) <= 2:
            raise InputError("settings must be a list of one or two methods.")
        return cls(
            tuple(Setting.read(setting, allowed) for setting in settings),
            _number(values, "alpha", *_ALPHAS),
            _whole(values, "seed", 0, _LARGEST_SEED),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What the page calls the methods; letters tell two of a kind apart."""
        words = [setting.method for setting in self.settings]
        if len(words) == 1:
            return (words[0],)
        return tuple(f"{letter}: {word}" for letter, word in zip("AB", words, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `read` takes."""
        # JSON has lists, but no tuples.
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


def _fields(data: Any, names: Any) -> dict[str, Any]:
    if not isinstance(data, dict) or set(data) != set(names):
        raise InputError(f"expected exactly the names {', '.join(names)}.")
    return data


def _choice(values: dict[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    value = values[name]
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}.")
    return value


def _choices(
    values: dict[str, Any], name: str, allowed: tuple[str, ...], fewest: int = 0
) -> tuple[str, ...]:
    chosen = values[name]
    is_valid = isinstance(chosen, list) and all(
        isinstance(choice, str) and choice in allowed for choice in chosen
    )
    if not is_valid or len(chosen) < fewest or len(set(chosen)) != len(chosen):
        raise InputError(f"{name} must be {fewest} or more of {', '.join(allowed) or 'none'}.")
    # In a fixed order, so that the same choice is the same state.
    return tuple(choice for choice in allowed if choice in chosen)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(values: dict[str, Any], name: str, low: float, high: float) -> float:
    value = values[name]
    # Compared before it is converted: a whole number of a thousand digits has no float.
    if not _is_number(value) or not low <= value <= high or math.isnan(value):
        raise InputError(f"{name} must be a number between {low:g} and {high:g}.")
    return float(value)


def _whole(values: dict[str, Any], name: str, low: int, high: int) -> int:
    value = values[name]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name} must be a whole number between {low} and {high}.")
    return value


def _temperature(value: Any) -> float | str | None:
    if value is None or (isinstance(value, str) and value == "tuning"):
        return None if value is None else "tuning"
    return _number({"temperature": value}, "temperature", *_TEMPERATURES)
