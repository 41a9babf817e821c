"""`explain_file`: why the first sets of a file are what they are."""

from trustsets._common.atomic import StrPath
from trustsets.files.naming import find_roles
from trustsets.files.prediction import open_for_prediction
from trustsets.files.tables import table_outputs
from trustsets.predictors import Predictor, load
from trustsets.predictors.explain import Explanation, needs_label

__all__ = ["explain_file"]


def explain_file(
    model: StrPath, outputs: StrPath, count: int, *, alpha: float = 0.1
) -> list[Explanation]:
    """Explain the sets of the first `count` samples of a file.

    Where each class has a threshold of its own, that of the most likely class is explained.
    """
    predictor: Predictor = load(model)
    source = open_for_prediction(predictor, outputs, name=str(model))
    stop = min(count, len(source))
    table = source.table(0, stop, features=predictor.uses_features)
    roles = find_roles(table.column_names, predictor.needed_groups, ())
    samples = table_outputs(predictor, table, roles)
    labels = samples.predicted if needs_label(predictor) else [None] * stop
    return [predictor.explain(samples[place], alpha, label=labels[place]) for place in range(stop)]
