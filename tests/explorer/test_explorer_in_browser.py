"""The page as a reader meets it: parameters by mouse and keys, cells, samples, addresses, files."""

import json
import time

import numpy as np
import pytest

import trustsets
from trustsets.report import divisions
from trustsets_explorer import explore

pytestmark = pytest.mark.slow
PATIENCE = 60.0  # the kernels may be compiled meanwhile


@pytest.fixture(scope="module")
def explorer(data):
    rng = np.random.default_rng(0)
    images = rng.random((len(data.outputs), 8, 8))
    with explore(data.outputs, data.trust, train=data.train, images=images) as found:
        yield found


@pytest.fixture
def browser(chromium, explorer):
    """The page at two quick methods; nothing may have gone wrong on it in the end."""
    chromium.resize(1280, 900)
    open_page(chromium, explorer, "#a.method=standard&b.method=class&alpha=0.1")
    yield chromium
    assert chromium.complaints() == []
    home = explorer.url.partition("/?")[0]
    asked = [url.removeprefix("blob:") for url in chromium.requests()]
    assert asked and all(url.startswith(home) for url in asked)


def open_page(browser, explorer, state=""):
    # Without a page in between, only the part after # would change, which loads nothing.
    browser.open("about:blank")
    browser.open(explorer.url + state)
    settle(browser)


def wait(browser, expression):
    end = time.monotonic() + PATIENCE
    while not browser.evaluate(f"Boolean({expression})"):
        assert time.monotonic() < end, f"{expression}: {browser.text('body')[:2000]}"
        time.sleep(0.02)


def settle(browser):
    """Wait for the answer of the newest state."""
    wait(browser, "document.querySelector('#results')?.getAttribute('aria-busy') === 'false'")


def address(browser):
    pairs = browser.evaluate("[...new URLSearchParams(location.hash.slice(1))]")
    found = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def point(browser, place=0):
    return browser.evaluate(f"""document.querySelector('[data-key="now-{place}"]').ariaLabel""")


def focus(browser, key):
    browser.evaluate(f"document.querySelector('[data-key={json.dumps(key)}]').focus()")


def test_the_first_page_compares_the_default_with_standard(chromium, explorer, data):
    open_page(chromium, explorer)
    assert address(chromium)["a.method"] == ["conditional"]
    assert address(chromium)["b.method"] == ["standard"]
    calibration, test = data.outputs.split(0.5, seed=0)
    sets = trustsets.StandardConformal().calibrate(calibration).predict_set(test, 0.1)
    result = trustsets.evaluate(sets, test.with_trust(data.trust), metrics=["conf_trust"])
    assert f"mean set size {result.sizes.mean:.2f}" in chromium.text("#status").split(";")[1]
    cells = chromium.texts('.heatmap[data-index="1"][data-table="conf_trust"] td[data-bin]')
    wait(chromium, "document.querySelector('#verdict').ariaBusy === 'false'")
    assert "conditional" in chromium.text("#verdict") and "standard" in chromium.text("#verdict")
    shown = divisions({"standard": result})[0].heatmaps[0].rows
    assert cells == [own.text for _, row in shown for own in row if own.bin is not None]
    assert chromium.complaints() == []


PARAMETERS = [
    ("alpha", "alpha", "ArrowRight"),
    ("alpha-number", "alpha", "ArrowUp"),
    ("seed", "seed", "ArrowUp"),
    ("A-score", "a.score", "ArrowDown"),
    ("A-scale", "a.scale", "ArrowUp"),
    ("A-temperature", "a.temperature", "ArrowDown"),
    ("A-degree", "a.degree", "ArrowLeft"),
    ("A-penalty", "a.penalty", "ArrowUp"),
    ("A-statistics-2", "a.statistics", " "),
    ("A-groups-0", "a.groups", " "),
    ("A-per_class", "a.per_class", "End"),
    ("B-method", "b.method", "Home"),
    ("second", "b.method", " "),
]


def test_every_parameter_moves_by_keys_and_keeps_the_focus(browser, explorer):
    setting = "#a.method=conditional&a.basis=polynomial&a.degree=2&a.statistics=confidence"
    open_page(browser, explorer, setting + "&b.method=class&alpha=0.1&seed=0&a.per_class=auto")
    for key, name, press in PARAMETERS:
        before, part = address(browser), browser.evaluate("location.hash")
        focus(browser, key)
        browser.press(press)
        wait(browser, f"location.hash !== {json.dumps(part)}")
        settle(browser)
        assert address(browser).get(name) != before.get(name), key
        assert browser.evaluate("document.activeElement.dataset.key") == key
    focus(browser, "A-basis")
    browser.press("ArrowUp")
    settle(browser)
    assert address(browser)["a.basis"] == ["auto"]
    assert browser.evaluate("document.querySelector('#A-degree').disabled")


def test_the_slider_and_boxes_move_by_mouse(browser):
    before = point(browser)
    left, top, width, height = browser.evaluate(
        "(() => { const r = document.querySelector('#alpha-range').getBoundingClientRect();"
        "return [r.x, r.y, r.width, r.height]; })()"
    )
    browser.click_at(left + 0.8 * width, top + height / 2)
    wait(browser, "+new URLSearchParams(location.hash.slice(1)).get('alpha') > 0.3")
    settle(browser)
    assert point(browser) != before
    for methods in (1, 2):
        browser.click("#second")
        settle(browser)
        shown = browser.evaluate("document.querySelectorAll('#parameters fieldset').length")
        assert shown == methods
    browser.click("#theme")
    assert browser.evaluate("document.querySelector('#dark').media") == "screen"


def test_the_newest_of_many_quick_moves_is_shown(browser):
    focus(browser, "alpha")
    browser.press(*["ArrowRight"] * 12)
    settle(browser)
    assert float(address(browser)["alpha"][0]) == pytest.approx(0.16)
    assert "alpha 0.16" in point(browser)


def test_a_cell_opens_its_samples_and_a_sample_its_reasons(browser, data, explorer):
    grid = '.heatmap[data-index="0"][data-table="conf_trust"]'
    cell = f"{grid} td[data-bin]"
    browser.hover(cell)
    assert "95% interval" in browser.text("#tip")
    focus(browser, browser.evaluate(f"document.querySelector('{cell}').dataset.key"))
    browser.press("ArrowDown", "ArrowUp", "Enter")
    wait(browser, "document.querySelector('#panel .samples tbody tr')")
    rows = browser.texts("#panel .samples tbody tr")
    assert rows and all("missed" in row or "covered" in row for row in rows)
    browser.press("Enter")  # the first row has the focus
    wait(browser, "document.querySelector('#panel .why')")
    assert "because" in browser.text("#panel .why")
    assert len(browser.texts("#panel .near li")) == 6
    wait(browser, "document.querySelector('#panel img').naturalWidth > 0")
    browser.press("Escape")
    assert not browser.evaluate("document.querySelector('#panel').open")
    # Names are text: none of them became an element.
    markup = "b b, td b, th b, button b, th i, button i"
    assert browser.evaluate(f"document.querySelectorAll('{markup}').length") == 0
    browser.click("[data-key=now-0]")
    wait(browser, "document.querySelector('#panel .samples tbody tr')")
    assert "All test samples" in browser.text("#panel-title")
    browser.press("Escape")


def test_an_earlier_point_and_an_address_restore_their_state(browser, explorer):
    browser.evaluate("location.hash = location.hash.replace('alpha=0.1', 'alpha=0.3')")
    wait(browser, "document.querySelector('#alpha-number').value === '0.3'")
    settle(browser)
    link, shown = browser.evaluate("location.href"), browser.text("#glance")
    focus(browser, "was-0-0")
    browser.press("Enter")
    wait(browser, "document.querySelector('#alpha-number').value === '0.1'")
    settle(browser)
    assert browser.text("#glance") != shown
    browser.open("about:blank")
    browser.open(link)
    settle(browser)
    assert browser.text("#glance") == shown
    open_page(browser, explorer, "#a.method=nonsense&a.degree=99&alpha=7&seed=x&b.method=%00")
    assert address(browser)["alpha"] == ["0.1"]
    assert address(browser)["a.method"] == ["conditional"]


def test_files_and_code_leave_the_page(browser, explorer, data, tmp_path):
    browser.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.click("[data-key=export-2-1]")
    model, end = tmp_path / "model.trustsets", time.monotonic() + PATIENCE
    while not model.exists() and time.monotonic() < end:
        browser.evaluate("0")
        time.sleep(0.05)
    test = data.outputs.split(0.5, seed=0)[1]
    sets = trustsets.load(model).predict_set(test, 0.1)
    calibration = data.outputs.split(0.5, seed=0)[0]
    own = trustsets.MondrianConformal(by="class", score=trustsets.APS(scale="raw"))
    assert np.array_equal(sets.mask, own.calibrate(calibration).predict_set(test, 0.1).mask)
    assert f"mean size {sets.sizes.mean():.2f}," in point(browser, 1)
    browser.click("[data-key=export-0-0]")
    wait(browser, "document.querySelector('.code')")
    assert "StandardConformal(" in browser.text(".code")
    browser.click("[data-key=regions-0]")
    wait(browser, "document.querySelector('#region-list').textContent.match(/region|Where/)")


def test_a_narrow_window_needs_no_sideways_scrolling(browser):
    browser.resize(390, 844)
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
