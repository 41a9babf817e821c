"""The slider over alpha as a reader meets it: keys, mouse, numbers, sets, themes, paper."""

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from report_cases import FirstFeature, cell, rounded

from trustsets import (
    ConditionalConformal,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    StandardConformal,
    evaluate,
    write_report,
)
from trustsets.metrics.colours import shade
from trustsets.report.alphas import page_alphas
from trustsets.report.content import too_few

OWN, RANGE = 0.1, "#alpha-range"
ALPHAS = page_alphas(OWN)
MOVED = ("standard", "by class", "conditional")
N_CLASSES = 20


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three methods that move and one that stays, with sets that are too large to write out."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1200, N_CLASSES))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    names = np.array([f"<b>{k}</b>" for k in range(N_CLASSES)])
    outputs = ModelOutputs(
        logits=logits, features=rng.normal(size=(1200, 2)), labels=names[labels], classes=names
    )
    calibration, test = outputs.split(0.5)
    predictors = {
        "standard": StandardConformal().calibrate(calibration),
        "by class": MondrianConformal(by="class").calibrate(calibration),
        "conditional": ConditionalConformal(
            basis=Polynomial(degree=3, penalty=0.0), trust=FirstFeature()
        ).calibrate(calibration),
    }
    sets = {name: item.predict_set(test, OWN) for name, item in predictors.items()}
    sets["still"] = sets["standard"]
    trust = FirstFeature()
    chosen = ["conf_trust", "conf_rank", "class"]
    results = {
        name: evaluate(own, test.with_trust(trust), metrics=chosen, n_bootstrap=10)
        for name, own in sets.items()
    }
    page = write_report(
        tmp_path_factory.mktemp("slider") / "report.html",
        results,
        outputs=test,
        sets=sets,
        trust=trust,
        predictors=predictors,
        samples_per_cell=4,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes are too small for the smallest alpha
        p = {name: item.predict_p(test, ALPHAS) for name, item in predictors.items()}
    return SimpleNamespace(test=test, sets=sets, results=results, page=page, p=p)


@pytest.fixture
def browser(chromium, made):
    chromium.resize(1280, 900)
    chromium.open(made.page)
    return chromium


def mask_at(made, method, alpha):
    return made.sets[method].mask if alpha == OWN else made.p[method] > alpha


def move(browser, alpha):
    """Go to an alpha by keys alone, from wherever the slider is."""
    browser.evaluate(f"document.querySelector('{RANGE}').focus()")
    place = ALPHAS.index(alpha)
    rest = len(ALPHAS) - 1 - place
    near = ("Home", *["ArrowRight"] * place), ("End", *["ArrowLeft"] * rest)
    browser.press(*min(near, key=len))


def averages(browser, method):
    number = [*MOVED, "still"].index(method) + 2
    return browser.evaluate(
        f"[...document.querySelectorAll('.averages tr:not(.group) > :nth-child({number})')]"
        ".map(c => c.firstChild.data.trim())"
    )


def shown_cells(browser, method, table):
    """Text, colour and label of each bin."""
    grid = f'.heatmap[data-table="{table}"][data-method="{method}"]'
    return browser.evaluate(
        f"[...document.querySelectorAll({json.dumps(grid + ' td[data-bin]')})]"
        ".sort((a, b) => a.dataset.bin - b.dataset.bin)"
        ".map(c => [c.innerText, c.style.getPropertyValue('--light').trim(),"
        " c.style.getPropertyValue('--dark-ink').trim(), c.ariaLabel])"
    )


@pytest.mark.parametrize("alpha", [0.005, 0.1, 0.3])
def test_numbers_follow_the_keys_and_equal_those_of_python(browser, made, alpha):
    move(browser, alpha)
    spoken = browser.evaluate(f"document.querySelector('{RANGE}').getAttribute('aria-valuetext')")
    text = {0.005: "0.005", 0.1: "0.10", 0.3: "0.30"}[alpha]
    assert spoken == f"alpha {text}" and browser.text("#alpha output").startswith(f"{text} (")
    for method in MOVED:
        mask = mask_at(made, method, alpha)
        hit, sizes = mask[np.arange(len(mask)), made.test.codes], mask.sum(axis=1)
        assert averages(browser, method)[:2] == [
            f"{rounded(100 * hit.mean(), 1)}%",
            rounded(sizes.mean(), 2),
        ]
        for name in ("conf_trust", "conf_rank"):
            table = made.results[method].tables[name]
            few = too_few(table, 1.0 - OWN)
            for i, (text, light, ink, label) in enumerate(shown_cells(browser, method, name)):
                share = hit[table.cells == i].mean()
                if few[i]:
                    assert (text == "few") == (alpha != OWN)
                    assert f"of {table.count[i]}, too few" in label
                else:
                    assert text == rounded(100 * share, 0)
                    assert f"Coverage {rounded(100 * share, 1)}%" in label
                colours = shade(float(share), 1.0 - alpha)
                assert (light, ink) == (colours.light, colours.dark_ink)
                mean = rounded(sizes[table.cells == i].mean(), 2)
                assert f"Mean set size {mean}" in label
                assert ("interval" in label) == (alpha == OWN)
    browser.hover(cell("standard", 0))
    heads = browser.texts("#tip dt")
    assert ("95% interval" in heads) == (alpha == OWN) and ("Alpha" in heads) == (alpha != OWN)
    assert browser.complaints() == []
    assert browser.requests() == [made.page.resolve().as_uri()]


def test_keys_go_by_steps_and_to_both_ends(browser):
    value = f"document.querySelector('{RANGE}').value"
    own = ALPHAS.index(OWN)
    browser.evaluate(f"document.querySelector('{RANGE}').focus()")
    assert browser.evaluate(value) == str(own)
    browser.press("ArrowLeft")
    assert browser.text("#alpha output") == "0.09 (target coverage 91%)"
    browser.press("ArrowRight", "ArrowRight")
    assert browser.text("#alpha output") == "0.12 (target coverage 88%)"
    browser.press("End")
    assert browser.text("#alpha output") == "0.50 (target coverage 50%)"
    browser.press("ArrowRight")
    assert browser.evaluate(value) == str(len(ALPHAS) - 1)
    browser.press("Home")
    assert browser.text("#alpha output") == "0.005 (target coverage 99.5%)"
    assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    label = browser.evaluate(f"document.querySelector('{RANGE}').labels[0].innerText")
    assert label == "Alpha"


def test_the_mouse_moves_it_and_a_button_brings_it_back(browser, made):
    left, top, width, height = browser.evaluate(
        f"(() => {{ const r = document.querySelector('{RANGE}').getBoundingClientRect();"
        "return [r.x, r.y, r.width, r.height]; })()"
    )
    before = browser.evaluate("document.querySelector('main').innerText")
    assert browser.texts(".stays") == []
    browser.click_at(left + 0.75 * width, top + height / 2)
    place = int(browser.evaluate(f"document.querySelector('{RANGE}').value"))
    assert ALPHAS.index(OWN) < place < len(ALPHAS) - 1
    hit = mask_at(made, "standard", ALPHAS[place])[np.arange(len(made.test)), made.test.codes]
    assert averages(browser, "standard")[0] == f"{rounded(100 * hit.mean(), 1)}%"
    assert set(browser.texts(".stays")) == {"at α = 0.10"}
    hidden = "getComputedStyle(document.querySelector('.averages td small')).visibility"
    assert browser.evaluate(hidden) == "hidden"
    browser.click("#alpha button")
    assert browser.evaluate("document.querySelector('main').innerText") == before
    assert browser.evaluate(f"document.activeElement.matches('{RANGE}')")
    assert browser.evaluate(hidden) == "visible"


def test_a_method_without_predictor_stays(browser, made):
    before = averages(browser, "still"), shown_cells(browser, "still", "conf_trust")
    move(browser, 0.3)
    assert (averages(browser, "still"), shown_cells(browser, "still", "conf_trust")) == before
    grid = "document.querySelector('.heatmap[data-method=still]')"
    assert float(browser.evaluate(f"getComputedStyle({grid}).opacity")) < 1


def rows_shown(browser):
    return browser.evaluate(
        "[...document.querySelectorAll('.samples:not([hidden]) tbody tr:not(.why)')]"
        ".map(r => [...r.cells].map(c => c.textContent))"
    )


def in_words(codes):
    names = ", ".join(f"<b>{k}</b>" for k in codes[:12])
    return names + (f" and {len(codes) - 12} more" if len(codes) > 12 else "")


@pytest.mark.parametrize("method", MOVED)
def test_sets_of_listed_samples_follow(browser, made, method):
    browser.click(cell(method, 0))
    row_of = {int(row): i for i, row in enumerate(made.test.rows)}
    likely, codes = made.test.probabilities, made.test.codes
    for alpha in (0.005, 0.1, 0.3):
        move(browser, alpha)
        mask = mask_at(made, method, alpha)
        shown = rows_shown(browser)
        assert len(shown) == 4
        for row, _, result, words, size, *_ in shown:
            i = row_of[int(row)]
            members = [k for k in np.argsort(-likely[i], kind="stable") if mask[i, k]]
            assert words == in_words(members)
            assert size == str(len(members))
            assert result == ("covered" if codes[i] in members else "missed")
    assert browser.complaints() == []


@pytest.mark.parametrize("method", MOVED)
def test_samples_list_p_values_confidence_and_credibility(browser, made, method):
    browser.click(cell(method, 1))
    heads = browser.texts(".samples:not([hidden]) th")
    assert heads[5:8] == ["p-values", "Confidence", "Credibility"]
    row_of = {int(row): i for i, row in enumerate(made.test.rows)}
    likely = made.test.probabilities
    text = {value: f"{value:.2f}" for value in ALPHAS} | {0.005: "≤0.005", 1.0: ">0.50"}
    for row, *_, words, confidence, credibility, _, _ in rows_shown(browser):
        i = row_of[int(row)]
        own, label = made.p[method][i], made.test.codes[i]
        order = [k for k in np.lexsort((-likely[i], -own)) if own[k] > ALPHAS[0]][:3]
        parts = [f"<b>{k}</b>\u00a0{text[own[k]]}" for k in order]
        rest = [] if label in order else [f"<b>{label}</b>\u00a0{text[own[label]]}"]
        assert words == " … ".join([", ".join(parts), *rest])
        second = np.sort(own)[-2]
        assert confidence == {1.0: "<0.50"}.get(second, f"{1 - second:.2f}")
        assert credibility == ">0.50"


def test_a_method_without_predictor_lists_no_p_values(browser):
    browser.click(cell("still", 0))
    assert "p-values" not in browser.texts(".samples:not([hidden]) th")


def test_set_sizes_and_legend_follow(browser, made):
    static = browser.texts(".sizes tbody td, .sizes tbody th")
    assert browser.texts(".legend span") == ["60% or less", "90%", "100%"]
    move(browser, 0.3)
    assert browser.texts(".legend span") == ["40% or less", "70%", "100%"]
    rows = browser.evaluate(
        "[...document.querySelectorAll('.sizes tbody tr')]"
        ".map(r => [...r.cells].map(c => c.innerText.trim()))"
    )
    sizes = mask_at(made, "standard", 0.3).sum(axis=1)
    assert len(rows) > 3
    for label, standard, *_ in rows:
        ends = [int(end) for end in label.split("–")]
        share = ((sizes >= ends[0]) & (sizes <= ends[-1])).mean()
        assert standard == f"{rounded(100 * share, 1)}%"
    move(browser, OWN)
    assert browser.texts(".sizes tbody td, .sizes tbody th") == static


def test_paper_shows_the_page_at_its_own_alpha(browser, tmp_path):
    own = averages(browser, "standard")
    move(browser, 0.3)
    moved = averages(browser, "standard")
    browser.evaluate(
        "window.addEventListener('beforeprint', () => { window.printed ="
        " document.querySelector('.averages td').firstChild.data.trim(); })"
    )
    browser.pdf(tmp_path / "report.pdf")
    assert browser.evaluate("window.printed") == own[0] != moved[0]
    assert averages(browser, "standard") == moved


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 800])
def test_the_slider_fits_and_stays_in_view(browser, made, width, scheme):
    browser.resize(width, 800)
    browser.open(made.page, prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    move(browser, 0.3)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.evaluate("document.querySelector('#maps').scrollIntoView()")
    top, height, title = browser.evaluate(
        "(() => { const r = document.getElementById('alpha').getBoundingClientRect();"
        "return [r.top, r.height, document.querySelector('#maps h2').getBoundingClientRect().top];"
        "})()"
    )
    assert 0 <= top < 1 and height < 120
    assert title >= top + height  # the slider does not cover what was scrolled to
    assert browser.evaluate("document.getAnimations().length") == 0


def test_without_a_script_the_page_has_no_slider(chromium, made):
    chromium.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.open(made.page)
        found = chromium.send("DOM.getDocument", depth=0)["root"]["nodeId"]
        node = chromium.send("DOM.querySelector", nodeId=found, selector="#alpha")["nodeId"]
        attributes = chromium.send("DOM.getAttributes", nodeId=node)["attributes"]
        assert "hidden" in attributes
    finally:
        chromium.send("Emulation.setScriptExecutionDisabled", value=False)
