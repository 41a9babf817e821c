"""For anyone who does not know alpha yet: p-values, confidence and credibility of every class.

A class is in the set at alpha if its p-value is above alpha. One matrix of p-values therefore holds
the sets for all alphas.
"""

import numpy as np

from trustsets import ConditionalConformal, ModelOutputs

rng = np.random.default_rng(0)
labels = rng.integers(4, size=2000)
logits = 3.0 * np.eye(4)[labels] + rng.gumbel(size=(2000, 4))
calibration, test = ModelOutputs(logits=logits, labels=labels).split(0.5, seed=0)

predictor = ConditionalConformal().calibrate(calibration)
p = predictor.predict_p(test.take(slice(0, 200)))
best = predictor.predict_confidence(test.take(slice(0, 200)))

print("p-values of the first three samples, a column for each class:")
print(np.round(p[:3], 3))
print(f"first sample: class {best.labels[0]}, confidence {best.confidence[0]:.3f}")
for alpha in (0.05, 0.1, 0.2):
    sizes = (p > alpha).sum(axis=1)
    print(f"alpha {alpha}: {sizes.mean():.2f} classes a set")
