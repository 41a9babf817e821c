"""How do I get sets from LightGBM, with categories, missing values and early stopping?

XGBoost and CatBoost classifiers go in the same place.
"""

import lightgbm as lgb
import numpy as np
import pandas as pd

from trustsets import TrustSetClassifier

rng = np.random.default_rng(0)


def draw(n):
    """Trees of five species on four kinds of soil."""
    species = rng.integers(5, size=n)
    angle = 2 * np.pi * species / 5
    table = pd.DataFrame(
        {
            "height": 3.0 * np.cos(angle) + 1.4 * rng.normal(size=n),
            "girth": 3.0 * np.sin(angle) + 1.4 * rng.normal(size=n),
        }
    ).mask(rng.random((n, 2)) < 0.05)
    soil = np.where(rng.random(n) < 0.4, species % 4, rng.integers(4, size=n))
    table["soil"] = pd.Categorical(np.array(["clay", "loam", "peat", "sand"])[soil])
    return table, species


X, y = draw(3000)
X_stop, y_stop = draw(500)
X_new, y_new = draw(3000)

booster = lgb.LGBMClassifier(n_estimators=300, learning_rate=0.1, n_jobs=1, verbose=-1)
stop = {
    "eval_X": X_stop,
    "eval_y": y_stop,
    "callbacks": [lgb.early_stopping(10, verbose=False)],
}
model = TrustSetClassifier(booster, groups="soil").fit(X, y, **stop)
sets = model.predict_set(X_new, alpha=0.1)
covered = sets.covers(y_new)
by_soil = pd.Series(covered).groupby(X_new["soil"].to_numpy()).mean().round(3).to_dict()
print(f"Trust in {model.feature_source_} ({model.estimator_.best_iteration_} rounds)")
print(f"  coverage {covered.mean():.3f}, mean size {sets.sizes.mean():.2f}")
print("  soil     " + "".join(f"{soil:>8}" for soil in by_soil))
print("  coverage " + "".join(f"{value:8.3f}" for value in by_soil.values()))
print(model.predict_set(X_new.head(3), max_size=2).labels())
