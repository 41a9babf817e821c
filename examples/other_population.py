"""Does it hold at another hospital, from which there are no labels?

The classifier is deployed at another site, where hard samples are more common. There are no labels
from that site. `adapt` weights the calibration samples so that they look like the new ones, says
how much information is left, and warns where nothing can be guaranteed.
"""

import warnings

import numpy as np

from trustsets import ModelOutputs, StandardConformal
from trustsets.errors import TrustSetsWarning

rng = np.random.default_rng(3)


def draw(n: int, tilt: float, move: float = 0.0) -> ModelOutputs:
    """Samples whose first feature says how hard they are, which the classifier underrates."""
    hard = rng.uniform(size=40 * n)
    hard = hard[rng.uniform(size=hard.size) < np.exp(tilt * (hard - 1.0))][:n] + move
    z = rng.normal(size=(n, 5))
    true = 3.0 * z * (1.2 - np.minimum(hard, 1.1))[:, None]
    return ModelOutputs(
        logits=3.0 * z * (1.2 - 0.7 * np.minimum(hard, 1.1))[:, None],
        labels=(true + rng.gumbel(size=true.shape)).argmax(axis=1),
        features=np.column_stack([hard, z]),
    )


def show(name: str, predictor: StandardConformal, test: ModelOutputs) -> None:
    """Print coverage, which needs labels, and sizes."""
    sets = predictor.predict_set(test, alpha=0.1)
    covered = sets.covers(test.labels).mean()
    print(f"{name:34s} coverage {covered:.3f}, mean size {sets.sizes.mean():.2f}")


here, there = draw(3000, tilt=0.0), draw(3000, tilt=4.0)
predictor = StandardConformal().calibrate(here)
adapted = predictor.adapt(there, shift="covariate", of="features")
test = draw(5000, tilt=4.0)
show("here", predictor, draw(5000, tilt=0.0))
show("other site, not adapted", predictor, test)
show("other site, adapted", adapted, test)
print(adapted.summary())

# Samples that are unlike all calibration samples: a warning and full sets, no false guarantee.
far = draw(1000, tilt=0.0, move=3.0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", TrustSetsWarning)
    outside = predictor.adapt(far, shift="covariate", of="features")
    show("a site like none before, adapted", outside, far)
print("Warning:", caught[0].message)
