"""What `plan` says: rows, words, the curve of one's own samples, and errors."""

import numpy as np
import pytest

from trustsets import (
    APS,
    ConditionalConformal,
    Confidence,
    Groups,
    InputError,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    StandardConformal,
    plan,
)
from trustsets.planning import Plan, simulate
from trustsets.planning.law import CoverageLaw
from trustsets.planning.result import plot_data
from trustsets.planning.simulation import _summarise


def test_rows_are_those_of_the_shares():
    found = plan(n=1000, groups={"north": 0.25}, classes=[0.9, 0.1])
    assert [row.part for row in found.rows] == ["all samples", "group north", "class 0", "class 1"]
    assert [row.present for row in found.rows] == [1000, 250, 900, 100]
    law = CoverageLaw(0.1)
    for row in found.rows:
        assert row.needed == law.needed(0.02, 0.95) == found.needed
        assert row.in_all == law.needed_in_all(0.02, 0.95, row.share, row.needed)
        assert row.probability == law.probability(np.array([row.present]), 0.02)[0]
        assert (row.lower, row.upper) == law.interval(row.present, 0.95)
        assert row.test_in_all >= row.test / row.share


def test_shares_and_sizes_come_from_outputs(make_outputs):
    outputs = make_outputs(n=300, n_classes=3)
    found = plan(outputs=outputs)
    labels, counts = np.unique(outputs.labels, return_counts=True)
    present = {row.part: row.present for row in found.rows}
    assert present["all samples"] == 300
    assert [present[f"class {name}"] for name in labels] == counts.tolist()
    site = outputs.groups["site"]
    assert present["site = a"] == np.count_nonzero(site == "a")


def test_a_penalty_is_of_groups_and_functions_are_of_all():
    free, own = plan(groups=[0.5]), plan(groups=[0.5], functions=6, penalty=5.0)
    assert own.rows[0].needed == CoverageLaw(0.1, 6).needed(0.02, 0.95) > free.rows[0].needed
    assert own.rows[1].needed == CoverageLaw(0.1, 6, 5.0).needed(0.02, 0.95) > own.rows[0].needed
    assert "bounds for 6 basis functions" in own.summary()


def test_the_words_hold_the_numbers():
    text = str(plan(n=500, classes={"common": 0.99, "rare": 0.01}))
    for words in (
        "854 samples or more",
        "You have 500",
        "class rare (1% of",
        "2 percentage points",
    ):
        assert words in text
    assert "every set must be full" in str(plan(n=5))
    assert "between 99.85% and 99.95%" in str(plan(alpha=0.001, within=0.0005))


def test_json_and_table_hold_all_rows():
    found = plan(n=700, groups=[0.5, 0.5])
    again = Plan.from_json(found.to_json())
    assert again == found
    assert found.to_frame()["needed"].tolist() == [row.needed for row in found.rows]


def test_the_plot_shows_the_law_and_closes_in_on_the_tolerance():
    found = plan(within=0.05, probability=0.9, n=40)
    sizes, low, high = plot_data(found)
    place = np.searchsorted(sizes, 40)
    assert (low[place], high[place]) == found.law.interval(int(sizes[place]), 0.9)
    assert high[-1] - low[-1] < 0.1 < high[0] - low[0]
    labels = found.plot().get_legend_handles_labels()[1]
    assert "40 present" in labels and f"{found.needed} needed" in labels


def continuous(n, seed=0):
    """Outputs whose scores have no ties."""
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.normal(size=(n, 4))
    return ModelOutputs(logits=logits, labels=(logits + rng.gumbel(size=(n, 4))).argmax(axis=1))


def test_calibrations_on_own_samples_have_the_spread_of_the_law():
    method = StandardConformal(score=APS(own_mass="random"), allow_empty=True)
    curve = simulate(method, continuous(1500), 0.1, 0.03, sizes=[100, 400], repeats=100)
    exact = np.sqrt(0.1 * 0.9 / np.array([102, 402]))
    np.testing.assert_allclose(curve.spread, exact, rtol=0.25)
    np.testing.assert_allclose(curve.coverage, 0.9, atol=4 * exact.max() / np.sqrt(100) + 0.01)
    promised = CoverageLaw(0.1).probability(curve.sizes, 0.03)
    np.testing.assert_allclose(curve.reached, promised, atol=0.11)


def two_sites(n):
    """A classifier that is worse at one of two sites; one class is rare."""
    rng = np.random.default_rng(1)
    site = rng.choice(["north", "south"], size=n)
    logits = 3.0 * rng.normal(size=(n, 4))
    true = logits * np.where(site == "south", 0.3, 1.0)[:, None] - [0.0, 0.0, 0.0, 9.0]
    labels = (true + rng.gumbel(size=(n, 4))).argmax(axis=1)
    labels[0] = 3
    return ModelOutputs(logits=logits, labels=labels, groups={"site": site})


def test_groups_and_classes_have_curves_of_their_own():
    outputs, score = two_sites(1500), APS(own_mass="random")
    own = MondrianConformal(by=Groups("site"), score=score, allow_empty=True)
    curve = simulate(own, outputs, 0.1, 0.04, sizes=[200], repeats=150)
    assert curve.parts[:3] == ("site = north", "site = south", "class 0")
    # Half of the 200 samples are of each site, whose threshold is its own.
    np.testing.assert_allclose(curve.part_spread[0, :2], np.sqrt(0.1 * 0.9 / 102), rtol=0.25)
    np.testing.assert_allclose(curve.part_coverage[0, :2], 0.9, atol=0.015)
    promised = CoverageLaw(0.1).probability(np.array([100, 100]), 0.04)
    np.testing.assert_allclose(curve.part_reached[0, :2], promised, atol=0.12)
    same = StandardConformal(score=score, allow_empty=True)
    found = plan(outputs=outputs, predictor=same, repeats=5)
    north, south = found.simulated("site = north")[0], found.simulated("site = south")[0]
    assert north > 0.92 and south < 0.88
    frame = found.to_frame().set_index("part")
    assert frame.loc["site = south", "simulated"] == south
    assert frame.loc["all samples", "simulated"] == found.curve.coverage[-1]
    assert "served worst" in found.summary()
    assert len(found.plot().get_legend_handles_labels()[1]) == 7


def test_a_class_that_was_never_tested_has_no_curve():
    covered, tested = np.array([[[3.0, 0.0]] * 2]), np.array([[[4.0, 0.0]] * 2])
    mean, spread, reached = _summarise(covered, tested, 0.25, 0.1)
    assert mean[0, 0] == 0.75 and np.isnan(mean[0, 1])
    assert spread[0, 0] == 0.0 and np.isnan(spread[0, 1])
    assert reached[0, 0] == 1.0 and np.isnan(reached[0, 1])


def test_simulation_leaves_the_predictor_alone_and_repeats_itself():
    outputs = continuous(300)
    method = ConditionalConformal(basis=Polynomial(degree=1, of=(Confidence(),)))
    method.calibrate(outputs)
    before = method.predict_set(outputs).mask
    one, other = (simulate(method, outputs, 0.1, 0.05, repeats=2) for _ in range(2))
    np.testing.assert_array_equal(one.coverage, other.coverage)
    np.testing.assert_array_equal(method.predict_set(outputs).mask, before)
    assert one.sizes.tolist() == [50, 100, 200]
    found = plan(outputs=outputs, predictor=method, repeats=2)
    assert "On your own samples" in found.summary()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": 1.0}, "alpha"),
        ({"within": 0.0}, "within"),
        ({"probability": 1.0}, "probability"),
        ({"gap": 0.95}, "gap"),
        ({"n": 0}, "n must"),
        ({"functions": 0}, "functions"),
        ({"penalty": -1.0}, "penalty"),
        ({"groups": [0.6, 0.6]}, "groups"),
        ({"classes": {"a": 0.0}}, "classes"),
        ({"predictor": StandardConformal()}, "needs outputs"),
        ({"predictor": StandardConformal(), "outputs": continuous(40)}, "samples or more"),
        ({"predictor": StandardConformal(), "outputs": continuous(90), "repeats": 1}, "repeats"),
    ],
)
def test_wrong_arguments_are_named(options, words):
    with pytest.raises(InputError, match=words):
        plan(**options)
