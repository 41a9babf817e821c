"""A small neural network, trained as most are: until it fits its training data."""

from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Network"]

Singles = NDArray[np.float32]

_LARGEST_BATCH = 128
_FEWEST_BATCHES = 4
_RATE = 2e-3


@final
@dataclass(frozen=True, eq=False)
class Network:
    """One hidden layer of rectified units; its logits are a linear map of them.

    Nothing makes it overconfident but the usual: more weights than samples, trained past
    the point where its training error is zero.
    """

    weights: tuple[Singles, Singles]
    biases: tuple[Singles, Singles]

    @classmethod
    def train(cls, inputs: Any, codes: Any, *, width: int, epochs: int, seed: int) -> Self:
        """Minimise the cross entropy with Adam.

        Parameters
        ----------
        inputs : array of shape (n, d)
        codes : array of shape (n,)
            Classes ``0..K-1``, each of which occurs.
        width, epochs : int
            Hidden units, and passes over the data.
        seed : int
            For the first weights and the order of the samples.
        """
        from sklearn.neural_network import MLPClassifier
        from threadpoolctl import threadpool_limits

        batch = min(_LARGEST_BATCH, max(len(codes) // _FEWEST_BATCHES, 1))
        model = MLPClassifier(
            (width,), alpha=1e-5, batch_size=batch, learning_rate_init=_RATE, random_state=seed
        )
        inputs = np.asarray(inputs, dtype=np.float32)
        # Pass by pass: `fit` would warn that a fixed number of passes may not be enough.
        # On one core: products of this size lose more by sharing the work than they gain.
        with threadpool_limits(1):
            for _ in range(epochs):
                model.partial_fit(inputs, codes, classes=np.unique(codes))
        return cls(tuple(model.coefs_), tuple(model.intercepts_))

    def hidden(self, inputs: Any) -> Singles:
        """Hidden layer, shape (n, width)."""
        inputs = np.asarray(inputs, dtype=np.float32)
        hidden: Singles = np.maximum(inputs @ self.weights[0] + self.biases[0], np.float32(0.0))
        return hidden

    def logits(self, hidden: Singles) -> Singles:
        """Logits from the hidden layer, shape (n, K)."""
        return hidden @ self.weights[1] + self.biases[1]
