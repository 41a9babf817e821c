"""Answers of every predictor depend on the sample and the calibration, and on nothing else.

Not on earlier calls, on the batch, on the order of its rows, on their memory layout or on what
became of a copy; and no call changes what was learned.
"""

import pickle
import warnings

import numpy as np
import pytest
from kinds import PREDICTORS, some

from trustsets import (
    APS,
    RAPS,
    SAPS,
    ConditionalConformal,
    Confidence,
    Groups,
    Intercept,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    Softmax,
    StandardConformal,
    load,
    storage,
)
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.scores import MarginScore, TopK

pytestmark = pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")

# Where a basis has no penalty rows, the calibration problem shares its arrays with the state.
MAKERS = PREDICTORS | {
    "intercept": lambda: ConditionalConformal(basis=Intercept()),
    "only groups": lambda: ConditionalConformal(basis=Groups("site")),
}
FEW = (0.07, 0.2, 0.35)
CALIBRATION, TUNING, TEST = some(0, 260), some(1, 150), some(2, 40)


def calibrated(name):
    return MAKERS[name]().calibrate(CALIBRATION, tuning=TUNING)


def sets(result):
    return result.mask, result.thresholds, result.status, np.asarray(result.alpha)


QUERIES = {
    "set": lambda p: sets(p.predict_set(TEST, 0.1)),
    "sets": lambda p: sets(p.predict_set(TEST, [0.3, 0.05, 0.1])),
    "other alpha": lambda p: sets(p.predict_set(TEST, 0.15)),
    # Few, or their fits would take the room of all others.
    "sample alphas": lambda p: sets(p.predict_set(TEST, sample_alphas=np.resize(FEW, 40))),
    "size 1": lambda p: sets(p.predict_set(TEST, 0.1, max_size=1)),
    "size 2": lambda p: sets(p.predict_set(TEST, 0.1, max_size=2)),
    # More than the share of labels that two classes miss.
    "size 2 at 0.5": lambda p: sets(p.predict_set(TEST, 0.5, max_size=2)),
    "p-values": lambda p: (p.predict_p(TEST, (0.05, 0.1, 0.2, 0.4)),),
    "many p-values": lambda p: (p.predict_p(TEST, np.linspace(0.05, 0.5, 12).tolist()),),
    "scores": lambda p: (p.scores(TEST),),
    "leave one out": lambda p: sets(p.leave_one_out(0.2)),
    "explain": lambda p: (np.array(p.explain(TEST[0], 0.2, label="b").threshold),),
    "certificate": lambda p: (p.certificate(TEST[0], 0.2, label="b").phi,),
    "label shift": lambda p: sets(p.adapt(some(5, 80)).predict_set(TEST, 0.2)),
    "covariate shift": lambda p: sets(
        p.adapt(some(5, 80), shift="covariate").predict_set(TEST, 0.2)
    ),
    "summary": lambda p: (np.array(p.summary()),),
}
# What a method cannot do is refused, and that must change nothing either.
SLOW = {"leave one out", "covariate shift", "explain"}


def answer(predictor, query):
    try:
        return QUERIES[query](predictor)
    except InputError as error:
        return (np.array(str(error)),)


def arrays_of(value, seen=None):
    """All arrays that a state holds, however deep."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from arrays_of(item, seen)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from arrays_of(item, seen)
    elif hasattr(value, "__dict__"):
        yield from arrays_of(vars(value), seen)


@pytest.mark.parametrize("name", MAKERS)
def test_no_query_changes_what_was_learned(name):
    predictor = calibrated(name)
    learned = storage.digest(predictor)
    held = [array.copy() for array in arrays_of(predictor.state_)]
    for query in QUERIES:
        answer(predictor, query)
        assert storage.digest(predictor) == learned, query
    for array, before in zip(arrays_of(predictor.state_), held, strict=True):
        np.testing.assert_array_equal(array, before)
    state = predictor.state_
    for array in (state.scores, state.codes, state.rows, getattr(state.fitted, "phi", state.rows)):
        assert not array.flags.writeable


@pytest.mark.parametrize("name", MAKERS)
def test_no_answer_depends_on_earlier_calls(name):
    """Any sequence of queries gives what a fresh predictor gives to each alone."""
    fast = [query for query in QUERIES if query not in SLOW]
    alone = {query: answer(calibrated(name), query) for query in fast}
    predictor = calibrated(name)
    for query in np.random.default_rng(0).permutation(fast * 2).tolist():
        for got, expected in zip(answer(predictor, query), alone[query], strict=True):
            np.testing.assert_array_equal(got, expected, err_msg=query)


@pytest.mark.parametrize("name", MAKERS)
def test_copies_and_files_answer_alike(name, tmp_path):
    predictor = calibrated(name)
    first = answer(predictor, "sets")
    size = len(pickle.dumps(calibrated(name)))
    # Kept fits are no part of a pickle, however many there are.
    assert len(pickle.dumps(predictor)) == size
    predictor.save(tmp_path / "p.trustsets")
    for other in (pickle.loads(pickle.dumps(predictor)), load(tmp_path / "p.trustsets")):
        for array in arrays_of(other.state_):
            array.flags.writeable = False  # as in the memory maps of joblib's workers
        for query in ("sets", "size 2", "p-values"):
            for got, expected in zip(answer(other, query), answer(predictor, query), strict=True):
                np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(answer(other, "sets")[0], first[0])


SCORES = [
    *(APS(scale=s, own_mass=mass) for s in ("raw", "tail") for mass in ("exclude", "include")),
    APS(own_mass="random"),
    RAPS(scale="tail", lam=0.1, k_reg=1),
    SAPS(scale="tail"),
    Softmax(),
    Softmax(scale="tail"),
    MarginScore(scale="tail"),
    TopK(),
]
KINDS = {
    "saturated": lambda rng, n, k: rng.normal(size=(n, k)) * 40.0,
    "tied": lambda rng, n, k: rng.normal(size=(n, k)).round(0),
    "plain": lambda rng, n, k: rng.normal(size=(n, k)),
}


@pytest.mark.parametrize("layout", ["C", "F", "strided"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", ["logits", "probabilities"])
def test_rows_alone_are_rows_in_any_batch_order_and_layout(given, kind, dtype, layout):
    rng = np.random.default_rng(0)
    values = KINDS[kind](rng, 400, 10).astype(dtype)
    labels = (values + rng.gumbel(size=values.shape)).argmax(axis=1)
    if given == "probabilities":
        p = np.exp(values.astype(np.float64) - values.max(axis=1, keepdims=True))
        values = (p / p.sum(axis=1, keepdims=True)).astype(dtype)

    def outputs(rows):
        array = values[rows]
        if layout == "F":
            array = np.asfortranarray(array)
        elif layout == "strided":
            array = np.repeat(array, 2, axis=1)[:, ::2]
        words = {given: array, "labels": labels[rows], "rows": np.arange(400)[rows]}
        return ModelOutputs(**words, classes=np.arange(10))

    calibration, some = outputs(np.arange(300)), np.arange(300, 400)
    shuffled = rng.permutation(some)
    for score in SCORES:
        for predictor in (
            StandardConformal(score=score),
            MondrianConformal(by="class", score=score),
            ConditionalConformal(score=score, basis=Polynomial(1, of=(Confidence(),))),
        ):
            predictor.calibrate(calibration)
            whole = predictor.predict_set(outputs(some), 0.1)
            mixed = predictor.predict_set(outputs(shuffled), 0.1)
            np.testing.assert_array_equal(mixed.mask, whole.mask[shuffled - 300])
            np.testing.assert_array_equal(mixed.thresholds, whole.thresholds[shuffled - 300])
            for row in some[:12]:
                alone = predictor.predict_set(outputs(np.array([row])), 0.1)
                np.testing.assert_array_equal(alone.mask[0], whole.mask[row - 300])
                np.testing.assert_array_equal(alone.scores[0], whole.scores[row - 300])


@pytest.mark.parametrize("layout", [np.asfortranarray, lambda x: np.repeat(x, 2, axis=1)[:, ::2]])
def test_features_of_any_layout_give_the_default_the_same_bits(layout, make_outputs):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(900, 64)) * rng.lognormal(size=64)
    parts = make_outputs(900, features=features, groups=None).split(0.8)
    calibration, test = (part.replace(features=layout(part.features)) for part in parts)
    plain = ConditionalConformal().calibrate(parts[0]).predict_set(parts[1]).thresholds
    predictor = ConditionalConformal().calibrate(calibration)
    np.testing.assert_array_equal(predictor.predict_set(test).thresholds, plain)
    alone = [predictor.predict_set(parts[1][i]).thresholds[0] for i in range(len(test))]
    np.testing.assert_array_equal(alone, plain)


def test_warnings_are_given_where_alpha_is_probably_a_coverage():
    predictor = StandardConformal().calibrate(CALIBRATION)
    with pytest.warns(TrustSetsWarning, match=r"Was alpha=0\.05 meant"):
        predictor.predict_set(TEST, 0.95)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictor.predict_set(TEST, 0.5)
        predictor.predict_set(TEST, [0.05, 0.95])
