"""For users of crepes: the same sets, and the call that makes them here.

`WrapClassifier.calibrate` with the default (hinge) scores is `StandardConformal(score=Softmax())`;
with `class_cond=True` it is `MondrianConformal(by="class")`.
"""

try:
    from crepes import WrapClassifier
except ImportError:
    raise SystemExit("needs crepes: pip install crepes") from None
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from trustsets import ModelOutputs, MondrianConformal, Softmax, StandardConformal

X, y = load_digits(return_X_y=True)
model = LogisticRegression(max_iter=2000).fit(X[:900], y[:900])
held_out, new = slice(900, 1400), slice(1400, None)
calibration = ModelOutputs(probabilities=model.predict_proba(X[held_out]), labels=y[held_out])
outputs = ModelOutputs(probabilities=model.predict_proba(X[new]))

for per_class in (False, True):
    theirs = WrapClassifier(model)
    theirs.calibrate(X[held_out], y[held_out], class_cond=per_class)
    their_sets = theirs.predict_set(X[new], labels=False, confidence=0.95, smoothing=False)

    options = {"score": Softmax(), "temperature": None, "allow_empty": True}
    ours = MondrianConformal(by="class", **options) if per_class else StandardConformal(**options)
    our_sets = ours.calibrate(calibration).predict_set(outputs, alpha=0.05)
    same = (our_sets.mask == their_sets.astype(bool)).all(axis=1)
    print(f"class_cond={per_class}: {same.sum()} of {len(same)} sets are equal")
    assert np.all(same)
