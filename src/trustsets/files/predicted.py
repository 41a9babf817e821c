"""Sets of a block of samples, in arrays; as columns for texts, or as an Arrow table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from trustsets._common.arrays import Array
from trustsets.errors import InputError
from trustsets.files.naming import RESULT, ROW, Roles, find_roles
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor
from trustsets.predictors.p_values import PointPredictions
from trustsets.sets import PredictionSets

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Predicted", "added_columns", "block_outputs", "predict_block"]

ALPHA = "alpha"
"""Column of what each set promises, where samples have alphas of their own."""


@final
@dataclass(frozen=True)
class Predicted:
    """Columns copied from the input, the sets, and for p-values the points and how many to show."""

    copied: dict[str, Array]
    sets: PredictionSets
    points: PointPredictions | None = None
    count: int = 0

    def to_columns(self) -> dict[str, list[Any]]:
        """Plain values by column, in the order of a result."""
        own = self.sets.to_columns()
        found = self.copied | {name: own[name] for name in RESULT} | own
        found |= {name: self.sets.classes[code] for name, code in self._classes().items()}
        found |= self._numbers()
        order = [*self.copied, *RESULT, *([ALPHA] if ALPHA in own else []), *self._added()]
        return {name: _plain(found[name]) for name in order}

    def to_arrow(self, copied: "pa.Table | None" = None) -> "pa.Table":
        """The result as a table; `copied` are the copied columns with types of their own."""
        import pyarrow as pa

        result = copied
        if result is None:
            result = pa.table({name: pa.array(own) for name, own in self.copied.items()})
        found = self.sets.to_arrow()
        # Plain types, which every Arrow consumer reads.
        names = found.schema.field("set").type.value_type
        plain = {"set": pa.list_(names), "size": pa.int32(), "status": pa.string()}
        for name in (*RESULT, *([ALPHA] if self.sets.has_own_alphas else [])):
            values = found.column(name)
            values = values.cast(plain[name]) if name in plain else values
            result = result.append_column(name, values)
        classes = pa.array(self.sets.classes.tolist())
        own = {name: classes.take(pa.array(code)) for name, code in self._classes().items()}
        own |= {name: pa.array(values) for name, values in self._numbers().items()}
        for name in self._added():
            result = result.append_column(name, own[name])
        return result

    def _added(self) -> list[str]:
        return [] if self.points is None else _p_columns(self.count)

    def _classes(self) -> dict[str, Array]:
        """Codes of the classes with the largest p-values."""
        if self.points is None:
            return {}
        return {f"class_{place + 1}": self.points.codes[:, place] for place in range(self.count)}

    def _numbers(self) -> dict[str, Array]:
        """The largest p-values, confidence and credibility."""
        if (points := self.points) is None:
            return {}
        found = {f"p_{place + 1}": points.p_values[:, place] for place in range(self.count)}
        return found | {"confidence": points.confidence, "credibility": points.credibility}


def _plain(values: Any) -> list[Any]:
    return values if isinstance(values, list) else list(values.tolist())


def predict_block(
    predictor: Predictor,
    columns: Mapping[str, Array],
    alpha: float,
    *,
    ids: Sequence[str] = (),
    max_size: int | None = None,
    p_values: int | None = None,
) -> Predicted:
    """Sets of samples given as arrays by name; the parameters are those of `predict_table`."""
    roles = find_roles(columns, predictor.needed_groups, ids)
    outputs = block_outputs(predictor, columns, roles)
    trust = None if p_values is None else _trust(predictor, outputs)
    sets = predictor.predict_set(outputs, alpha=float(alpha), max_size=max_size, trust=trust)
    copied = {name: columns[name] for name in (ROW, *roles.ids) if name in columns}
    if p_values is None:
        return Predicted(copied, sets)
    points = predictor.predict_confidence(outputs, trust=trust)
    return Predicted(copied, sets, points, p_values)


def _trust(predictor: Predictor, outputs: ModelOutputs) -> Array | None:
    """Trust of the samples, which both sets and p-values need."""
    if predictor.trust is None or not predictor.uses_features:
        return None
    return outputs.with_trust(predictor.trust).trust


def added_columns(max_size: int | None, p_values: int | None) -> list[str]:
    """Columns of a result besides those that every result has."""
    own = [] if max_size is None else [ALPHA]
    return own if p_values is None else own + _p_columns(p_values)


def _p_columns(count: int) -> list[str]:
    each = [f"{name}_{place}" for place in range(1, count + 1) for name in ("class", "p")]
    return [*each, "confidence", "credibility"]


def block_outputs(predictor: Predictor, columns: Mapping[str, Array], roles: Roles) -> ModelOutputs:
    """Samples given as arrays by name, as a predictor needs them."""
    _check(predictor, columns, roles)
    values, classes = columns[str(roles.values)], predictor.classes_
    if values.shape[1] != classes.size:
        raise InputError(
            f"column {roles.values!r} has {values.shape[1]} classes, but calibration had "
            f"{classes.size}. Use outputs of the same classifier."
        )
    fields: dict[str, Any] = {roles.kind: values, "classes": classes}
    if roles.features is not None and predictor.uses_features:
        fields["features"] = columns[roles.features]
    groups = {group: columns[roles.groups[group]] for group in predictor.needed_groups}
    return ModelOutputs(**fields, groups=groups, rows=columns.get(ROW))


def _check(predictor: Predictor, columns: Mapping[str, Array], roles: Roles) -> None:
    if roles.values is None:
        raise InputError(
            f"table has no column 'logits' or 'probabilities'; it has {list(columns)}."
        )
    if predictor.draws_at_random and ROW not in columns:
        raise InputError(
            f"table needs a column {ROW!r} with the number of each sample: this predictor draws "
            "at random, and the draws of a sample must not depend on its batch."
        )
    if reason := predictor.batch_dependence:
        raise InputError(f"predictor cannot work in batches: {reason}.")
