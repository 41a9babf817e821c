"""The picture of the rooms and the list of their names, from the import contract and the source."""

import ast
import importlib
import re
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
OBJECTS = (
    ("ModelOutputs", "samples"),
    ("scores", "(m, K)"),
    ("basis rows", "(m, p)"),
    ("Thresholds", "values, status"),
    ("PredictionSets", "mask (m, K)"),
    ("Evaluation", "tables, intervals"),
)
# Packages beside the library; they use its public names only.
GUESTS = ("trustsets_paper", "trustsets_explorer")
# Plumbing of other rooms, which may be imported but is not for users.
UNLISTED = {"cli", "estimator", "neighbours", "probabilities"}
WIDTH, ROW, MARGIN = 940, 27, 16


def layers() -> list[list[str]]:
    """Rooms of the library, those that may import most first; rooms of one row are independent."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    contract = next(item for item in contracts if item.get("containers") == ["trustsets"])
    return [re.findall(r"\w+", layer) for layer in contract["layers"]]


def first_sentence(package: str, room: str = "") -> str:
    """First line of the docstring of a package, or of a file or folder in it."""
    home = ROOT / "src" / package / room
    path = home / "__init__.py" if home.is_dir() else home.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].replace("`", "")


def rooms_picture() -> bytes:
    """An SVG: the objects that data passes through, and below them the rooms in their order."""
    parts = _objects()
    y = 118
    for guest in GUESTS:
        parts += _room(y, guest, first_sentence(guest), "#fdf3e7")
        y += ROW
    y += 8
    for layer in layers():
        for room in layer:
            parts += _room(y, room, first_sentence("trustsets", room), "#eef4fb")
            y += ROW
        parts.append(_line(MARGIN, y - 2, WIDTH - MARGIN, y - 2, "#c8d4e2"))
    height = y + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="13">'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    )
    return (head + "".join(parts) + "</svg>").encode()


def _objects() -> list[str]:
    step = (WIDTH - 2 * MARGIN) / len(OBJECTS)
    parts = []
    for index, (name, shape) in enumerate(OBJECTS):
        x = MARGIN + index * step
        parts.append(_box(x, 16, step - 26, 48, "#e6f2e6"))
        parts.append(_text(x + (step - 26) / 2, 36, name, anchor="middle", weight="bold"))
        parts.append(_text(x + (step - 26) / 2, 54, shape, anchor="middle"))
        if index:
            parts.append(_line(x - 24, 40, x - 4, 40, "#333333"))
            parts.append(f'<path d="M{x - 9} 35 L{x - 2} 40 L{x - 9} 45 Z" fill="#333333"/>')
    words = (
        "A room may import the rooms below it, never one above it or beside it (between two lines)."
    )
    return [*parts, _text(MARGIN, 100, words)]


def _room(y: float, name: str, words: str, colour: str) -> list[str]:
    return [
        _box(MARGIN, y, 150, ROW - 5, colour),
        _text(MARGIN + 8, y + 16, name, weight="bold"),
        _text(MARGIN + 164, y + 16, words),
    ]


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="4" '
        f'fill="{colour}" stroke="#8899aa"/>'
    )


def _line(x: float, y: float, to_x: float, to_y: float, colour: str) -> str:
    return (
        f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{to_x:.0f}" y2="{to_y:.0f}" '
        f'stroke="{colour}" stroke-width="1.2"/>'
    )


def _text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="#222222">{escape(words)}</text>'
    )


def building_blocks_page(reference: Path) -> str:
    """Public names of rooms that no page written by hand lists."""
    pages = "".join(path.read_text(encoding="utf-8") for path in sorted(reference.glob("*.md")))
    listed = set(re.findall(r"^::: ([\w.]+)", pages, flags=re.MULTILINE))
    shown = {name.rpartition(".")[2] for name in listed}
    parts = [
        "# Building blocks",
        "Further names of the rooms, for those who extend the library: `trustsets_paper` and "
        "`trustsets_explorer` are made of them. Most users need none.",
    ]
    for room in sorted(room for layer in layers() for room in layer):
        if room.startswith("_") or room in UNLISTED or f"trustsets.{room}" in listed:
            continue
        names = getattr(importlib.import_module(f"trustsets.{room}"), "__all__", [])
        rest = [name for name in names if name not in shown]
        if rest:
            parts += [f"## trustsets.{room}", first_sentence("trustsets", room)]
            options = "    options:\n      heading_level: 3"
            parts += [f"::: trustsets.{room}.{name}\n{options}" for name in rest]
    return "\n\n".join(parts) + "\n"
