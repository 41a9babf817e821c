"""Colour-blind readers can tell the colours apart, and figures and pages take all from here."""

from itertools import combinations

import matplotlib as mpl
import numpy as np
import pytest

from trustsets import plots
from trustsets.plots import COVERAGE_COLOURS, METHOD_COLOURS, THEMES

# What dichromats see, for linear red, green and blue (Machado, Oliveira and Fernandes 2009).
SEEN = {
    "everyone": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
# In CIELAB; 2.3 is a difference that one can just see. Lines are thin, so they need far more.
APART = 22.0


def linear(code):
    parts = np.array([int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(code, sight):
    seen = np.clip(SEEN[sight] @ linear(code), 0.0, 1.0)
    ratio = XYZ @ seen / (XYZ @ np.ones(3))
    x, y, z = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def least_distance(codes, sight):
    places = [lab(code, sight) for code in codes]
    return min(np.linalg.norm(a - b) for a, b in combinations(places, 2))


def contrast(one, other):
    low, high = sorted(float(XYZ[1] @ linear(code)) for code in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("sight", SEEN)
@pytest.mark.parametrize("theme", THEMES)
def test_colours_are_apart_for_every_reader(theme, sight):
    assert least_distance(METHOD_COLOURS[theme], sight) >= APART
    assert least_distance(COVERAGE_COLOURS[theme], sight) >= 2 * APART
    signs = [THEMES[theme][name] for name in ("ink", "accent", "alarm")]
    assert least_distance(signs, sight) >= APART


@pytest.mark.parametrize("theme", THEMES)
def test_text_and_lines_contrast_with_the_page(theme):
    own = THEMES[theme]
    for name in ("ink", "quiet", "accent", "alarm"):
        assert min(contrast(own[name], own[ground]) for ground in ("page", "panel")) >= 4.5
    assert min(contrast(code, own["page"]) for code in METHOD_COLOURS[theme]) >= 3.0


@pytest.mark.parametrize("coverage", np.linspace(0.0, 1.0, 101).tolist())
def test_text_in_cells_can_be_read(coverage):
    codes = dict(item.split(":") for item in plots.shade(coverage, 0.9).split(";"))
    for theme in ("--light", "--dark"):
        ink = codes[f"{theme}-ink"]
        assert contrast(codes[theme], ink + ink[1:]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_figures_are_drawn_in_the_style_even_where_ticks_are_made_later(theme):
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    @plots.styled
    def draw():
        figure, ax = plt.subplots()
        ax.plot([0, 1], [0, 1], color=plots.method_colour(0), label="a")
        ax.legend()
        return figure, plots.tidy(ax)

    before = dict(mpl.rcParams)
    with plots.style(theme, "page"):
        figure, ax = draw()
    assert dict(mpl.rcParams) == before
    figure.canvas.draw()
    label = ax.get_xticklabels()[-1]
    assert label.get_fontsize() == plots.TEXT["page"][1]
    assert label.get_color() == THEMES[theme]["ink"]
    assert label.get_fontfamily() == ["sans-serif"]
    assert mpl.colors.to_hex(figure.get_facecolor()) == THEMES[theme]["page"]
    assert ax.lines[0].get_color() == METHOD_COLOURS[theme][0]
    plt.close(figure)


def test_pages_take_every_colour_from_here():
    """No style sheet or template has a colour of its own."""
    import re
    from importlib import resources

    folder = resources.files("trustsets.report") / "templates"
    for name in ("report.css", "dark.css", "report.html"):
        file = folder / name
        assert not re.search(r":[^;{]*#[0-9a-fA-F]{3,6}\b", file.read_text(encoding="utf-8")), name
    light, dark = plots.css_variables("light"), plots.css_variables("dark")
    names = [re.findall(r"--([\w-]+):", text) for text in (light, dark)]
    assert names[0] == names[1] and {"page", "m6", "under", "font"} <= set(names[0])
