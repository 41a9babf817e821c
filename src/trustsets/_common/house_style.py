"""The house style of all figures and pages: colours, font and sizes. Nothing else sets them.

Readers who see few differences between red and green (protanopia, deuteranopia) can tell the
colours apart; a test simulates what they see. Colours are written as ``#rrggbb``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.axes import Axes

P = ParamSpec("P")
R = TypeVar("R")
Theme = Literal["light", "dark"]
Medium = Literal["print", "page"]

# What a page is made of: its ground, panels on it, text, lines, links, alarms, noise floors.
THEMES: dict[Theme, dict[str, str]] = {
    "light": {
        "page": "#ffffff",
        "panel": "#f6f7f9",
        "ink": "#1b1f24",
        "quiet": "#59616c",
        "rule": "#d9dde3",
        "accent": "#1d5c9e",
        "alarm": "#a63c00",
        "floor": "#dfe3e8",
    },
    "dark": {
        "page": "#16181c",
        "panel": "#1e2126",
        "ink": "#e4e6ea",
        "quiet": "#a4abb6",
        "rule": "#343941",
        "accent": "#8ab8ec",
        "alarm": "#f79a5e",
        "floor": "#3b4149",
    },
}
# One colour for each method, of sufficient contrast for thin lines.
METHODS_BY_THEME: dict[Theme, tuple[str, ...]] = {
    "light": ("#0b5cc4", "#c9820f", "#178167", "#6a1b5d", "#924a05", "#559ac4", "#33332b"),
    "dark": ("#3a86dd", "#ef5a2c", "#86cf9a", "#9f6f8c", "#f2e85a", "#5fcdf5", "#f4f8fb"),
}
METHODS = METHODS_BY_THEME["light"]
# Coverage below, at and above the target: vermilion and blue of Okabe and Ito.
PALETTES: dict[Theme, tuple[str, str, str]] = {
    "light": ("#d55e00", "#ffffff", "#0072b2"),
    "dark": ("#e06a10", "#2a2e35", "#2f8fd0"),
}
# Every one but the last has the letter widths of Helvetica. Matplotlib brings the last along.
FONTS = ("Helvetica Neue", "Helvetica", "Arial", "Liberation Sans", "DejaVu Sans")
# Inches: a panel is half as wide as a printed page.
HALF_WIDTH = 3.5
# Points of text, of numbers along axes and in legends, and in the cells of heatmaps.
TEXT: dict[Medium, tuple[float, float, float]] = {"print": (8, 7, 6.5), "page": (10, 9, 8)}
DPI: dict[Medium, int] = {"print": 200, "page": 105}

_in_use: ContextVar[tuple[Theme, Medium]] = ContextVar("style", default=("light", "print"))
# WCAG's relative luminance at which black and white text contrast equally.
_EQUAL_CONTRAST = 0.179


def css_variables(theme: Theme) -> str:
    """The colours of a theme as custom properties of CSS: ``--page``, ``--m0``, ``--under``."""
    below, middle, above = PALETTES[theme]
    methods = {f"m{i}": colour for i, colour in enumerate(METHODS_BY_THEME[theme])}
    found = THEMES[theme] | methods | {"under": below, "middle": middle, "over": above}
    fonts = ", ".join(f'"{name}"' for name in FONTS)
    lines = [f"color-scheme: {theme}", *(f"--{name}: {code}" for name, code in found.items())]
    return "".join(f"  {line};\n" for line in [*lines, f"--font: {fonts}, sans-serif"])


def matplotlib_style(theme: Theme = "light", medium: Medium = "print") -> dict[str, Any]:
    """Settings for ``matplotlib.rc_context``.

    Examples
    --------
    >>> matplotlib_style("dark")["figure.facecolor"], matplotlib_style(medium="page")["font.size"]
    ('#16181c', 10)
    """
    colours, (text, small, _) = THEMES[theme], TEXT[medium]
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    sizes = {f"{axis}.labelsize": small for axis in ("xtick", "ytick")}
    grounds = ("figure.facecolor", "axes.facecolor")
    return {
        "font.family": "sans-serif",
        "font.sans-serif": list(FONTS),
        "font.size": text,
        "axes.titlesize": text,
        "axes.labelsize": text,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": f"cycler('color', {list(METHODS_BY_THEME[theme])})",
        "legend.fontsize": small,
        "legend.frameon": False,
        "figure.dpi": DPI["page"],
        "savefig.dpi": DPI[medium],
        **sizes,
        **dict.fromkeys(inked, colours["ink"]),
        **dict.fromkeys(grounds, colours["page"]),
    }


@contextmanager
def house_style(theme: Theme = "light", medium: Medium = "print") -> Iterator[None]:
    """Draw for light or dark pages, and for print or with the larger text of a web page.

    Parameters
    ----------
    theme : {"light", "dark"}
    medium : {"print", "page"}

    Examples
    --------
    >>> from trustsets import plots
    >>> with plots.house_style("dark", "page"):
    ...     pass  # plots.size_histogram(evaluation)
    """
    import matplotlib as mpl

    token = _in_use.set((theme, medium))
    settings: Any = matplotlib_style(theme, medium)  # matplotlib types each name
    try:
        with mpl.rc_context(settings):
            yield
    finally:
        _in_use.reset(token)


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Let a function draw in the style in use, which is light and for print by default."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with house_style(*_in_use.get()):
            return draw(*args, **kwargs)

    return drawn


def tidy(ax: "Axes") -> "Axes":
    """Give axes the look of the style in use; ticks are made later, when it is no longer."""
    import matplotlib as mpl

    own = mpl.rcParams
    ax.spines[["top", "right"]].set_visible(False)
    look = {"labelsize": own["xtick.labelsize"], "colors": own["xtick.color"]}
    ax.tick_params(which="both", labelfontfamily=own["font.family"], **look)
    return ax


def colour(name: str) -> str:
    """A colour of the theme in use, by its name in `THEMES`."""
    return THEMES[_in_use.get()[0]][name]


def method_colour(i: int) -> str:
    """Colour of the i-th method in the theme in use."""
    colours = METHODS_BY_THEME[_in_use.get()[0]]
    return colours[i % len(colours)]


def coverage_colours() -> tuple[str, str, str]:
    """Colours of coverage below, at and above the target in the theme in use."""
    return PALETTES[_in_use.get()[0]]


def tiny_text() -> float:
    """Points of the smallest text in the medium in use."""
    return TEXT[_in_use.get()[1]][2]


def mixed(one: str, other: str, share: float) -> str:
    """The first colour with this share of the second in it.

    Examples
    --------
    >>> mixed("#ffffff", "#000000", 0.2)
    '#cccccc'
    """
    pairs = zip(_parts(one), _parts(other), strict=True)
    return "#" + "".join(f"{round(own + share * (end - own)):02x}" for own, end in pairs)


def ink_on(colour: str) -> str:
    """Black or white, whichever contrasts more with a colour."""
    linear = [
        part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4
        for part in _parts(colour)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000" if luminance > _EQUAL_CONTRAST else "#fff"


def _parts(colour: str) -> list[int]:
    """Red, green and blue."""
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
