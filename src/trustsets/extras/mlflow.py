"""Predictors as MLflow models, and evaluations in MLflow runs.

A model folder holds the predictor as a `.trustsets` file (arrays and JSON), in the flavour
``trustsets`` and as a python_function. Nothing in it is pickled, and loading runs no code of the
folder. MLflow is imported when it is used.
"""

import math
import re
import tempfile
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from trustsets._common.atomic import StrPath
from trustsets._common.quantiles import check_alphas
from trustsets._version import __version__
from trustsets.errors import InputError
from trustsets.files.naming import FEATURES, LOGITS, PROBABILITIES, ROW, find_roles
from trustsets.files.tables import predict_table, table_outputs
from trustsets.metrics.result import Evaluation
from trustsets.predictors import Predictor, load

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from mlflow.models import ModelSignature
    from mlflow.models.model import ModelInfo

__all__ = ["load_model", "log_evaluation", "log_model", "save_model", "signature_of"]

FLAVOR = "trustsets"
"""Name of the flavour in an ``MLmodel`` file."""
_RESULT = ("set", "size", "confidence", "status")
_FILE = "model.trustsets"
# MLflow's names of the types of classes, by the kind of their array; others are texts.
_CLASS_TYPES = {"b": "boolean", "i": "long", "u": "long", "f": "double"}
# MLflow takes other characters on some systems, but not on all.
_UNSAFE = re.compile(r"[^\w.\- ]")


def save_model(
    predictor: Predictor,
    path: StrPath,
    *,
    alpha: float = 0.1,
    mlflow_model: Any = None,
    pip_requirements: Any = None,
    **options: Any,
) -> None:
    """Save a calibrated predictor as an MLflow model, a folder.

    Parameters
    ----------
    predictor : Predictor
        Calibrated.
    path : path
        The folder, which must be new or empty.
    alpha : float
        Allowed miscoverage of the python_function, where a call names none.
    mlflow_model : mlflow.models.Model, optional
        What `log_model` adds the flavour to.
    pip_requirements : list of str, optional
        What MLflow installs to serve the model. Default: this version of trustsets.
    **options
        Others of ``mlflow.pyfunc.save_model``: ``input_example``, ``metadata``, ``signature``, ...

    Examples
    --------
    >>> import pandas as pd
    >>> from trustsets import ModelOutputs, StandardConformal
    >>> known = [[0.5, 0.375, 0.125]] * 19
    >>> outputs = ModelOutputs(probabilities=known, labels=[0] * 14 + [1] * 4 + [2])
    >>> predictor = StandardConformal().calibrate(outputs)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(predictor, f"{folder}/model")
    ...     import mlflow.pyfunc
    ...     served = mlflow.pyfunc.load_model(f"{folder}/model")
    >>> frame = pd.DataFrame({"probabilities": known[:1]})
    >>> served.predict(frame).to_dict("records")
    [{'set': [0, 1], 'size': 2, 'confidence': 0.5, 'status': 'exact'}]
    >>> served.predict(frame, params={"alpha": 0.3})["set"][0]
    [0]
    """
    _check_predictor(predictor)
    (alpha,), _ = check_alphas(alpha)
    signature = signature_of(predictor, alpha)
    model = _mlflow("models").Model() if mlflow_model is None else mlflow_model
    model.add_flavor(FLAVOR, trustsets_version=__version__, data=f"data/{_FILE}")
    # Files remember the fits that were made, so that a server answers its first request at once.
    predictor.prepare(alpha)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # MLflow asks for an example where the signature is to be inferred, and here it is known.
        warnings.filterwarnings("ignore", ".*input example was not provided", UserWarning)
        predictor.save(Path(folder, _FILE))
        _mlflow("pyfunc").save_model(
            path=str(path),
            loader_module=__name__,
            data_path=str(Path(folder, _FILE)),
            mlflow_model=model,
            pip_requirements=pip_requirements or [f"trustsets[mlflow]=={__version__}"],
            **({"signature": signature} | options),
        )


def log_model(
    predictor: Predictor, name: str, *, alpha: float = 0.1, **options: Any
) -> "ModelInfo":
    """Log a calibrated predictor as a model of the active run, or of a new one.

    Parameters
    ----------
    predictor : Predictor
        Calibrated.
    name : str
        Name of the model.
    alpha : float
        As in `save_model`.
    **options
        Others of `save_model`, and those of ``mlflow.models.Model.log``: ``registered_model_name``,
        ``run_id``, ``tags``, ...

    Returns
    -------
    mlflow.models.model.ModelInfo
        ``model_uri`` of it is what `load_model` and ``mlflow.pyfunc.load_model`` take.
    """
    _check_predictor(predictor)
    own = import_module(__name__)
    log = _mlflow("models").Model.log
    info: ModelInfo = log(None, own, name=name, predictor=predictor, alpha=alpha, **options)
    return info


def load_model(model_uri: StrPath) -> Predictor:
    """Load the predictor of a model that `save_model` or `log_model` wrote.

    Parameters
    ----------
    model_uri : str or path
        A folder, ``models:/NAME/VERSION``, ``runs:/RUN/NAME``, or anything else that MLflow finds.
    """
    folder = _mlflow("artifacts").download_artifacts(artifact_uri=str(model_uri))
    flavors = _mlflow("models").Model.load(folder).flavors
    if FLAVOR not in flavors:
        raise InputError(
            f"model_uri {str(model_uri)!r} must be a model with the flavour {FLAVOR!r}; it has "
            f"{', '.join(sorted(flavors))}. Log it with trustsets.extras.mlflow.log_model."
        )
    found: Predictor = load(Path(folder, flavors[FLAVOR]["data"]))
    return found


def signature_of(predictor: Predictor, alpha: float = 0.1) -> "ModelSignature":
    """Columns that the python_function takes and returns, and its parameter alpha.

    It takes ``logits`` or ``probabilities`` and, where the predictor uses them, ``features`` (lists
    of numbers), the group columns, and ``row``, the number of a sample, for random draws. It
    returns ``set`` (a list of classes), ``size``, ``confidence`` (the largest probability of the
    classifier) and ``status``.
    """
    types, schema = _mlflow("types"), _mlflow("types.schema")
    numbers = schema.Array(types.DataType.double)
    names = [LOGITS[0], PROBABILITIES[0]]
    # Whether they are needed is known to the predictor, which says so.
    names += [FEATURES[0]] if predictor.uses_features else []
    columns = [types.ColSpec(numbers, name, required=False) for name in names]
    # Values of groups may be of any type, and missing.
    columns += [types.ColSpec(schema.AnyType(), name) for name in predictor.needed_groups]
    columns.append(types.ColSpec(types.DataType.long, ROW, required=predictor.draws_at_random))
    member = _CLASS_TYPES.get(predictor.classes_.dtype.kind, "string")
    kinds = [types.DataType[name] for name in (member, "integer", "double", "string")]
    kinds[0] = schema.Array(kinds[0])
    signature: ModelSignature = _mlflow("models").ModelSignature(
        inputs=types.Schema(columns),
        outputs=types.Schema([types.ColSpec(*own) for own in zip(kinds, _RESULT, strict=True)]),
        params=types.ParamSchema([types.ParamSpec("alpha", types.DataType.double, float(alpha))]),
    )
    return signature


def log_evaluation(
    evaluations: Evaluation | Mapping[str, Evaluation],
    *,
    prefix: str = "",
    folder: str = "trustsets",
    run_id: str | None = None,
    **report: Any,
) -> dict[str, float]:
    """Log every metric of evaluations, their numbers as JSON, and the report as a page.

    Parameters
    ----------
    evaluations : Evaluation, or mapping of method name to Evaluation
        What `evaluate` returns.
    prefix : str
        Comes before the names of the metrics. With a mapping, the name of the method follows it.
    folder : str
        Where the artifacts go in the run: ``evaluation.json`` (one by method) and ``report.html``.
    run_id : str, optional
        The run; default the active one, or a new one.
    **report
        Options of `trustsets.write_report`, such as ``outputs=``, ``sets=`` and ``title=``.

    Returns
    -------
    dict of str to float
        What was logged. Characters that MLflow refuses in names are dots. Values that are not
        finite, such as the coverage of no samples, are left out.
    """
    from trustsets.report import write_report

    mlflow = _mlflow()
    several = isinstance(evaluations, Mapping)
    with tempfile.TemporaryDirectory() as temporary:
        write_report(Path(temporary, "report.html"), evaluations, **report)
        own = dict(evaluations) if isinstance(evaluations, Mapping) else {"": evaluations}
        values: dict[str, float] = {}
        for method, item in own.items():
            start = f"{prefix}{_safe(str(method))}/" if several else prefix
            values |= {start + _safe(name): each.value for name, each in item.metrics.items()}
            name = f"evaluation.{_safe(str(method))}.json" if several else "evaluation.json"
            Path(temporary, name).write_text(item.to_json(), encoding="utf-8")
        values = {name: value for name, value in values.items() if math.isfinite(value)}
        mlflow.log_metrics(values, run_id=run_id)
        mlflow.log_artifacts(temporary, folder, run_id=run_id)
    return values


def _load_pyfunc(path: str) -> "_Function":
    """What ``mlflow.pyfunc.load_model`` calls, with the path of the `.trustsets` file."""
    return _Function(load(path))


@final
class _Function:
    """The python_function: a table of samples in, a table of sets out."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor

    def predict(
        self, model_input: "pd.DataFrame", params: dict[str, Any] | None = None
    ) -> "pd.DataFrame":
        """Sets of the rows, with their size, confidence and status."""
        import pandas as pd

        table = _arrow(model_input)
        if model_input.empty:
            return pd.DataFrame({name: [] for name in _RESULT}, index=model_input.index)
        alpha = (params or {}).get("alpha", 0.1)
        found = predict_table(self.predictor, table, alpha)
        roles = find_roles(table.column_names, self.predictor.needed_groups)
        confidence = table_outputs(self.predictor, table, roles).confidence
        columns = {
            "set": found.column("set").to_pylist(),
            "size": found.column("size").to_numpy(),
            "confidence": confidence,
            "status": found.column("status").to_pylist(),
        }
        return pd.DataFrame(columns, index=model_input.index)


def _arrow(frame: "pd.DataFrame") -> "pa.Table":
    import pandas as pd
    import pyarrow as pa

    if not isinstance(frame, pd.DataFrame):
        raise InputError(
            f"model_input must be a pandas DataFrame with the columns of the signature; got "
            f"{type(frame).__name__}."
        )
    if frame.columns.intersection([*LOGITS, *PROBABILITIES]).empty:
        # MLflow has removed all columns that the signature does not name.
        raise InputError(
            "model_input must have a column 'logits' or 'probabilities' with a list of numbers in "
            "each row, one for each class; there is neither. Of a matrix p make one by "
            "pd.DataFrame({'probabilities': list(p)})."
        )
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(
            f"a column of model_input must hold values of one type ({error}). Convert it."
        ) from error


def _check_predictor(predictor: Any) -> None:
    if not isinstance(predictor, Predictor):
        raise InputError(
            f"predictor must be a calibrated predictor, such as ConditionalConformal; got "
            f"{type(predictor).__name__}. Of a TrustSetClassifier, log its predictor_, and its "
            "classifier by the flavour that MLflow has for it."
        )
    predictor.classes_  # noqa: B018 - says that it is not calibrated


def _safe(name: str) -> str:
    return _UNSAFE.sub(".", name)


def _mlflow(part: str = "") -> Any:
    """MLflow or a module of it, or what to do without it."""
    try:
        with warnings.catch_warnings():
            # Some releases warn of their own type hints when they are imported.
            warnings.simplefilter("ignore", UserWarning)
            return import_module(f"mlflow.{part}" if part else "mlflow")
    except ImportError as error:
        raise InputError(
            'MLflow is not installed. Install it with: pip install "trustsets[mlflow]"'
        ) from error
