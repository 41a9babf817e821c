"""Explanations of listed samples: which, and in which words."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from report_cases import FAST, cell

from trustsets import (
    ClusteredConformal,
    ConditionalConformal,
    MondrianConformal,
    Polynomial,
    StandardConformal,
    evaluate,
    write_report,
)
from trustsets.report.explanations import MOST_EXPLAINED, in_words


@pytest.fixture(scope="module")
def made(case, tmp_path_factory):
    test, calibration = case.outputs.split(0.5)
    predictors = {
        "standard": StandardConformal(),
        "conditional": ConditionalConformal(basis=Polynomial(degree=1), trust=case.trust),
        "class": MondrianConformal(by="class"),
        "clustered": ClusteredConformal(n_clusters=2, random_state=0),
    }
    sets = {name: own.calibrate(calibration).predict_set(test) for name, own in predictors.items()}
    results = {
        name: evaluate(own, test.with_trust(case.trust), **FAST) for name, own in sets.items()
    }
    page = write_report(
        tmp_path_factory.mktemp("why") / "report.html",
        results,
        outputs=test,
        sets=sets,
        trust=case.trust,
        predictors=predictors,
        slider=False,
    )
    text = page.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    return test, predictors, sets, results, page, data


def test_the_worst_sample_of_each_of_the_worst_cells_is_explained(made):
    _, _, _, results, _, data = made
    assert set(data["explanations"]) == {"standard", "conditional", "class"}
    assert data["alphas"] is None and data["p_values"] is None
    for method, words in data["explanations"].items():
        table = results[method].tables["conf_trust"]
        cells = np.lexsort((table.coverage, table.p_value))[:MOST_EXPLAINED]
        bins = data["samples"]["methods"][method]["bins"]["conf_trust"]
        assert set(words) == {str(bins[i][0]) for i in cells}


def test_words_are_those_of_the_predictor(made):
    test, predictors, sets, _, _, data = made
    for method, words in data["explanations"].items():
        for row, said in words.items():
            sample = test.take([int(row)])
            label = sample.labels[0] if method == "class" else None
            own = predictors[method].explain(sample, 0.1, label=label)
            assert said == in_words(own)
            assert own.summary.splitlines()[0].rstrip(":") in said
            rows = [f"row {item.row}" for item in own.samples[:3]]
            assert all(name in said for name in rows)
            assert own.classes == tuple(sets[method][[int(row)]].labels()[0])


def test_firmness_names_the_nearest_change(made):
    test, predictors, *_ = made
    own = predictors["conditional"].explain(test[0], 0.1)
    first, *others = own.samples
    far = [replace(item, low=-np.inf, high=np.inf) for item in others]
    firm = replace(own, samples=(replace(first, low=-np.inf, high=np.inf), *far))
    assert "None of them alone could change the outcome" in in_words(firm)
    alone = in_words(replace(firm, samples=firm.samples[:1]))
    assert "1 calibration sample:" in alone and "It could not change the outcome" in alone
    near = replace(first, score=0.5, low=0.25, high=0.9)
    said = in_words(replace(own, samples=(near, *far)))
    assert f"score of row {first.row}, 0.5, went below 0.25" in said
    near = replace(first, score=0.5, low=-np.inf, high=0.75)
    assert "went above 0.75" in in_words(replace(own, samples=(near, *far)))


def test_left_out_samples_are_not_explained(made, tmp_path):
    test, predictors, sets, results, *_ = made
    one = replace(results["standard"], left_out=True)
    page = write_report(
        tmp_path / "r.html", one, outputs=test, sets=sets["standard"],
        predictors=predictors["standard"], slider=False,
    )  # fmt: skip
    assert '"explanations":{}' in page.read_text(encoding="utf-8")


def test_a_listed_sample_says_why(chromium, made):
    *_, page, data = made
    words = data["explanations"]["conditional"]
    bins = data["samples"]["methods"]["conditional"]["bins"]["conf_trust"]
    place = next(i for i, own in enumerate(bins) if str(own[0]) in words)
    chromium.resize(1280, 900)
    chromium.open(page)
    chromium.click(cell("conditional", place))
    shown = chromium.texts(".samples:not([hidden]) .why")
    assert shown[0] == f"Why? {words[str(bins[place][0])]}"
    assert chromium.complaints() == []
    chromium.resize(375, 812)
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 375
