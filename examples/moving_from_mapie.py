"""For users of MAPIE: the same sets, and the call that makes them here.

`SplitConformalClassifier` with the score "lac" is `StandardConformal(score=Softmax())`. Their sets
are compared below, sample by sample.
"""

try:
    from mapie.classification import SplitConformalClassifier
except ImportError:
    raise SystemExit("needs mapie: pip install mapie") from None
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from trustsets import ModelOutputs, Softmax, StandardConformal

X, y = load_digits(return_X_y=True)
model = LogisticRegression(max_iter=2000).fit(X[:900], y[:900])
held_out, new = slice(900, 1400), slice(1400, None)

theirs = SplitConformalClassifier(
    model, confidence_level=0.95, conformity_score="lac", prefit=True
).conformalize(X[held_out], y[held_out])
their_sets = theirs.predict_set(X[new])[1][:, :, 0]

ours = StandardConformal(score=Softmax(), temperature=None, allow_empty=True).calibrate(
    ModelOutputs(probabilities=model.predict_proba(X[held_out]), labels=y[held_out])
)
our_sets = ours.predict_set(ModelOutputs(probabilities=model.predict_proba(X[new])), alpha=0.05)

print("sets:", len(our_sets), " equal:", int((our_sets.mask == their_sets).all(axis=1).sum()))
assert np.array_equal(our_sets.mask, their_sets)
