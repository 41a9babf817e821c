"""The task of naming the module that a function of the standard library comes from."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from trustsets.demo.functions import library_functions, words_of
from trustsets.demo.network import Network
from trustsets.demo.task import DemoTask, run_network

__all__ = ["functions", "library_task"]

_FEWEST = 12
_DIRECTIONS = 128
_WIDTH = 256
_EPOCHS = 40


def library_task(seed: int = 0, train_share: float = 0.4) -> DemoTask:
    """Tell from its text which module a function of Python's standard library is in.

    Hundreds of classes with a natural long tail, from dozens of functions to hundreds.

    Parameters
    ----------
    seed : int
        Chooses the training functions and the first weights.
    train_share : float
        Share of the functions of each module that the network is trained on.
    """
    from sklearn.model_selection import train_test_split

    texts, modules = functions()
    classes, codes = np.unique(modules, return_inverse=True)
    seen, new = train_test_split(
        np.arange(len(texts)), train_size=train_share, random_state=seed, stratify=codes
    )
    seen, new = np.sort(seen), np.sort(new)
    inputs = _describe(texts, seen, seed)
    network = Network.train(inputs[seen], codes[seen], width=_WIDTH, epochs=_EPOCHS, seed=seed)
    train, pool = (
        run_network(network, inputs[index], classes[codes[index]], classes) for index in (seen, new)
    )
    return DemoTask(
        name="library",
        title="Functions of Python's standard library",
        about=(
            f"{len(new):,} functions from {len(classes)} modules, to be told apart by their "
            f"text; the network was trained on {len(seen):,} others."
        ),
        train=train,
        pool=pool,
    )


@cache
def functions() -> tuple[list[str], list[str]]:
    """Read the library once, however many seeds are tried."""
    return library_functions(_FEWEST)


def _describe(texts: list[str], seen: NDArray[np.int64], seed: int) -> NDArray[np.float32]:
    """Leading directions of weighted word counts, all learned from the training functions."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    words = TfidfVectorizer(analyzer=words_of, min_df=2, sublinear_tf=True)
    words.fit([texts[i] for i in seen])
    counts = words.transform(texts)
    directions = TruncatedSVD(_DIRECTIONS, random_state=seed).fit(counts[seen])
    described = normalize(directions.transform(counts))
    # Inputs of unit variance are what the first weights of a network are made for.
    return np.asarray(described * np.sqrt(_DIRECTIONS), dtype=np.float32)
