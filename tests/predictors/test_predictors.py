"""Laws of every predictor, and the definitions of the simple ones."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations
from typing import ClassVar

import numpy as np
import pytest
import saved_functions
from kinds import LETTERS, LINE, PREDICTORS, some
from saved_functions import Holder
from sklearn.base import clone

from trustsets import (
    ClassBias,
    ClusteredConformal,
    ConditionalConformal,
    ModelOutputs,
    MondrianConformal,
    StandardConformal,
    TemperatureScaling,
    TrustScore,
    evaluate,
    load,
)
from trustsets.basis import Bins, Classes, Custom, CustomGroups, Groups, Intercept, Polynomial
from trustsets.engine import default_alphas
from trustsets.errors import InputError, NotCalibratedError, StorageError, TrustSetsWarning
from trustsets.predictors.class_facts import classifier_doubts, uneven_prevalence
from trustsets.scores import APS, RAPS, SAPS, CustomScore, RankScore, Softmax, TopK
from trustsets.statistics import Confidence, Trust
from trustsets.status import Status

# Cells and classes may have few samples.
pytestmark = pytest.mark.filterwarnings("ignore:.*too few calibration samples")


@pytest.fixture(params=PREDICTORS, ids=str)
def predictor(request):
    return PREDICTORS[request.param]()


@pytest.fixture
def halves():
    return some(0, 800).split(0.5)


def test_sets_hold_exactly_the_scores_below_the_threshold(halves):
    calibration, test = halves
    for score in (APS(), RAPS(), Softmax(), APS(scale="tail")):
        predictor = StandardConformal(score=score, allow_empty=True).calibrate(calibration)
        sets = predictor.predict_set(test)
        k = int(np.ceil((len(calibration) + 1) * 0.9))
        threshold = np.sort(score.of_labels(calibration))[k - 1]
        np.testing.assert_array_equal(sets.mask, score.matrix(test) <= threshold)
        np.testing.assert_array_equal(sets.thresholds, threshold)


def test_groups_are_standard_prediction_within_each_group(halves):
    calibration, test = halves
    sets = MondrianConformal(by=Groups("site")).calibrate(calibration).predict_set(test)
    for site in "xyz":
        here, there = (part.groups["site"] == site for part in (calibration, test))
        alone = StandardConformal().calibrate(calibration.take(here)).predict_set(test.take(there))
        np.testing.assert_array_equal(sets.mask[there], alone.mask)
        np.testing.assert_array_equal(sets.thresholds[there], alone.thresholds)


def test_class_conditional_sets_use_the_threshold_of_the_class(halves):
    calibration, test = halves
    predictor = MondrianConformal(by="class", allow_empty=True).calibrate(calibration)
    sets = predictor.predict_set(test, alpha=0.2)
    matrix, own = APS().matrix(test), APS().of_labels(calibration)
    for y in range(5):
        scores = np.sort(own[calibration.codes == y])
        threshold = scores[int(np.ceil((scores.size + 1) * 0.8)) - 1]
        np.testing.assert_array_equal(sets.mask[:, y], matrix[:, y] <= threshold)
        np.testing.assert_array_equal(sets.thresholds[:, y], threshold)


def test_sets_are_nested_in_alpha(predictor, halves):
    calibration, test = halves
    alphas = np.linspace(0.05, 0.95, 19).tolist()
    mask = predictor.calibrate(calibration).predict_set(test, alpha=alphas).mask
    assert (mask[:, :, :-1] >= mask[:, :, 1:]).all()
    assert mask[:, :, 0].sum() > mask[:, :, -1].sum()


def test_permuting_rows_permutes_the_sets(predictor, halves):
    calibration, test = halves
    # Tuning samples are given: setting some aside at random would depend on the order.
    tuning, order = some(7, 400), np.random.default_rng(0).permutation(400)
    plain = predictor.calibrate(calibration, tuning=tuning).predict_set(test)
    predictor.calibrate(calibration.take(order), tuning=tuning.take(order))
    mixed = predictor.predict_set(test.take(order))
    np.testing.assert_array_equal(mixed.mask, plain.mask[order])
    # Means and components are sums, whose last digits depend on the order.
    np.testing.assert_allclose(mixed.thresholds, plain.thresholds[order], rtol=1e-12)


def test_permuting_classes_permutes_the_sets(predictor):
    order = np.array([3, 0, 4, 1, 2])
    # Random draws are keyed on the rows given here; permuted logits are other content.
    calibration, test = some(0, 800).replace(rows=np.arange(800)).split(0.5)

    def permuted(outputs):
        mixed = outputs.with_logits(outputs.logits[:, order])
        return mixed.replace(labels=outputs.labels, classes=LETTERS[order])

    plain = predictor.calibrate(calibration).predict_set(test)
    mixed = predictor.calibrate(permuted(calibration)).predict_set(permuted(test))
    np.testing.assert_array_equal(mixed.mask, plain.mask[:, order])


def test_batches_change_nothing(predictor, halves):
    calibration, test = halves
    predictor.calibrate(calibration)
    whole = predictor.predict_set(test)
    parts = [predictor.predict_set(test.take(slice(i, i + 33))) for i in range(0, 400, 33)]
    for name in ("mask", "status"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, getattr(whole, name))
    thresholds = np.concatenate([part.thresholds for part in parts])
    np.testing.assert_allclose(thresholds, whole.thresholds, rtol=1e-12)
    # A sample that comes in another batch is the same sample, though it has another position.
    parts = [some(1, 400).take(slice(i, i + 1)) for i in (7, 8)]
    parts = [
        ModelOutputs(logits=one.logits, features=one.features, groups=one.groups) for one in parts
    ]
    sets = predictor.predict_set(ModelOutputs.concat(parts))
    np.testing.assert_array_equal(predictor.predict_set(parts[1]).mask[0], sets.mask[1])


def test_what_a_user_changes_later_does_not_reach_a_calibrated_predictor(halves):
    calibration, test = halves
    bias = ClassBias().fit(calibration)
    cells = MondrianConformal(by=Groups("site"), class_bias=bias).calibrate(calibration)
    before = cells.predict_set(test).mask
    bias.fit(calibration.take(calibration.codes < 2))
    for changes in ({}, {"by": "class"}):
        np.testing.assert_array_equal(cells.set_params(**changes).predict_set(test).mask, before)
    # Parameters that answers depend on do count.
    predictor = ConditionalConformal(score=TopK(), basis=Intercept(), allow_empty=True)
    asked, fresh = predictor.calibrate(calibration), predictor.copy()
    asked.predict_set(test)
    masks = [one.set_params(randomized=True).predict_set(test).mask for one in (asked, fresh)]
    np.testing.assert_array_equal(*masks)


def test_infinite_trust_costs_no_other_sample_its_set(make_outputs):
    outputs = make_outputs(300, groups=None, trust=np.random.default_rng(0).lognormal(size=300))
    with pytest.warns(TrustSetsWarning, match="calibration samples"):
        predictor = ConditionalConformal.paper().calibrate(outputs)
    trust = np.where(np.arange(300) == 2, np.inf, outputs.trust)
    plain, mixed = (predictor.predict_set(outputs.replace(trust=t)) for t in (outputs.trust, trust))
    assert mixed.mask[2].all() and mixed.status[2] == Status.HIGH_LEVERAGE
    np.testing.assert_array_equal(np.delete(mixed.mask, 2, 0), np.delete(plain.mask, 2, 0))


@pytest.mark.parametrize("name", ["default", "penalised groups", "classes"])
def test_threads_may_share_a_predictor(name):
    predictor, test = PREDICTORS[name]().calibrate(some(0, 400)), some(1, 60)
    grids = [np.linspace(low, low + 0.2, 9).tolist() for low in (0.05, 0.1, 0.2, 0.3)]
    alone = [predictor.copy().predict_set(test, grid).mask for grid in grids]
    with ThreadPoolExecutor(8) as pool:
        together = pool.map(lambda i: predictor.predict_set(test, grids[i % 4]).mask, range(32))
        for i, mask in enumerate(together):
            np.testing.assert_array_equal(mask, alone[i % 4])


def test_single_and_double_precision_agree(predictor):
    single = some(0, 200).with_logits(some(0, 200).logits.astype(np.float32))
    double = single.with_logits(single.logits.astype(np.float64))
    masks = [predictor.calibrate(part).predict_set(part, 0.3).mask for part in (single, double)]
    np.testing.assert_array_equal(*masks)


def test_labels_of_new_samples_are_never_used(predictor, halves):
    calibration, test = halves
    predictor.calibrate(calibration)
    blind = predictor.predict_set(test.replace(labels=None))
    np.testing.assert_array_equal(blind.mask, predictor.predict_set(test).mask)


@pytest.mark.filterwarnings("ignore:alpha is the miscoverage")
def test_empty_sets_keep_the_most_likely_class(predictor, halves):
    calibration, test = halves
    predictor.calibrate(calibration)
    bare = predictor.set_params(allow_empty=True).predict_set(test, alpha=0.7)
    kept = predictor.set_params(allow_empty=False).predict_set(test, alpha=0.7)
    empty = bare.sizes == 0
    np.testing.assert_array_equal(kept.mask[~empty], bare.mask[~empty])
    likely = predictor.state_.recalibrated(test).predicted_codes
    np.testing.assert_array_equal(kept.mask[empty].argmax(axis=1), likely[empty])
    assert (kept.sizes[empty] == 1).all()


def test_too_few_points_give_full_sets_that_say_so(make_outputs):
    """Deterministic: fails if the quantile beyond the last score is clamped."""
    sets = StandardConformal().calibrate(make_outputs(8)).predict_set(make_outputs(3, seed=1))
    assert np.isinf(sets.thresholds).all() and sets.mask.all()
    assert (sets.status == Status.TOO_FEW_POINTS).all()


def test_unseen_and_small_groups_give_full_sets_that_say_so(make_outputs):
    """Deterministic: fails if such a group borrows the threshold of another."""
    sites = np.array(["big"] * 50 + ["enough"] * 9 + ["small"] * 5)
    predictor = MondrianConformal(by=Groups()).calibrate(make_outputs(64, groups={"site": sites}))
    new = make_outputs(3, seed=1, groups={"site": ["big", "small", "new"]})
    with pytest.warns(TrustSetsWarning, match="1 of 3 groups have too few"):
        sets = predictor.predict_set(new, [0.1, 0.3]).at(0.1)
    assert sets.status.tolist() == [Status.EXACT, Status.TOO_FEW_POINTS, Status.UNSEEN_GROUP]
    assert sets.mask[1:].all() and not sets.mask[0].all()


def test_a_class_without_calibration_points_is_in_every_set(make_outputs):
    outputs = make_outputs(300)
    predictor = MondrianConformal(by="class").calibrate(outputs.take(outputs.codes != 2))
    sets = predictor.predict_set(make_outputs(50, seed=1))
    assert sets.mask[:, 2].all() and (sets.status == Status.UNSEEN_GROUP).all()
    assert "nothing is guaranteed" not in predictor.summary()


@pytest.mark.parametrize("by", ["class", Groups("site")])
def test_cells_are_counted_by_name(make_outputs, by):
    outputs = make_outputs(n=300)
    predictor = MondrianConformal(by=by).calibrate(outputs)
    column = outputs.labels if by == "class" else outputs.groups["site"]
    expected = Counter(np.asarray(column).astype(str).tolist())
    assert {name: n for name, n in predictor.cell_counts_.items() if n} == expected


def test_calibrating_again_replaces_everything(predictor):
    test = some(9, 50)
    once = clone(predictor).calibrate(some(1, 300)).predict_set(test, 0.3)
    predictor.calibrate(some(2, 200)).predict_set(test, 0.3)
    again = predictor.calibrate(some(1, 300)).predict_set(test, 0.3)
    np.testing.assert_array_equal(again.mask, once.mask)


def test_tuning_data_is_set_aside_given_or_reused(make_outputs):
    calibration, tuning = make_outputs(1000), make_outputs(400, seed=5)
    tuned = StandardConformal(temperature="tuning")
    assert tuned.calibrate(calibration).n_calibration_ == 800
    tuned.calibrate(calibration, tuning=tuning)
    assert tuned.n_calibration_ == 1000
    assert tuned.temperature_ == TemperatureScaling().fit(tuning).temperature_
    with pytest.warns(TrustSetsWarning, match="the temperature will be learned from"):
        tuned.set_params(tuning_fraction=0.0).calibrate(calibration)
    assert tuned.temperature_ == TemperatureScaling().fit(calibration).temperature_
    assert StandardConformal().calibrate(calibration).n_calibration_ == 1000


@pytest.mark.parametrize("form", [2.0, TemperatureScaling])
def test_temperature_comes_as_number_or_object(form, halves):
    calibration, test = halves
    temperature = form if isinstance(form, float) else form().fit(calibration)
    value = temperature if isinstance(form, float) else temperature.temperature_
    scaled = StandardConformal(temperature=temperature).calibrate(calibration).predict_set(test)
    by_hand = [part.with_logits(part.logits / value) for part in halves]
    plain = StandardConformal().calibrate(by_hand[0]).predict_set(by_hand[1])
    np.testing.assert_array_equal(scaled.mask, plain.mask)


def test_scikit_learn_can_clone_and_set(predictor, halves):
    copy = clone(predictor.calibrate(halves[0]))
    assert not hasattr(copy, "state_")
    assert copy.set_params(allow_empty=True).get_params()["allow_empty"]


BAD_PARAMETERS = [
    ({"score": APS}, "score must be an instance"),
    ({"temperature": -1.0}, "temperature must be positive"),
    ({"temperature": "auto"}, "temperature must be None, a number"),
    ({"temperature": [1.0]}, "temperature must be None, a number"),
    ({"temperature": TemperatureScaling()}, "fitted TemperatureScaling"),
    ({"tuning_fraction": 1.0}, "tuning_fraction must lie"),
    ({"score": "lac"}, r"an instance such as APS\(\) or Softmax\(\); got 'lac'"),
]


@pytest.mark.parametrize(("change", "message"), BAD_PARAMETERS)
@pytest.mark.parametrize("name", ["standard", "bins", "clusters", "ranks"])
def test_bad_parameters_leave_the_calibration_whole(name, halves, change, message):
    calibration, test = halves
    predictor = PREDICTORS[name]().calibrate(calibration)
    before, good = predictor.predict_set(test), predictor.get_params(deep=False)
    with pytest.raises(InputError, match=message):
        predictor.set_params(**change).calibrate(calibration)
    predictor.set_params(**good)
    np.testing.assert_array_equal(predictor.predict_set(test).mask, before.mask)


def test_bad_outputs_are_named_and_leave_the_calibration_whole(predictor, halves, make_outputs):
    calibration, test = halves
    with pytest.raises(NotCalibratedError, match="call calibrate first"):
        predictor.predict_set(test)
    predictor.calibrate(calibration)
    before = predictor.predict_set(test)
    with pytest.raises(InputError, match="calibrate needs labels"):
        predictor.calibrate(test.replace(labels=None))
    for given, alpha, message in (
        (make_outputs(n_classes=4), 0.1, "outputs have 4 classes, but calibration had 5"),
        (test.replace(features=np.zeros((400, 2))), 0.1, "dimension 2, but calibration had 3"),
        (make_outputs(labels=None, classes=list("vwxyz")), 0.1, "name other classes"),
        (test, 1.5, "alpha must lie"),
    ):
        with pytest.raises(InputError, match=message):
            predictor.predict_set(given, alpha)
    np.testing.assert_array_equal(predictor.predict_set(test).mask, before.mask)


def test_mondrian_needs_a_partition(make_outputs):
    with pytest.raises(InputError, match="by must be Groups"):
        MondrianConformal(by="site").calibrate(make_outputs())
    predictor = MondrianConformal(by=Groups("site")).calibrate(make_outputs())
    with pytest.raises(InputError, match="no group column 'site'"):
        predictor.predict_set(make_outputs(groups=None))


# P-values agree with sets, and are small no more often than they say.
GRID = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
MAKERS = PREDICTORS | {"per class": lambda: ConditionalConformal(basis=LINE + Classes())}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")  # groups of few samples
def test_sets_from_p_values_are_the_sets(name):
    predictor, test = MAKERS[name]().calibrate(some(0, 300)), some(1, 60)
    p, sets = predictor.predict_p(test, GRID), predictor.predict_set(test, GRID)
    for alpha in GRID:
        np.testing.assert_array_equal(p > alpha, sets.at(alpha).mask)
    assert set(np.unique(p)) <= {*GRID, 1.0}
    # The order of the grid does not matter.
    np.testing.assert_array_equal(predictor.predict_p(test, GRID[::-1]), p)


def test_few_and_many_alphas_have_the_same_thresholds():
    predictor = ConditionalConformal(basis=LINE + Groups("site", penalty=3.0))
    test, lowest = some(1, 50), -np.inf
    many = predictor.calibrate(some(0, 300)).predict_set(test, GRID[:-3])
    for alpha in GRID[-4::-1]:
        lowest = np.maximum(lowest, predictor.predict_set(test, alpha).thresholds)
        np.testing.assert_array_equal(many.at(alpha).thresholds, lowest)


EXACT = [
    StandardConformal(),
    StandardConformal(allow_empty=True),
    StandardConformal(score=TopK(), allow_empty=True),  # nearly all scores are tied
    StandardConformal(score=SAPS(own_mass="random"), allow_empty=True),
    MondrianConformal(by="class"),
    MondrianConformal(by="class", score=Softmax(scale="tail"), allow_empty=True),
    MondrianConformal(by=Groups("site")),
    MondrianConformal(by=Groups("site"), score=TopK(own_mass="random"), allow_empty=True),
]


@pytest.mark.parametrize("n", [1, 19, 99, 300])
@pytest.mark.parametrize("predictor", EXACT, ids=repr)
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")  # groups of few samples
def test_exact_p_values_are_the_sets_at_every_alpha(predictor, n):
    predictor.calibrate(some(0, n))
    test = some(1, 60)  # with n = 1, of groups and classes that calibration lacks
    p = predictor.predict_p(test)
    # With n + 1 a divisor of 1,000, a p-value equals one of these: then it leaves the class out.
    alphas = np.arange(1, 1000) / 1000.0
    sets = predictor.predict_set(test, alphas.tolist())
    np.testing.assert_array_equal(p[..., None] > alphas, sets.mask)
    assert np.isin(p, np.arange(1, n + 2)[:, None] / np.arange(2, n + 2)).all()


@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")  # groups of few samples
def test_p_values_are_exact_unless_there_is_no_closed_form():
    calibration, test = some(0, 400), some(1, 80)
    numbers = {*default_alphas(), 1.0}
    for predictor in (MondrianConformal.paper(by=Groups("site")), ConditionalConformal(basis=LINE)):
        p = predictor.calibrate(calibration).predict_p(test)
        assert len(numbers) > len(np.unique(p)) > 10 and set(np.unique(p)) <= numbers
    exact = StandardConformal(allow_empty=True).calibrate(calibration)
    p, scores = exact.predict_p(test), exact.scores(test)
    at_least = (exact.state_.scores[:, None, None] >= scores).sum(axis=0)
    np.testing.assert_array_equal(p, (1 + at_least) / 401)


@pytest.mark.parametrize("wrong", [[], [0.0, 0.5], [1.0], "all", [[0.1]], [np.nan]])
def test_a_grid_that_is_none_is_refused(wrong):
    predictor = StandardConformal().calibrate(some(0, 50))
    with pytest.raises(InputError, match="alpha must"):
        predictor.predict_p(some(1, 5), wrong)


# Random numbers for different purposes are independent, and the guarantees rest on that.
class Recorder(RankScore):
    """Softmax scores that keep the draws they are given."""

    kept: ClassVar[list[np.ndarray]] = []

    @property
    def randomized(self):
        return True

    def _raw(self, sorted_probabilities, draws):
        self.kept.append(draws.copy())
        return 1.0 - sorted_probabilities

    def _tail(self, sorted_probabilities, draws):
        return sorted_probabilities


def test_calibration_tuning_prediction_and_level_have_draws_of_their_own(make_outputs):
    """The same samples everywhere: equal rows must not share a draw."""
    outputs = make_outputs(500).replace(rows=np.arange(500))
    Recorder.kept.clear()
    clusters = ClusteredConformal(score=Recorder(), n_clusters=2).calibrate(outputs, tuning=outputs)
    clusters.predict_set(outputs)
    conditional = ConditionalConformal(score=Recorder(), basis=Intercept(), randomized=True)
    conditional.calibrate(outputs)
    level = conditional._draws(outputs)[0]
    calibration, tuning, prediction, again = Recorder.kept
    np.testing.assert_array_equal(again, calibration)
    for first, second in combinations((calibration, tuning, prediction, level), 2):
        assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / np.sqrt(500)


# What a predictor says it needs of new samples is what it needs; known trust can be an array.
@pytest.fixture
def calibrated(predictor):
    """A calibrated predictor of each kind, and new samples."""
    return predictor.calibrate(some(0, 400)), some(5, 60)


def rebuilt(outputs, first_row=0, **changes):
    """The same samples without labels, with rows of their own and further changes."""
    return outputs.replace(labels=None, rows=first_row + np.arange(len(outputs)), **changes)


def same(one, other):
    return np.array_equal(one.thresholds, other.thresholds) and np.array_equal(one.mask, other.mask)


def test_needed_groups_and_features_are_those_without_which_there_are_no_sets(calibrated):
    predictor, test = calibrated
    whole = predictor.predict_set(rebuilt(test))
    needed = {name: test.groups[name] for name in predictor.needed_groups}
    other = {"unused": np.arange(len(test))}
    assert same(predictor.predict_set(rebuilt(test, groups=needed | other)), whole)
    for name in needed:
        left = {other: own for other, own in needed.items() if other != name}
        with pytest.raises(InputError, match=name):
            predictor.predict_set(rebuilt(test, groups=left))
    if not predictor.uses_features:
        assert same(predictor.predict_set(rebuilt(test, features=None)), whole)


def test_what_uses_groups_trust_or_neither_says_so(make_outputs):
    outputs = make_outputs(300)
    both = ConditionalConformal(basis=Groups("site") + Groups("site")).calibrate(outputs)
    assert both.needed_groups == ("site",) and not both.uses_features
    trust = TrustScore().fit(outputs.features, outputs.labels)
    assert MondrianConformal(by=Bins(counts=(2, 2)), trust=trust).calibrate(outputs).uses_features
    assert not MondrianConformal(by="class").calibrate(outputs).uses_features


def test_draws_move_the_sets_of_those_that_draw_and_of_no_others(calibrated):
    predictor, test = calibrated
    one = predictor.predict_set(rebuilt(test), alpha=0.3)
    moved = predictor.predict_set(rebuilt(test, first_row=1000), alpha=0.3)
    assert same(moved, one) != predictor.draws_at_random


def test_sets_depend_on_their_batch_only_where_a_predictor_says_why(make_outputs):
    for make in PREDICTORS.values():  # see `test_batches_change_nothing`
        assert make().calibrate(some(0, 200)).batch_dependence is None
    bins = Bins(Confidence(), counts=4, spacing="quantile")
    paper = MondrianConformal.paper(by=bins, temperature=1.0)
    with pytest.warns(UserWarning, match="bin edges"):
        paper.calibrate(make_outputs(300))
    assert "depend on what is predicted together" in paper.batch_dependence
    whole, part = (paper.predict_set(make_outputs(40).take(np.arange(n))) for n in (40, 7))
    assert not np.array_equal(whole.thresholds[:7], part.thresholds)
    by_hand = Bins(Confidence(), edges=((0.5, 0.8),))
    assert MondrianConformal.paper(by=by_hand).batch_dependence is None


@pytest.mark.parametrize("own_tuning", [False, True])
def test_known_trust_stands_in_for_a_trust_score(make_outputs, own_tuning):
    """Values follow their samples through the tuning split."""
    train, calibration, tuning, test = (make_outputs(n, seed=n) for n in (80, 500, 200, 50))
    trust = TrustScore().fit(train.features, train.labels)
    other = tuning if own_tuning else None
    # The default would fit its components on training features, where there is a trust score.
    basis = Polynomial(3, (Confidence(transform="rank"), Trust(transform="rank")))
    first = ConditionalConformal(basis=basis, trust=trust).calibrate(calibration, tuning=other)
    known = [part if part is None else part.with_trust(trust) for part in (calibration, other)]
    second = ConditionalConformal(basis=basis).calibrate(known[0], tuning=known[1])
    sets = first.predict_set(test)
    own = trust.score(test.features, test.predicted)
    assert same(second.predict_set(test.replace(trust=own)), sets)
    assert same(second.predict_set(rebuilt(test, features=None, trust=own)), sets)
    assert not same(second.predict_set(test.replace(trust=own[::-1])), sets)
    with pytest.raises(InputError, match="pass trust="):
        second.predict_set(test)
    for wrong in (own[1:], "high", ["high"] * 50, np.full(50, np.nan)):
        with pytest.raises(InputError, match="trust must be an array"):
            test.replace(trust=wrong)
    chosen = {"metrics": ["conf_trust", "trust_rank"], "n_bootstrap": 5}
    found = evaluate(sets, test.with_trust(own), **chosen).metrics
    assert found == evaluate(sets, test.with_trust(trust), **chosen).metrics


# Scores and groups of one's own: used like those of the package, checked, and saved by name.
@pytest.mark.parametrize("make", [StandardConformal, ConditionalConformal])
def test_a_score_of_ones_own_is_a_score(make, make_outputs, tmp_path):
    """The formula of Softmax, written as a function, gives the sets of Softmax."""
    calibration, test = make_outputs(600).split(0.5)
    settings = {} if make is StandardConformal else {"basis": Intercept()}
    own = make(score=CustomScore(function=saved_functions.complement), **settings)
    plain = make(score=Softmax(), **settings)
    first, second = (each.calibrate(calibration).predict_set(test) for each in (own, plain))
    np.testing.assert_array_equal(first.mask, second.mask)
    np.testing.assert_array_equal(first.thresholds, second.thresholds)
    own.save(tmp_path / "a.trustsets")
    again = load(tmp_path / "a.trustsets").predict_set(test)
    np.testing.assert_array_equal(again.mask, first.mask)


def test_groups_of_ones_own_are_groups(make_outputs, tmp_path):
    calibration, test = make_outputs(600).split(0.5)
    predictor = MondrianConformal(by=saved_functions.is_sure).calibrate(calibration)
    sets = predictor.predict_set(test)
    for sure in (True, False):
        here, there = (saved_functions.is_sure(part) == sure for part in (calibration, test))
        alone = StandardConformal().calibrate(calibration.take(here)).predict_set(test.take(there))
        np.testing.assert_array_equal(sets.mask[there], alone.mask)
    predictor.save(tmp_path / "a.trustsets")
    again = load(tmp_path / "a.trustsets").predict_set(test)
    np.testing.assert_array_equal(again.mask, sets.mask)
    basis = ConditionalConformal(basis=CustomGroups(saved_functions.is_sure)).calibrate(calibration)
    np.testing.assert_array_equal(basis.conditions_on.cells(test), saved_functions.is_sure(test))


def test_functions_without_a_name_are_used_and_not_saved(make_outputs, tmp_path):
    def local(outputs):
        return outputs.confidence[:, None]

    outputs = make_outputs(200)
    functions = (local, lambda outputs: local(outputs), partial(local), Holder.column)
    for predictor in (
        StandardConformal(score=CustomScore(function=lambda p: -p)),
        MondrianConformal(by=lambda outputs: outputs.confidence > 0.5),
        *(ConditionalConformal(basis=Custom(function)) for function in functions),
    ):
        predictor.calibrate(outputs).predict_set(outputs, 0.2)
        with pytest.raises(StorageError, match="defined with def at the top of a module"):
            predictor.save(tmp_path / "a.trustsets")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "function",
    [lambda p: p[:, :2], lambda p: p * np.nan, lambda p: p.astype(str), lambda p: p.sum(axis=1)],
)
def test_wrong_functions_are_named(function, make_outputs):
    with pytest.raises(InputError, match="function must return"):
        StandardConformal(score=CustomScore(function=function)).calibrate(make_outputs())
    with pytest.raises(InputError, match="what function returns"):
        MondrianConformal(by=lambda outputs: np.zeros(3)).calibrate(make_outputs())
    with pytest.raises(InputError, match="function must map probabilities"):
        CustomScore(function=3)


# Warnings and words about classes: what calibration saw, and whether the columns fit.
NAMES = np.array(["eel", "ant", "dog", "cat", "bee"])  # not in the order of the alphabet


def animals(n, seed=0, **words):
    """Outputs whose columns are in the order of `NAMES`."""
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.normal(size=(n, 5))
    codes = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return ModelOutputs(logits=logits, labels=NAMES[codes], **words)


def test_an_order_guessed_from_the_names_is_stated_and_checked():
    with pytest.warns(TrustSetsWarning, match="in another order of the columns"):
        guessed = StandardConformal().calibrate(animals(800))
    said = guessed.summary()
    assert "Columns of the outputs, in order: 'ant', 'bee', 'cat', 'dog' and 'eel'." in said
    assert "the columns must be 'ant', 'bee', 'cat', 'dog' and 'eel', in this order" in said
    right = StandardConformal().calibrate(animals(800, classes=NAMES)).summary()  # no warning
    assert "in order: 'eel', 'ant', 'dog', 'cat' and 'bee'." in right
    assert "must be" not in right


@pytest.mark.parametrize("seed", range(10))
def test_right_orders_raise_no_doubt(seed):
    rng = np.random.default_rng(seed)
    for n, n_classes, strength in [(60, 3, 0.0), (60, 20, 0.5), (400, 100, 1.0), (500, 4, 0.0)]:
        logits = strength * rng.normal(size=(n, n_classes))
        noise = rng.normal(size=logits.shape)
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        outputs = ModelOutputs(logits=logits + noise, labels=labels)
        assert classifier_doubts(outputs) == {"below_majority": False, "reordered": 0.0}


def test_an_order_of_many_even_classes_is_checked():
    """Where no class is frequent, accuracy alone could not be below that of the majority."""
    rng = np.random.default_rng(0)
    logits = 4.0 * rng.normal(size=(3000, 100))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    shuffled = logits[:, rng.permutation(100)]
    assert classifier_doubts(ModelOutputs(logits=shuffled, labels=labels))["reordered"] > 0.5


@pytest.mark.filterwarnings("ignore:The most likely class is right")
def test_accuracy_below_the_most_frequent_class_warns():
    rng = np.random.default_rng(0)
    labels = (rng.random(500) < 0.1).astype(int)
    noise = ModelOutputs(logits=rng.normal(size=(500, 2)), labels=labels)
    with pytest.warns(TrustSetsWarning, match=r"right for 49\.6% .* always predicting 0 would be"):
        StandardConformal().calibrate(noise)
    # Samples that settle the doubt end it.
    predictor = StandardConformal().calibrate(noise)
    sure = ModelOutputs(logits=8.0 * np.eye(2)[labels], labels=labels)
    assert "right for" in predictor.summary()
    assert "right for" not in predictor.update(ModelOutputs.concat([sure] * 9)).summary()
    # As good as the majority, within error: no warning.
    same = ModelOutputs(logits=[[1.0, 0.0]] * 500, labels=labels)
    assert not classifier_doubts(same)["below_majority"]


PROMISE = "no calibration sample of class 4, so nothing is guaranteed for it"


@pytest.mark.parametrize("predictor", [StandardConformal(), ConditionalConformal()])
def test_a_class_without_calibration_samples_is_named(predictor, make_outputs):
    outputs = make_outputs(600, 5)
    seen = outputs.take(outputs.codes != 4)
    with pytest.warns(TrustSetsWarning, match=PROMISE):
        predictor.calibrate(seen)
    assert PROMISE in predictor.summary()
    predictor.calibrate(outputs)
    assert PROMISE not in predictor.summary()


def imbalanced(n, rng):
    """One sample in 200 is of class 1, and the classifier knows it."""
    labels = (rng.random(n) < 1 / 200).astype(int)
    x = rng.normal(size=n) + 1.5 * labels
    logits = np.column_stack([np.zeros(n), 1.5 * x - 1.125 - np.log(200)])
    return ModelOutputs(logits=logits, labels=labels)


def test_imbalance_points_to_the_method_for_each_class():
    rng = np.random.default_rng(0)
    calibration, test = imbalanced(20_000, rng), imbalanced(20_000, rng)
    predictor = StandardConformal().calibrate(calibration)
    result = evaluate(predictor.predict_set(test, alpha=0.1), test)
    assert result.tables["class"].coverage[1] < 0.2 and result.coverage.value > 0.95
    assert 'MondrianConformal(by="class")' in predictor.summary()
    by_class = MondrianConformal(by="class").calibrate(calibration)
    assert 'by="class"' not in by_class.summary()
    # From twenty times as many samples on; classes without any do not count.
    for most in range(57, 64):
        assert (uneven_prevalence(np.arange(3), np.array([3, most, 0])) != "") == (most >= 60)


def test_the_null_cluster_is_promised_only_what_it_gets(make_outputs):
    published = ClusteredConformal().calibrate(make_outputs(300))
    assert "nothing is guaranteed for them" in published.summary()
    assert "hence marginally" not in published.summary()
    own = ClusteredConformal(null_cluster="own").calibrate(make_outputs(300))
    assert "included, and hence marginally" in own.summary()
    with pytest.raises(InputError, match='null_cluster must be "standard" or "own"'):
        ClusteredConformal(null_cluster="none").calibrate(make_outputs(300))
