"""`TrustSetClassifier` with the gradient boosting packages as they are."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

from trustsets import TrustSetClassifier

lightgbm = pytest.importorskip("lightgbm", reason="LightGBM is not installed")
xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed")
catboost = pytest.importorskip("catboost", reason="CatBoost is not installed")

TREES = np.array(["ash", "birch", "cedar", "oak"])


light = partial(lightgbm.LGBMClassifier, n_estimators=10, n_jobs=1, verbose=-1)
extreme = partial(xgboost.XGBClassifier, n_estimators=10, n_jobs=1)
quiet = {"verbose": 0, "thread_count": 1, "allow_writing_files": False}
cat = partial(catboost.CatBoostClassifier, n_estimators=10, **quiet)


@pytest.fixture(scope="module")
def table():
    """Numbers, some of them missing, a categorical column that matters, and codes of classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=900)
    centres = 1.5 * np.random.default_rng(7).normal(size=(4, 4))
    X = rng.normal(size=(900, 4)) + centres[y]
    frame = pd.DataFrame(X, columns=list("abcd")).mask(rng.random(X.shape) < 0.1)
    soil = np.where(rng.random(900) < 0.5, y, rng.integers(4, size=900))
    frame["soil"] = pd.Categorical(np.array(["clay", "loam", "peat", "sand"])[soil])
    return frame, y


BOOSTED = {
    "lightgbm": (light(), True),
    "xgboost": (extreme(enable_categorical=True), False),
    "catboost": (cat(cat_features=["soil"]), True),
}


@pytest.mark.parametrize("name", BOOSTED)
def test_boosted_trees_work_as_they_are(name, table):
    frame, y = table
    model, takes_names = BOOSTED[name]
    y = TREES[y] if takes_names else y
    wrapped = TrustSetClassifier(model, groups="soil")
    wrapped.fit(frame[:700], y[:700], sample_weight=np.ones(700))
    new = frame[700:]
    sets = wrapped.predict_set(new)
    assert sets.covers(y[700:]).mean() > 0.9 - 4 * np.sqrt(0.09 / 168 + 0.09 / 200)
    assert sets.sizes.mean() < 3.5
    np.testing.assert_array_equal(wrapped.predict(new), wrapped.estimator_.predict(new).ravel())
    assert wrapped.predictor_.needed_groups == ("soil",) and wrapped.predictor_.trust is not None
    assert wrapped.feature_source_ == "the columns of X"
    # One at a time, as in a service, is the same.
    np.testing.assert_array_equal(wrapped.predict_set(new[:1]).mask, sets.mask[:1])


def test_early_stopping_sets_reach_the_model_whole(table):
    frame, y = table
    numbers = frame[list("abcd")]
    first, held_out = slice(0, 300), slice(300, 600)  # as many samples as in training
    new = (numbers[held_out], y[held_out])
    stop = lightgbm.early_stopping(2, verbose=False)
    for model, call in [
        (light(), {"eval_X": new[0], "eval_y": new[1], "callbacks": [stop]}),
        (extreme(early_stopping_rounds=2), {"eval_set": [new], "verbose": False}),
        (cat(), {"eval_set": new, "early_stopping_rounds": 2}),
    ]:
        model.set_params(n_estimators=200, learning_rate=0.5)
        wrapped = TrustSetClassifier(model, "standard")
        fitted = wrapped.fit(numbers[first], y[first], **call).estimator_
        # The same model by hand, on the same part of the samples.
        train = np.sort(np.random.default_rng(0).permutation(300)[:210])
        by_hand = type(model)(**model.get_params()).fit(numbers.iloc[train], y[train], **call)
        best = [getattr(own, "best_iteration_", None) for own in (fitted, by_hand)]
        if best == [None, None]:
            best = [own.best_iteration for own in (fitted, by_hand)]
        assert best[0] == best[1] < 100
        np.testing.assert_array_equal(
            fitted.predict_proba(numbers[600:]), by_hand.predict_proba(numbers[600:])
        )


@pytest.mark.parametrize("make", [light, extreme, cat])
def test_other_columns_are_refused(make, table):
    frame, y = table
    numbers = frame[list("abcd")]
    trained = TrustSetClassifier(make()).fit(numbers, y)
    prefit = TrustSetClassifier(make().fit(numbers[:600], y[:600]), prefit=True)
    prefit.calibrate(numbers[600:], y[600:])
    for model in (trained, prefit):
        for call in (model.predict_set, model.predict_proba, model.predict):
            with pytest.raises(ValueError, match="must be in the same order as they were in fit"):
                call(numbers[list("dcba")])
            with pytest.raises(ValueError, match="now missing:\n- b"):
                call(numbers.rename(columns={"b": "z"}))
        with pytest.raises(ValueError, match="4"):
            model.predict_set(numbers.to_numpy()[:, :3])
