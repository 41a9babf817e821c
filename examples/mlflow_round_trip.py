"""How do I serve a predictor from an MLflow registry?

A predictor is one file, an artifact of a python model of a few lines. The model here is saved to a
temporary folder; `mlflow.pyfunc.log_model` with the same arguments logs it to your registry.
"""

import tempfile
import warnings
from pathlib import Path

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's, about code of its own
        import mlflow.pyfunc
except ImportError as error:
    raise SystemExit(f"needs {error.name}: pip install mlflow-skinny") from None
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from trustsets import SAPS, ModelOutputs, StandardConformal

X, y = load_digits(return_X_y=True)
X, X_rest, y, y_rest = train_test_split(X, y, train_size=400, random_state=0)
probabilities = LogisticRegression(max_iter=2000).fit(X, y).predict_proba(X_rest)
calibration, test = ModelOutputs(probabilities=probabilities, labels=y_rest).split(0.5)
predictor = StandardConformal(score=SAPS()).calibrate(calibration)
sets = predictor.predict_set(test, alpha=0.05)

# What a server runs: it imports this file, and needs nothing of the above.
SERVED = """
import mlflow.pyfunc
import pandas as pd
import trustsets
class Sets(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        self.predictor = trustsets.load(context.artifacts["predictor"])

    def predict(self, context, model_input: pd.DataFrame, params=None):
        outputs = trustsets.ModelOutputs(probabilities=model_input.to_numpy())
        sets = self.predictor.predict_set(outputs, alpha=(params or {}).get("alpha", 0.05))
        return [labels.tolist() for labels in sets.labels()]

mlflow.models.set_model(Sets())
"""

with tempfile.TemporaryDirectory() as folder:
    predictor.save(f"{folder}/digits.trustsets")
    Path(folder, "served.py").write_text(SERVED)
    mlflow.pyfunc.save_model(
        f"{folder}/model",
        python_model=f"{folder}/served.py",
        artifacts={"predictor": f"{folder}/digits.trustsets"},
        pip_requirements=["trustsets"],
    )
    served = mlflow.pyfunc.load_model(f"{folder}/model")
    result = served.predict(pd.DataFrame(test.probabilities))
assert result == [labels.tolist() for labels in sets.labels()]
print(f"{sets.covers(test.labels).mean():.3f} covered; true class and served set of some samples:")
for i in sets.sizes.argsort(kind="stable")[[0, -2, -1]]:
    print(f"{test.labels[i]}: {result[i]}")
