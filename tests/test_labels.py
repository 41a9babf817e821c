"""Labels and names of classes: what is no class is refused, and names are known to trust scores."""

import numpy as np
import pytest

from trustsets import ConditionalConformal, ModelOutputs, Monitor, PredictionSets, TrustScore
from trustsets.errors import InputError
from trustsets.status import Thresholds


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
    pair = ModelOutputs(logits=np.zeros((2, 2)), labels=[1, -1])
    assert pair.classes.tolist() == [-1, 1]


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
def test_labels_that_may_be_names_or_positions_are_refused():
    predictor, new, codes = named_case(np.arange(1, 6))
    few = np.flatnonzero((codes < 4) & (codes != 1))[:5]
    unclear = ModelOutputs(
        logits=new["logits"][few], features=new["features"][few], labels=codes[few] + 1
    )
    for take in (predictor.update, Monitor(predictor, alpha=0.1).observe):
        with pytest.raises(
            InputError, match=r"pass ModelOutputs\(..., classes=predictor.classes_\)"
        ):
            take(unclear)
    texts, new, codes = named_case(np.array(list("abcde")))
    before = texts.n_calibration_
    positions = ModelOutputs(
        logits=new["logits"][few], features=new["features"][few], labels=codes[few]
    )
    assert texts.update(positions).n_calibration_ == before + len(few)
