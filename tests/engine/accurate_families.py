"""Simulated classifiers that are right 95% to 100% of the time: ties and wide ranges of scores.

Classes are Gaussian clouds around random centres, and the logits are their log-likelihood ratios
times a sharpness. Far apart centres make the classifier accurate: nearly all APS scores are then
exactly 0, and softmax scores in the tail scale run over fifteen orders of magnitude.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trustsets import ModelOutputs

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Family:
    """A way to simulate an accurate classifier."""

    n_classes: int
    n_features: int
    spread: float
    sharpness: float
    tail: float = 0.0

    def draw(self, seed: int, count: int, grouped: bool = True) -> ModelOutputs:
        """Outputs of `count` samples with features, labels and perhaps two group columns."""
        rng = np.random.default_rng([seed, self.n_classes, self.n_features])
        centres = self.spread * rng.standard_normal((self.n_classes, self.n_features))
        shares = np.exp(-self.tail * np.arange(self.n_classes) / self.n_classes)
        labels = rng.choice(self.n_classes, count, p=shares / shares.sum())
        features = centres[labels] + rng.standard_normal((count, self.n_features))
        ratios = features @ centres.T - 0.5 * np.square(centres).sum(axis=1)
        groups = {"site": rng.choice(4, count, p=[0.6, 0.25, 0.1, 0.05]), "sex": labels % 2}
        return ModelOutputs(
            logits=self.sharpness * ratios,
            features=features,
            labels=labels,
            groups=groups if grouped else None,
        )


FAMILIES = {
    "hundred classes": Family(100, 256, 0.35, 0.9),
    "two classes": Family(2, 8, 1.0, 1.0),
    "two far classes": Family(2, 4, 3.0, 2.0),
    "ten classes": Family(10, 32, 0.8, 1.0),
    "ten sharp classes": Family(10, 32, 0.7, 3.0),
    "ten classes, never wrong": Family(10, 32, 2.5, 1.0),
    "thirty classes, long tail": Family(30, 64, 0.6, 1.0, tail=4.0),
    "thirty dull classes": Family(30, 64, 0.55, 0.3),
    "five classes, few features": Family(5, 3, 2.5, 1.5),
    "sixty classes": Family(60, 128, 0.45, 1.2),
}
