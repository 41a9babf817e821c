"""The protocol of scikit-learn's estimators, without an import of scikit-learn."""

import inspect
from typing import Any, Self

from trustsets._parameters import annotations_of, check_arguments
from trustsets.errors import InputError


class Estimator:
    """Base class whose parameters are those of `__init__`, each kept under its own name.

    The import of scikit-learn takes longer than all others together, so it comes when it is needed.
    `sklearn.base.clone`, pipelines and searches work with it as with scikit-learn's own base class.
    """

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """Default of each parameter by name, in the order of `__init__`."""
        parameters = inspect.signature(cls).parameters.values()
        return {item.name: item.default for item in parameters}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; with `deep`, those of parameters too, as ``outer__inner``."""
        params = {name: getattr(self, name) for name in self._defaults()}
        for name, value in list(params.items()) if deep else ():
            if hasattr(value, "get_params") and not isinstance(value, type):
                params |= {f"{name}__{key}": item for key, item in value.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name, those of parameters as ``outer__inner``."""
        from sklearn.base import BaseEstimator

        try:
            BaseEstimator.set_params(self, **params)
        except (ValueError, AttributeError) as error:
            raise InputError(
                f"{type(self).__name__} has no parameter {' or '.join(params)}: {error}"
            ) from error
        return self

    def check_parameters(self) -> None:
        """Raise an error that names the first parameter that is not of its annotated type."""
        annotations = annotations_of(type(self).__init__)
        for name, value in self.get_params(deep=False).items():
            check_arguments(annotations[name], **{name: value})

    def not_fitted(self) -> Exception:
        """The error to raise where what `fit` learns is needed and missing."""
        from trustsets.errors import NotCalibratedError  # imports scikit-learn

        return NotCalibratedError(f"this {type(self).__name__} is not fitted; call fit first.")

    def to_state(self) -> dict[str, Any]:
        """Parameters, and what was learned: attributes whose names end in an underscore."""
        learned = {name: value for name, value in vars(self).items() if name.endswith("_")}
        return {"parameters": self.get_params(deep=False), "learned": learned}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Rebuild from `to_state`."""
        new = cls(**state["parameters"])
        vars(new).update(state["learned"])
        return new

    def __repr__(self) -> str:
        changed = [
            f"{name}={getattr(self, name)!r}"
            for name, default in self._defaults().items()
            if repr(getattr(self, name)) != repr(default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks of every estimator; it is imported by whoever asks."""
        from sklearn.base import BaseEstimator

        return BaseEstimator().__sklearn_tags__()

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """What scikit-learn's `set_params` names in its message."""
        return list(cls._defaults())
