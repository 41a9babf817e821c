"""Curves of the paper's figures: what they show is read back once drawn."""

import matplotlib as mpl
import numpy as np
import pytest
from small_runs import small_outputs, small_train

from trustsets import StandardConformal, TrustScore, evaluate
from trustsets.metrics import label_ranks
from trustsets_paper.balls import Balls
from trustsets_paper.figures import ball_curves, degree_curves, trust_against_rank, trust_quartiles


@pytest.fixture(autouse=True)
def ax():
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    yield plt.subplots()[1]
    plt.close("all")


@pytest.fixture(scope="module")
def case():
    """Test samples with trust, their evaluation, and which sets contain the label."""
    outputs = small_outputs(600).with_trust(TrustScore().fit(*small_train()))
    calibration, test = outputs.split(0.5)
    sets = StandardConformal().calibrate(calibration).predict_set(test)
    result = evaluate(sets, test, metrics=["conf_trust"], n_bootstrap=20)
    return test, result, sets.covers(test.labels)


def curve(case, **changes):
    test, _, covered = case
    balls = Balls(**({"n_radii": 4, "n_trials": 5} | changes))
    return balls.around(test.features).curve(covered, alpha=0.1)


def drawn(ax):
    """Radii, gaps and errors of the first method on the axes."""
    line, _, bars = ax.containers[0].lines
    ends = np.array([segment[:, 1] for segment in bars[0].get_segments()])
    return line.get_xdata(), line.get_ydata(), np.diff(ends, axis=1)[:, 0] / 2.0


def test_several_seeds_have_their_mean(case, ax):
    radii = tuple(curve(case).radii.tolist())
    one, two = (curve(case, radii=radii, seed=seed) for seed in (1, 2))
    ball_curves({"standard": [one, two]}, ax)
    at, gap, error = drawn(ax)
    np.testing.assert_array_equal(at, radii)
    np.testing.assert_allclose(gap, (one.gap + two.gap) / 2.0)
    expected = np.hypot(one.standard_error, two.standard_error) / 2.0
    np.testing.assert_allclose(error, expected)
    np.testing.assert_allclose(ax.lines[-1].get_ydata(), (one.floor + two.floor) / 2.0)


def test_degree_curves_show_means_errors_and_the_floor(case):
    test, result, covered = case
    options = {"alpha": 0.1, "sizes": np.full(len(test), 5), "metrics": ["conf_trust"]}
    full = evaluate(np.ones_like(covered), test, **options)
    figure = degree_curves({"a": {1: [result, result], 3: [result, full]}, "b": {1: [result]}})
    top, bottom = figure.axes
    gaps = [item.tables["conf_trust"].gap.value for item in (result, full)]
    _, values, error = drawn(top)
    np.testing.assert_allclose(values, [gaps[0], np.mean(gaps)])
    np.testing.assert_allclose(error, [0.0, abs(gaps[0] - gaps[1]) / 2.0], atol=1e-12)
    sizes = [result.sizes.mean, (result.sizes.mean + 5.0) / 2.0]
    np.testing.assert_allclose(drawn(bottom)[1], sizes)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "noise floor"]
    # Equal curves stand apart.
    first, second = (item.lines[0].get_xdata()[0] for item in top.containers)
    assert 0.1 < second - first < 0.5


def test_trust_by_rank_has_quartiles_of_ranges(case, ax):
    rng = np.random.default_rng(0)
    ranks = rng.choice([1, 2, 3, 4, 5, 6, 7, 40], size=500)
    trust = rng.exponential(size=500) / ranks
    middle, quartiles = trust_quartiles(trust, ranks)
    for rank, at in ((1, 0), (2, 1), (3, 2)):
        assert middle[at] == pytest.approx(rank)
        expected = np.quantile(trust[ranks == rank], [0.25, 0.5, 0.75])
        np.testing.assert_allclose(quartiles[:, at], expected)
    assert middle[-1] == pytest.approx(40)
    trust_against_rank(case[0], ax)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("log(rank of the true class)", "Trust")
    assert len(ax.collections[0].get_offsets()) == len(case[0])
    assert ax.lines[0].get_xdata()[0] == 0.0
    assert ax.lines[0].get_xdata()[-1] <= np.log(label_ranks(case[0]).max())
