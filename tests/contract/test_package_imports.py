"""What the packages beside `trustsets` may import of it: public names of public rooms."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import trustsets_explorer
import trustsets_paper

PACKAGES = (trustsets_paper, trustsets_explorer)
FILES = [file for own in PACKAGES for file in sorted(Path(own.__file__).parent.glob("*.py"))]


def imported(path):
    """Pairs of a module and a name imported from it, functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)


def is_public(module, name):
    """A room is `trustsets` or one level below it; what it offers is in its ``__all__``."""
    parts = module.split(".")
    if name is None or len(parts) > 2 or any(part.startswith("_") for part in parts[1:]):
        return False
    room = import_module(module)
    # Rooms themselves may be imported from the package.
    submodule = module == "trustsets" and (Path(room.__file__).parent / f"{name}.py").exists()
    offered = {*room.__all__, "__all__", "__version__"}
    return name in offered or (submodule and not name.startswith("_"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_only_public_names_are_imported(path):
    used = [
        (module, name) for module, name in imported(path) if module.split(".")[0] == "trustsets"
    ]
    assert [pair for pair in used if not is_public(*pair)] == []


def test_the_rule_has_teeth():
    assert is_public("trustsets.metrics", "Evaluation") and is_public("trustsets", "plots")
    for module, name in [
        ("trustsets._arrays", "Floats"),
        ("trustsets.metrics.evaluation", "evaluate"),
        ("trustsets.metrics", "_no_such"),
        ("trustsets", None),
    ]:
        assert not is_public(module, name)
