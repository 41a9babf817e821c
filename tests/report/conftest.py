from types import SimpleNamespace

import numpy as np
import pytest
from browser import start_browser
from report_cases import CLASSES, FAST, FirstFeature, sets_that_cover

from trustsets import ModelOutputs, StandardConformal, evaluate, write_report


@pytest.fixture(scope="session")
def case():
    """Two methods on the same samples: a sound one, and one planted to fail at low trust."""
    rng = np.random.default_rng(0)
    n, n_classes = 3000, len(CLASSES)
    logits = rng.normal(size=(n, n_classes)) * 2.0
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    outputs = ModelOutputs(
        logits=logits,
        features=rng.normal(size=(n, 3)),
        labels=np.array(CLASSES)[labels],
        classes=CLASSES,
        groups={"site": rng.choice(["a", "b", "<i>c</i>"], size=n)},
    )
    calibration, test = outputs.split(0.5)
    trust = FirstFeature()
    hits = rng.random(len(test)) < np.where(test.features[:, 0] < -0.5, 0.6, 0.99)
    sets = {
        "standard": StandardConformal().calibrate(calibration).predict_set(test),
        "planted": sets_that_cover(hits, test),
    }
    results = {name: evaluate(own, test.with_trust(trust), **FAST) for name, own in sets.items()}
    return SimpleNamespace(outputs=test, trust=trust, sets=sets, results=results)


@pytest.fixture(scope="session")
def page(case, tmp_path_factory):
    """The report of the case, with samples."""
    return write_report(
        tmp_path_factory.mktemp("report") / "report.html",
        case.results,
        outputs=case.outputs,
        sets=case.sets,
        trust=case.trust,
        title="Skin <em>lesions</em>",
        guarantee={"standard": "At least 90% on average."},
        details={"Score": "APS"},
        samples_per_cell=5,
    )


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """One headless browser for all tests of pages."""
    browser = start_browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium, page):
    """The browser with the report of the case open, at a desk's size."""
    chromium.resize(1280, 900)
    chromium.open(page)
    return chromium
