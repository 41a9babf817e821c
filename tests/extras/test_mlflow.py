"""Predictors and evaluations through a real MLflow store, a SQLite file."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from first_tries import SECTIONS, blocks
from sklearn.linear_model import LogisticRegression

from trustsets import (
    APS,
    ConditionalConformal,
    Groups,
    InputError,
    ModelOutputs,
    MondrianConformal,
    NotCalibratedError,
    Polynomial,
    StandardConformal,
    TrustScore,
    TrustSetClassifier,
    evaluate,
)
from trustsets.extras.mlflow import (
    load_model,
    log_evaluation,
    log_model,
    save_model,
    signature_of,
)

pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")
# MLflow calls parts of SQLAlchemy that will be removed.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of type hints, when it is imported
        import mlflow
        import mlflow.pyfunc
    folder = tmp_path_factory.mktemp("store")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment(
        experiment_id=mlflow.create_experiment("sets", artifact_location=f"file://{folder}/files")
    )
    yield mlflow
    mlflow.set_tracking_uri(before)


def trust():
    rng = np.random.default_rng(0)
    return TrustScore().fit(rng.normal(size=(60, 3)), np.arange(60) % 5)


PREDICTORS = {
    "standard": lambda: StandardConformal(),
    "random": lambda: StandardConformal(APS(own_mass="random")),
    "groups": lambda: MondrianConformal(by=Groups("site")),
    "trust": lambda: ConditionalConformal(basis=Polynomial(1) + Groups("site"), trust=trust()),
}


def frame_of(outputs):
    return pd.DataFrame(
        {
            "logits": list(outputs.logits),
            "features": list(outputs.features),
            "site": outputs.groups["site"],
            "row": outputs.rows,
        }
    )


@pytest.mark.parametrize("name", PREDICTORS)
def test_sets_of_the_function_are_those_of_the_predictor(name, mlflow, make_outputs, tmp_path):
    predictor = PREDICTORS[name]().calibrate(make_outputs(300, seed=1))
    save_model(predictor, tmp_path / "model", alpha=0.2)
    # Neither pickles nor any other kind of file that runs code.
    kinds = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert kinds == {"", ".trustsets", ".txt", ".yaml"}
    function = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    test = make_outputs(40, seed=2, rows=np.arange(40))
    wanted = [column.name for column in function.metadata.signature.inputs]
    frame = frame_of(test)
    frame = frame[[column for column in frame if column in wanted]]
    frame.index = np.arange(40) // 2  # of no importance, and kept
    for params, alpha in ((None, 0.2), ({"alpha": 0.4}, 0.4)):
        sets = predictor.predict_set(test, alpha)
        result = function.predict(frame, params=params)
        assert list(result) == ["set", "size", "confidence", "status"]
        assert result["set"].tolist() == [sets[i].tolist() for i in range(40)]
        assert result["size"].tolist() == sets.sizes.tolist()
        np.testing.assert_array_equal(result["confidence"], test.confidence)
        assert result["status"].tolist() == sets.to_frame()["status"].tolist()
        assert result.index.equals(frame.index)
    assert len(function.predict(frame.iloc[:0])) == 0
    if name == "trust":
        with pytest.raises(InputError, match="needs features"):
            function.predict(frame.drop(columns="features"))


def test_the_signature_is_flat_and_asks_for_what_is_needed(mlflow, make_outputs):
    def needed(predictor):
        signature = signature_of(predictor.calibrate(make_outputs(300)))
        assert [own.name for own in signature.outputs] == ["set", "size", "confidence", "status"]
        return [own.name for own in signature.inputs if own.required]

    assert needed(PREDICTORS["standard"]()) == []
    assert needed(PREDICTORS["random"]()) == ["row"]
    assert needed(PREDICTORS["groups"]()) == ["site"]
    assert needed(PREDICTORS["trust"]()) == ["site"]
    own = signature_of(PREDICTORS["groups"]().calibrate(make_outputs()))
    assert "features" not in own.inputs.input_names()


def test_a_registered_model_is_the_predictor_that_was_logged(mlflow, make_outputs, tmp_path):
    names = np.array(["ant", "bee", "cat", "dog", "eel"])
    calibration = make_outputs(300, seed=1)
    calibration = make_outputs(300, seed=1, labels=names[calibration.codes], classes=names)
    predictor = PREDICTORS["groups"]().calibrate(calibration)
    with mlflow.start_run() as run:
        info = log_model(predictor, "sets", registered_model_name="animals")
    test = make_outputs(50, seed=2)
    for uri in (info.model_uri, "models:/animals/1", f"runs:/{run.info.run_id}/sets"):
        loaded = load_model(uri)
        assert type(loaded) is MondrianConformal
        ours, theirs = predictor.predict_set(test), loaded.predict_set(test)
        np.testing.assert_array_equal(ours.mask, theirs.mask)
        np.testing.assert_array_equal(ours.thresholds, theirs.thresholds)
    served = mlflow.pyfunc.load_model("models:/animals/1").predict(
        frame_of(test)[["logits", "site"]]
    )
    assert served["set"].tolist() == [ours[i].tolist() for i in range(50)]


def test_an_evaluation_is_logged_with_its_report(mlflow, make_outputs):
    calibration, test = make_outputs(600, groups={"site (%)": ["a", "b"] * 300}).split(0.5)
    sets = StandardConformal().calibrate(calibration).predict_set(test)
    one = evaluate(sets, test, metrics=("class", "groups", "size_strata"))
    with mlflow.start_run() as run:
        logged = log_evaluation(one, outputs=test, sets=sets, title="My report")
        log_evaluation({"a b": one, "c/d": one}, prefix="both ", folder="both")
    kept = mlflow.get_run(run.info.run_id).data.metrics
    finite = {name: own.value for name, own in one.metrics.items() if np.isfinite(own.value)}
    assert logged == {
        name.replace("group:site (%)", "group.site ..."): own for name, own in finite.items()
    }
    assert {name: kept[name] for name in logged} == logged
    assert kept["both a b/coverage"] == kept["both c.d/coverage"] == one.coverage.value
    read = mlflow.artifacts.load_text
    assert "My report" in read(f"{run.info.artifact_uri}/trustsets/report.html")
    assert read(f"{run.info.artifact_uri}/trustsets/evaluation.json") == one.to_json()
    assert read(f"{run.info.artifact_uri}/both/evaluation.c.d.json") == one.to_json()


def test_the_first_try_of_the_page_runs_and_its_mistakes_say_what_it_says(mlflow):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 4)), rng.integers(3, size=400)
    classifier = LogisticRegression().fit(X[:200], y[:200])
    outputs = ModelOutputs(probabilities=classifier.predict_proba(X[200:]), labels=y[200:])
    predictor = StandardConformal().calibrate(outputs)
    names = {"predictor": predictor, "classifier": classifier, "X_new": X[:5]}
    for block in blocks("MLflow"):
        exec(block, names)
    assert len(names["served"].predict(names["frame"])) == 5
    messages = re.findall(r"^\| .* \| `(.*)`", SECTIONS["MLflow"], flags=re.MULTILINE)
    with pytest.raises(InputError) as raised:
        log_model(classifier, "sets")
    assert str(raised.value).startswith(messages[0])
    with pytest.raises(InputError) as raised:
        names["served"].predict(classifier.predict_proba(X[:5]))
    assert str(raised.value) == messages[1]


def test_mistakes_are_named(mlflow, make_outputs, tmp_path):
    calibrated = PREDICTORS["groups"]().calibrate(make_outputs(300))
    with pytest.raises(InputError, match=r"predictor must be a calibrated predictor.*predictor_"):
        log_model(TrustSetClassifier(None), "sets")
    with pytest.raises(NotCalibratedError):
        save_model(StandardConformal(), tmp_path / "model")
    with pytest.raises(InputError, match="alpha must lie"):
        save_model(calibrated, tmp_path / "model", alpha=1.5)
    assert not (tmp_path / "model").exists()
    save_model(calibrated, tmp_path / "model")
    function = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    frame = frame_of(make_outputs(2))[["logits", "site"]]
    with pytest.raises(mlflow.MlflowException, match=r"missing inputs \['site'\]"):
        function.predict(frame[["logits"]])
    with pytest.raises(InputError, match="must have a column 'logits' or 'probabilities'"):
        function.predict(frame[["site"]])
    save_model(StandardConformal().calibrate(make_outputs(300)), tmp_path / "plain")
    plain = mlflow.pyfunc.load_model(str(tmp_path / "plain"))
    for matrix in (np.eye(5), pd.DataFrame(np.eye(5), columns=list("abcde"))):
        with pytest.raises(InputError, match="Of a matrix p make one by"):
            plain.predict(matrix)
    with pytest.raises(InputError, match="2 classes, but calibration had 5"):
        function.predict(frame.assign(logits=[[1.0, 2.0]] * 2))
    with pytest.raises(InputError, match="must hold values of one type"):
        function.predict(frame.assign(site=[1, "a"]))
    mlflow.models.Model().save(str(tmp_path / "MLmodel"))
    with pytest.raises(InputError, match="must be a model with the flavour 'trustsets'"):
        load_model(tmp_path)
