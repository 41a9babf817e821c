import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cdist

from trustsets_paper.balls import Balls


@pytest.fixture
def planted():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(700, 4)) + 50.0
    hits = rng.random(700) < np.where(features[:, 0] > 50.8, 0.6, 0.97)
    return features, hits


def test_radii_go_from_the_smallest_pair_to_the_quantile(planted):
    features, _ = planted
    radii = Balls(n_radii=5).around(features).radii
    pairs = cdist(features, features)[np.triu_indices(700, 1)]
    assert radii[0] >= pairs.min()
    assert radii[0] < np.quantile(pairs, 0.001)
    assert radii[-1] == pytest.approx(np.quantile(pairs, 0.9), rel=0.02)
    np.testing.assert_allclose(np.diff(radii), radii[1] - radii[0])


def test_single_precision_finds_nearly_the_same_balls(planted):
    features, hits = planted
    double = Balls(n_radii=5).around(features).curve(hits, alpha=0.1)
    single = Balls(n_radii=5).around(features.astype(np.float32)).curve(hits, alpha=0.1)
    np.testing.assert_allclose(single.count, double.count, rtol=1e-3)


def slow_growing_gap(features, hits, centre, radius, alpha, least):
    """One ball as the rule says it, step by step."""
    distances = np.delete(cdist(features[[centre]], features)[0], centre)
    while np.count_nonzero(distances <= radius) < least:
        radius *= 1.1
    inside = distances <= radius
    return 100 * abs(np.delete(hits, centre)[inside].mean() - (1 - alpha)), inside.sum()


def test_growing_balls_against_growing_one_at_a_time(planted):
    features, hits = planted
    near = Balls(n_radii=4, n_centres=30, n_trials=6).around(features)
    near.curve(~hits, alpha=0.1)  # another method before it changes nothing
    curve = near.curve(hits, alpha=0.1)
    assert curve.radii.size == 4  # the smallest radius grows too
    assert all(len(set(trial)) == 30 for trial in near.drawn[0].tolist())  # without replacement
    # The centres are the first draws of the seed and the number of trials.
    rng = np.random.default_rng([0, 6])
    centres = np.unique([rng.choice(700, 30, replace=False) for _ in range(6)])
    for i, radius in enumerate(curve.radii):
        found = [slow_growing_gap(features, hits, centre, radius, 0.1, 10) for centre in centres]
        gaps, sizes = np.array(found).T
        assert curve.count[i] == pytest.approx(sizes.mean())
        trials = gaps[near.drawn[0]].mean(axis=1)
        assert curve.gap[i] == pytest.approx(trials.mean())
        # The standard deviation over trials divides by their number.
        assert curve.standard_error[i] == pytest.approx(trials.std(ddof=0) / np.sqrt(6))


def test_centres_drawn_anew_differ_between_radii(planted):
    """The authors' rule: every radius and trial has centres of its own."""
    features, hits = planted
    near = Balls(n_radii=3, n_centres=20, n_trials=4, redraw=True).around(features)
    assert near.drawn.shape == (3, 4, 20)
    assert len({tuple(trial) for radius in near.drawn.tolist() for trial in radius}) == 12
    curve = near.curve(hits, alpha=0.1)
    rng = np.random.default_rng([0, 4])
    draws = np.array([rng.choice(700, 20, replace=False) for _ in range(12)]).reshape(3, 4, 20)
    for i, radius in enumerate(curve.radii):
        centres = draws[i].ravel()
        gaps = [slow_growing_gap(features, hits, centre, radius, 0.1, 10)[0] for centre in centres]
        assert curve.gap[i] == pytest.approx(np.mean(gaps))


def test_the_floor_is_the_expected_gap_of_a_perfect_method(planted):
    features, hits = planted
    near = Balls(n_radii=3, n_trials=2).around(features)
    curve = near.curve(hits, alpha=0.1)
    sizes = near._sizes
    for i in range(3):
        k = np.arange(sizes[:, i].max() + 1)
        floors = [stats.binom.pmf(k, n, 0.9) @ abs(k / n - 0.9) for n in sizes[:, i].tolist()]
        assert curve.floor[i] == pytest.approx(100 * np.mean(floors))


def test_a_radius_of_zero_never_grows_and_is_left_out(planted):
    features, hits = planted
    curve = Balls(radii=(0.0, 1.0), n_trials=2).around(features).curve(hits, alpha=0.1)
    assert curve.radii.tolist() == [1.0]


def test_radii_can_be_those_of_other_samples(planted):
    features, _ = planted
    plan = Balls(n_radii=5)
    radii = plan.typical_radii(features)
    drawn = plan.around(features)
    np.testing.assert_array_equal(drawn.radii, radii)
    # Giving the radii that would be drawn changes nothing, not even the centres.
    given = Balls(n_radii=5, radii=radii).around(features)
    np.testing.assert_array_equal(given.shell, drawn.shell)
    half = Balls(radii=radii).around(features[::2])
    np.testing.assert_array_equal(half.radii, radii)


def test_too_few_samples_for_any_ball_give_an_empty_curve():
    curve = Balls(n_radii=3).around(np.eye(5)).curve(np.ones(5, dtype=bool), alpha=0.1)
    assert curve.radii.size == curve.gap.size == curve.floor.size == 0
