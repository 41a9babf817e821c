"""The task of naming the module that a function of Python's standard library comes from.

The library's files are read and parsed, never imported.
"""

import ast
import re
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trustsets.demo.task import DemoTask, Network
from trustsets.errors import InputError

__all__ = ["functions_in", "library_functions", "library_task", "words_of"]

# Installed packages are not the library, and tests repeat one another.
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
# Shorter functions, such as a lone `pass`, could be of any module.
_FEWEST_WORDS = 10
_IDENTIFIER = re.compile(r"[A-Za-z_]\w+")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_DIRECTIONS = 128


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

    texts, modules = library_functions()
    classes, codes = np.unique(modules, return_inverse=True)
    seen, new = train_test_split(
        np.arange(len(texts)), train_size=train_share, random_state=seed, stratify=codes
    )
    seen, new = np.sort(seen), np.sort(new)
    inputs = _describe(texts, seen, seed)
    network = Network.train(inputs[seen], codes[seen], width=256, epochs=40, seed=seed)
    train, pool = (network.outputs(inputs[i], classes[codes[i]], classes) for i in (seen, new))
    return DemoTask(
        name="library",
        title="Functions of Python's standard library",
        about=(
            f"{len(new):,} functions from {len(classes)} modules, to be told apart by their "
            f"text; the network was trained on {len(seen):,} others."
        ),
        train=train,
        pool=pool,
        texts=([texts[i] for i in seen], [texts[i] for i in new]),
    )


@cache
def library_functions(fewest: int = 12, root: Path | None = None) -> tuple[list[str], list[str]]:
    """Texts of functions and methods, and the name of the module of each, in a fixed order.

    No two texts are equal. The library is read once, however many seeds are tried.

    Parameters
    ----------
    fewest : int
        Modules with fewer functions are left out.
    root : path, optional
        Folder of the standard library; by default that of the running Python.
    """
    root = Path(sysconfig.get_path("stdlib")) if root is None else root
    module_of: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if _SKIPPED.isdisjoint(place.parts):
            module = ".".join(place.with_suffix("").parts).removesuffix(".__init__")
            # The library has files that do not parse, or not in the encoding they declare.
            with suppress(OSError, SyntaxError, ValueError), tokenize.open(path) as file:
                for text in functions_in(file.read()):
                    module_of.setdefault(text, module)
    size = Counter(module_of.values())
    kept = {text: module for text, module in module_of.items() if size[module] >= fewest}
    if not kept:
        raise InputError(
            f"the source of Python's standard library is not in {root}; choose another task, "
            "or a Python that comes with its .py files."
        )
    return list(kept), list(kept.values())


def functions_in(source: str) -> Iterator[str]:
    """Texts of the functions and methods in a source file, with single spaces.

    A function within another is a part of its text and not listed by itself.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    lines = source.splitlines()
    for node in _definitions(tree):
        text = " ".join(" ".join(lines[node.lineno - 1 : node.end_lineno]).split())
        if len(_IDENTIFIER.findall(text)) >= _FEWEST_WORDS:
            yield text


def words_of(text: str) -> list[str]:
    """Identifiers and words of a source text, and the parts of compound ones, in lower case.

    Examples
    --------
    >>> words_of("def readLine(self, max_size)")
    ['def', 'readline', 'read', 'line', 'self', 'max_size', 'max', 'size']
    """
    words = []
    for word in _IDENTIFIER.findall(text):
        parts = _PART.findall(word)
        words += [word, *parts] if len(parts) > 1 else [word]
    return [word.lower() for word in words]


def _definitions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child
        elif isinstance(child, (ast.ClassDef, ast.If, ast.Try)):
            yield from _definitions(child)


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
    # The first weights of a network suit inputs of unit variance.
    return np.asarray(described * np.sqrt(_DIRECTIONS), dtype=np.float32)
