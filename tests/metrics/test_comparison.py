import json
from dataclasses import replace

import numpy as np
import pytest
from kinds import FirstFeature

from trustsets import (
    ConditionalConformal,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    StandardConformal,
    compare,
    evaluate,
)
from trustsets.errors import InputError
from trustsets.metrics import Comparison, excess_risk, sets_of_size
from trustsets.metrics.inference import bootstrap_gaps


@pytest.fixture
def runs(make_case):
    """Return a function that evaluates sets of a given coverage over three seeds."""

    def make(rate, seeds=(0, 1, 2), alpha=0.1):
        found = []
        for seed in seeds:
            sets, outputs = make_case(n=400, seed=seed, rate=np.full(400, rate), alpha=alpha)
            found.append(evaluate(sets, outputs, metrics=["class", "groups"], n_bootstrap=50))
        return found

    return make


def test_means_and_standard_errors_over_seeds(runs):
    good, bad = runs(0.9), runs(0.75)
    table = compare({"good": good, "bad": bad}, n_bootstrap=100)
    by_group = [f"group:{name}" for name in ("sex", "site")]
    assert table.columns == (
        "coverage",
        "size",
        *(f"class.{part}" for part in ("gap", "shortfall", "macro")),
        *(f"{name}.{part}" for name in by_group for part in ("gap", "shortfall", "worst")),
    )
    for row, own in zip(table.entries, (good, bad), strict=True):
        for entry, column in zip(row, table.columns, strict=True):
            values = [item.metrics[column].value for item in own]
            assert entry.mean == pytest.approx(np.mean(values))
            assert entry.standard_error == pytest.approx(np.std(values, ddof=1) / 3**0.5)
            assert entry.n_seeds == 3
            if column != "size":
                floors = [item.metrics[column].floor for item in own]
                assert entry.floor == pytest.approx(np.mean(floors))
            assert entry.lower <= entry.mean <= entry.upper


def test_blocks_have_their_own_best_and_their_own_floor(runs):
    results = {
        ("cifar", "standard"): runs(0.9),
        ("cifar", "naive"): runs(0.7),
        ("ham", "standard"): runs(0.7),
        ("ham", "naive"): runs(0.6),
    }
    table = compare(results, columns=["coverage", "class.gap"])
    assert [row[1].best for row in table.entries] == [True, False, True, False]
    lines = table.to_markdown().splitlines()
    assert len(lines) == 2 + 4 + 2
    assert lines[0].split("|")[1].strip() == "Dataset"
    assert lines[3].split("|")[1].strip() == ""
    assert "perfect (noise floor)" in lines[4]
    floor = np.mean([table.entries[0][1].floor, table.entries[1][1].floor])
    assert f"{floor:.2f}" in lines[4]
    assert len(table.to_markdown(floor=False).splitlines()) == 6


def test_one_seed_keeps_the_interval_of_the_evaluation(runs):
    own = runs(0.9, seeds=(0,))[0]
    entry = compare({"a": own}, columns=["class.gap"]).entries[0][0]
    assert (entry.lower, entry.upper) == (own.metrics["class.gap"].lower, own.metrics["class.gap"].upper)  # fmt: skip  # noqa: E501
    assert np.isnan(entry.standard_error)
    assert "(" not in compare({"a": own}, columns=["class.gap"]).to_markdown(floor=False)


def test_frame_and_json(runs):
    table = compare({"a_b": runs(0.9), "c": runs(0.8)})
    frame = table.to_frame()
    assert len(frame) == 2 * len(table.columns)
    assert {"method", "metric", "mean", "standard_error", "floor", "best"} <= set(frame.columns)
    again = Comparison.from_json(table.to_json())
    assert again.to_json() == table.to_json()
    assert again.to_markdown() == table.to_markdown()


def changed(evaluation, **values):
    """The evaluation with other numbers in its table of classes, and another coverage."""
    data = json.loads(evaluation.to_json())
    for part, value in values.items():
        target = data if part == "coverage" else data["tables"]["class"]
        target[part]["value"] = value
    return type(evaluation).from_json(json.dumps(data))


def test_interval_over_seeds_is_students_t_by_hand(runs):
    """Three seeds: two degrees of freedom, t = 4.303 at 95% and 9.925 at 99%."""
    for level, t in ((0.95, 4.302653), (0.99, 9.924843)):
        base = replace(runs(0.9, seeds=(0,))[0], level=level)
        own = [changed(base, coverage=value, worst=value - 0.1) for value in (0.88, 0.9, 0.95)]
        table = compare({"a": own}, columns=["coverage", "class.worst"])
        half = t * np.std([0.88, 0.9, 0.95], ddof=1) / np.sqrt(3)
        for entry, mean in zip(table.entries[0], (0.91, 0.81), strict=True):
            assert entry.mean == pytest.approx(mean)
            assert (entry.lower, entry.upper) == pytest.approx((mean - half, min(mean + half, 1.0)))


def test_halves_have_the_intervals_of_halves(make_case):
    """Each of gap, shortfall and excess has its own, at the level asked for, of all six classes."""
    own = []
    for seed in range(3):
        sets, outputs = make_case(n=400, seed=seed, rate=np.full(400, 0.8))
        present = outputs.codes != 5
        sets, outputs = sets[present], outputs.take(present)
        own.append(evaluate(sets, outputs, metrics=["class"], n_bootstrap=5, level=0.8))
    columns = ["class.excess", "class.gap", "class.shortfall"]
    table = compare({"a": own}, columns=columns, n_bootstrap=300)
    tables = [(item.tables["class"].count, item.tables["class"].covered) for item in own]
    gap, shortfall, excess = bootstrap_gaps(tables, 0.1, 6, 0.8, 300)
    found = [(entry.lower, entry.upper) for entry in table.entries[0]]
    assert found == [excess, gap, shortfall]
    assert len({excess, gap, shortfall}) == 3


@pytest.mark.parametrize(
    ("part", "values"),
    [
        # The best, just within a tenth of a point, just outside, far away.
        ("gap", [4.0, 4.1, 4.11, 9.0]),
        ("shortfall", [1.0, 1.1, 1.11, 2.0]),
        ("excess", [0.0, 0.1, 0.11, 2.0]),
        # A coverage is a share: a tenth of a point is 0.001, and higher is better.
        ("worst", [0.85, 0.849, 0.8489, 0.7]),
    ],
)
def test_bold_is_what_is_within_a_tenth_of_a_point_of_the_best(runs, part, values):
    base = runs(0.9, seeds=(0,))[0]
    results = {name: changed(base, **{part: v}) for name, v in zip("dacb", values, strict=True)}
    table = compare(results, columns=["coverage", f"class.{part}"])
    assert [row[1].best for row in table.entries] == [True, True, False, False]
    assert not any(row[0].best for row in table.entries)
    lines = table.to_markdown(floor=False).splitlines()[2:]
    assert [line.count("**") for line in lines] == [2, 2, 0, 0]


# ---- Equal mean size ------------------------------------------------------------------------


def draw(n, seed):
    """Samples with a trust that tells how often the classifier is right."""
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.normal(size=(n, 5))
    trust = rng.uniform(0.5, 2.0, size=n)
    labels = (logits * trust[:, None] / 2.0 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    groups = {"site": rng.choice(["a", "b"], size=n)}
    return ModelOutputs(logits=logits, labels=labels, trust=trust, groups=groups)


def calibrated(seed=0, n=150):
    methods = {
        "split": StandardConformal(),
        "classes": MondrianConformal(by="class"),
        "conditional": ConditionalConformal(temperature=None),
    }
    return {name: one.calibrate(draw(n, seed)) for name, one in methods.items()}


@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")  # of the loop over alphas
@pytest.mark.parametrize("size", [0.5, 1.0, 1.3, 2.05, 3.0, 4.9, 5.0])
@pytest.mark.parametrize("method", ["split", "classes"])
def test_no_other_alpha_gives_a_nearer_mean_size(method, size):
    """Against every alpha in turn; labels take no part, and the sets are those at their alpha."""
    predictor, test = calibrated()[method], draw(200, 1)
    sets = sets_of_size(predictor, test, size)
    alphas = np.arange(0.5, 151) / 151
    sizes = np.array([predictor.predict_set(test, alpha=a).sizes.mean() for a in alphas])
    assert abs(sets.sizes.mean() - size) == np.abs(sizes - size).min()
    again = predictor.predict_set(test, alpha=sets.alpha)
    assert np.array_equal(again.mask, sets.mask)
    unlabelled = ModelOutputs(logits=test.logits, trust=test.trust, groups=test.groups)
    assert np.array_equal(sets_of_size(predictor, unlabelled, size).mask, sets.mask)


def test_rows_at_equal_size_are_judged_against_the_same_target():
    """Every number is that of `evaluate` and `excess_risk` on the sets of the matched alpha."""
    predictors, test = calibrated(), draw(300, 1)
    table = compare(predictors, outputs=test, alpha=0.2, equal_size="conditional", n_bootstrap=20)
    settings = ("alpha = 0.2", "size of conditional")
    assert table.keys == tuple((setting, name) for setting in settings for name in predictors)
    size = predictors["conditional"].predict_set(test, alpha=0.2).sizes.mean()
    for (setting, name), row in zip(table.keys, table.entries, strict=True):
        one, at_alpha = predictors[name], setting == settings[0] or name == "conditional"
        sets = one.predict_set(test, alpha=0.2) if at_alpha else sets_of_size(one, test, size)
        covered = sets.covers(test.labels)
        plain = evaluate(covered, test, alpha=0.2, sizes=sets.sizes, n_bootstrap=20).metrics
        risk = excess_risk(covered, test, alpha=0.2, n_permutations=0).metrics
        for column, entry in zip(table.columns, row, strict=True):
            if column == "alpha":
                assert entry.mean == sets.alpha
            else:
                wanted = (plain | risk)[column]
                ends = pytest.approx((wanted.value, wanted.lower, wanted.upper), nan_ok=True)
                assert (entry.mean, entry.lower, entry.upper) == ends
    assert table.columns == (
        *("alpha", "coverage", "size", "conf_trust.gap", "conf_trust.shortfall"),
        *("class.gap", "class.shortfall", "group:site.shortfall", "group:site.worst"),
        *("excess_risk.total", "excess_risk.under"),
    )
    shortfalls = [row[4].mean for row in table.entries[3:]]
    best = [value <= min(shortfalls) + 0.1 for value in shortfalls]
    assert [row[4].best for row in table.entries[3:]] == best
    assert "| size of conditional | split " in table.to_markdown()


def test_trust_that_one_predictor_knows_is_a_column_for_all(make_outputs):
    calibration, test = make_outputs(300), make_outputs(200, seed=1)
    with_trust = ConditionalConformal(basis=Polynomial(1), trust=FirstFeature())
    both = {"split": StandardConformal(), "trust": with_trust}
    both = {name: one.calibrate(calibration) for name, one in both.items()}
    found = compare(both, outputs=test, n_bootstrap=5)
    given = compare(both, outputs=test.with_trust(FirstFeature()), n_bootstrap=5)
    assert found.to_json() == given.to_json() and "conf_trust.gap" in found.columns


@pytest.mark.parametrize("hit", [True, False])
def test_excess_risk_of_equal_outcomes_has_a_width(hit):
    """The exact interval of 0 of 100 samples ends at 1 - 0.025^(1/100) = 3.622%."""
    found = excess_risk(np.full(100, hit), draw(100, 0), alpha=0.1, n_permutations=0)
    part, most = (found.over, 10.0) if hit else (found.under, 90.0)
    for item in (part, found.total):
        ends = [item.lower, item.value, item.upper]
        assert ends == pytest.approx([most - 3.6217, most, most], abs=1e-4)


def test_group_columns_keep_names_of_their_own():
    groups = dict.fromkeys(["confidence", "group confidence"], np.arange(100) % 2)
    outputs = ModelOutputs(logits=draw(100, 0).logits, groups=groups)
    inputs = excess_risk(np.arange(100) > 9, outputs, alpha=0.1, n_permutations=0).inputs
    assert {"group confidence", "group group confidence"} < {*inputs}


def test_few_samples_have_no_excess_risk():
    predictors = {"split": calibrated()["split"]}
    columns = [compare(predictors, outputs=draw(n, 1), n_bootstrap=5).columns for n in (49, 50)]
    assert [("excess_risk.under" in names) for names in columns] == [False, True]


def test_predictors_over_seeds_are_averaged():
    seeds = (0, 1)
    predictors = {"split": [calibrated(seed)["split"] for seed in seeds]}
    tests = [draw(200, 10 + seed) for seed in seeds]
    table = compare(predictors, outputs=tests, n_bootstrap=20)
    one_by_one = [
        compare({"split": one}, outputs=test, n_bootstrap=20)
        for one, test in zip(predictors["split"], tests, strict=True)
    ]
    assert table.keys == (("split",),) and table.columns == one_by_one[0].columns
    for column, entry in enumerate(table.entries[0]):
        values = [single.entries[0][column].mean for single in one_by_one]
        assert entry.mean == pytest.approx(np.mean(values)) and entry.n_seeds == 2


def test_bad_arguments_are_named(runs):
    predictors, test, own = calibrated(), draw(100, 1), runs(0.9)
    for change, message in (
        (lambda: compare({}), "at least one method"),
        (lambda: compare({"a": []}), r"results\['a'\] must be an Evaluation or a non-empty list"),
        (lambda: compare({"a": own, ("x", "b"): own}), "equally many parts"),
        (lambda: compare({1: own, "1": own}), "names in results must differ as texts"),
        (lambda: compare({"a": own}, columns=["slab"]), "'slab', which not every evaluation has"),
        (lambda: compare({"a": own, "b": runs(0.9, alpha=0.2)}), "share alpha and level"),
        (lambda: compare({"a": own}, equal_size=True), "need calibrated predictors"),
        (lambda: compare(predictors | {"a": own}, outputs=test), "not some of each"),
        (lambda: compare(predictors), "outputs must be the labelled test samples"),
        (lambda: compare(predictors, outputs=[test, test]), r"\[1, 1, 1\] predictors and 2"),
        (lambda: compare(predictors, outputs=test, equal_size="x"), "must name one of"),
        (lambda: compare(predictors, outputs=test, alpha=[0.1, 0.2]), "alpha must lie strictly"),
        (lambda: compare(predictors, outputs=test, alpha=[0.1], equal_size=True), "alpha must lie"),
        (lambda: sets_of_size(predictors["split"], test, np.nan), "size must be finite"),
    ):
        with pytest.raises(InputError, match=message):
            change()
