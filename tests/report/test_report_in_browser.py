"""The page as a reader meets it: pointer, keyboard, themes, print, downloads."""

import csv
import io
import json

import numpy as np
import pytest
from report_cases import CLASSES, cell, rounded

from trustsets.metrics import Evaluation
from trustsets.report import worst_first, write_report
from trustsets.report.content import too_few

# Inside the margins of the style sheet, in CSS pixels.
A4_WIDTH = 688
CLASS_TABLE = "#bins-1 .bins"


def expected_tip(table, i):
    """What the tip must say, written out from the evaluation."""

    def p(value):
        return "<0.001" if value < 0.001 else rounded(value, 3)

    return {
        "Coverage": f"{table.covered[i]} of {table.count[i]}, too few"
        if too_few(table, 0.9)[i]
        else f"{rounded(100 * table.coverage[i], 1)}%",
        "95% interval": f"{rounded(100 * table.lower[i], 1)}–{rounded(100 * table.upper[i], 1)}",
        "Samples": f"{table.count[i]:,}",
        "Mean set size": rounded(table.mean_size[i], 2),
        "p, under-coverage": p(table.p_value[i]),
        "p after Holm": p(table.holm[i]),
    }


def shown_tip(browser):
    assert not browser.evaluate("document.getElementById('tip').hidden")
    return dict(zip(browser.texts("#tip dt"), browser.texts("#tip dd"), strict=True))


def focused(browser):
    """Method and bin of the cell that has the focus."""
    return browser.evaluate(
        "[document.activeElement.closest('.heatmap')?.dataset.method,"
        " document.activeElement.dataset.bin]"
    )


def column_of(browser, table, number):
    return browser.texts(f"{table} tbody tr > :nth-child({number})")


def head(number):
    return f"{CLASS_TABLE} thead tr:last-child th:nth-child({number}) button"


def test_opens_from_a_file_without_complaint_or_request(browser, page):
    assert browser.complaints() == []
    assert browser.requests() == [page.resolve().as_uri()]
    assert browser.text("h1") == "Skin <em>lesions</em>"


def test_the_harness_sees_errors_and_requests(chromium, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<img src='missing.png'><script>nonsense()</script>")
    chromium.open(bad)
    assert "nonsense is not defined" in json.dumps(chromium.complaints())
    assert any(url.endswith("missing.png") for url in chromium.requests())


@pytest.mark.parametrize("method", ["standard", "planted"])
@pytest.mark.parametrize("name", ["conf_trust", "conf_rank"])
def test_hover_shows_the_numbers_of_the_bin(browser, case, method, name):
    table = case.results[method].tables[name]
    for i in (0, int(table.coverage.argmin()), table.count.size - 1):
        browser.hover(cell(method, i, name))
        assert shown_tip(browser) == expected_tip(table, i)
        assert browser.text("#tip b") == table.labels[i]
    browser.hover("h1")
    assert browser.evaluate("document.getElementById('tip').hidden")


def test_cells_say_coverage_colour_and_significance(browser, case):
    result = case.results["planted"]
    table = result.tables["conf_trust"]
    few = too_few(table, 0.9)
    for i in range(table.count.size):
        selector = json.dumps(cell("planted", i))
        text, low, colour, label = browser.evaluate(
            f"(() => {{ const c = document.querySelector({selector}); return [c.innerText,"
            " c.classList.contains('low'),"
            " getComputedStyle(c).backgroundColor.match(/\\d+/g).map(Number),"
            " c.getAttribute('aria-label')]; })()"
        )
        assert low == (table.holm[i] <= 0.05)
        if few[i]:
            ends = [rounded(100 * end[i], 0) for end in (table.lower, table.upper)]
            assert text == "–".join(ends) and "too few" in label
            assert colour == [0, 0, 0, 0]  # hatched, and no colour
        else:
            assert text == rounded(100 * table.coverage[i], 0)
            assert np.sign(colour[2] - colour[0]) == np.sign(table.coverage[i] - 0.9)
            assert f"Coverage {rounded(100 * table.coverage[i], 1)}%" in label
        assert label.startswith(table.labels[i])


def test_keyboard_reaches_moves_lists_and_returns(browser, case):
    table = case.results["standard"].tables["conf_trust"]
    at = {tuple(place): i for i, place in enumerate(table.index.tolist())}
    # Only one cell of a grid is a tab stop, so Tab goes from grid to grid.
    stops = browser.evaluate(
        "[...document.querySelectorAll('.heatmap')]"
        ".map(g => g.querySelectorAll('[tabindex=\"0\"]').length)"
    )
    assert stops == [1, 1, 1, 1, 1, 1]
    browser.evaluate("document.getElementById('print').focus()")
    while focused(browser)[0] is None:
        browser.press("Tab")
    start = focused(browser)
    assert start == ["standard", str(at[0, 3])]
    browser.press("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft")
    here = at[1, 2]
    assert focused(browser) == ["standard", str(here)]
    assert shown_tip(browser) == expected_tip(table, here)
    assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("Enter")
    assert "samples" in browser.evaluate("document.activeElement.className")
    assert browser.text(".samples h4").startswith(f"standard, {table.labels[here]}")
    browser.press("Escape")
    assert focused(browser) == ["standard", str(here)]
    assert browser.evaluate("document.querySelector('.samples').hidden")
    browser.press("End")
    assert focused(browser) == ["standard", str(at[9, 2])]
    browser.press("ArrowRight")
    assert focused(browser) == ["standard", str(at[9, 2])]
    browser.press("Home", "ArrowUp")
    assert focused(browser) == start
    browser.press("Escape")
    assert browser.evaluate("document.getElementById('tip').hidden")


@pytest.mark.parametrize("method, chosen", [("planted", np.argmin), ("standard", np.argmax)])
def test_click_lists_the_worst_samples_of_the_bin(browser, case, method, chosen):
    result, sets = case.results[method], case.sets[method]
    table = result.tables["conf_trust"]
    i = int(chosen(table.coverage))
    browser.click(cell(method, i))
    likely, codes = case.outputs.probabilities, case.outputs.codes
    worst = worst_first(result, likely[np.arange(result.n), codes])
    inside = [j for j in worst if table.cells[j] == i]
    expected = []
    for j in inside[:20]:
        members = sorted(np.flatnonzero(sets.mask[j]), key=lambda k: -likely[j, k])
        expected.append(
            [
                str(case.outputs.rows[j]),
                CLASSES[codes[j]],
                "covered" if sets.mask[j, codes[j]] else "missed",
                ", ".join(CLASSES[k] for k in members) or "(empty)",
                str(sets.mask[j].sum()),
                f"{likely[j].max():.3f}",
                case.outputs.trust[j],
            ]
        )
    rows = browser.evaluate(
        "[...document.querySelectorAll('.samples tbody tr')]"
        ".map(r => [...r.cells].map(c => c.textContent))"
    )
    assert [row[:6] for row in rows] == [row[:6] for row in expected]
    shown = [float(row[6]) for row in rows]
    assert shown == [float(f"{row[6]:.3g}") for row in expected]
    assert f"{min(20, len(inside))} of {len(inside)} samples" in browser.text(".samples h4")


def test_tables_sort_by_any_column_both_ways(browser, case):
    table = case.results["planted"].tables["class"]
    by_label = dict(zip(table.labels, table.coverage, strict=True))
    first = case.results["standard"].tables["class"]
    lowest = [first.labels[i] for i in np.argsort(first.coverage, kind="stable")]
    assert column_of(browser, CLASS_TABLE, 1) == lowest
    browser.click(head(6))
    rising = sorted(by_label, key=by_label.get)
    assert column_of(browser, CLASS_TABLE, 1) == rising
    browser.click(head(6))
    assert column_of(browser, CLASS_TABLE, 1) == rising[::-1]
    states = browser.evaluate(
        f"[...document.querySelectorAll('{CLASS_TABLE} [aria-sort]')].map(h => h.ariaSort)"
    )
    assert states == ["none"] * 5 + ["descending"] + ["none"] * 2
    browser.click(head(2))
    counts = [int(text.replace(",", "")) for text in column_of(browser, CLASS_TABLE, 2)]
    assert counts == sorted(table.count.tolist())
    browser.click(head(1))
    names = column_of(browser, CLASS_TABLE, 1)
    assert sorted(names) == sorted(CLASSES)
    assert names.index("cat") < names.index("dog")


def test_tables_filter_by_text(browser):
    browser.click("#bins-1 input")
    browser.type("SCRIPT")
    assert column_of(browser, CLASS_TABLE, 1) == [CLASSES[1]]
    assert browser.text("#bins-1 output") == "1 of 6 rows"
    browser.click(head(6))
    assert column_of(browser, CLASS_TABLE, 1) == [CLASSES[1]]
    browser.evaluate("document.querySelector('#bins-1 input').select()")
    browser.type("no such class")
    assert column_of(browser, CLASS_TABLE, 1) == []
    assert len(column_of(browser, "#bins-2 .bins", 1)) == 3


def test_sets_of_missing_bins_sort_last(browser, case):
    labels = {name: case.results[name].tables["size_strata"].labels for name in case.results}
    assert set(labels["standard"]) != set(labels["planted"])
    sizes = "#bins-3 .bins"
    for _ in range(2):
        browser.click(f"{sizes} thead tr:last-child th:nth-child(1) button")
    assert column_of(browser, sizes, 1)[0] == "Size 4–6"  # which only one method has
    for _ in range(2):
        browser.click(f"{sizes} thead tr:last-child th:nth-child(7) button")
        missing = [text == "–" for text in column_of(browser, sizes, 7)]
        assert missing == [False, False, True]


def luminance(browser, of="document.body"):
    colour = browser.evaluate(f"getComputedStyle({of}).backgroundColor.match(/\\d+/g).map(Number)")
    return sum(colour[:3]) / 3


def test_dark_follows_the_system_and_the_button_and_never_prints(browser, page):
    assert luminance(browser) > 200
    browser.click("#theme")
    assert luminance(browser) < 60
    assert browser.evaluate("document.getElementById('theme').ariaPressed") == "true"
    browser.send("Emulation.setEmulatedMedia", media="print", features=[])
    assert luminance(browser) > 200
    assert browser.texts(".tools button") == []
    browser.open(page, prefers_color_scheme="dark")
    assert luminance(browser) < 60
    browser.click("#theme")
    assert luminance(browser) > 200


def test_the_table_of_methods_is_a_list_on_a_phone(browser):
    browser.resize(375, 812)
    shown = browser.evaluate(
        "[...document.querySelectorAll('#methods tr:not(.group)')].filter(e => e.offsetParent)"
        ".map(row => [row.querySelector('th').getBoundingClientRect().bottom,"
        " ...[...row.querySelectorAll('td')].map(e => e.getBoundingClientRect())"
        ".map(r => [r.top, r.right])])"
    )
    assert len(shown) > 5
    for head, *cells in shown:
        tops = [top for top, _ in cells]
        assert head <= tops[0] < tops[1] and max(right for _, right in cells) <= 375
    name = "getComputedStyle(document.querySelector('#methods tbody td'), '::before').content"
    assert browser.evaluate(name) == '"standard"'
    assert browser.evaluate("document.querySelector('#methods .scroll').scrollWidth") <= 375


@pytest.mark.parametrize("width", [375, 800, 1280])
def test_the_page_never_scrolls_sideways(browser, width):
    browser.resize(width, 800)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("n_methods", [1, 2, 5])
def test_nothing_is_cut_off_on_paper(chromium, case, tmp_path, n_methods):
    both = [case.results["standard"], case.results["planted"]]
    results = {f"method {i}": both[i % 2] for i in range(n_methods)}
    chromium.resize(A4_WIDTH, 900)
    chromium.open(write_report(tmp_path / "paper.html", results))
    chromium.send("Emulation.setEmulatedMedia", media="print", features=[])
    furthest = chromium.evaluate(
        "Math.max(...[...document.querySelectorAll('td, th, p, dd, svg')]"
        ".map(e => e.getBoundingClientRect().right))"
    )
    assert furthest <= A4_WIDTH


def download(browser, kind):
    browser.evaluate(
        "window.saved = null; URL.createObjectURL = blob => {"
        " blob.text().then(text => { window.saved = text; }); return 'blob:none'; };"
        "HTMLAnchorElement.prototype.click = function () { window.savedAs = this.download; };"
    )
    browser.click(f'[data-download="{kind}"]')
    text = browser.evaluate(
        "new Promise(done => { const look = () =>"
        " window.saved === null ? setTimeout(look, 10) : done(window.saved); look(); })"
    )
    return browser.evaluate("window.savedAs"), text


def test_downloaded_json_holds_the_evaluations(browser, case):
    name, text = download(browser, "json")
    assert name == "coverage-report.json"
    found = json.loads(text)
    assert list(found["evaluations"]) == list(case.results)
    for method, result in case.results.items():
        read = Evaluation.from_json(json.dumps(found["evaluations"][method]))
        assert read.to_dict() == result.to_dict()
    assert "samples" not in found


def test_downloaded_csv_holds_the_bins_and_the_metrics(browser, case):
    name, text = download(browser, "bins")
    assert name == "coverage-report-bins.csv"
    rows = list(csv.DictReader(io.StringIO(text)))
    for method, result in case.results.items():
        for table in result.tables.values():
            own = [row for row in rows if (row["method"], row["table"]) == (method, table.name)]
            # A name that starts like a formula is kept from being one.
            plain = [row["bin"].removeprefix("'") for row in own]
            assert plain == list(table.labels)
            assert [float(row["holm"]) for row in own] == pytest.approx(table.holm.tolist())
    assert "'=1+1" in {row["bin"] for row in rows}
    _, text = download(browser, "metrics")
    rows = {(row["method"], row["metric"]): row for row in csv.DictReader(io.StringIO(text))}
    for method, result in case.results.items():
        for name, item in result.metrics.items():
            assert float(rows[method, name]["value"]) == pytest.approx(item.value)


def test_a_page_without_samples_lists_none(chromium, case, tmp_path):
    chromium.open(write_report(tmp_path / "bare.html", case.results))
    chromium.click(cell("planted", 0))
    assert chromium.evaluate("document.querySelectorAll('.samples').length") == 0
    assert shown_tip(chromium)["Samples"]
    assert chromium.complaints() == []
