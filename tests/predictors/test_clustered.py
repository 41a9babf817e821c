"""Laws of clustered classes; those of every predictor are in test_predictors.py."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from trustsets import ClusteredConformal, ModelOutputs, MondrianConformal, StandardConformal, Status
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.predictors.clustered import _k_means, fewest_points, published_rule
from trustsets.scores import APS, Softmax, conformal_quantile


@pytest.mark.parametrize("n_clusters", [1, 6, 50])
def test_one_cluster_is_standard_and_one_for_each_class_is_class_conditional(
    make_outputs, n_clusters
):
    calibration, tuning, test = (make_outputs(600, 6, seed=seed) for seed in range(3))
    words = {"score": Softmax(), "allow_empty": True}
    predictor = ClusteredConformal(n_clusters=n_clusters, **words)
    sets = predictor.calibrate(calibration, tuning=tuning).predict_set(test, alpha=0.2)
    other = MondrianConformal(by="class", **words) if n_clusters > 1 else StandardConformal(**words)
    expected = other.calibrate(calibration).predict_set(test, alpha=0.2)
    np.testing.assert_array_equal(sets.mask, expected.mask)
    thresholds = expected.thresholds.reshape(600, -1)
    np.testing.assert_array_equal(sets.thresholds, np.broadcast_to(thresholds, (600, 6)))


def test_rare_classes_get_the_standard_threshold(make_outputs):
    calibration, tuning = make_outputs(600, 6), make_outputs(600, 6, seed=1)
    # Class 4 has three tuning samples, one too few for alpha = 0.2; class 5 has none.
    of_four = np.flatnonzero(tuning.codes == 4)
    tuning = tuning.take(np.setdiff1d(np.flatnonzero(tuning.codes != 5), of_four[3:]))
    predictor = ClusteredConformal(score=Softmax(), n_clusters=1)
    predictor.calibrate(calibration, tuning=tuning)
    assert predictor.clusters(0.2).tolist() == [0, 0, 0, 0, -1, -1]
    assert predictor.clusters(0.25).tolist() == [0, 0, 0, 0, 0, -1]
    thresholds = predictor.predict_set(make_outputs(3, 6), alpha=0.2).thresholds
    scores = Softmax().of_labels(calibration)
    clustered = conformal_quantile(np.sort(scores[calibration.codes < 4]), 0.2)
    np.testing.assert_array_equal(thresholds[:, :4], clustered)
    np.testing.assert_array_equal(thresholds[:, 4:], conformal_quantile(np.sort(scores), 0.2))


def slow_clusters(tuning, scores, n_clusters, alpha):
    """The published procedure on its own: quantiles, square-root weights, k-means."""
    levels = sorted({0.5, 0.6, 0.7, 0.8, 0.9, 1 - alpha})
    own = [scores[tuning.codes == y] for y in range(tuning.n_classes)]
    points = np.array([np.quantile(each, levels) for each in own])
    weights = np.sqrt([each.size for each in own])
    return KMeans(n_clusters, n_init=50, random_state=1).fit(points, sample_weight=weights).labels_


def test_clusters_are_those_of_weighted_k_means():
    """Twelve classes of three kinds: the partition, and the thresholds, of the slow version."""
    rng = np.random.default_rng(0)
    labels = rng.integers(12, size=6000)
    noise = np.array([0.3, 1.0, 3.0])[labels % 3]
    logits = 3.0 * np.eye(12)[labels] + noise[:, None] * rng.normal(size=(6000, 12))
    calibration, tuning = ModelOutputs(logits=logits, labels=labels).split(0.5)
    predictor = ClusteredConformal(score=Softmax(), n_clusters=3)
    predictor.calibrate(calibration, tuning=tuning)
    for alpha in (0.1, 0.3):
        clusters = predictor.clusters(alpha)
        slow = slow_clusters(tuning, Softmax().of_labels(tuning), 3, alpha)
        np.testing.assert_array_equal(clusters[:, None] == clusters, slow[:, None] == slow)
        np.testing.assert_array_equal(clusters, np.tile(clusters[:3], 4))
        thresholds = predictor.predict_set(calibration.take([0]), alpha=alpha).thresholds[0]
        for y in range(12):
            own = slow[calibration.codes] == slow[y]
            scores = np.sort(Softmax().of_labels(calibration.take(own)))
            assert thresholds[y] == conformal_quantile(scores, alpha)


def test_weights_count_in_k_means():
    """Equal weights part 10 from the rest; light points are put with whichever is nearer."""
    points = np.array([[0.0], [4.0], [10.0]])
    equal = _k_means(points, np.ones(3), 2, seed=0)
    assert equal[0] == equal[1] != equal[2]
    uneven = _k_means(points, np.array([100.0, 100.0, 0.1]), 2, seed=0)
    assert uneven[0] != uneven[1] == uneven[2]


def test_k_means_does_not_depend_on_the_order_of_the_points():
    """Without any clusters in the data, where k-means has many local optima."""
    rng = np.random.default_rng(0)
    points, weights = rng.uniform(size=(150, 6)), rng.uniform(1, 9, size=150)
    order = rng.permutation(150)
    both = (np.arange(150), order)
    plain, mixed = (_k_means(points[rows], weights[rows], 12, seed=0) for rows in both)
    np.testing.assert_array_equal(mixed, plain[order])


def test_thresholds_of_several_levels_never_cross():
    """A hard class is too rare for alpha = 0.1, and gets its own, larger threshold at 0.2."""
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 40 // 39
    logits = np.where(labels[:, None] == 1, rng.normal(size=(400, 2)), 5.0 * np.eye(2)[labels])
    calibration = ModelOutputs(logits=logits, labels=labels)
    tuning = calibration.take(slice(0, 240))
    predictor = ClusteredConformal(score=Softmax(), n_clusters=2)
    predictor.calibrate(calibration, tuning=tuning)
    one = calibration.take([0])
    alone = [predictor.predict_set(one, alpha=alpha).thresholds[0] for alpha in (0.1, 0.2)]
    assert alone[0][1] < alone[1][1]
    together = predictor.predict_set(one, alpha=[0.1, 0.2]).thresholds[0]
    np.testing.assert_array_equal(together, np.transpose([np.maximum(*alone), alone[1]]))


def test_equal_classes_share_a_cluster_without_complaint():
    """With APS, easy classes have all scores 0: fewer distinct points than clusters wanted."""
    labels = np.arange(400) % 4
    outputs = ModelOutputs(logits=9.0 * np.eye(4)[labels], labels=labels)
    predictor = ClusteredConformal(score=APS(), n_clusters=2).calibrate(outputs, tuning=outputs)
    assert predictor.clusters().tolist() == [0, 0, 0, 0]


@pytest.mark.statistical
def test_coverage_holds_within_each_cluster():
    """One threshold for all is noticed for certain, a cluster 4 points too low in 98% of runs."""
    rng = np.random.default_rng(0)
    alpha, covered = 0.2, []
    for repeat in range(60):
        labels = rng.integers(4, size=600)
        noise = np.array([0.5, 0.5, 2.5, 2.5])[labels]
        logits = 3.0 * np.eye(4)[labels] + noise[:, None] * rng.normal(size=(600, 4))
        outputs = ModelOutputs(logits=logits, labels=labels)
        words = {"allow_empty": True, "tuning_fraction": 0.3, "random_state": repeat}
        predictor = ClusteredConformal(score=Softmax(), n_clusters=2, **words)
        predictor.calibrate(outputs.take(slice(0, 400)))
        clusters, test = predictor.clusters(alpha), outputs.take(slice(400, 600))
        assert sorted(set(clusters.tolist())) == [0, 1]
        inside = predictor.predict_set(test, alpha=alpha).covers(test.labels)
        easy = (clusters == clusters[0])[test.codes]
        covered.append([inside[easy].mean(), inside[~easy].mean()])
    mean, error = np.mean(covered, axis=0), np.std(covered, axis=0) / np.sqrt(len(covered))
    assert (mean > 1 - alpha - 4 * error).all()
    # At least 50 calibration samples a cluster: the excess is at most 1 / 51.
    assert (mean < 1 - alpha + 0.02 + 4 * error).all()
    # One threshold for all leaves the hard classes far below: the test can tell.
    standard = StandardConformal(score=Softmax(), allow_empty=True)
    standard.calibrate(outputs.take(slice(0, 400)))
    hard = test.take(test.codes >= 2)
    assert standard.predict_set(hard, alpha=alpha).covers(hard.labels).mean() < 0.7


def test_published_rules():
    """Fraction K / (75 + K) and half the clustering samples of the rarest class kept."""
    assert [fewest_points(alpha) for alpha in (0.1, 0.05, 0.2, 0.15, 0.99)] == [9, 19, 4, 6, 1]
    even = np.full(1000, 50)
    assert published_rule(even, 0.1) == (1000 / 1075, int(50 * 1000 / 1075) // 2)
    # Three classes below the nine that alpha = 0.1 needs do not count.
    uneven = np.array([3, 0, 8] + [100] * 25 + [9] * 5)
    assert published_rule(uneven, 0.1) == (30 / 105, int(9 * 30 / 105) // 2)
    assert published_rule(np.array([2, 3]), 0.1)[0] == 1 / 76


def test_auto_with_little_data_is_standard(make_outputs):
    """Fewer than two clusters: nothing is clustered."""
    calibration = make_outputs(100)
    predictor = ClusteredConformal().calibrate(calibration, tuning=calibration)
    assert (predictor.clusters() == -1).all()
    expected = StandardConformal().calibrate(calibration).predict_set(make_outputs(seed=1))
    np.testing.assert_array_equal(predictor.predict_set(make_outputs(seed=1)).mask, expected.mask)


def test_small_and_unseen_clusters_give_full_columns_that_say_so(make_outputs):
    tuning, calibration = make_outputs(600, 6), make_outputs(600, 6, seed=1)
    of_four = np.flatnonzero(calibration.codes == 4)
    few = np.setdiff1d(np.arange(600), of_four[3:])
    predictor = ClusteredConformal(n_clusters=6).calibrate(calibration.take(few), tuning=tuning)
    sets = predictor.predict_set(make_outputs(5, 6), alpha=0.2)
    assert sets.mask[:, 4].all() and np.isinf(sets.thresholds[:, 4]).all()
    assert np.isfinite(sets.thresholds[:, :4]).all()
    assert (sets.status == Status.TOO_FEW_POINTS).all()
    none = np.setdiff1d(np.arange(600), of_four)
    with pytest.warns(TrustSetsWarning, match="no calibration sample of class 4"):
        predictor.calibrate(calibration.take(none), tuning=tuning)
    assert (predictor.predict_set(make_outputs(5, 6)).status == Status.UNSEEN_GROUP).all()


@pytest.mark.parametrize("bad", [0, -1, 2.5, "many", True, None])
def test_bad_numbers_of_clusters_are_named(make_outputs, bad):
    with pytest.raises(InputError, match="n_clusters must be a whole number, 1 or more"):
        ClusteredConformal(n_clusters=bad).calibrate(make_outputs())


def test_bad_tuning_samples_are_named(make_outputs):
    predictor = ClusteredConformal(n_clusters=2)
    with pytest.raises(InputError, match="tuning samples name other classes"):
        predictor.calibrate(make_outputs(), tuning=make_outputs(n_classes=4))
    with pytest.raises(InputError, match="clustering of classes needs labels"):
        predictor.calibrate(make_outputs(), tuning=make_outputs(labels=None))
    with pytest.raises(InputError, match="tuning_fraction must lie in"):
        StandardConformal(tuning_fraction="most").calibrate(make_outputs())


def test_clusters_of_another_alpha_look_at_its_own_quantile():
    """Classes 0 and 1 are alike up to their 97th percentile, 0 and 2 in the scores beyond it."""
    body, beyond = np.linspace(0.0, 0.5, 101), np.arange(101) >= 97
    scores = [
        np.where(beyond, tail, body + shift)
        for shift, tail in ((0.0, 0.9), (0.0, 0.6), (0.02, 0.9), (0.02, 0.6))
    ]
    labels, own = np.repeat(np.arange(4), 101), 1.0 - np.concatenate(scores)
    probabilities = np.tile(((1.0 - own) / 3)[:, None], (1, 4))
    probabilities[np.arange(404), labels] = own
    outputs = ModelOutputs(probabilities=probabilities, labels=labels)
    predictor = ClusteredConformal(score=Softmax(), n_clusters=2).calibrate(outputs, tuning=outputs)
    # Either alpha may be asked for first, and again.
    for _ in range(2):
        coarse, fine = predictor.clusters(0.1), predictor.clusters(0.02)
        assert coarse[0] == coarse[1] != coarse[2] == coarse[3]
        assert fine[0] == fine[2] != fine[1] == fine[3]
    thresholds = predictor.predict_set(outputs.take([0]), alpha=0.02).thresholds[0]
    np.testing.assert_allclose(thresholds, [0.9, 0.6, 0.9, 0.6])


@pytest.mark.parametrize("alpha", [0.02, 0.05, 0.1, 0.3])
def test_auto_counts_clusters_by_the_rule_at_each_alpha(alpha, make_outputs):
    """``floor(floor(gamma n) / 2)``, n the samples of the rarest class that alpha allows."""
    everything = make_outputs(12_000, 25)
    keep = (everything.codes != 0) | (np.cumsum(everything.codes == 0) <= 30)
    outputs = everything.take(keep)
    predictor = ClusteredConformal(score=Softmax()).calibrate(outputs)
    totals = np.bincount(outputs.codes, minlength=25)
    share = published_rule(totals, 0.1)[0]
    assert predictor.n_calibration_ == len(outputs) - round(len(outputs) * share)
    enough = max(int(totals.min()), int(np.ceil(round(1 / alpha, 9))) - 1)
    kept = int((totals >= enough).sum())
    wanted = int(kept / (75 + kept) * enough) // 2
    with pytest.warns(TrustSetsWarning, match="the clusters of classes will be learned from"):
        reused = ClusteredConformal(score=Softmax(), tuning_fraction=0.0).calibrate(outputs)
    for clusters in (predictor.clusters(alpha), reused.clusters(alpha)):
        assert len(set(clusters[clusters >= 0].tolist())) == (wanted if wanted > 1 else 0)
    assert wanted > 1


def test_classes_are_weighted_by_the_root_of_their_size(make_outputs, monkeypatch):
    """As published: frequent classes count more, but not in proportion."""
    asked = {}

    def remember(points, weights, n_clusters, seed):
        asked["weights"] = weights
        return np.zeros(len(points), np.int64)

    monkeypatch.setattr("trustsets.predictors.clustered._k_means", remember)
    calibration, tuning = make_outputs(400), make_outputs(300, seed=1)
    ClusteredConformal(n_clusters=2).calibrate(calibration, tuning=tuning).clusters(0.3)
    np.testing.assert_allclose(asked["weights"] ** 2, np.bincount(tuning.codes))
