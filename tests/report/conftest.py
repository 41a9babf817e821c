from types import SimpleNamespace

import numpy as np
import pytest
from report_cases import CLASSES, FAST, sets_that_cover

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
        trust=np.exp(rng.normal(size=n)),
        labels=np.array(CLASSES)[labels],
        classes=CLASSES,
        groups={"site": rng.choice(["a", "b", "<i>c</i>"], size=n)},
    )
    calibration, test = outputs.split(0.5)
    hits = rng.random(len(test)) < np.where(test.trust < 0.6, 0.6, 0.99)
    standard = StandardConformal().calibrate(calibration)
    sets = {"standard": standard.predict_set(test), "planted": sets_that_cover(hits, test)}
    # The planted sets come from nowhere; a predictor of as many samples stands in for theirs.
    predictors = {"standard": standard, "planted": standard}
    results = {name: evaluate(item, test, **FAST) for name, item in sets.items()}
    options = {"outputs": test, "sets": sets, "predictors": predictors}
    options |= {"title": "Skin <em>lesions</em>", "details": {"Score": "APS"}}
    return SimpleNamespace(
        outputs=test, sets=sets, results=results, predictors=predictors, options=options
    )


@pytest.fixture(scope="session")
def page(case, tmp_path_factory):
    """The report of the case, with samples."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    return write_report(path, case.results, **case.options)


@pytest.fixture
def browser(chromium, page):
    """The browser with the report of the case open, at a desk's size."""
    chromium.resize(1280, 900)
    chromium.open(page)
    return chromium
