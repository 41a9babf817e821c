"""What the slider over alpha shows, against sets counted one by one."""

import json
import re
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from report_cases import FirstFeature, render_report, rounded

from trustsets import (
    Bins,
    ConditionalConformal,
    Groups,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    Softmax,
    StandardConformal,
    evaluate,
)
from trustsets.errors import InputError
from trustsets.predictors import (
    ClusteredConformal,
    InterpolatedConformal,
    PluginConformal,
    RankCalibratedConformal,
)
from trustsets.report.alphas import describe_p, p_and_confidence, page_alphas
from trustsets.report.samples import MOST_CLASSES

OWN = 0.1
PAGE = page_alphas(OWN)


def conditional():
    """So many functions that sets made for one alpha differ from nested ones."""
    return ConditionalConformal(basis=Polynomial(degree=3, penalty=0.0), trust=FirstFeature())


def sample(n=800, n_classes=20, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, n_classes)) * 1.5
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return ModelOutputs(
        logits=logits,
        features=rng.normal(size=(n, 2)),
        labels=labels,
        classes=np.arange(n_classes),
        groups={"site": rng.choice(["a", "b"], size=n)},
    ).split(0.5)


@pytest.fixture(scope="module")
def made():
    """Four methods, of which three have predictors, and the data of their page."""
    calibration, test = sample()
    predictors = {
        "standard": StandardConformal().calibrate(calibration),
        "by class": MondrianConformal(by="class").calibrate(calibration),
        "conditional": conditional().calibrate(calibration),
    }
    sets = {name: item.predict_set(test, OWN) for name, item in predictors.items()}
    sets["still"] = sets["standard"]
    trust = FirstFeature()
    results = {
        name: evaluate(own, test.with_trust(trust), metrics=["conf_trust", "class"], n_bootstrap=10)
        for name, own in sets.items()
    }
    options = {"outputs": test, "sets": sets, "trust": trust, "samples_per_cell": 3}
    text = render_report(results, predictors=predictors, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes are too small for the smallest alpha
        nested = {name: item.predict_set(test, PAGE) for name, item in predictors.items()}
    return SimpleNamespace(
        test=test,
        predictors=predictors,
        sets=sets,
        nested=nested,
        results=results,
        options=options,
        text=text,
        data=json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1)),
    )


def mask_at(made, method, alpha):
    """Sets of a method: those evaluated at the page's own alpha, nested ones elsewhere."""
    if alpha == OWN:
        return made.sets[method].mask
    return made.nested[method].at(alpha).mask


@pytest.mark.filterwarnings("ignore:20 of 20 groups have too few")
@pytest.mark.parametrize("method", ["standard", "by class", "conditional"])
def test_numbers_at_every_alpha_are_those_of_the_nested_sets(made, method):
    alphas, table = made.data["alphas"], made.results[method].tables["conf_trust"]
    assert alphas["values"] == list(PAGE) and PAGE[alphas["own"]] == OWN
    found = alphas["methods"][method]["conf_trust"]
    column = list(made.results).index(method)
    for place, alpha in enumerate(PAGE):
        mask = mask_at(made, method, alpha)
        hit = mask[np.arange(len(mask)), made.test.codes]
        for b in range(table.count.size):
            assert found["covered"][place][b] == hit[table.cells == b].sum()
            assert found["size"][place][b] == mask[table.cells == b].sum()
        sizes = mask.sum(axis=1)
        assert [row[column] for row in alphas["averages"][place]] == [
            f"{rounded(100 * hit.mean(), 1)}%",
            rounded(sizes.mean(), 2),
            f"{np.median(sizes):g}",
            f"{rounded(100 * (sizes == 0).mean(), 2)}%",
            f"{rounded(100 * (sizes == 20).mean(), 2)}%",
        ]
    nested = made.nested[method].at(OWN).mask
    assert (nested != mask_at(made, method, OWN)).any() == (method == "conditional")
    here = alphas["own"]
    assert found["covered"][here] == table.covered.tolist()
    assert np.allclose(np.array(found["size"][here]) / table.count, table.mean_size)


def test_a_method_without_predictor_keeps_its_numbers(made):
    alphas = made.data["alphas"]
    assert set(alphas["methods"]) == set(made.data["p_values"]) == set(made.predictors)
    column = list(made.results).index("still")
    own = [row[column] for row in alphas["averages"][alphas["own"]]]
    assert all([row[column] for row in page] == own for page in alphas["averages"])


@pytest.mark.filterwarnings("ignore:20 of 20 groups have too few")
@pytest.mark.parametrize("method", ["standard", "by class", "conditional"])
def test_sets_of_listed_samples_can_be_read_at_every_alpha(made, method):
    p = made.predictors[method].predict_p(made.test, PAGE)
    sure = made.predictors[method].predict_confidence(made.test, PAGE)
    likely = made.test.probabilities
    listed = made.data["p_values"][method]
    assert set(listed) == set(made.data["samples"]["methods"][method]["sets"])
    for row, (codes, digits, label, rest, second, largest) in listed.items():
        i, held = int(row), [int(digit, 36) for digit in digits]
        for place, alpha in enumerate(PAGE):
            members = [k for k in np.argsort(-likely[i], kind="stable") if p[i, k] > alpha]
            inside = [k for k, own in zip(codes, held, strict=True) if own > place]
            assert inside[:MOST_CLASSES] == members[:MOST_CLASSES]
            more = sum(rest[place:])
            assert len(inside) + more == len(members)
            assert (label > place) == (p[i, made.test.codes[i]] > alpha)
        steps = [*PAGE, 1.0]
        assert 1.0 - steps[second] == pytest.approx(sure.confidence[i])
        assert steps[largest] == sure.credibility[i]


@pytest.mark.parametrize("seed", range(3))
def test_sets_can_be_read_for_any_p_values(seed):
    """Also where p-values and probabilities are in no common order."""
    rng = np.random.default_rng(seed)
    held = np.minimum(rng.geometric(0.15, size=(30, 50)) - 1, 21)
    outputs = ModelOutputs(
        logits=rng.normal(size=held.shape).round(), labels=rng.integers(50, size=30)
    )
    for i, (codes, digits, label, rest) in enumerate(describe_p(held, outputs)):
        order = np.argsort(-outputs.probabilities[i], kind="stable")
        assert label == held[i, outputs.codes[i]]
        for place in range(22):
            members = [k for k in order if held[i, k] > place]
            inside = [k for k, d in zip(codes, digits, strict=True) if int(d, 36) > place]
            assert inside[:MOST_CLASSES] == members[:MOST_CLASSES]
            assert len(inside) + sum(rest[place:]) == len(members)


def predictors():
    trust, score = FirstFeature(), Softmax()
    return [
        StandardConformal(score=score),
        StandardConformal(score=score, allow_empty=True),
        MondrianConformal(score=score, by="class"),
        MondrianConformal(score=score, by=Groups("site")),
        MondrianConformal(score=score, by=Bins(), trust=trust),
        MondrianConformal.paper(score=score, trust=trust, allow_empty=False),
        ClusteredConformal(score=score),
        RankCalibratedConformal(score=score),
        InterpolatedConformal(score=score),
        PluginConformal(score=score, trust=trust),
        ConditionalConformal(score=score, basis=Polynomial(degree=1), trust=trust),
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("predictor", predictors(), ids=lambda item: type(item).__name__)
def test_one_pass_gives_p_values_and_confidence(predictor):
    calibration, test = sample(300, 6, seed=1)
    predictor.calibrate(calibration)
    # Sets given the confidence are empty at middle alphas, all others at large ones.
    alphas = (0.02, 0.1, 0.5)
    if not isinstance(predictor, ConditionalConformal):
        alphas = (*alphas, 0.9, 0.97)
    p, sure = p_and_confidence(predictor, test, alphas)
    assert np.array_equal(p, predictor.predict_p(test, alphas))
    expected = predictor.predict_confidence(test, alphas)
    assert np.array_equal(1.0 - sure[:, 0], expected.confidence)
    assert np.array_equal(sure[:, 1], expected.credibility)
    assert (sure[:, 1] < 1.0).any()  # some sets would be empty


def test_one_class_and_one_sample():
    outputs = ModelOutputs(logits=np.zeros((30, 1)), labels=np.zeros(30, dtype=int))
    predictor = StandardConformal().calibrate(outputs)
    sets = predictor.predict_set(outputs.take([0]))
    result = evaluate(sets, outputs.take([0]), metrics=["conf_rank"], n_bootstrap=5)
    text = render_report(result, outputs=outputs.take([0]), sets=sets, predictors=predictor)
    assert 'id="alpha-range"' in text


def test_without_predictors_there_is_no_slider(made):
    text = render_report(made.results, **made.options)
    assert "alpha-range" not in text.split("<script")[0].split("</style>")[-1]
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))
    assert data["alphas"] is None and data["p_values"] is None
    with_slider = {name: own for name, own in made.data.items() if name not in data}
    assert with_slider == {} and data["samples"] == made.data["samples"]


def test_the_slider_adds_little(made):
    without = len(render_report(made.results, **made.options))
    assert len(made.text) < 2 * without


@pytest.mark.parametrize("own, place", [(0.1, 10), (0.033, 4), (0.9, 21), (0.0004, 0)])
def test_the_own_alpha_is_among_those_of_the_slider(own, place):
    assert page_alphas(own).index(own) == place
    assert len(page_alphas(own)) in (21, 22)


def test_predictors_that_do_not_belong_are_refused(made):
    standard = made.predictors["standard"]
    wide = StandardConformal().calibrate(made.test)
    swapped = {"by class": standard}
    cases = [
        ({"nobody": standard}, made.options, "predictors names .*nobody.*use their names"),
        (standard, made.options, "predictors names .*this method"),
        ({"standard": 3}, made.options, r"predictors\['standard'\] must be .*got int"),
        ({"standard": wide}, {}, "predictors= needs outputs= and sets= too"),
        (swapped, made.options, r"predictors\['by class'\] did not make sets"),
    ]
    for given, options, message in cases:
        with pytest.raises(InputError, match=message):
            render_report(made.results, predictors=given, **options)
