"""For teams with an MLflow registry: log a predictor, serve it as a function, log its coverage.

The registry here is a SQLite file in a temporary folder.
"""

import os
import tempfile

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import mlflow
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from trustsets import SAPS, ModelOutputs, StandardConformal, evaluate
from trustsets.extras.mlflow import load_model, log_evaluation, log_model

X, y = load_digits(return_X_y=True)
X_train, X_rest, y_train, y_rest = train_test_split(X, y, train_size=400, random_state=0)
classifier = LogisticRegression(max_iter=2000).fit(X_train, y_train)
outputs = ModelOutputs(probabilities=classifier.predict_proba(X_rest), labels=y_rest)
calibration, test = outputs.split(0.5)
predictor = StandardConformal(SAPS()).calibrate(calibration)
sets = predictor.predict_set(test, alpha=0.05)

with tempfile.TemporaryDirectory() as folder:
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.create_experiment("digits", artifact_location=f"file://{folder}/files")
    mlflow.set_experiment("digits")
    with mlflow.start_run():
        model = log_model(predictor, "sets", alpha=0.05, registered_model_name="digit-sets")
        logged = log_evaluation(evaluate(sets, test), outputs=test, sets=sets)
    print(f"{len(logged)} metrics logged, among them coverage {logged['coverage']:.3f}")

    # Whoever serves the model needs the name of the version alone.
    served = mlflow.pyfunc.load_model("models:/digit-sets/1")
    frame = pd.DataFrame({"probabilities": list(test.probabilities)})
    result = served.predict(frame)
    print(result.sort_values("size", ascending=False).head(3))
    assert result["set"].tolist() == [own.tolist() for own in sets]
    assert len(served.predict(frame, params={"alpha": 0.2})) == len(test)
    # The predictor itself comes back, too: it can be updated, audited and asked for p-values.
    print(load_model(model.model_uri).predict_p(test).shape)
