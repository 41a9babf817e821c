"""A long-tailed task whose true label probabilities are known.

Class k is drawn with probability proportional to ``1 / k ** tail``; features are normal
around a centre of the class, so that P(y | x) has a closed form. The parameters were chosen to
make the difference between methods large. The task illustrates the methods; it is no evidence
for any of them.
"""

from dataclasses import dataclass
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Floats
from trustsets.demo.task import DemoTask, Network

__all__ = ["LongTail", "simulated_task"]


@final
@dataclass(frozen=True, eq=False)
class LongTail:
    """The law of the samples: prior, shape (K,), and centres, shape (K, d), at unit noise."""

    prior: Floats
    centres: Floats

    @classmethod
    def make(
        cls, rng: np.random.Generator, n_classes: int, n_features: int, tail: float, spread: float
    ) -> Self:
        """Draw the centres at a root mean square distance of `spread` a coordinate."""
        prior = np.arange(1, n_classes + 1) ** -tail
        return cls(prior / prior.sum(), spread * rng.normal(size=(n_classes, n_features)))

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.int64]]:
        """Draw features, shape (n, d), and labels, shape (n,)."""
        labels = rng.choice(len(self.prior), size=n, p=self.prior)
        return self.centres[labels] + rng.normal(size=(n, self.centres.shape[1])), labels

    def label_probabilities(self, features: Floats) -> Floats:
        """P(y | x) by Bayes' rule, shape (n, K)."""
        fit = features @ self.centres.T - 0.5 * (self.centres**2).sum(axis=1) + np.log(self.prior)
        odds = np.exp(fit - fit.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def simulated_task(
    seed: int = 0,
    n_train: int = 3000,
    n_pool: int = 10000,
    n_classes: int = 100,
    n_features: int = 15,
    tail: float = 1.0,
    spread: float = 1.0,
) -> DemoTask:
    """A network trained on samples of a known law, and new samples of the same law.

    Parameters
    ----------
    seed : int
        Draws the law, the samples and the first weights.
    n_train, n_pool : int
        Training samples (one more of each class is added), and samples in the pool.
    n_classes, n_features, tail, spread
        See `LongTail`.
    """
    rng = np.random.default_rng(seed)
    law = LongTail.make(rng, n_classes, n_features, tail, spread)
    inputs, labels = law.draw(rng, n_train)
    # One sample of each class, so that the network has seen every class.
    inputs = np.concatenate([inputs, law.centres + rng.normal(size=law.centres.shape)])
    labels = np.concatenate([labels, np.arange(n_classes)])
    new_inputs, new_labels = law.draw(rng, n_pool)
    network = Network.train(inputs, labels, width=256, epochs=40, seed=seed)
    classes = np.arange(n_classes)
    return DemoTask(
        name="simulated",
        title="Simulated long tail",
        about=(
            f"{n_pool:,} samples of {n_classes} classes, drawn from a known law; the network was "
            f"trained on {len(labels):,} others."
        ),
        train=network.outputs(inputs, labels, classes),
        pool=network.outputs(new_inputs, new_labels, classes),
        label_probabilities=law.label_probabilities(new_inputs),
    )
