"""Curves of the paper's figures: what they show is checked as data, and read back once drawn."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest

from trustsets import Bins, ModelOutputs, PredictionSets, StandardConformal, evaluate
from trustsets.errors import InputError
from trustsets.metrics import Balls, FrequencyBins, RankBins, label_ranks
from trustsets.paper.figures import (
    ball_curves,
    ball_data,
    degree_curves,
    degree_data,
    trust_against_rank,
    trust_rank_data,
)


@pytest.fixture(autouse=True)
def _no_screen():
    mpl.use("Agg")
    yield
    from matplotlib import pyplot as plt

    plt.close("all")


class FirstFeature:
    def score(self, features, predicted):
        return np.exp(np.asarray(features, dtype=float)[:, 0])


@pytest.fixture
def case(make_outputs):
    outputs = make_outputs(n=900, n_classes=20)
    calibration, test = outputs.split(0.5)
    sets = StandardConformal().calibrate(calibration).predict_set(test)
    bins = {
        "conf_trust": Bins(counts=(4, 3)),
        "conf_rank": RankBins(counts=(4, 3), edges=(0, 1, 2, 20)),
        "conf_frequency": FrequencyBins(2 ** np.arange(20), counts=(6, 5)),
    }
    result = evaluate(sets, test.with_trust(FirstFeature()), bins=bins, n_bootstrap=20)
    curve = Balls(n_radii=4, n_trials=5).around(test.features).curve(result.covered, 0.1)
    return test, sets, replace(result, balls=curve)


def test_ball_curves_over_seeds_need_the_same_radii(case):
    test, _, result = case
    radii = tuple(result.balls.radii.tolist())

    def seed(number, **changes):
        balls = Balls(n_trials=5, seed=number, **changes)
        curve = balls.around(test.features).curve(result.covered, 0.1)
        return replace(result, balls=curve)

    runs = [seed(1, radii=radii), seed(2, radii=radii[1:])]
    data = ball_data(runs)
    np.testing.assert_array_equal(data.radii, radii[1:])
    first, second = runs[0].balls.gap[1:], runs[1].balls.gap
    np.testing.assert_allclose(data.gap, (first + second) / 2.0)
    np.testing.assert_allclose(data.error, np.abs(first - second) / 2.0)
    np.testing.assert_array_equal(ball_data(result).error, result.balls.standard_error)
    own = runs[0].balls.standard_error[1:], runs[1].balls.standard_error
    trials = ball_data(runs, errors="trials")
    np.testing.assert_allclose(trials.error, np.hypot(*own) / 2.0)
    np.testing.assert_array_equal(trials.gap, data.gap)
    with pytest.raises(InputError, match="share no radius"):
        ball_data([seed(1, radii=(1.0,)), seed(2, radii=(1.1,))])


def test_degree_curves_show_means_errors_and_the_floor(case):
    _, _, result = case
    other = evaluate(
        PredictionSets(
            np.ones((450, 20), bool), np.zeros(450), np.zeros(450, np.int8), 0.1, np.arange(20)
        ),
        case[0].with_trust(FirstFeature()),
        metrics=["conf_trust"],
    )
    data = degree_data({3: [result, other], 1: result})
    gaps = [item.tables["conf_trust"].gap.value for item in (result, other)]
    assert data.degrees.tolist() == [1.0, 3.0]
    np.testing.assert_allclose(data.gap, [gaps[0], np.mean(gaps)])
    np.testing.assert_allclose(data.gap_error, [0.0, abs(gaps[0] - gaps[1]) / 2])
    np.testing.assert_allclose(data.size, [result.sizes.mean, (result.sizes.mean + 20) / 2])
    figure = degree_curves({"a": {1: result, 3: [result, other]}})
    top, bottom = figure.axes
    np.testing.assert_allclose(top.containers[0].lines[0].get_ydata(), data.gap)
    np.testing.assert_allclose(bottom.containers[0].lines[0].get_ydata(), data.size)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "noise floor"]
    assert top.get_ylabel() == "Conf x Trust CovGap (%)"  # which CovGap it is


def test_equal_curves_by_degree_stand_apart(case):
    _, _, result = case
    curve = {1: result, 2: result}
    top, bottom = degree_curves({"a": curve, "b": curve}).axes
    for ax in (top, bottom):
        first, second = (item.lines[0].get_xdata() for item in ax.containers)
        assert (second - first > 0.1).all()
        assert (second - first < 0.5).all()


def test_ball_curves_show_the_curve_and_its_errors(case):
    test, sets, result = case
    ax = ball_curves({"standard": result})
    line, _, bars = ax.containers[0].lines
    np.testing.assert_array_equal(line.get_ydata(), result.balls.gap)
    ends = np.array([segment[:, 1] for segment in bars[0].get_segments()])
    np.testing.assert_allclose(np.diff(ends, axis=1)[:, 0], 2 * result.balls.standard_error)
    bare = ModelOutputs(logits=test.logits, labels=test.labels)
    with pytest.raises(InputError, match="has no balls"):
        ball_curves({"standard": evaluate(sets, bare, n_bootstrap=1)})


def test_trust_by_rank_gives_quartiles_of_bands(case):
    rng = np.random.default_rng(0)
    ranks = rng.choice([1, 2, 3, 4, 5, 6, 7, 40], size=500)
    trust = rng.exponential(size=500) / ranks
    data = trust_rank_data(trust, ranks)
    assert data.count.sum() == 500
    for value, at in ((1, 0), (2, 1), (3, 2)):
        assert data.rank[at] == pytest.approx(value)
        np.testing.assert_allclose(data.median[at], np.median(trust[ranks == value]))
        np.testing.assert_allclose(data.upper[at], np.quantile(trust[ranks == value], 0.75))
    assert data.rank[-1] == pytest.approx(40)
    ax = trust_against_rank(case[0], FirstFeature())
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert len(ax.collections[0].get_offsets()) == 450
    shown = ax.lines[0].get_xdata()
    assert shown[0] == 1.0
    assert shown[-1] <= label_ranks(case[0]).max()


def test_bad_arguments_are_named():
    with pytest.raises(InputError, match="at least one degree"):
        degree_curves({})
