"""Functions of Python's standard library: their source texts, and the modules they are in.

Files are read and parsed, never imported.
"""

import ast
import re
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from trustsets.errors import InputError

__all__ = ["functions_in", "library_functions", "words_of"]

# Installed packages are not the library; tests repeat each other more than they say.
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
# Shorter functions, such as a lone `pass`, could be of any module.
_FEWEST_WORDS = 10
_IDENTIFIER = re.compile(r"[A-Za-z_]\w+")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def library_functions(fewest: int, root: Path | None = None) -> tuple[list[str], list[str]]:
    """Texts of functions and methods, and the name of the module of each, in a fixed order.

    A text that occurs again is left out, so that no two entries are equal.

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
            for text in functions_in(_read(path)):
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
    """Texts of the functions and methods in a source file, white space evened out.

    A function within another belongs to it, and is no entry of its own.
    """
    lines = source.splitlines()
    for node in _definitions(_parse(source)):
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


def _read(path: Path) -> str:
    """Text of a source file in the encoding it declares; nothing if it has none that holds."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ""


def _parse(source: str) -> ast.Module:
    """Syntax tree; an empty one for files that are wrong on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError):
            return ast.Module(body=[], type_ignores=[])
