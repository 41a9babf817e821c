"""For anyone who can show at most three answers.

No set has more than `max_size` classes. Where so few cannot keep the alpha asked for, the promise
of that sample is weaker, and `sets.alpha` says how weak.
"""

import numpy as np

from trustsets import ConditionalConformal, ModelOutputs

rng = np.random.default_rng(0)
labels = rng.integers(20, size=6000)
hard = rng.random(6000) < 0.3
logits = np.where(hard, 1.5, 6.0)[:, None] * np.eye(20)[labels] + rng.gumbel(size=(6000, 20))
calibration, test = ModelOutputs(logits=logits, labels=labels).split(0.5, seed=0)

predictor = ConditionalConformal().calibrate(calibration)
free = predictor.predict_set(test, alpha=0.1)
short = predictor.predict_set(test, alpha=0.1, max_size=3)

print("largest set:", free.sizes.max(), "without a limit,", short.sizes.max(), "with max_size=3")
print("mean size:", free.sizes.mean().round(2), "and", short.sizes.mean().round(2))
promised, reached = 1 - short.alpha.mean(), short.covers(test.labels).mean()
print(f"promised on average {promised:.3f}, reached {reached:.3f}")
for i in range(4):
    print(f"sample {i}: {short[i]} promises {1 - short.alpha[i]:.2f}")
