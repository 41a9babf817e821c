"""Can I evaluate without a test set?

Yes: calibrate on all labelled samples, and leave each of them out once. Its set is then exactly the
one that all the others give. The intervals are about this predictor's coverage of new samples.
"""

import numpy as np

from trustsets import ModelOutputs, StandardConformal, audit
from trustsets.auditing import find_regions

rng = np.random.default_rng(0)
age = rng.choice(["child", "adult", "senior"], p=[0.15, 0.6, 0.25], size=2000)
labels = rng.integers(8, size=2000)
strength = np.where(age == "child", 1.0, 4.0)
logits = strength[:, None] * np.eye(8)[labels] + rng.gumbel(size=(2000, 8))
samples = ModelOutputs(logits=logits, labels=labels, groups={"age": age})

predictor = StandardConformal().calibrate(samples)
result = audit(predictor, alpha=0.1, metrics=["groups"])
frame = result.tables["group:age"].to_frame()[["bin", "count", "coverage", "lower", "upper"]]
print(frame.round(3).to_string(index=False), end="\n\n")

# Regions that nobody named beforehand: each is tested on samples that it was not found on.
left_out = predictor.leave_one_out(alpha=0.1)
print(find_regions(left_out, predictor.calibration_).summary())
