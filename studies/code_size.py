"""The size and shape of the source, in numbers; run it on two checkouts to compare them.

    python studies/code_size.py                       # the checkout that this file is part of
    python studies/code_size.py ../other-checkout     # any other

It prints one column for each package of ``src/``. It reads the text and imports nothing.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np

PACKAGES = ("trustsets", "trustsets_paper", "trustsets_explorer")
MOST_PARAMETERS = 7
# Names that say nothing of what they hold.
EMPTY_WORDS = ("own", "found", "place", "known", "each", "given")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Trees = dict[str, ast.Module]


def main(checkout: Path) -> None:
    """Print the table of a checkout."""
    columns = {}
    for package in PACKAGES:
        root = checkout / "src" / package
        if root.is_dir():
            columns[package] = measure(root)
    print(f"{'':<36}" + "".join(f"{package:>20}" for package in columns))
    for row in next(iter(columns.values())):
        print(f"{row:<36}" + "".join(f"{column[row]:>20}" for column in columns.values()))
    print(f"\nwords of the site and the README: {sum(map(words_of_page, pages(checkout))):,}")


def measure(root: Path) -> dict[str, str]:
    """All numbers of one package."""
    paths = sorted(root.rglob("*.py"))
    texts = {module_name(root, path): path.read_text(encoding="utf-8") for path in paths}
    trees = {module: ast.parse(text) for module, text in texts.items()}
    packages = {module_name(root, path) for path in paths if path.name == "__init__.py"}
    functions = [node for tree in trees.values() for node in walk_functions(tree)]
    lengths = [
        code_lines(texts[module], node)
        for module, tree in trees.items()
        for node in walk_functions(tree)
    ]
    loaded = {m: set(imported(loaded_nodes(tree), m, trees)) for m, tree in trees.items()}
    imports = {m: set(imported(ast.walk(tree), m, trees)) for m, tree in trees.items()}
    words = Counter(word for tree in trees.values() for word in bound_names(tree))
    median, most = np.quantile(lengths, (0.5, 0.99))
    return {
        "files": f"{len(paths):,}",
        "lines": f"{sum(len(text.splitlines()) for text in texts.values()):,}",
        "code lines": f"{sum(map(code_lines, texts.values(), trees.values())):,}",
        "words of docstrings": f"{sum(map(docstring_words, trees.values())):,}",
        "public names": str(len(public_names(root, trees[root.name]))),
        "import depth": str(import_depth(loaded)),
        "modules with a single importer": str(len(single_importers(imports, packages))),
        f"functions over {MOST_PARAMETERS} parameters": str(
            sum(parameter_count(node) > MOST_PARAMETERS for node in functions)
        ),
        "function median / 99% / longest": f"{median:.0f} / {most:.0f} / {max(lengths)}",
        "bindings of empty words": f"{sum(words[word] for word in EMPTY_WORDS):,}",
        **{f"  {word}": str(words[word]) for word in EMPTY_WORDS},
    }


def module_name(root: Path, path: Path) -> str:
    """Dotted name of a file; that of a package for its ``__init__.py``."""
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def code_lines(text: str, tree: ast.Module | Function) -> int:
    """Lines of a file or a function that are not blank, a comment or part of a docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            docstrings |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = text.splitlines()
    start, stop = (
        (1, len(lines)) if isinstance(tree, ast.Module) else (tree.lineno, tree.end_lineno)
    )
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in docstrings
        for number, line in enumerate(lines[start - 1 : stop], start=start)
    )


def docstring_words(tree: ast.Module) -> int:
    """Words of all docstrings, examples included."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [
        ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)
    ]
    return sum(map(word_count, texts))


def pages(checkout: Path) -> Iterator[Path]:
    """The README and the pages of the site; what the site leaves out or shows as a file is none."""
    settings = (checkout / "mkdocs.yml").read_text(encoding="utf-8")
    block = re.search(r"^exclude_docs: \|\n((?:  .*\n)*)", settings, flags=re.MULTILINE)
    left_out = [line.strip().strip("/") for line in block[1].splitlines()] if block else []
    yield checkout / "README.md"
    for path in sorted((checkout / "docs").rglob("*.md")):
        if not path.relative_to(checkout / "docs").as_posix().startswith(tuple(left_out)):
            yield path


def words_of_page(path: Path) -> int:
    """Words of a page as it is written, tables and code included."""
    return word_count(path.read_text(encoding="utf-8"))


def word_count(text: str) -> int:
    """Pieces between white space that have a letter or a digit."""
    return sum(any(map(str.isalnum, piece)) for piece in text.split())


def public_names(root: Path, tree: ast.Module) -> list[str]:
    """Names of the stub file; without one, those of ``__all__`` or of the table of homes."""
    stub = root / "__init__.pyi"
    if stub.exists():
        return [
            alias.asname or alias.name
            for node in ast.parse(stub.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        ]
    names: list[str] = []
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        bound = {target.id for target in targets if isinstance(target, ast.Name)}
        value = getattr(node, "value", None)
        if "_HOME" in bound and isinstance(value, ast.Dict):
            return [ast.unparse(key) for key in value.keys if key is not None]
        if "__all__" in bound and isinstance(value, ast.List | ast.Tuple):
            names = [ast.unparse(item) for item in value.elts]
    return names


def imported(nodes: Iterator[ast.AST], module: str, trees: Trees) -> Iterator[str]:
    """Modules of the same package that the imports among some nodes of a module name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            goal = name if name in trees else name.rpartition(".")[0]
            if goal in trees and goal != module:
                yield goal


def loaded_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported: nothing inside functions or for type checkers only."""
    for child in ast.iter_child_nodes(node):
        for_checkers = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not for_checkers:
            yield child
            yield from loaded_nodes(child)


def import_depth(imports: dict[str, set[str]]) -> int:
    """Modules on the longest chain of imports."""
    ordered = TopologicalSorter(imports).static_order()
    depths: dict[str, int] = {}
    for module in ordered:
        depths[module] = 1 + max((depths[goal] for goal in imports[module]), default=0)
    return max(depths.values())


def single_importers(imports: dict[str, set[str]], packages: set[str]) -> list[str]:
    """Modules inside a room that exactly one other module imports, its room's list not counted."""
    importers: Counter[str] = Counter()
    for module, goals in imports.items():
        importers.update(goal for goal in goals if goal.rpartition(".")[0] != module)
    return [
        module
        for module in imports
        if importers[module] == 1 and module not in packages and module.count(".") > 1
    ]


def walk_functions(tree: ast.Module) -> Iterator[Function]:
    """All functions and methods, nested ones too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def parameter_count(node: Function) -> int:
    """Parameters of a function; `self` and `cls` do not count."""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    arguments += [item for item in (node.args.vararg, node.args.kwarg) if item is not None]
    return sum(item.arg not in {"self", "cls"} for item in arguments)


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Names wherever they are bound: assignments, loops, parameters, fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


if __name__ == "__main__":
    main((Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve())
