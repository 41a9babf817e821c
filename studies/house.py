"""The size and shape of the source, in numbers; run it on two checkouts to compare them.

    python studies/house.py                       # the checkout that this file is part of
    python studies/house.py ../other-checkout     # any other

It prints files and lines by folder, the names that the package exports, the functions with many
parameters, the tuples and data classes with many fields, and the files that one ``predict_set``
runs through. Only the last part imports the package; the others read its text.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

MOST_PARAMETERS = 7
SHOWN = 10

PREDICT = """
import sys, warnings
import numpy as np

root, seen = sys.argv[1], set()
warnings.simplefilter("ignore")
from trustsets import ConditionalConformal, ModelOutputs, TrustScore

rng = np.random.default_rng(0)
labels = rng.integers(5, size=900)
features = rng.normal(size=(900, 6)) + 1.5 * np.eye(6)[labels]
trust = TrustScore().fit(features[:300], labels[:300])
outputs = [
    ModelOutputs(logits=2 * features[part, :5], features=features[part], labels=labels[part])
    for part in (slice(300, 700), slice(700, 900))
]
predictor = ConditionalConformal(trust=trust).calibrate(outputs[0])

def note(frame, event, argument):
    path = frame.f_code.co_filename
    if event == "call" and path.startswith(root):
        seen.add(path[len(root) + 1 :])

import threading
threading.setprofile(note)
sys.setprofile(note)
predictor.predict_set(outputs[1], alpha=0.1)
sys.setprofile(None)
print("\\n".join(sorted(seen)))
"""


def main(checkout: Path) -> None:
    """Print all numbers of a checkout."""
    root = checkout / "src" / "trustsets"
    trees = {path: ast.parse(path.read_text()) for path in sorted(root.rglob("*.py"))}
    print_lines(root, list(trees))
    print(f"\nnames exported: {len(exported(trees[root / '__init__.py']))}")
    found, longest = (
        [
            (count, f"{path.relative_to(root)}: {name}")
            for path, tree in trees.items()
            for name, count in counted(tree)
        ]
        for counted in (parameters, fields)
    )
    many = [item for item in found if item[0] > MOST_PARAMETERS]
    print_largest(f"functions with more than {MOST_PARAMETERS} parameters: {len(many)}", many)
    print_largest("most fields of tuples and data classes", longest)
    files = passed_through(checkout, root)
    print(f"\nfiles that one predict_set passes through (compiled steps hidden): {len(files)}")
    print("".join(f"  {name}\n" for name in files), end="")


def print_lines(root: Path, paths: list[Path]) -> None:
    """Files and lines, by folder and in all."""
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path in paths:
        inside = path.relative_to(root).parts
        folder = inside[0] if len(inside) > 1 else "."
        files[folder] += 1
        lines[folder] += len(path.read_text().splitlines())
    print(f"{'folder':<16}{'files':>7}{'lines':>8}")
    for folder in sorted(files):
        print(f"{folder:<16}{files[folder]:>7,}{lines[folder]:>8,}")
    print(f"{'all':<16}{files.total():>7,}{lines.total():>8,}")


def exported(tree: ast.Module) -> list[str]:
    """Names that the package's ``__all__`` or its table of homes lists."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        value = getattr(node, "value", None)
        if "_HOME" in names and isinstance(value, ast.Dict):
            return [ast.unparse(key) for key in value.keys if key is not None]
        if "__all__" in names and isinstance(value, ast.List | ast.Tuple):
            return [ast.unparse(item) for item in value.elts]
    return []


def parameters(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Functions with their numbers of parameters; `self` and `cls` do not count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            own += [item for item in (node.args.vararg, node.args.kwarg) if item is not None]
            yield node.name, sum(item.arg not in {"self", "cls"} for item in own)


def fields(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Named tuples and data classes with their numbers of fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            marks = " ".join(ast.unparse(item) for item in [*node.bases, *node.decorator_list])
            if "NamedTuple" in marks or "dataclass" in marks:
                own = [item for item in node.body if isinstance(item, ast.AnnAssign)]
                yield node.name, sum("ClassVar" not in ast.unparse(item.annotation) for item in own)


def print_largest(title: str, found: list[tuple[int, str]]) -> None:
    """Print the first few by size."""
    print(f"\n{title}")
    for count, name in sorted(found, key=lambda item: (-item[0], item[1]))[:SHOWN]:
        print(f"{count:>5}  {name}")


def passed_through(checkout: Path, root: Path) -> list[str]:
    """Files of the package that run Python code during one ``predict_set``, in another process."""
    command = [sys.executable, "-c", PREDICT, str(root)]
    environment = {"PYTHONPATH": str(checkout / "src"), "PATH": "", "HOME": str(Path.home())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


if __name__ == "__main__":
    main((Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve())
