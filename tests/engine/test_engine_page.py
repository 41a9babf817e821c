"""The table of tolerances and the list of files agree with the code."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import trustsets.engine

TABLE = Path(str(trustsets.engine.__file__)).with_name("tolerances.md").read_text(encoding="utf-8")
FILES = {part.name for part in pkgutil.iter_modules(trustsets.engine.__path__)}


def constants(name: str) -> dict[str, tuple[float, ...]]:
    """Floating-point constants that a module of the engine defines itself."""
    module = importlib.import_module(f"trustsets.engine.{name}")
    found = {}
    for node in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in ast.walk(ast.Tuple([*targets])):
            if isinstance(target, ast.Name) and target.id.isupper():
                value = getattr(module, target.id)
                parts = value if type(value) is tuple else (value,)
                if all(type(part) is float for part in parts):
                    found[target.id] = parts
    return found


def table() -> dict[tuple[str, str], tuple[float, ...]]:
    """Values by name and file, as the page has them."""
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.+?) \| (.+?) \| .+? \|$", TABLE, re.MULTILINE)
    found = {}
    for name, values, files in rows:
        numbers = tuple(float(eval(part, {})) for part in values.split(", "))
        for file in re.findall(r"`(\w+)\.py`", files):
            found[name, file] = numbers
    return found


def test_the_table_of_tolerances_is_that_of_the_code() -> None:
    code = {(name, file): value for file in FILES for name, value in constants(file).items()}
    assert len(code) > 30
    assert table() == code


def test_the_room_names_every_file_once() -> None:
    named = re.findall(r"`(\w+)`", str(trustsets.engine.__doc__))
    assert sorted(named) == sorted(FILES)
