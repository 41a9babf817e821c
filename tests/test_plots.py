"""What figures show is checked as data; each figure is drawn once and read back.

Colour-blind readers can tell the colours apart, and figures and pages take all of them from here.
"""

from dataclasses import replace
from itertools import combinations

import matplotlib as mpl
import numpy as np
import pytest

from trustsets import Bins, StandardConformal, evaluate, plots
from trustsets.metrics import FrequencyBins, RankBins
from trustsets.plots import COVERAGE_COLOURS, METHOD_COLOURS, THEMES, heatmap_data, range_label
from trustsets.report.content import list_samples


@pytest.fixture(autouse=True)
def _no_screen():
    mpl.use("Agg")
    yield
    from matplotlib import pyplot as plt

    plt.close("all")


@pytest.fixture
def case(make_outputs):
    outputs = make_outputs(n=900, n_classes=20)
    outputs = outputs.with_trust(np.exp(outputs.features[:, 0]))
    calibration, test = outputs.split(0.5)
    sets = StandardConformal().calibrate(calibration).predict_set(test)
    bins = {
        "conf_trust": Bins(counts=(4, 3)),
        "conf_rank": RankBins(counts=(4, 3), edges=(0, 1, 2, 20)),
        "conf_frequency": FrequencyBins(2 ** np.arange(20), counts=(6, 5)),
    }
    chosen = ["conf_trust", "conf_rank", "conf_frequency", "class", "groups"]
    return test, sets, evaluate(sets, test, metrics=chosen, bins=bins, n_bootstrap=20)


def test_heatmap_puts_every_bin_in_its_place(case):
    _, _, result = case
    data = heatmap_data(result, "conf_trust")
    table = result.tables["conf_trust"]
    assert data.coverage.shape == (3, 4)
    for (x, y), coverage in zip(table.index, table.coverage, strict=True):
        assert data.coverage[y, x] == coverage
    assert np.isnan(data.coverage).sum() == 12 - table.count.size
    assert data.target == 0.9
    assert data.rows == ("Q1", "Q2", "Q3")
    assert data.axes == ("Conf", "Trust, quantile by Conf")
    assert heatmap_data(result, "conf_rank").rows == ("1", "2", "3–20")


def test_heatmap_is_white_at_the_target_orange_below_blue_above(case):
    _, _, result = case
    ax = plots.coverage_heatmap(result, "conf_rank")
    image = ax.images[0]
    low, at, high = (image.cmap(image.norm(value))[:3] for value in (0.5, 0.9, 1.0))
    assert at == pytest.approx((1, 1, 1), abs=0.01)
    assert low[0] > 2 * low[1] > 4 * low[2]
    assert high[2] > high[1] > 2 * high[0]
    table = result.tables["conf_rank"]
    shown = {text.get_position(): text.get_text() for text in ax.texts}
    expected = zip(table.index.tolist(), table.coverage.tolist(), strict=True)
    assert shown == {tuple(place): plots.two_digits(share) for place, share in expected}


def test_bins_of_few_samples_are_hatched_not_coloured(case):
    _, _, result = case
    table = result.tables["conf_frequency"]
    data = heatmap_data(result, "conf_frequency")
    assert data.axes == ("Conf", "Class frequency in calibration (%)")
    ax = plots.coverage_heatmap(result, "conf_frequency")
    colours = {text.get_position(): text.get_color() for text in ax.texts}
    blank = np.ma.getmaskarray(ax.images[0].get_array())
    assert 0 < table.few.sum() < table.few.size
    for (x, y), count in zip(table.index.tolist(), table.count.tolist(), strict=True):
        assert data.few[y, x] == blank[y, x] == (count < 10)
        assert (colours[x, y] == THEMES["light"]["quiet"]) == (count < 10)
    assert blank[np.isnan(data.coverage)].all()
    assert ax.patch.get_hatch()


def test_heatmap_over_seeds_is_the_mean(case):
    test, _, result = case
    other = evaluate(
        StandardConformal().calibrate(test.take(slice(0, 225))).predict_set(test, alpha=0.1),
        test,
        bins={"conf_trust": Bins(counts=(4, 3))},
        metrics=["conf_trust"],
    )
    one, two = heatmap_data(result, "conf_trust"), heatmap_data(other, "conf_trust")
    both = heatmap_data([result, other], "conf_trust")
    np.testing.assert_allclose(both.coverage, (one.coverage + two.coverage) / 2.0)
    mean, error = plots.mean_and_error(np.stack([one.coverage, two.coverage]))
    np.testing.assert_allclose(mean, both.coverage)
    np.testing.assert_allclose(error, np.abs(one.coverage - two.coverage) / 2.0, atol=1e-15)
    ax = plots.coverage_heatmap([result, other], "conf_trust")
    assert ax.texts[0].get_text() == plots.two_digits(both.coverage[0, 0])
    table = replace(result.tables["conf_trust"], shape=(6, 3))
    with pytest.raises(match="Pass the same to all"):
        heatmap_data([result, replace(result, tables={"conf_trust": table})], "conf_trust")


def test_shares_of_sizes_are_those_of_the_sets_in_each_range(case):
    _, sets, result = case
    labels, shares = plots.size_data([result, result])
    for label, both in zip(labels, shares.T, strict=True):
        ends = [int(part) for part in label.split("–")]
        inside = (sets.sizes >= ends[0]) & (sets.sizes <= ends[-1])
        assert both == pytest.approx([inside.mean()] * 2)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)


def test_coverage_by_group_shows_the_worst_first_with_intervals(case):
    _, _, result = case
    table = result.tables["class"]
    order = sorted(range(20), key=lambda i: (table.coverage[i], i))[:5]
    ax = plots.coverage_by_group({"a": result, "b": result}, "class", most=5)
    assert [text.get_text() for text in ax.get_yticklabels()] == [
        f"{table.labels[i]} (n={table.count[i]})" for i in order
    ]
    line, _, bars = ax.containers[0].lines
    at = {round(y): i for i, y in enumerate(line.get_ydata())}
    ends = [segment[:, 0] for segment in bars[0].get_segments()]
    for height, i in enumerate(order):
        assert line.get_xdata()[at[height]] == table.coverage[i]
        np.testing.assert_allclose(ends[at[height]], [table.lower[i], table.upper[i]])
    assert [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "--"] == [0.9]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda r: plots.coverage_heatmap(r, "nothing"), "no table 'nothing'; there are"),
        (lambda r: plots.coverage_heatmap(r, "class"), "needs a table over two axes"),
        (lambda r: plots.coverage_heatmap([], "class"), "must be an Evaluation or a non-empty"),
        (lambda r: plots.coverage_by_group({"a": 1}, "class"), "must be an Evaluation"),
    ],
)
def test_bad_arguments_are_named(case, draw, message):
    with pytest.raises(match=message):
        draw(case[2])


def test_ends_of_narrow_bins_are_told_apart():
    assert range_label(0.1, 0.19, whole=False) == "0.1–0.19"
    assert range_label(0.99931, 0.99987, whole=False) == "0.999–1"
    assert range_label(1.0, 1.0, whole=False) == "1"
    assert range_label(4.51, 351.7, whole=False) == "4.5–352"


def test_infinite_trust_is_written_as_such(case):
    test, sets, _ = case
    test = test.with_trust(np.where(np.arange(len(test)) % 4, test.trust, np.inf))
    result = evaluate(sets, test, metrics=["conf_trust"], n_bootstrap=5)
    shown = list_samples({"a": result}, test, {"a": sets}, ["conf_trust"])["rows"].values()
    texts = [*result.tables["conf_trust"].labels, *heatmap_data(result, "conf_trust").rows]
    assert max(map(len, texts)) < 60 and "∞" in {row[3] for row in shown}
    assert any("to ∞" in text for text in texts) and range_label(4.5, 1e300, False) == "4.5–∞"


def test_a_bin_is_hatched_only_if_every_seed_has_few_samples_in_it(case):
    _, _, result = case
    table = result.tables["conf_trust"]
    big = int(np.argmax(table.count))
    count = np.where(np.arange(table.count.size) == big, 5, table.count)
    small = replace(result, tables={"conf_trust": replace(table, count=count)})
    x, y = table.index[big]
    assert heatmap_data(small, "conf_trust").few[y, x]
    assert not heatmap_data([result, small], "conf_trust").few[y, x]
    rest = {n: np.delete(getattr(table, n), big, 0) for n in ("index", "count", "coverage")}
    none = replace(result, tables={"conf_trust": replace(table, **rest)})
    assert heatmap_data([small, none], "conf_trust").few[y, x]


# What dichromats see, for linear red, green and blue (Machado, Oliveira and Fernandes 2009).
SEEN = {
    "everyone": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
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
    ratio = XYZ @ np.clip(SEEN[sight] @ linear(code), 0.0, 1.0) / XYZ.sum(axis=1)
    x, y, z = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def least_distance(codes, sight):
    return min(np.linalg.norm(a - b) for a, b in combinations([lab(c, sight) for c in codes], 2))


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
