from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trustsets import ConditionalConformal, ModelOutputs, Monitor, PredictionSets, TrustScore
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.outputs import require_outputs
from trustsets.status import Thresholds

logits_arrays = hnp.arrays(
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    shape=hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8),
    elements=st.floats(-50, 50, width=16),
)


@pytest.mark.filterwarnings("ignore:logits look like")
@given(logits_arrays)
def test_probabilities_are_a_softmax(logits):
    outputs = ModelOutputs(logits=logits)
    direct = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    direct /= direct.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(outputs.probabilities, direct, rtol=1e-14)
    np.testing.assert_array_equal(outputs.predicted, logits.argmax(axis=1))
    np.testing.assert_allclose(outputs.confidence, direct.max(axis=1), rtol=1e-14)
    # Their logarithm says the same as the logits.
    again = ModelOutputs(probabilities=outputs.probabilities)
    np.testing.assert_allclose(again.probabilities, direct, rtol=1e-14)
    softened = (own.block_probabilities(slice(None), 2.0) for own in (again, outputs))
    np.testing.assert_allclose(*softened, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_a_row_alone_has_the_bits_it_has_in_any_batch(kind):
    """Also in a batch that is stored by columns."""
    values = np.random.default_rng(0).dirichlet(np.ones(50), size=30)
    values = np.log(values) if kind == "logits" else values
    batch = ModelOutputs(**{kind: np.asfortranarray(values)})
    alone = [ModelOutputs(**{kind: row[None]}) for row in values]
    for temperature in (1.0, 1.7):
        rows = [one.block_probabilities(slice(None), temperature)[0] for one in alone]
        np.testing.assert_array_equal(batch.block_probabilities(slice(None), temperature), rows)
    np.testing.assert_array_equal(batch.confidence, [one.confidence[0] for one in alone])


@given(logits_arrays, st.floats(0.01, 0.99), st.integers(0, 5), st.booleans())
def test_split_divides_the_rows(logits, fraction, seed, stratify):
    n = logits.shape[0]
    labels = np.arange(n) % logits.shape[1]
    outputs = ModelOutputs(logits=logits, labels=labels)
    if n == 1:
        with pytest.raises(InputError, match="single sample"):
            outputs.split(fraction, seed=seed)
        return
    first, rest = outputs.split(fraction, seed=seed, stratify=stratify)
    assert sorted([*first.rows, *rest.rows]) == list(range(n))
    assert abs(len(first) - fraction * n) <= 1.0
    np.testing.assert_array_equal(first.logits, logits[first.rows])
    np.testing.assert_array_equal(rest.labels, labels[rest.rows])


def test_stratified_split_keeps_shares():
    counts = np.array([600, 290, 100, 7, 2, 1])
    outputs = ModelOutputs(logits=np.zeros((1000, 6)), labels=np.repeat(np.arange(6), counts))
    first, _ = outputs.split(0.3, seed=4, stratify=True)
    # One share, rounded to whole samples, serves all classes, also a class of one sample.
    taken = np.bincount(first.labels, minlength=6)
    assert ((taken - 0.5) / counts).max() <= ((taken + 0.5) / counts).min()
    np.testing.assert_allclose(taken[:3], [180, 87, 30], atol=1)
    # The seed alone decides.
    np.testing.assert_array_equal(outputs.split(0.3, seed=4, stratify=True)[0].rows, first.rows)
    assert not np.array_equal(outputs.split(0.3, seed=5, stratify=True)[0].rows, first.rows)


def test_concat_undoes_a_split(make_outputs):
    outputs = make_outputs(labels=None)
    joined = ModelOutputs.concat(outputs.split(0.4))
    back = joined.take(np.argsort(joined.rows))
    np.testing.assert_array_equal(back.logits, outputs.logits)
    np.testing.assert_array_equal(back.features, outputs.features)
    np.testing.assert_array_equal(back.groups["site"], outputs.groups["site"])
    assert ModelOutputs.concat([outputs, outputs]).rows.tolist() == list(range(2 * len(outputs)))


def test_any_array_comes_in():
    for matrix, vector in ((pd.DataFrame, pd.Series), (torch.tensor, torch.tensor), (list, list)):
        outputs = ModelOutputs(logits=matrix([[1.0, 2.0], [4.0, 3.0]]), labels=vector([1, 0]))
        assert outputs.predicted.tolist() == outputs.labels.tolist() == [1, 0]
    logits = torch.tensor([[1.0, 2.0]], requires_grad=True)
    assert ModelOutputs(logits=logits.bfloat16()).predicted.tolist() == [1]


def test_memory_is_shared_and_protected():
    logits = np.zeros((4, 2), dtype=np.float32)
    outputs = ModelOutputs(logits=logits)
    assert np.shares_memory(outputs.logits, logits)
    for array in (outputs.logits, outputs.predicted_codes, outputs.confidence, outputs.draw_keys):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        (["b", "a", "b"], None, ["a", "b"]),
        ([1, 0, 1], None, [0, 1]),
        ([5, 7, 5], None, [5, 7]),
        ([True, False, True], None, [False, True]),
        (["x", "x", "x"], ["x", "y"], ["x", "y"]),
    ],
)
def test_classes_are_found_or_given(labels, classes, expected):
    outputs = ModelOutputs(logits=np.zeros((3, 2)), labels=labels, classes=classes)
    assert outputs.classes.tolist() == expected
    assert outputs.labels.tolist() == labels


GOOD = {"logits": np.zeros((2, 2))}
LISTS = np.array([[1], [2, 3]], dtype=object)
NO_NAMES = ([0, np.nan], np.array(["2020", "NaT"], "M8[D]"), LISTS, pd.array([1, None], "Int64"))
BAD = [
    ({}, "exactly one of logits and probabilities"),
    ({"logits": [[0.0]], "probabilities": [[1.0]]}, "exactly one of logits and probabilities"),
    ({"logits": [1.0, 2.0]}, r"logits must have two dimensions.*\(2,\)"),
    ({"logits": np.zeros((0, 3))}, r"logits must .* not be empty; got shape \(0, 3\)"),
    ({"logits": np.zeros((3, 0))}, r"logits must .* not be empty; got shape \(3, 0\)"),
    ({"logits": [[1j]]}, "logits must hold real numbers"),
    ({"logits": [["a", "b"]]}, "logits must hold real numbers"),
    ({"logits": [[0.0, 1.0], [0.0, np.nan]]}, "row 1, column 1 holds nan"),
    ({"logits": [[0.0, -np.inf]]}, "must be finite"),
    ({"logits": np.ma.masked_array([[1.0]])}, "masked array"),
    ({"probabilities": [[0.5, 0.4]]}, "row 0 sums to 0.9"),
    ({"probabilities": [[1.5, -0.5]]}, "must not be negative; row 0"),
    ({**GOOD, "features": np.zeros((3, 1))}, "features must have one row per sample; got 3"),
    ({**GOOD, "features": [[1.0], [np.inf]]}, "features must be finite; row 1"),
    ({**GOOD, "labels": [0]}, r"labels must have shape \(2,\)"),
    ({**GOOD, "labels": [0, 1], "classes": [7, 8]}, "among the 2 classes; row 0 holds"),
    ({**GOOD, "labels": ["a", "c"], "classes": ["a", "b"]}, "row 1 holds 'c'"),
    ({**GOOD, "labels": ["a", "a"]}, r"pass classes= in their order"),
    ({**GOOD, "labels": ["a", None]}, "labels must not hold .*row 1"),
    ({**GOOD, "labels": [0.0, np.nan]}, "labels must not hold .*row 1"),
    ({**GOOD, "labels": np.array(["a", 1], dtype=object)}, "mix types"),
    ({**GOOD, "classes": [1, 2, 3]}, "classes must name the 2 columns"),
    *(({**GOOD, "classes": names}, "classes must be distinct") for names in ([1, 1], *NO_NAMES)),
    ({**GOOD, "labels": NO_NAMES[1]}, "labels must not hold .*row 1"),
    ({**GOOD, "labels": LISTS}, "labels must be names of classes"),
    ({**GOOD, "groups": {"sex": ["f"]}}, r"groups\['sex'\] must have shape"),
    ({**GOOD, "rows": [0, -1]}, "rows must be non-negative"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        ModelOutputs(**arguments)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([], "selects no sample"),
        ([5], "index 5 is out of bounds"),
        (np.array([True]), "boolean index"),
        *((index, "must have one dimension; got 2") for index in (None, True, [[0]])),
    ],
)
def test_take_refuses_and_leaves_the_outputs_whole(make_outputs, index, message):
    outputs = make_outputs(3)
    for choose in (outputs.take, outputs.__getitem__):
        with pytest.raises(InputError, match=message):
            choose(index)
    assert len(outputs) == 3


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"logits": None, "probabilities": np.full((4, 5), 0.2)}, "logits or probabilities"),
        ({"classes": list("abcde"), "labels": list("abca")}, "classes"),
        ({"features": None}, "features"),
        ({"labels": None}, "labels"),
        ({"groups": None}, "group columns"),
    ],
)
def test_concat_refuses_unlike_parts(make_outputs, change, what):
    with pytest.raises(InputError, match=rf"parts\[1\] differs from parts\[0\] in its {what}"):
        ModelOutputs.concat([make_outputs(4), make_outputs(4, **change)])
    shifted = [make_outputs(4, n_classes=k).shifted(np.arange(k)) for k in (3, 5)]
    with pytest.raises(InputError, match="differs from parts"):
        ModelOutputs.concat(shifted)
    far = ModelOutputs(probabilities=[[1.0, 0.0]]).shifted(np.array([-800.0, 0.0]))
    assert far.probabilities.tolist() == [[1.0, 0.0]]


def test_draws_are_keyed_on_given_rows_and_otherwise_on_content(make_outputs):
    outputs = make_outputs(40)
    keys = outputs.draw_keys
    assert np.unique(keys).size == 40
    np.testing.assert_array_equal(outputs.take([7, 3]).draw_keys, keys[[7, 3]])
    first, rest = outputs.split(0.5)
    joined = ModelOutputs.concat([first, rest])
    np.testing.assert_array_equal(joined.draw_keys[np.argsort(joined.rows)], keys)
    alone = ModelOutputs(logits=outputs.logits[3:4], features=outputs.features[3:4])
    assert alone.draw_keys[0] == keys[3]
    assert (outputs.replace(features=-outputs.features).draw_keys != keys).all()
    numbered = make_outputs(40, rows=np.arange(100, 140))
    np.testing.assert_array_equal(numbered.take([5]).draw_keys, [105])
    joined = ModelOutputs.concat([numbered.take([5]), numbered.take([2])])
    np.testing.assert_array_equal(joined.draw_keys, [105, 102])
    # Numbers that collide identify nothing: content does.
    collided = ModelOutputs.concat([numbered.take([5]), numbered.take([5])])
    np.testing.assert_array_equal(collided.draw_keys, keys[[5, 5]])
    # So does content where only some of the samples were given numbers.
    mixed = ModelOutputs.concat([numbered.take([5]), outputs.take([7])])
    np.testing.assert_array_equal(mixed.draw_keys, keys[[5, 7]])


def test_one_sample_has_an_index():
    outputs = ModelOutputs(logits=np.eye(3), labels=[0, 1, 2], rows=[5, 6, 7])
    assert len(outputs[0]) == 1 and [*outputs[-1].rows, *outputs[-3].rows] == [7, 5]
    assert outputs[1:].rows.tolist() == [6, 7] and outputs[[2, 0]].rows.tolist() == [7, 5]
    assert [sample.rows[0] for sample in outputs] == [5, 6, 7]
    with pytest.raises(IndexError, match="index 3 goes beyond the 3 samples"):
        outputs[3]
    with pytest.raises(InputError, match="logits must have 3 columns"):
        outputs.with_logits(np.zeros((3, 2)))
    with pytest.raises(InputError, match="ModelOutputs are no array"):
        np.asarray(outputs)


@pytest.mark.parametrize("wrong", [[0.0, np.nan], [[1.0], [1.0]], ["a", "b"], [[1], [1, 2]], 1.0])
def test_what_another_trust_score_returns_is_checked(wrong):
    outputs = ModelOutputs(logits=np.eye(2), features=np.eye(2))
    with pytest.raises(InputError, match=r"what SimpleNamespace\.score returns must be an array"):
        outputs.with_trust(SimpleNamespace(score=lambda *_: wrong))
    for returned in ([3, np.inf], np.array([3.0, np.inf])):
        values = outputs.with_trust(SimpleNamespace(score=lambda *_, out=returned: out)).trust
        assert values[0] == 3.0 and np.isfinite(values[1]) and not values.flags.writeable


def test_a_frame_is_told_how_to_be_wrapped():
    with pytest.raises(InputError, match=r"got DataFrame\. Wrap it: ModelOutputs\.from_frame"):
        require_outputs(pd.DataFrame({"a": [0.5]}), "calibration")


def test_labels_that_may_be_names_or_positions_are_refused():
    """Every position but 0 occurs: 1 to 3 of four columns could be names of which 4 is missing."""
    logits = np.zeros((6, 4))
    for labels in ([1, 2, 3, 1, 2, 3], [3, 2, 1, 1, 1, 1]):
        with pytest.raises(InputError, match=r"labels from 1 to 3 .* the 4 columns.*classes="):
            ModelOutputs(logits=logits, labels=labels)
        assert ModelOutputs(logits=logits, labels=labels, classes=range(4)).codes[0] == labels[0]
        named = ModelOutputs(logits=logits, labels=labels, classes=[1, 2, 3, 4])
        assert named.codes[0] == labels[0] - 1
    # What can be decided is decided: positions, names, and batches in which classes are missing.
    assert ModelOutputs(logits=logits, labels=[0, 1, 2, 3, 0, 0]).classes.tolist() == [0, 1, 2, 3]
    assert ModelOutputs(logits=logits, labels=[1, 2, 3, 4, 1, 1]).classes.tolist() == [1, 2, 3, 4]
    assert ModelOutputs(logits=logits, labels=[2, 3, 2, 3, 2, 2]).classes.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("digits", [2, 3, 4, 6])
@pytest.mark.parametrize("n_classes", [5, 10, 100])
def test_rounded_probabilities_are_repaired_with_a_warning(digits, n_classes):
    rng = np.random.default_rng(0)
    exact = rng.dirichlet(np.full(n_classes, 0.3), size=500)
    rounded = exact.round(digits)
    sums = rounded.sum(axis=1)
    if np.abs(sums - 1.0).max() > min(5e-4 * (n_classes + 1), 0.1):
        with pytest.raises(InputError, match="must sum to 1"):
            ModelOutputs(probabilities=rounded)
        return
    with pytest.warns(TrustSetsWarning, match="divided by their sum"):
        outputs = ModelOutputs(probabilities=rounded)
    np.testing.assert_allclose(outputs.probabilities.sum(axis=1), 1.0, atol=1e-9)
    right = np.abs(sums - 1.0) < 1e-9
    np.testing.assert_array_equal(outputs.probabilities[right], rounded[right])


def test_probabilities_come_back_as_they_went_in():
    votes = np.random.default_rng(0).multinomial(50, np.full(6, 1 / 6), size=300) / 50
    outputs = ModelOutputs(probabilities=votes)
    np.testing.assert_array_equal(outputs.probabilities, votes)
    np.testing.assert_array_equal(outputs.confidence, votes.max(axis=1))
    single = votes.astype(np.float32)
    np.testing.assert_array_equal(ModelOutputs(probabilities=single).probabilities, single)


def test_logits_that_look_like_probabilities_are_doubted():
    p = np.random.default_rng(0).dirichlet(np.ones(4), size=50)
    with pytest.warns(TrustSetsWarning, match="logits look like probabilities"):
        ModelOutputs(logits=np.vstack([p, np.eye(4)]))
    with pytest.raises(InputError, match="If these are logits"):
        ModelOutputs(probabilities=np.log(p))
    ModelOutputs(logits=np.log(p))


# Labels and names of classes: what is no class is refused, and trust scores know the names.


@pytest.mark.parametrize("dtype", [np.int8, np.int64, object])
@pytest.mark.parametrize("classes", [[0, 1, 2], [3, 1, 2], ["a", "b", "c"]])
def test_minus_one_is_no_label(classes, dtype):
    """The usual mark of an unlabelled sample must never count as the last class."""
    bad = np.array([1, -1, 2, 1], dtype=dtype)
    if isinstance(classes[0], str):
        bad = np.array(["a", -1, "b", "c"], dtype=object)
    with pytest.raises(InputError, match=r"labels must be among the 3 classes; row 1 holds .*-1"):
        ModelOutputs(logits=np.zeros((4, 3)), labels=bad, classes=classes)
    scores, thresholds = np.zeros((4, 3)), Thresholds(np.ones(4), np.zeros(4, np.int8))
    sets = PredictionSets.from_scores(scores, thresholds, 0.1, classes=np.array(classes))
    with pytest.raises(InputError, match=r"labels must be among the 3 classes; row 1 holds .*-1"):
        sets.covers(bad)


def test_minus_one_does_not_pass_for_the_name_of_a_column():
    """Six columns, labels -1 to 4: six numbers, and yet they do not name the columns."""
    labels = np.arange(-1, 5)
    with pytest.raises(InputError, match=r"labels from -1 to 4 .* pass classes="):
        ModelOutputs(logits=np.zeros((6, 6)), labels=labels)
    named = ModelOutputs(logits=np.zeros((6, 6)), labels=labels, classes=labels)
    assert named.codes.tolist() == [0, 1, 2, 3, 4, 5]
    # Two classes called -1 and 1 are a common convention, and no positions.
    assert ModelOutputs(logits=np.eye(2) - 1.0, labels=[1, -1]).classes.tolist() == [-1, 1]


NAMES = [np.array(list("abcde")), np.arange(1, 6), np.array([40, 3, 0, 7, 2]), np.arange(5) - 0.5]


def named_case(names):
    """A predictor with a trust score that knows classes by these names, and new samples."""
    rng = np.random.default_rng(0)
    codes = rng.integers(5, size=900)
    features = rng.normal(size=(900, 8)) + np.eye(8)[codes]
    logits = 3.0 * features[:, :5]
    trust = TrustScore().fit(features[:300], names[codes[:300]])
    rows = slice(300, 700)
    calibration = ModelOutputs(
        logits=logits[rows], features=features[rows], labels=names[codes[rows]], classes=names
    )
    new = {"logits": logits[700:], "features": features[700:], "rows": np.arange(700, 900)}
    return ConditionalConformal(trust=trust).calibrate(calibration), new, codes[700:]


@pytest.mark.parametrize("names", NAMES, ids=str)
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
def test_new_samples_need_no_class_names(names):
    predictor, new, _ = named_case(names)
    named, plain = ModelOutputs(**new, classes=names), ModelOutputs(**new)
    for answer in (
        lambda own: predictor.predict_set(own, 0.1).mask,
        lambda own: predictor.predict_set(own, 0.1).thresholds,
        lambda own: predictor.predict_p(own, [0.1, 0.3]),
        lambda own: predictor.adapt(own).predict_set(own, 0.1).mask,
        lambda own: predictor.adapt(own, shift="covariate").weights_.weights,
        lambda own: [item.row for item in predictor.explain(own[0], 0.1).samples],
    ):
        np.testing.assert_array_equal(answer(plain), answer(named))
    assert predictor.predict_set(plain, 0.1).classes.tolist() == names.tolist()


@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
def test_labels_of_new_samples_that_may_be_names_or_positions_are_refused():
    predictor, new, codes = named_case(np.arange(1, 6))
    few = np.flatnonzero((codes < 4) & (codes != 1))[:5]
    part = {name: new[name][few] for name in ("logits", "features")}
    unclear = ModelOutputs(**part, labels=codes[few] + 1)
    for take in (predictor.update, Monitor(predictor, alpha=0.1).observe):
        with pytest.raises(
            InputError, match=r"pass ModelOutputs\(..., classes=predictor.classes_\)"
        ):
            take(unclear)
    texts, *_ = named_case(np.array(list("abcde")))
    before = texts.n_calibration_
    positions = ModelOutputs(**part, labels=codes[few])
    assert texts.update(positions).n_calibration_ == before + len(few)
