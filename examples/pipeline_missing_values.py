"""For users of scikit-learn pipelines: a table with missing values, texts, and groups to cover.

The classifier is a pipeline of your own. `groups` names a column of the table; coverage is then
kept for each of its values, and samples without a value are a group of their own. The trust score
measures distances in what the encoder in the pipeline puts out.
"""

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from trustsets import TrustSetClassifier

rng = np.random.default_rng(0)


def draw(n):
    """Patients of three diseases; one clinic measures with much more noise."""
    disease = rng.choice(["cold", "flu", "measles"], n, p=[0.5, 0.3, 0.2])
    clinic = rng.choice(["east", "west", "south"], n)
    centre = pd.Series(disease).map({"cold": 0.0, "flu": 1.5, "measles": 3.0}).to_numpy()
    noise = np.where(clinic == "south", 2.5, 0.7)
    table = pd.DataFrame(
        {
            "fever": centre + noise * rng.normal(size=n),
            "spots": centre**2 / 2 + noise * rng.normal(size=n),
            "cough": rng.choice(["dry", "wet", "none"], n),
            "clinic": clinic,
        }
    )
    table.loc[rng.random(n) < 0.2, "spots"] = np.nan
    table.loc[rng.random(n) < 0.1, "clinic"] = None
    return table, disease


X, y = draw(3000)
X_new, y_new = draw(3000)

encode = make_column_transformer(
    (make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), ["fever", "spots"]),
    (OneHotEncoder(), ["cough"]),
)
model = make_pipeline(encode, LogisticRegression())
sets = {}
for method in ("standard", "conditional"):
    wrapped = TrustSetClassifier(model, method, groups="clinic").fit(X, y)
    sets[method] = wrapped.predict_set(X_new, alpha=0.1).covers(y_new)

print("Distances are measured in", wrapped.feature_source_)
clinics = X_new["clinic"].fillna("(missing)")
print(pd.DataFrame(sets).groupby(clinics.to_numpy()).mean().round(3))
frame = wrapped.set_output(transform="pandas").predict_set(X_new.head(3))
print(frame[["set", "size"]])
