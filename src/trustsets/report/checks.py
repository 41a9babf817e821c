"""Checks of the arguments of `write_report`."""

from collections.abc import Mapping

import numpy as np

from trustsets._common.arrays import Floats
from trustsets._common.validation import check_least
from trustsets.errors import InputError
from trustsets.metrics.result import Evaluation
from trustsets.outputs import ModelOutputs
from trustsets.predictors import Predictor
from trustsets.report.samples import SampleSource
from trustsets.report.verdict import ONE_METHOD
from trustsets.sets import PredictionSets
from trustsets.statistics import SupportsTrust

__all__ = ["check_evaluations", "check_samples"]


def check_evaluations(
    evaluations: Evaluation | Mapping[str, Evaluation],
) -> dict[str, Evaluation]:
    """Methods by name, all of the same samples."""
    if isinstance(evaluations, Evaluation):
        return {ONE_METHOD: evaluations}
    if not isinstance(evaluations, Mapping) or not evaluations:
        raise InputError(
            "evaluations must be an Evaluation or a non-empty mapping of method names to them; "
            f"got {type(evaluations).__name__}. Make them with evaluate."
        )
    for name, item in evaluations.items():
        if not isinstance(item, Evaluation):
            raise InputError(
                f"evaluations[{name!r}] must be an Evaluation; got {type(item).__name__}. Make it "
                "with evaluate, one per method (a report shows one seed)."
            )
    found = {str(name): item for name, item in evaluations.items()}
    _check_same_samples(found)
    return found


def _check_same_samples(evaluations: Mapping[str, Evaluation]) -> None:
    settings = {(item.n, item.n_classes, item.alpha, item.level) for item in evaluations.values()}
    if len(settings) > 1:
        raise InputError(
            "evaluations must share test samples, classes, alpha and level; got (n, K, alpha, "
            f"level) = {sorted(settings)}. Write one report for each."
        )
    rows = [item.rows for item in evaluations.values() if item.rows is not None]
    if any(not np.array_equal(rows[0], other) for other in rows[1:]):
        raise InputError(
            "evaluations must be of the same test samples in the same order; their rows differ. "
            "Evaluate every method on the same ModelOutputs."
        )
    axes: dict[str, tuple[str, ...]] = {}
    for item in evaluations.values():
        for name, table in item.tables.items():
            if axes.setdefault(name, table.axes) != table.axes:
                raise InputError(
                    f"evaluations must divide samples alike; {name!r} is over {axes[name]} for one "
                    f"method and {table.axes} for another. Pass the same bins= to evaluate."
                )


def check_samples(
    evaluations: Mapping[str, Evaluation],
    outputs: ModelOutputs | None,
    sets: PredictionSets | Mapping[str, PredictionSets] | None,
    trust: SupportsTrust | Floats | None,
    most: int,
    predictors: Predictor | Mapping[str, Predictor] | None = None,
) -> SampleSource | None:
    """Where listed samples come from, or None where neither outputs nor sets are given."""
    movers = _check_predictors(evaluations, predictors)
    if (outputs is None) != (sets is None):
        missing = "outputs" if outputs is None else "sets"
        raise InputError(f"listing samples needs both outputs= and sets=; {missing}= is missing.")
    if outputs is None or sets is None:
        if movers:
            raise InputError("predictors= needs outputs= and sets= too; pass what was evaluated.")
        return None
    check_least(1, samples_per_cell=most)
    outputs.require_labels("the list of samples")
    if isinstance(sets, PredictionSets):
        only = len(evaluations) == 1
        sets = dict.fromkeys(evaluations if only else (ONE_METHOD,), sets)
    given = {str(name): item for name, item in sets.items()}
    if set(given) != set(evaluations):
        raise InputError(
            f"sets must name the methods {list(evaluations)}; got {list(given)}. Use the same "
            "names in evaluations and sets."
        )
    own = {name: _check_sets(name, given[name], outputs, evaluations[name]) for name in given}
    values = None if trust is None else outputs.with_trust(trust).trust
    return SampleSource(outputs, own, values, most, movers)


def _check_predictors(
    evaluations: Mapping[str, Evaluation], predictors: Predictor | Mapping[str, Predictor] | None
) -> dict[str, Predictor]:
    """Predictors by method; some methods may have none."""
    if isinstance(predictors, Predictor):
        only = len(evaluations) == 1
        predictors = dict.fromkeys(evaluations if only else (ONE_METHOD,), predictors)
    given = {str(name): item for name, item in (predictors or {}).items()}
    unknown = [name for name in given if name not in evaluations]
    if unknown:
        raise InputError(
            f"predictors names {unknown}, but the methods are {list(evaluations)}; use their names."
        )
    for name, item in given.items():
        if not isinstance(item, Predictor):
            raise InputError(
                f"predictors[{name!r}] must be a calibrated predictor; got {type(item).__name__}."
            )
    return given


def _check_sets(
    name: str, sets: PredictionSets, outputs: ModelOutputs, evaluation: Evaluation
) -> PredictionSets:
    """The sets at the alpha of the evaluation, if they are those that were evaluated."""
    if evaluation.set_sizes is None or evaluation.rows is None:
        raise InputError(
            f"evaluations[{name!r}] was read from JSON, which does not keep single samples; "
            "evaluate anew, or leave out outputs= and sets=."
        )
    own = sets.at(evaluation.alpha)
    same = len(own) == len(outputs) == evaluation.n and (
        np.array_equal(own.sizes, evaluation.set_sizes)
        and np.array_equal(outputs.rows, evaluation.rows)
    )
    if not same:
        raise InputError(
            f"sets[{name!r}] and outputs are not what evaluations[{name!r}] was made from "
            f"({len(own)} sets, {len(outputs)} samples, {evaluation.n} evaluated); pass the same "
            "objects as to evaluate."
        )
    return own
