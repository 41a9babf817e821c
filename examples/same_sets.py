"""Do MAPIE and crepes give the same sets?

Yes, where definitions agree: LAC with MAPIE and crepes, and class-conditional thresholds with
crepes. Each row compares all sets of 397 new samples, class by class.
"""

try:
    from crepes import WrapClassifier
    from mapie.classification import SplitConformalClassifier
except ImportError as error:
    raise SystemExit(f"needs {error.name}: pip install mapie crepes") from None
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from trustsets import ModelOutputs, MondrianConformal, Softmax, StandardConformal

X, y = load_digits(return_X_y=True)
model = LogisticRegression(max_iter=2000).fit(X[:900], y[:900])
held_out, new = slice(900, 1400), slice(1400, None)
alpha = 0.05

mapie = SplitConformalClassifier(
    model, confidence_level=1 - alpha, conformity_score="lac", prefit=True
).conformalize(X[held_out], y[held_out])
crepes, by_class = WrapClassifier(model), WrapClassifier(model)
crepes.calibrate(X[held_out], y[held_out])
by_class.calibrate(X[held_out], y[held_out], class_cond=True)
options = {"labels": False, "confidence": 1 - alpha, "smoothing": False}
theirs = {
    "MAPIE, LAC": mapie.predict_set(X[new])[1][:, :, 0],
    "crepes": crepes.predict_set(X[new], **options).astype(bool),
    "crepes, class_cond": by_class.predict_set(X[new], **options).astype(bool),
}

calibration = ModelOutputs(probabilities=model.predict_proba(X[held_out]), labels=y[held_out])
outputs = ModelOutputs(probabilities=model.predict_proba(X[new]))
split = StandardConformal(score=Softmax(), allow_empty=True).calibrate(calibration)
by_label = MondrianConformal(by="class", score=Softmax(), allow_empty=True).calibrate(calibration)
ours = {
    "MAPIE, LAC": split.predict_set(outputs, alpha=alpha),
    "crepes": split.predict_set(outputs, alpha=alpha),
    "crepes, class_cond": by_label.predict_set(outputs, alpha=alpha),
}

print(f"{'package':20} {'sets':>5} {'equal':>6} {'mean size':>10}")
for name, sets in ours.items():
    equal = (sets.mask == theirs[name]).all(axis=1)
    print(f"{name:20} {len(sets):5} {equal.sum():6} {sets.sizes.mean():10.3f}")
    assert equal.all(), name
