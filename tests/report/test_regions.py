"""What an audit adds to the page."""

import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
from report_cases import FAST, render_report

from trustsets import ModelOutputs, StandardConformal, write_report
from trustsets.auditing import audit, excess_risk, find_regions
from trustsets.errors import InputError

NAMES = np.array(["naevus", "melanoma", "<b>other</b>"])


@pytest.fixture(scope="module")
def left():
    """Calibration samples whose classifier is wrong more often at one site."""
    rng = np.random.default_rng(0)
    n = 2000
    logits = 3.0 * rng.normal(size=(n, 3))
    site = rng.choice(["arm", "leg", "<i>face</i>"], n, p=[0.5, 0.3, 0.2])
    sharp = np.where(site == "<i>face</i>", 0.1, 2.0)[:, None]
    labels = (sharp * logits + rng.gumbel(size=(n, 3))).argmax(axis=1)
    outputs = ModelOutputs(
        logits=logits,
        labels=NAMES[labels],
        classes=NAMES,
        groups={"site": site, "half": np.where(site == "arm", "upper", "lower")},
        rows=np.arange(n) + 50_000,
    )
    return StandardConformal().calibrate(outputs)


@pytest.fixture(scope="module")
def regions(left):
    sets = left.leave_one_out(0.1)
    return find_regions(sets, left.calibration_, by=("groups",), max_conditions=1)


@pytest.fixture(scope="module")
def evaluation(left):
    risk = excess_risk(left.leave_one_out(0.1), left.calibration_, n_permutations=0)
    return replace(audit(left, metrics=("class", "groups"), **FAST), more=risk.metrics)


@pytest.fixture(scope="module")
def text(left, regions, evaluation):
    sets = left.leave_one_out(0.1)
    return render_report(evaluation, outputs=left.calibration_, sets=sets, regions=regions)


def test_the_page_says_that_no_test_set_was_used_and_escapes_names(text):
    first = text[text.index('<section id="verdict"') : text.index("</section>")]
    assert "No test set was used" in first
    assert "Calibration samples</dt><dd>2,000" in text and "Test samples</dt>" not in text
    assert "<i>face" not in text and "<b>other" not in text


def test_regions_come_right_after_the_verdict_with_their_numbers(text, regions):
    sections = re.findall(r'<section id="([\w-]+)"', text)
    assert sections[:3] == ["verdict", "regions", "methods"]
    region = regions.regions[0]
    card = unescape(text[text.index('<article class="region">') : text.index("</article>")])
    assert f"Where {region.name}" in card and region.name == "site is <i>face</i>"
    assert f"<strong>{100 * region.coverage.value:.1f}%</strong>" in card
    assert f"{100 * region.coverage.lower:.1f}–{100 * region.coverage.upper:.1f}" in card
    assert f"{100 * region.share:.1f}% of the samples" in card
    assert f"{region.count:,} samples tested" in card


def test_the_excess_risk_stands_with_its_interval_and_is_explained(text, evaluation):
    other = text[text.index('<section id="other"') :]
    under = evaluation.more["excess_risk.under"]
    assert f"{under.value:.2f} <small>{under.lower:.2f}–{under.upper:.2f}" in other
    assert "<dt>Excess risk</dt>" in other


def test_several_methods_each_have_their_regions_and_none_is_said(case):
    found = {
        name: find_regions(own, case.outputs, by=("trust", "groups"))
        for name, own in case.sets.items()
    }
    assert len(found["planted"]) and not len(found["standard"])
    text = render_report(case.results, regions=found)
    part = text[text.index('id="regions"') : text.index('id="methods"')]
    assert part.index("<h3>standard</h3>") < part.index("No region was found")
    assert part.index("No region was found") < part.index("<h3>planted</h3>")
    assert part.count("<article") == len(found["planted"])


def test_regions_of_other_sets_are_refused(case, regions, tmp_path):
    path = tmp_path / "r.html"
    with pytest.raises(InputError, match="mapping with names"):
        write_report(path, case.results, regions=regions)
    with pytest.raises(InputError, match="name methods among"):
        write_report(path, case.results, regions={"nobody": regions})
    with pytest.raises(InputError, match="2000 samples"):
        write_report(path, case.results, regions={"planted": regions})
    assert not path.exists()
