import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from trustsets import (
    Bins,
    ConditionalConformal,
    Confidence,
    Groups,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    StandardConformal,
    Trust,
    TrustSetClassifier,
    compare,
    evaluate,
)
from trustsets.auditing import excess_risk, find_regions
from trustsets.errors import InputError
from trustsets.metrics import (
    PAPER_BINS,
    Evaluation,
    FrequencyBins,
    RankBins,
    bin_samples,
    expected_gap,
    holm,
    markdown_table,
)
from trustsets.metrics.inference import expected_worst

FAST = {"n_bootstrap": 20}


def test_every_metric_that_the_data_allow(make_case, trust):
    sets, outputs = make_case()
    result = evaluate(sets, outputs.with_trust(trust), **FAST)
    names = "conf_trust conf_rank conf_frequency class group:sex group:site size_strata".split()
    assert list(result.tables) == names
    assert result.correlation is not None
    bare = ModelOutputs(logits=outputs.logits, labels=outputs.labels)
    result = evaluate(sets, bare, **FAST)
    assert list(result.tables) == ["conf_rank", "conf_frequency", "class", "size_strata"]
    assert result.correlation is None


def test_tables_against_one_sample_at_a_time(make_case, trust):
    sets, outputs = make_case()
    result = evaluate(sets, outputs.with_trust(trust), **FAST)
    hits = [bool(sets.mask[i, code]) for i, code in enumerate(outputs.codes)]
    sizes = sets.mask.sum(axis=1)
    assert result.coverage.value == pytest.approx(np.mean(hits))
    assert result.sizes.mean == pytest.approx(sizes.mean())
    cells = bin_samples(PAPER_BINS, outputs.with_trust(trust)).cells
    own = {
        "conf_trust": cells.tolist(),
        "class": outputs.codes.tolist(),
        "group:sex": outputs.groups["sex"].tolist(),
    }
    for name, keys in own.items():
        table = result.tables[name]
        for j, key in enumerate(sorted(set(keys))):
            inside = [i for i in range(len(keys)) if keys[i] == key]
            assert table.count[j] == len(inside)
            assert table.covered[j] == sum(hits[i] for i in inside)
            assert table.mean_size[j] == pytest.approx(np.mean([sizes[i] for i in inside]))
            p = stats.binom.cdf(table.covered[j], table.count[j], 0.9)
            assert table.p_value[j] == pytest.approx(p)
        gaps = np.abs(table.covered / table.count - 0.9)
        assert table.gap.value == pytest.approx(100 * gaps.mean())
        assert table.worst.value == pytest.approx((table.covered / table.count).min())
        assert table.worst.floor == expected_worst(table.count, 0.1) < 0.9
        assert table.worst.lower < table.lower[np.argmin(table.coverage)]
        np.testing.assert_array_equal(table.holm, holm(table.p_value))
        assert table.macro.value == pytest.approx((table.covered / table.count).mean())
    assert result.tables["group:sex"].labels == ("f", "m")
    assert "class.macro" in result.metrics and "conf_trust.macro" not in result.metrics


def test_class_gap_divides_by_all_classes_also_by_those_that_do_not_occur(make_case):
    sets, outputs = make_case(n_classes=6)
    keep = outputs.codes < 3
    sets, outputs = sets[keep], outputs.take(keep)
    by_all = evaluate(sets, outputs, metrics=["class"]).tables["class"]
    assert by_all.count.size == 3
    gaps = np.abs(by_all.covered / by_all.count - 0.9)
    assert by_all.gap.value == pytest.approx(100.0 * gaps.sum() / 6)
    assert by_all.gap.floor == pytest.approx(expected_gap(by_all.count, 0.1) / 2)
    assert by_all.shape == (6,)


def test_order_of_samples_does_not_matter(make_case, trust):
    sets, outputs = make_case()
    order = np.random.default_rng(2).permutation(len(outputs))
    chosen = ["conf_trust", "conf_rank", "conf_frequency", "class", "groups", "size_strata"]
    straight = evaluate(sets, outputs.with_trust(trust), metrics=chosen)
    mixed = evaluate(sets[order], outputs.take(order).with_trust(trust), metrics=chosen)
    assert mixed.to_json() == straight.to_json()


@pytest.mark.statistical
def test_mean_gap_of_a_perfect_method_equals_the_floor_in_every_table(make_case, trust):
    above = []
    for seed in range(200):
        sets, outputs = make_case(n=300, seed=seed)
        options = {"metrics": ["conf_trust", "class", "groups"], "n_bootstrap": 1}
        tables = evaluate(sets, outputs.with_trust(trust), **options).tables
        pairs = [(name, item) for t in tables.values() for name, item in t.metrics.items()]
        above.append([item.value - item.floor for name, item in pairs if name != "rms"])
    above = np.array(above)
    assert (np.abs(above.mean(axis=0)) < 4 * above.std(axis=0) / np.sqrt(200)).all()


def test_bins_can_be_replaced_and_added(make_case, trust):
    sets, outputs = make_case()
    outputs = outputs.with_trust(trust)
    bins = {
        "conf_trust": Bins(nested=False),
        "conf_rank": RankBins(edges=(0, 1, 2, 6)),
        "sex x site": Groups("sex", "site"),
    }
    tables = evaluate(sets, outputs, metrics=["conf_trust", "conf_rank"], bins=bins).tables
    assert tables["conf_rank"].shape == (10, 3)
    assert tables["sex x site"].count.size == 6
    nested = evaluate(sets, outputs, metrics=["conf_trust"]).tables["conf_trust"]
    assert nested.count.tolist() != tables["conf_trust"].count.tolist()
    bins = {"conf_trust": Bins(Confidence(), counts=3, spacing="uniform")}
    alone = evaluate(sets, outputs, bins=bins)
    assert alone.tables["conf_trust"].shape == (3,)


def test_json_round_trip_keeps_everything(make_case, trust):
    sets, outputs = make_case(n=200)
    result = evaluate(sets, outputs.with_trust(trust), **FAST)
    result = replace(result, more=excess_risk(sets, outputs, n_permutations=0).metrics)
    text = result.to_json()
    again = Evaluation.from_json(text)
    assert again.to_json() == text
    assert again.to_frame().equals(result.to_frame())
    assert again.tables["conf_trust"].count.dtype == np.int64
    data = json.loads(text)
    assert data["tables"]["class"]["labels"] == ["0", "1", "2", "3", "4", "5"]
    assert "cells" not in data["tables"]["class"]
    assert "covered" not in data
    assert data["tables"]["group:sex"]["edges"][0] == [[None, None]]


@pytest.mark.parametrize("text", ["{", "{}", "[1]"])
def test_foreign_json_is_refused(text):
    with pytest.raises(InputError, match="JSON"):
        Evaluation.from_json(text)


def test_text_tables(make_case):
    sets, outputs = make_case()
    result = evaluate(sets, outputs, metrics=["groups"])
    lines = result.to_markdown().splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].startswith("| Metric ")
    row = next(line for line in lines if "sex CovGap" in line)
    assert f"{result.tables['group:sex'].gap.value:.3f}" in row
    frame = result.tables["group:site"].to_frame()
    assert frame["bin"].tolist() == ["a", "b", "c"]
    # A bar in a name does not end its cell.
    lines = markdown_table(["a|b", "n"], [["c|", "|d|"]]).replace("\\|", "").splitlines()
    assert [line.count("|") for line in lines] == [3, 3, 3]
    assert frame["count"].sum() == 600


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["covgap"]}, "'covgap', which is none of conf_trust, conf_rank"),
        ({"metrics": "class"}, r"write metrics=\('class',\)"),
        ({"metrics": ["conf_trust"]}, "'conf_trust', which needs trust; pass trust="),
        ({"bins": {"class": Bins()}}, "'class', which is a metric already"),
        ({"bins": {"mine": "conf"}}, "bins 'mine' must be a Partition"),
        ({"bins": {"age": Groups("age")}}, "no group column 'age'"),
        ({"bins": {"conf_trust": Bins()}}, "pass trust="),
        ({"bins": [Bins()]}, "bins must map names to partitions; got list"),
        ({"metrics": 5}, "metrics must be a sequence of names"),
        ({"sets": np.ones(60, bool), "sizes": [1, 2], "alpha": 0.1}, "sizes must"),
    ],
)
def test_bad_arguments_are_named(make_case, options, message):
    sets, outputs = make_case(n=60)
    with pytest.raises(InputError, match=message):
        evaluate(**({"sets": sets, "outputs": outputs} | options))


def test_metrics_that_lack_data_say_what_to_pass(make_case, trust):
    sets, outputs = make_case(n=60)
    bare = ModelOutputs(logits=outputs.logits, labels=outputs.labels)
    with pytest.raises(InputError, match=r"groups.*pass groups="):
        evaluate(sets, bare, metrics=["groups"])
    with pytest.raises(InputError, match="evaluate needs labels"):
        evaluate(sets, ModelOutputs(logits=outputs.logits))
    with pytest.raises(InputError, match="60 sets for 50 samples"):
        evaluate(sets, outputs.take(slice(0, 50)))
    other = ModelOutputs(logits=outputs.logits[:, :5], labels=np.minimum(outputs.codes, 4))
    with pytest.raises(InputError, match="other classes"):
        evaluate(sets, other)


def test_a_single_sample_can_be_evaluated(make_case):
    sets, outputs = make_case(n=60)
    result = evaluate(sets[:1], outputs.take([0]))
    assert result.n == 1
    assert json.loads(result.to_json())["sizes"]["standard_error"] is None


PREDICTORS = {
    "standard": lambda trust: StandardConformal(),
    "bins": lambda trust: MondrianConformal(by=Bins(Trust(), counts=2), trust=trust),
    "groups": lambda trust: MondrianConformal(by=Groups("sex")),
    "conditional": lambda trust: ConditionalConformal(basis=Polynomial(1), trust=trust),
}


@pytest.mark.parametrize("alpha", [None, 0.25])
@pytest.mark.parametrize("name", PREDICTORS)
def test_a_predictor_is_evaluated_by_the_sets_it_makes(make_case, trust, name, alpha):
    """With its trust, the class frequencies of its calibration and their number."""
    _, calibration = make_case(n=300, seed=1)
    _, test = make_case(n=200)
    predictor = PREDICTORS[name](trust).calibrate(calibration)
    options = {} if alpha is None else {"alpha": alpha}
    result = evaluate(predictor, test, n_bootstrap=20, **options)
    sets = predictor.predict_set(test, alpha=alpha or 0.1)
    counts = np.bincount(predictor.calibration_.codes, minlength=6)
    has_trust = predictor.trust is not None
    same = evaluate(
        sets,
        test.with_trust(trust) if has_trust else test,
        bins={"conf_frequency": FrequencyBins(counts)},
        n_bootstrap=20,
    )
    assert ("conf_trust" in result.tables) == has_trust
    assert result.n_calibration == counts.sum()
    assert replace(result, n_calibration=None).to_json() == same.to_json()
    # Bins that are asked for take the place of its own.
    words = {"bins": {"conf_frequency": FrequencyBins(np.arange(1, 7))}, **FAST}
    asked, wanted = (evaluate(own, test, **words) for own in (predictor, sets))
    assert asked.tables["conf_frequency"].labels == wanted.tables["conf_frequency"].labels


def test_hits_and_sizes_are_evaluated_as_the_sets_are(make_case, trust):
    sets, outputs = make_case(n=300)
    outputs = outputs.with_trust(trust)
    covered = sets.covers(outputs.labels)
    result = evaluate(covered, outputs, sizes=sets.sizes, alpha=0.1, **FAST)
    assert result.to_json() == evaluate(sets, outputs, **FAST).to_json()
    with pytest.raises(InputError, match="sizes must be given"):
        evaluate(covered, outputs, alpha=0.1)


def test_bins_of_an_earlier_evaluation_serve_the_same_samples(make_case, trust):
    sets, outputs = make_case(n=300)
    other, _ = make_case(n=300, seed=5)
    outputs = outputs.with_trust(trust)
    first = evaluate(sets, outputs, **FAST)
    for again in (sets, other):
        shared = evaluate(again, outputs, bins=first.tables, **FAST)
        assert shared.to_json() == evaluate(again, outputs, **FAST).to_json()
    with pytest.raises(InputError, match="belong to other samples"):
        evaluate(sets[:100], outputs.take(slice(100)), bins=first.tables)
    with pytest.raises(InputError, match="belong to other samples"):
        evaluate(sets, outputs, bins=Evaluation.from_json(first.to_json()).tables)


UNWRAPPED = {"array": np.zeros((60, 6)), "list": [[0.5] * 6] * 60}


@pytest.mark.parametrize("function", [evaluate, find_regions, excess_risk])
@pytest.mark.parametrize("kind", UNWRAPPED)
def test_raw_arrays_are_told_how_to_be_wrapped(make_case, function, kind):
    sets, _ = make_case(n=60)
    with pytest.raises(InputError, match=r"^outputs must be ModelOutputs.*Wrap it: ModelOutputs"):
        function(sets, UNWRAPPED[kind])
    with pytest.raises(InputError, match=r"Wrap it: evaluate\(sets, ModelOutputs"):
        compare({"a": UNWRAPPED[kind][:1]})
    with pytest.raises(InputError, match="results must be a mapping"):
        compare(UNWRAPPED[kind])


@pytest.mark.parametrize("value", ["standard", None, TrustSetClassifier(None)])
@pytest.mark.parametrize("function", [evaluate, find_regions, excess_risk])
def test_what_is_no_sets_is_named(make_case, function, value):
    _, outputs = make_case(n=60)
    kind = type(value).__name__
    with pytest.raises(InputError, match=f"^sets must be PredictionSets.*got {kind}"):
        function(value, outputs, alpha=0.1)


@pytest.mark.parametrize("sizes", [["a"] * 60, np.full(60, 7), np.full(60, -1), np.full(60, 1.5)])
def test_sizes_are_whole_numbers_of_classes(make_case, sizes):
    _, outputs = make_case(n=60)
    with pytest.raises(InputError, match="sizes must be whole numbers from 0 to 6"):
        evaluate(np.ones(60, bool), outputs, alpha=0.1, sizes=sizes)
