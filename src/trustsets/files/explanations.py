"""`explain_file`: why the first sets of a file are what they are."""

from trustsets._common.atomic import StrPath
from trustsets.files.naming import PLAIN, TableColumns, find_roles
from trustsets.files.predicted import block_outputs
from trustsets.files.prediction import open_for_prediction
from trustsets.predictors import Predictor, load
from trustsets.predictors.explain import Explanation, needs_label

__all__ = ["explain_file"]


def explain_file(
    model: StrPath,
    outputs: StrPath,
    count: int,
    *,
    alpha: float = 0.1,
    columns: TableColumns = PLAIN,
) -> list[Explanation]:
    """Explain the sets of the first `count` samples of a file.

    Where each class has a threshold of its own, that of the most likely class is explained.
    """
    predictor: Predictor = load(model)
    source = open_for_prediction(predictor, outputs, name=str(model), columns=columns)
    stop = min(count, len(source))
    block = source.block(0, stop, features=predictor.uses_features)
    samples = block_outputs(predictor, block, find_roles(block, predictor.needed_groups))
    labels = samples.predicted if needs_label(predictor) else [None] * stop
    return [predictor.explain(samples[place], alpha, label=labels[place]) for place in range(stop)]
