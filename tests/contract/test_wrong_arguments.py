"""Wrong arguments, anywhere in the public API, give an error of this package and no raw one.

Each call is made with wrong values for one parameter at a time. It may succeed where the value is
allowed, and otherwise raises a `TrustSetsError` or scikit-learn's `NotFittedError`. Where a number
is wanted, anything else and numbers without a meaning are refused by name.
"""

import datetime
from functools import cache, partial

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.naive_bayes import GaussianNB

import trustsets
from trustsets import (
    APS,
    RAPS,
    SAPS,
    ClassBias,
    ClusteredConformal,
    ConditionalConformal,
    Confidence,
    Entropy,
    Margin,
    ModelOutputs,
    MondrianConformal,
    Monitor,
    Polynomial,
    PredictionSets,
    Softmax,
    StandardConformal,
    TemperatureScaling,
    Trust,
    TrustScore,
    TrustSetClassifier,
    TrustSetsError,
)
from trustsets.auditing import find_regions
from trustsets.engine import fit_quantiles
from trustsets.extract import extract_outputs
from trustsets.metrics import check_guarantee
from trustsets.recipes import make_basis, make_predictor
from trustsets.status import Thresholds

N = 60


class Odd:
    """A value that nothing takes."""


WRONG = {
    "nothing": None,
    "text": "x",
    "bytes": b"x",
    "list": [1, 2],
    "texts": ["a", "b"],
    "ragged": [[1], [1, 2]],
    "dict": {"a": Odd()},
    "set": {1, 2},
    "negative": -1,
    "zero": 0,
    "fraction": 1.5,
    "nan": np.nan,
    "infinity": np.inf,
    "giant": 10**30,
    "complex": 1j,
    "true": True,
    "object": Odd(),
    "class": Odd,
    "date": datetime.datetime(2020, 1, 1),
    "empty": np.empty(0),
    "three dimensions": np.zeros((3, 2, 2)),
    "complex array": np.ones((2, 2), complex),
    "objects": np.array([Odd(), None], dtype=object),
    "generator": ...,  # a new one for each call
}
# Parameters whose value is a number refuse all of these, except where one has a meaning.
MEANINGFUL = {
    "nothing": {"seed", "random_state", "n", "label"},
    "negative": {"index"},
    "zero": {"seed", "random_state", "index", "label", "filter_fraction", "tuning_fraction"}
    | {"prevalence", "lam", "k_reg", "floor"},
    "fraction": {"prevalence", "temperature", "lam", "floor"},
    "giant": {"seed", "random_state", "temperature", "lam", "floor"},
    "true": {"label"},
}
# These look at their number only where it is used.
UNCHECKED = {"from_scores", "make_predictor", "make_basis"}


def calibrated(predictor):
    """A predictor class as a call that also uses its parameters."""

    def call(**parameters):
        return predictor(**parameters).calibrate(outputs()).predict_set(outputs())

    return call


def used_score(score):
    return lambda **parameters: score(**parameters).of_labels(outputs())


def used_statistic(statistic):
    return lambda **parameters: statistic(**parameters).fit(outputs()).values(outputs())


def fitted(estimator):
    return lambda **parameters: estimator(**parameters).fit(outputs()).transform(outputs())


def fitted_trust(**parameters):
    features, labels = outputs().features, outputs().labels
    return TrustScore(**parameters).fit(features, labels).score(features, labels)


def labelled_monitor(**arguments):
    monitor = Monitor(predictor())
    monitor.observe(outputs().replace(labels=None), ids=np.arange(N))
    return monitor.label(**arguments)


def fitted_classifier(**parameters):
    classifier = TrustSetClassifier(**parameters)
    return classifier.fit(outputs().features, outputs().labels).predict_set(outputs().features)


@cache
def outputs():
    rng = np.random.default_rng(0)
    logits = 2.0 * rng.normal(size=(N, 3))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return ModelOutputs(
        logits=logits,
        features=logits + 0.1,
        labels=labels,
        trust=rng.random(N),
        groups={"site": np.arange(N) % 2},
        classes=np.arange(3),
    )


@cache
def predictor():
    return StandardConformal().calibrate(outputs())


@cache
def functions():
    basis = Polynomial(1, of=(Confidence(),))
    return ConditionalConformal(basis=basis, tuning_fraction=0.0).calibrate(outputs())


@cache
def sets():
    return predictor().predict_set(outputs())


@cache
def evaluation():
    return trustsets.evaluate(sets(), outputs())


@cache
def quantiles():
    return fit_quantiles(np.ones((N, 1)), np.arange(float(N)))


def good(function, **arguments):
    """A call that succeeds: a function and its arguments."""
    return function, arguments


def calls(folder):
    """Calls that succeed, by name: a function and its arguments."""
    samples, sample = outputs(), outputs()[0]
    names = ("features", "labels", "groups", "trust", "classes", "rows")
    fields = {name: getattr(samples, name) for name in names}
    thresholds = Thresholds(np.full(N, 0.5), np.zeros(N, np.int8))
    scores = predictor().scores(samples)
    path = folder / "model.trustsets"
    words = {"statistics": ["confidence"], "groups": ["site"], "n": 100}
    monitor = Monitor(predictor())
    monitor.save(folder / "monitor.trustsets")
    made = {
        "ModelOutputs": (ModelOutputs, {"logits": samples.logits} | fields),
        "probabilities": good(ModelOutputs, probabilities=samples.probabilities),
        "replace": (samples.replace, fields),
        "take": good(samples.take, index=[0]),
        "split": good(samples.split, fraction=0.5, seed=0, stratify=False),
        "concat": good(ModelOutputs.concat, parts=[samples, samples]),
        "concat of one": good(lambda part: ModelOutputs.concat([samples, part]), part=samples),
        "shifted": good(samples.shifted, shift=np.zeros(3)),
        "with_trust": good(samples.with_trust, trust=np.ones(N)),
        "with_logits": good(samples.with_logits, logits=samples.logits),
        "from_scores": (
            PredictionSets.from_scores,
            {"scores": scores, "thresholds": thresholds, "alpha": 0.1, "allow_empty": False}
            | {"classes": samples.classes, "predicted": samples.predicted_codes},
        ),
        "Thresholds": (
            lambda **parts: PredictionSets.from_scores(scores, Thresholds(**parts), 0.1),
            vars(thresholds),
        ),
        "sets.at": good(sets().at, alpha=0.1),
        "nested.at": good(predictor().predict_set(samples, [0.1, 0.2]).at, alpha=0.1),
        "covers": good(sets().covers, labels=samples.labels),
        "to_frame": good(sets().to_frame, flavour="pandas"),
        "part of sets": good(lambda index: sets()[[index]], index=0),
        "TrustScore": (fitted_trust, TrustScore().get_params()),
        "TrustScore.fit": good(TrustScore().fit, features=samples.features, labels=samples.labels),
        "TemperatureScaling.fit": good(TemperatureScaling().fit, outputs=samples),
        "scaling.transform": good(TemperatureScaling().fit(samples).transform, outputs=samples),
        "ClassBias": (fitted(ClassBias), ClassBias().get_params()),
        "ClassBias.transform": good(ClassBias().fit(samples).transform, outputs=samples),
        "score.matrix": good(APS().matrix, outputs=samples, temperature=1.0, draws=None),
        "evaluate": (
            trustsets.evaluate,
            {"sets": sets(), "outputs": samples, "alpha": None, "sizes": None, "bins": None}
            | {"metrics": ["class"], "level": 0.95, "n_bootstrap": 10},
        ),
        "compare": good(
            trustsets.compare, results={"a": evaluation()}, equal_size=False, columns=None
        ),
        "compare predictors": (
            partial(trustsets.compare, {"a": predictor()}, outputs=samples),
            {"alpha": 0.1, "equal_size": "a", "n_bootstrap": 10},
        ),
        "audit": good(
            trustsets.audit, predictor=predictor(), alpha=0.1, sets=None, bins=None, level=0.9
        ),
        "find_regions": (
            partial(find_regions, sets(), samples),
            {"by": ["confidence"], "max_conditions": 1, "level": 0.95, "seed": 0},
        ),
        "check_guarantee": good(
            check_guarantee, covered=[5], count=[9], n_calibration=[9], alpha=0.1, n_functions=None
        ),
        "plan": good(trustsets.plan, alpha=0.1, within=0.05, probability=0.9, n=100, groups=[0.5]),
        "write_report": (
            trustsets.write_report,
            {"path": folder / "a.html", "evaluations": evaluation(), "title": "", "details": {}},
        ),
        "load": good(trustsets.load, path=folder / "none"),
        "Monitor": (
            lambda **named: Monitor(**named).observe(samples).verdict(),
            {"predictor": predictor(), "alpha": 0.1, "reference": None, "random_state": 0},
        ),
        "Monitor.observe": good(
            Monitor(predictor()).observe, outputs=samples, ids=None, batch=None, in_order=False
        ),
        "Monitor.label": good(
            labelled_monitor, ids=[0, 1], labels=[0, 1], batch=None, in_order=True
        ),
        "Monitor.load": good(
            Monitor.load, path=folder / "monitor.trustsets", predictor=predictor()
        ),
        "TrustSetClassifier": (
            fitted_classifier,
            {"estimator": GaussianNB(), "method": "standard", "nonconformity_score": None}
            | {"calibration_fraction": 0.5, "prefit": False, "random_state": 0},
        ),
        "extract_outputs": (
            extract_outputs,
            {"model": lambda inputs: (inputs, inputs), "classes": ["a", "b", "c"], "folder": None}
            | {"loader": [(samples.features, samples.labels)], "features": None, "progress": False},
        ),
        "fit_quantiles": (
            fit_quantiles,
            {"phi_calib": np.ones((N, 1)), "scores_calib": np.arange(float(N)), "alpha": 0.1}
            | {"start": None},
        ),
        "quantile thresholds": good(
            quantiles().thresholds, phi_test=np.ones((2, 1)), weight=None, alpha=None
        ),
        "quantiles at": good(quantiles().at, alpha=0.2),
        "quantiles leave_one_out": good(quantiles().leave_one_out, points=None, weight=None),
        "make_predictor": (
            make_predictor,
            {"method": "conditional", "score": "aps", "trust": None, "basis": "polynomial"} | words,
        ),
        "make_basis": good(partial(make_basis, "groups"), **words),
    }
    for score in (APS, RAPS, SAPS, Softmax):
        made[score.__name__] = used_score(score), vars(score())
    for statistic in (Confidence, Entropy, Margin, Trust):
        made[statistic.__name__] = good(used_statistic(statistic), transform="rank")
        made[f"{statistic.__name__}.measure"] = good(statistic().measure, outputs=samples)
    for kind in (StandardConformal, MondrianConformal, ClusteredConformal):
        made[kind.__name__] = calibrated(kind), kind._defaults()
    simple = {"basis": Polynomial(1, of=(Confidence(),)), "tuning_fraction": 0.0}
    simple = ConditionalConformal._defaults() | simple
    made["ConditionalConformal"] = calibrated(ConditionalConformal), simple
    for name, model in {"standard": predictor(), "conditional": functions()}.items():
        made |= {
            f"{name}.calibrate": good(model.copy().calibrate, outputs=samples, tuning=None),
            f"{name}.predict_set": good(
                model.predict_set, outputs=samples, alpha=0.1, sample_alphas=None, max_size=None
            ),
            f"{name}.predict_p": good(model.predict_p, outputs=sample, alphas=[0.1]),
            f"{name}.leave_one_out": good(model.leave_one_out, alpha=0.1),
            f"{name}.explain": good(model.explain, sample=sample, alpha=0.1, label=0),
            f"{name}.certificate": good(model.certificate, sample=sample, alpha=0.1, label=0),
            f"{name}.update": good(model.copy().update, more=samples),
            f"{name}.forget": good(lambda rows, model=model: model.copy().forget(rows), rows=[0]),
            f"{name}.adapt": good(model.adapt, unlabelled=samples, shift="label", of="statistics"),
            f"{name}.summary": good(model.summary, sets=None),
            f"{name}.save": good(model.save, path=path),
        }
    set_params = functions().copy().set_params
    made["conditional.set_params"] = good(set_params, trust__neighbour=2)
    return made


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    return calls(tmp_path_factory.mktemp("calls"))


@pytest.mark.filterwarnings("ignore")
def test_the_calls_themselves_succeed(public):
    """Otherwise a wrong argument would not be what they fail of."""
    fail = {"load", "conditional.set_params"}
    for name, (function, arguments) in public.items():
        if name in fail:
            with pytest.raises(TrustSetsError):
                function(**arguments)
        else:
            function(**arguments)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_argument_is_an_error_of_this_package(kind, public, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raw, taken = [], []
    for name, (function, arguments) in public.items():
        for parameter, good in arguments.items():
            if kind == "class" and parameter in ("by", "features"):
                continue  # a function of the user, whose errors are its own
            value = (n for n in range(3)) if kind == "generator" else WRONG[kind]
            is_number = isinstance(good, int | float) and not isinstance(good, bool)
            try:
                function(**arguments | {parameter: value})
                if is_number and name not in UNCHECKED:
                    taken.append(parameter)
            except (TrustSetsError, NotFittedError) as error:
                assert len(str(error)) > 10
                assert not is_number or parameter.split("__")[0] in str(error), error
            except Exception as error:
                raw.append(f"{name}({parameter}={kind}): {error!r}")
    assert raw == []
    assert set(taken) == MEANINGFUL.get(kind, set())


def test_messages_name_the_argument():
    for function, arguments, words in [
        (functions().explain, {"sample": outputs()[0], "label": [1, 2]}, "label must be one of"),
        (outputs().split, {"fraction": 0.5, "seed": "x"}, "seed must be an integer"),
        (
            functions().set_params,
            {"trust__neighbour": 2},
            "ConditionalConformal has no parameter trust__neighbour",
        ),
        (predictor().save, {"path": 3}, "path must be a text or a pathlib.Path; got int"),
        (predictor().save, {"path": "no/where"}, "its folder does not exist; make it first"),
        (StandardConformal(allow_empty="no").calibrate, {"outputs": outputs()}, "allow_empty must"),
        (APS, {"scale": "log"}, 'scale must be "raw" or "tail"; got \'log\''),
        (ModelOutputs, {"logits": [[1.0], [1.0, 2.0]]}, "logits must be an array: "),
    ]:
        with pytest.raises(TrustSetsError) as raised:
            function(**arguments)
        assert words in str(raised.value)
