"""An alpha for each sample: exact against the linear program, and one alpha at a time without."""

import numpy as np
import pytest
from kinds import LINE, PREDICTORS, some

import trustsets
from trustsets import APS, Classes, ConditionalConformal, Groups, Softmax, StandardConformal
from trustsets.engine.linear_program import solve_linear_program
from trustsets.errors import InputError


def by_confidence(outputs: trustsets.ModelOutputs) -> np.ndarray:
    """An alpha that depends on the input."""
    return 0.05 + 0.4 * (1.0 - outputs.confidence)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("basis", [LINE, LINE + Groups("site"), LINE + Classes(penalty=2.0)])
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
def test_thresholds_are_those_of_the_linear_program(basis, seed):
    calibration, test = some(seed, 60, 1), some(100 + seed, 12, 1)
    score = Softmax() if seed % 2 else APS()  # without and with ties
    predictor = ConditionalConformal(score=score, basis=basis, class_bias=None)
    predictor.calibrate(calibration, alphas=by_confidence(calibration))
    sets = predictor.predict_set(test, sample_alphas=by_confidence(test))
    fitted = predictor.conditions_on
    penalty = fitted.penalty_rows(calibration)
    phi = np.vstack([fitted.design(calibration), penalty, -penalty])
    scores = np.append(score.of_labels(calibration), np.zeros(2 * len(penalty)))
    alphas = np.append(by_confidence(calibration), np.full(2 * len(penalty), 0.5))
    thresholds = sets.thresholds.reshape(len(test), -1)
    for i, code in np.ndindex(thresholds.shape):
        row = fitted.design_for(test[i], np.array([code]))[0]
        truth = solve_linear_program(phi, scores, alphas, row, 1.0 - sets.alpha[i])
        assert thresholds[i, code] == pytest.approx(truth, abs=1e-8)
    expected = score.matrix(test) <= thresholds + 1e-9
    empty = ~expected.any(axis=1)
    expected[empty, test.predicted_codes[empty]] = True
    np.testing.assert_array_equal(sets.mask, expected)
    np.testing.assert_array_equal(sets.alpha, by_confidence(test))


@pytest.mark.parametrize("name", PREDICTORS)
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
def test_without_calibration_alphas_every_sample_has_the_set_of_its_alpha(name):
    predictor, test = PREDICTORS[name]().calibrate(some(0, 300)), some(1, 40)
    alphas = np.linspace(0.03, 0.6, 10)[np.arange(40) % 10]
    sets = predictor.predict_set(test, sample_alphas=alphas)
    for alpha in np.unique(alphas):
        rounded = float(np.floor(alpha * 1e3 + 1e-9) / 1e3) if alpha >= 0.1 else None
        rounded = rounded or float(np.floor(alpha * 1e4 + 1e-9) / 1e4)
        alone = predictor.predict_set(test, rounded)
        index = np.flatnonzero(alphas == alpha)
        np.testing.assert_array_equal(sets.mask[index], alone.mask[index])
        np.testing.assert_allclose(sets.thresholds[index], alone.thresholds[index], rtol=1e-12)
        np.testing.assert_array_equal(sets.status[index], alone.status[index])
    # One sample alone has the set that it has among others.
    alone = predictor.predict_set(test.take([3]), sample_alphas=alphas[3:4])
    np.testing.assert_array_equal(alone.mask, sets.mask[3:4])


@pytest.mark.parametrize("name", ["default", "penalised groups", "randomised", "classes", "trust"])
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
def test_equal_alphas_give_the_sets_of_one(name):
    predictor, test = PREDICTORS[name](), some(1, 60)
    predictor.calibrate(some(0, 300), alphas=np.full(300, 0.2))
    each = predictor.predict_set(test, sample_alphas=np.full(60, 0.2))
    np.testing.assert_array_equal(each.mask, predictor.predict_set(test, 0.2).mask)


def test_alphas_follow_their_samples(tmp_path):
    """Neither the order of the samples nor a file changes a threshold."""
    calibration, tuning, test = some(0, 300), some(2, 200), some(1, 30)
    order = np.random.default_rng(0).permutation(300)
    sets = []
    for samples in (calibration, calibration.take(order)):
        predictor = ConditionalConformal()
        predictor.calibrate(samples, tuning=tuning, alphas=by_confidence(samples))
        sets.append(predictor.predict_set(test, sample_alphas=by_confidence(test)))
    np.testing.assert_array_equal(sets[0].thresholds, sets[1].thresholds)
    # A tuning part that is set aside takes its alphas along.
    kept = ConditionalConformal().calibrate(calibration, alphas=by_confidence(calibration))
    rest = calibration.take(calibration.split_indices(0.2, 0)[1])
    np.testing.assert_allclose(np.sort(kept.state_.alphas), np.sort(by_confidence(rest)))
    kept.save(tmp_path / "new.trustsets")
    loaded = trustsets.load(tmp_path / "new.trustsets")
    for words in ({"sample_alphas": by_confidence(test)}, {"max_size": 2}):
        first, second = (one.predict_set(test, **words) for one in (kept, loaded))
        np.testing.assert_array_equal(first.thresholds, second.thresholds)
        np.testing.assert_array_equal(first.alpha, second.alpha)


def test_lists_are_of_alphas_and_sample_alphas_of_samples():
    predictor, test = StandardConformal().calibrate(some(0, 200)), some(1, 3)
    assert predictor.predict_set(test, [0.1, 0.2, 0.3]).mask.shape == (3, 5, 3)
    assert predictor.predict_set(test, (0.1, 0.2, 0.3)).mask.shape == (3, 5, 3)
    sets = predictor.predict_set(test, sample_alphas=[0.1, 0.2, 0.3])
    assert sets.mask.shape == (3, 5)
    assert predictor.predict_set(test, np.array(0.1)).alpha == 0.1
    half = predictor.predict_set(test, sample_alphas=np.array([0.1, 0.2, 0.3], np.float32))
    np.testing.assert_array_equal(half.alpha, [0.1, 0.2, 0.3])
    with pytest.raises(InputError, match="goes to sample_alphas="):
        predictor.predict_set(test, np.array([0.1, 0.2, 0.3]))
    with pytest.raises(InputError, match=r"sample_alphas must have shape \(3,\)"):
        predictor.predict_set(test, sample_alphas=np.array([0.1, 0.2]))


@pytest.mark.parametrize("wrong", [0.0, 1.0, -0.1, np.nan, np.inf])
def test_alphas_that_are_none_are_refused(wrong):
    alphas = np.array([0.1, 0.2, wrong])
    predictor, test = ConditionalConformal(), some(1, 3)
    with pytest.raises(InputError, match="sample_alphas must"):
        predictor.calibrate(some(0, 200)).predict_set(test, sample_alphas=alphas)
    for own, given, message in (
        (predictor, alphas, "alphas must"),
        (predictor, np.array([0.1]), "alphas must have shape"),
        (predictor, ["a", "b", "c"], "alphas must hold numbers"),
        (StandardConformal(), np.full(3, 0.1), "for ConditionalConformal"),
    ):
        with pytest.raises(InputError, match=message):
            own.calibrate(test, alphas=given)


def test_sets_show_the_alphas_of_their_samples():
    predictor, test = StandardConformal().calibrate(some(0, 200)), some(1, 4)
    alphas = np.array([0.05, 0.1, 0.25, 0.5])
    sets = predictor.predict_set(test, sample_alphas=alphas)
    assert repr(sets).startswith("PredictionSets(4 samples, 5 classes, alpha=0.05 to 0.5, mean")
    np.testing.assert_array_equal(sets[1:3].alpha, alphas[1:3])
    np.testing.assert_array_equal(sets[np.array([3, 0])].alpha, alphas[[3, 0]])
    assert sets.to_frame()["alpha"].tolist() == [*alphas]
    assert "alpha" not in predictor.predict_set(test).to_frame()
    assert not sets.alpha.flags.writeable and repr(sets[:0])
    with pytest.raises(InputError, match="alpha of its own"):
        sets.at(0.1)
    with pytest.raises(InputError, match="must be at one alpha"):
        trustsets.evaluate(sets, test)
