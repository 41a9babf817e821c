"""Handwritten digits that ship with scikit-learn."""

import numpy as np

from trustsets.demo.task import DemoTask, Network

__all__ = ["digits_task"]


def digits_task(seed: int = 0, n_train: int = 100) -> DemoTask:
    """Ten digits, 8 x 8 pixels, and a network that saw few of them.

    Parameters
    ----------
    seed : int
        Chooses the training images and the first weights.
    n_train : int
        Training images of the 1,797; the others are the pool. There are few, because a
        network trained on many makes hardly any errors.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    seen, new = train_test_split(
        np.arange(len(labels)), train_size=n_train, random_state=seed, stratify=labels
    )
    network = Network.train(images[seen], labels[seen], width=64, epochs=300, seed=seed)
    train, pool = (network.outputs(images[i], labels[i], np.arange(10)) for i in (seen, new))
    return DemoTask(
        name="digits",
        title="Handwritten digits",
        about=f"{len(new):,} images of 10 digits; the network was trained on {n_train} others.",
        train=train,
        pool=pool,
        images=(images[seen].reshape(-1, 8, 8), images[new].reshape(-1, 8, 8)),
    )
