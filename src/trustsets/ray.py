"""Prediction sets of a Ray dataset. Needs the extra ``trustsets[ray]``."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trustsets._frames import needed
from trustsets._parameters import check_alpha
from trustsets.errors import InputError
from trustsets.files import predict_table
from trustsets.predictors import Predictor

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["predict_dataset"]


def predict_dataset(
    dataset: Any,
    predictor: Predictor,
    alpha: float = 0.1,
    *,
    ids: Sequence[str] = (),
    max_size: int | None = None,
    batch_rows: int = 8192,
    **options: Any,
) -> Any:
    """Prediction sets of a Ray dataset, as another one; nothing runs before it is consumed.

    The predictor goes into Ray's object store once, and all workers of a machine read it there.
    The sets are those of one process, whatever the batches and however often Ray repeats a task.

    Parameters
    ----------
    dataset : ray.data.Dataset
        Columns as in `trustsets.files.predict_table`. Where sets are drawn at random there must be
        a column ``row``, the number of the sample in the whole data set.
    predictor : Predictor
        Calibrated.
    alpha, ids, max_size
        As in `predict_table`.
    batch_rows : int
        Rows predicted at a time: a worker needs memory for these only.
    **options
        Others of ``ray.data.Dataset.map_batches``, such as ``num_cpus=4`` or ``concurrency=8``. A
        task uses as many threads as it has cores.

    Returns
    -------
    ray.data.Dataset
        As `predict_table`; write it with ``write_parquet``, or map it further.
    """
    ray = needed("ray", "predict_dataset", "ray")
    alpha = check_alpha(alpha)
    if not isinstance(predictor, Predictor) or not hasattr(dataset, "map_batches"):
        came = f"{type(dataset).__name__} and {type(predictor).__name__}"
        raise InputError(f"give a Ray dataset and a calibrated predictor; got {came}.")
    predictor.classes_  # noqa: B018 - says here, and not in a worker, that it is not calibrated
    # In a list, so that Ray passes the reference on and does not fetch the predictor for each task.
    shared = [ray.put(predictor)]
    asked = {"alpha": alpha, "ids": tuple(ids), "max_size": max_size}
    return dataset.map_batches(
        _predict_batch,
        batch_size=batch_rows,
        batch_format="pyarrow",
        fn_kwargs={"shared": shared, "asked": asked},
        **options,
    )


def _predict_batch(batch: "pa.Table", shared: list[Any], asked: dict[str, Any]) -> "pa.Table":
    return predict_table(_fetch(shared[0]), batch, **asked)


@lru_cache(maxsize=1)
def _fetch(reference: Any) -> Predictor:
    """The predictor in a worker, which keeps it for its later batches with the fits it made."""
    predictor: Predictor = needed("ray", "predict_dataset", "ray").get(reference)
    return predictor
