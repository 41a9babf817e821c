"""Peers give the sets of their own documented examples when they are called by the benchmark.

Each test runs an example of a package's documentation as it is written there (with simulated data
in place of downloads), and the benchmark's call on the probabilities of the same model.
"""

import numpy as np
import pytest
from peers import crepes_sets, mapie_conditional_sets, mapie_sets, puncc_sets, torchcp_sets
from sklearn.datasets import make_blobs, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

pytestmark = pytest.mark.filterwarnings("ignore")


def blobs():
    """Three overlapping classes: training, calibration and test samples."""
    X, y = make_blobs(n_samples=900, centers=3, cluster_std=3.4, random_state=1)
    X_train, X_rest, y_train, y_rest = train_test_split(X, y, train_size=200, random_state=1)
    return X_train, y_train, *train_test_split(X_rest, y_rest, train_size=400, random_state=1)


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_mapie(score: str) -> None:
    classification = pytest.importorskip("mapie.classification")
    X_train, y_train, X_conformalize, X_test, y_conformalize, _ = blobs()
    estimator = LogisticRegression().fit(X_train, y_train)
    mapie_classifier = classification.SplitConformalClassifier(
        estimator=estimator,
        confidence_level=0.9,
        conformity_score=score,
        prefit=True,
        random_state=7,
    )
    mapie_classifier.conformalize(X_conformalize, y_conformalize)
    _, expected = mapie_classifier.predict_set(X_test)
    held, new = (estimator.predict_proba(X) for X in (X_conformalize, X_test))
    mask = mapie_sets(held, y_conformalize, new, score=score, seed=7, alpha=0.1)()
    assert mask.sum() > len(mask)
    np.testing.assert_array_equal(mask, expected[:, :, 0])


def test_mapie_conditional() -> None:
    pytest.importorskip("cvxpy")
    module = pytest.importorskip("mapie.conditional_conformal_prediction")
    X_train, y_train, X_conformalize, X_test, y_conformalize, _ = blobs()
    X_test = X_test[:60]
    estimator = LogisticRegression().fit(X_train, y_train)

    def feature_map(X):
        return np.column_stack([np.ones(len(X)), X])

    classifier = module.ConditionalSplitConformalClassifier(
        feature_map=feature_map, estimator=estimator, confidence_level=0.9
    )
    _, expected = classifier.conformalize(X_conformalize, y_conformalize).predict_set(X_test)
    held, new = (estimator.predict_proba(X) for X in (X_conformalize, X_test))
    columns = {"columns": feature_map(X_conformalize), "test_columns": feature_map(X_test)}
    mask = mapie_conditional_sets(held, y_conformalize, new, **columns, alpha=0.1)()
    np.testing.assert_array_equal(mask, expected[:, :, 0])


@pytest.mark.parametrize(
    "setting", [{}, {"class_cond": True}, {"bins": 5}], ids=["plain", "class", "bins"]
)
def test_crepes(setting: dict) -> None:
    crepes = pytest.importorskip("crepes")
    from crepes.extras import MondrianCategorizer

    X_train, y_train, X_cal, X_test, y_cal, _ = blobs()
    forest = RandomForestClassifier(n_estimators=50, random_state=0)
    rf = crepes.WrapClassifier(forest)
    rf.fit(X_train, y_train)
    np.random.seed(7)  # noqa: NPY002
    mc = None
    if "bins" in setting:
        mc = MondrianCategorizer()
        mc.fit(X_cal, f=lambda X: forest.predict_proba(X).max(axis=1), no_bins=setting["bins"])
    rf.calibrate(X_cal, y_cal, class_cond=setting.get("class_cond", False), mc=mc, seed=7)
    expected = rf.predict_set(X_test, labels=False, confidence=0.9, seed=7)
    held, new = (forest.predict_proba(X) for X in (X_cal, X_test))
    mask = crepes_sets(held, y_cal, new, seed=7, alpha=0.1, **setting)()
    np.testing.assert_array_equal(mask, np.asarray(expected, dtype=bool))


@pytest.mark.parametrize(
    ("method", "setting"), [("LAC", {}), ("APS", {}), ("RAPS", {"k_reg": 2, "lambd": 1})]
)
def test_puncc(method: str, setting: dict) -> None:
    classification = pytest.importorskip("deel.puncc.classification")
    from deel.puncc.api.prediction import BasePredictor

    X, y = make_classification(
        n_samples=1000, n_features=4, n_informative=2, n_classes=2, random_state=0, shuffle=False
    )
    X_train, X_test, y_train, _ = train_test_split(X, y, test_size=0.2, random_state=0)
    X_fit, X_calib, y_fit, y_calib = train_test_split(
        X_train, y_train, test_size=0.2, random_state=0
    )
    rf_model = RandomForestClassifier(n_estimators=100, random_state=0)

    class RFPredictor(BasePredictor):
        def predict(self, X, **kwargs):
            return self.model.predict_proba(X, **kwargs)

    np.random.seed(7)  # noqa: NPY002
    cp = getattr(classification, method)(RFPredictor(rf_model), **setting)
    cp.fit(X_fit=X_fit, y_fit=y_fit, X_calib=X_calib, y_calib=y_calib)
    np.random.seed(7)  # noqa: NPY002
    cp.fit(X_fit=X_fit, y_fit=y_fit, X_calib=X_calib, y_calib=y_calib)
    _, sets = cp.predict(X_test, alpha=0.2)
    held, new = (rf_model.predict_proba(X) for X in (X_calib, X_test))
    mask = puncc_sets(held, y_calib, new, method=method, seed=7, alpha=0.2, **setting)()
    assert [set(np.flatnonzero(row)) for row in mask] == [set(map(int, row)) for row in sets]


@pytest.mark.parametrize(
    ("predictor", "score", "setting"),
    [
        ("SplitPredictor", "LAC", {}),
        ("SplitPredictor", "APS", {}),
        ("SplitPredictor", "RAPS", {"penalty": 0.1, "kreg": 1}),
        ("SplitPredictor", "SAPS", {}),
        ("ClassConditionalPredictor", "APS", {}),
        ("ClusteredPredictor", "APS", {}),
    ],
)
def test_torchcp(predictor: str, score: str, setting: dict) -> None:
    pytest.importorskip("torchcp")
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from torchcp.classification import predictor as predictors
    from torchcp.classification import score as scores

    X_train, y_train, X_cal, X_test, y_cal, _ = blobs()
    linear = LogisticRegression().fit(X_train, y_train)
    model = torch.nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(linear.coef_))
        model.bias.copy_(torch.from_numpy(linear.intercept_))
    cal_data = TensorDataset(torch.from_numpy(X_cal).float(), torch.from_numpy(y_cal))
    torch.manual_seed(7)
    conformal = getattr(predictors, predictor)(
        getattr(scores, score)(**setting), model, alpha=0.1, device=torch.device("cpu")
    )
    # A generator of its own, or the loader would draw from the one that the scores draw from.
    loader = DataLoader(cal_data, batch_size=1000, generator=torch.Generator())
    conformal.calibrate(loader, alpha=0.1)
    expected = conformal.predict(torch.from_numpy(X_test).float())
    with torch.no_grad():
        cal_p, test_p = (
            torch.softmax(model(torch.from_numpy(X).float()), dim=1).double().numpy()
            for X in (X_cal, X_test)
        )
    kind = {"predictor": predictor, "score": score}
    mask = torchcp_sets(cal_p, y_cal, test_p, seed=7, alpha=0.1, **kind, **setting)()
    # Probabilities pass through a logarithm here: draws that fall on the threshold could differ.
    assert (mask != np.asarray(expected, dtype=bool)).mean() < 0.002
