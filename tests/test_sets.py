from dataclasses import replace

import numpy as np
import pytest

from trustsets import PredictionSets, StandardConformal, Status
from trustsets.errors import InputError
from trustsets.status import Thresholds


@pytest.fixture
def sets():
    return PredictionSets(
        mask=np.array([[True, False, True], [False, False, False], [True, True, True]]),
        thresholds=np.array([0.5, 0.1, np.inf]),
        status=np.array([Status.EXACT, Status.EXACT, Status.UNSEEN_GROUP], dtype=np.int8),
        alpha=0.1,
        classes=np.array(["cat", "dog", "owl"]),
    )


def test_reading_a_set(sets):
    assert len(sets) == 3
    assert [members.tolist() for members in sets] == [["cat", "owl"], [], ["cat", "dog", "owl"]]
    assert sets[-1].tolist() == ["cat", "dog", "owl"]
    assert sets.sizes.tolist() == [2, 0, 3]
    with pytest.raises(ValueError, match="read-only"):
        sets.mask[0, 0] = False
    assert sets.covers(["owl", "cat", "dog"]).tolist() == [True, False, True]
    assert [members.tolist() for members in sets.labels()] == [members.tolist() for members in sets]
    assert repr(sets) == "PredictionSets(3 samples, 3 classes, alpha=0.1, mean size 1.67)"


def test_a_class_that_is_kept_makes_no_threshold_large():
    thresholds = Thresholds(np.array([0.1]), np.array([Status.EXACT], np.int8))
    sets = PredictionSets.from_scores(np.array([[0.4]]), thresholds, 0.1)
    assert sets.mask.all() and sets.status[0] == Status.EXACT


def test_classes_are_listed_by_score_and_full_sets_say_why():
    scores = np.array([[0.3, 0.1, 0.2], [0.2, 0.2, 0.1], [0.1, 0.3, 0.3], [0.5, 0.6, 0.7]])
    status = np.array([Status.EXACT, Status.EXACT, Status.UNSEEN_GROUP, Status.EXACT], np.int8)
    thresholds = Thresholds(np.array([0.3, 0.2, np.inf, 0.4]), status)
    sets = PredictionSets.from_scores(scores, thresholds, 0.1, predicted=np.array([1, 1, 2, 0]))
    assert scores.flags.writeable and not sets.scores.flags.writeable
    # Of equal scores the predicted class comes first; an empty set gets it.
    assert [members.tolist() for members in sets] == [[1, 2, 0], [2, 1, 0], [0, 2, 1], [0]]
    assert sets.describe()[0].endswith("3 are full (3 classes) and 0 are empty.")
    full = Status.ABOVE_ALL_SCORES
    assert sets.status.tolist() == [full, full, Status.UNSEEN_GROUP, Status.EXACT]


@pytest.mark.parametrize("alphas", [(0.1,), (0.1, 0.3), (0.3, 0.1, 0.6)])
def test_sets_that_are_empty_at_any_alpha_get_the_predicted_class_at_all(alphas):
    rng = np.random.default_rng(0)
    scores, predicted = rng.random((60, 3)), rng.integers(3, size=60)
    values = rng.uniform(-0.5, 1.0, size=(60, len(alphas)))
    thresholds = Thresholds(values, np.zeros(values.shape, np.int8))
    words = {"alpha": alphas, "predicted": predicted}
    bare = PredictionSets.from_scores(scores, thresholds, allow_empty=True, **words)
    kept = PredictionSets.from_scores(scores, thresholds, allow_empty=False, **words)
    given = (bare.sizes == 0).any(axis=1)[:, None] & np.eye(3, dtype=bool)[predicted]
    np.testing.assert_array_equal(kept.mask, bare.mask | given[..., None])


@pytest.mark.parametrize("status", Status)
def test_the_status_of_a_full_set_tells_an_infinite_threshold_from_a_finite_one(status):
    words = ("the threshold is infinite", "samples for this alpha", "shares the group")
    infinite = any(text in status.sentence for text in words)
    limit = np.array([np.inf if infinite else 0.9])
    thresholds = Thresholds(limit, np.array([status], np.int8))
    sets = PredictionSets.from_scores(np.array([[0.1, 0.8]]), thresholds, 0.1)
    assert sets.status[0] == (status if infinite else Status.ABOVE_ALL_SCORES)


@pytest.mark.parametrize("index", [slice(1, None), [1, 2], np.array([False, True, True])])
def test_a_part_is_again_sets(sets, index):
    part = sets[index]
    assert (part.sizes.tolist(), part.thresholds.tolist()) == ([0, 3], [0.1, np.inf])
    assert part[np.array(1)].sizes.tolist() == part[(1,)].sizes.tolist() == [3]


@pytest.mark.parametrize("index", [None, True, np.array([[0]]), [7], "a"])
def test_what_is_no_part_is_refused(sets, index):
    with pytest.raises(InputError, match="index"):
        sets[index]


def test_tables_hold_names_sizes_and_reasons(sets):
    frame = sets.to_frame()
    assert frame["set"].tolist() == [["cat", "owl"], [], ["cat", "dog", "owl"]]
    assert frame["status"].tolist() == ["exact", "exact", "unseen_group"]
    table = sets.to_frame("pyarrow")
    assert table["set"].to_pylist() == frame["set"].tolist()
    assert table["size"].to_pylist() == [2, 0, 3]
    assert table["status"].to_pylist() == frame["status"].tolist()
    # Of thresholds by class, a table has the largest.
    limits = np.random.default_rng(0).normal(size=(3, 3))
    by_class = replace(sets, thresholds=limits).to_frame()
    assert by_class["threshold"].tolist() == list(map(max, limits.tolist()))


def test_unknown_labels_are_named(sets):
    with pytest.raises(InputError, match="row 1 holds"):
        sets.covers(["cat", "cow", "dog"])
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        sets.covers(["cat"])


def test_several_levels_are_the_single_levels_side_by_side(make_outputs):
    calibration, test = make_outputs(400).split(0.5)
    predictor = StandardConformal().calibrate(calibration)
    alphas = [0.3, 0.05, 0.1]
    together = predictor.predict_set(test, alpha=alphas)
    assert together.mask.shape == (200, 5, 3)
    assert together.covers(test.labels).shape == (200, 3)
    for level, alpha in enumerate(alphas):
        alone = predictor.predict_set(test, alpha=alpha)
        np.testing.assert_array_equal(together.mask[:, :, level], alone.mask)
        np.testing.assert_array_equal(together.at(alpha).mask, alone.mask)
        np.testing.assert_array_equal(together.at(alpha).thresholds, alone.thresholds)
        np.testing.assert_array_equal(together[0][level], alone[0])
    with pytest.raises(InputError, match="was not predicted"):
        together.at(0.2)
    with pytest.raises(InputError, match=r"choose it with .at\(alpha\)"):
        together.to_frame()
