import json

import numpy as np
import pytest

from trustsets import InputError, compare, evaluate
from trustsets.metrics import Comparison


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
    assert table.columns[:3] == ("coverage", "size", "class.gap")
    assert table.columns[3:] == (
        "group:sex.gap",
        "group:sex.worst",
        "group:site.gap",
        "group:site.worst",
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


def test_best_within_a_tenth_is_bold(runs):
    found = runs(0.9, seeds=(0,))[0]
    text = found.to_json()

    def with_gap(value):
        data = json.loads(text)
        data["tables"]["class"]["gap"]["value"] = value
        return type(found).from_json(json.dumps(data))

    results = {"a": with_gap(4.38), "b": with_gap(4.28), "c": with_gap(4.39), "d": with_gap(9.0)}
    table = compare(results, columns=["coverage", "class.gap"])
    assert [row[1].best for row in table.entries] == [True, True, False, False]
    assert not any(row[0].best for row in table.entries)
    lines = table.to_markdown().splitlines()
    assert "**4.38**" in lines[2]
    assert "**4.39**" not in lines[4]
    assert r"\textbf{4.28}" in table.to_latex()


def test_worst_coverage_is_best_when_high(runs):
    table = compare({"good": runs(0.97), "bad": runs(0.7)}, columns=["group:site.worst"])
    assert [row[0].best for row in table.entries] == [True, False]


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
    latex = table.to_latex()
    assert latex.count(r"\midrule") == 2
    assert r"\multicolumn{1}{c}{\textbf{Conditional}}" in latex


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
    assert r"a\_b" in table.to_latex()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own: ({},), "at least one method"),
        (lambda own: ({"a": []},), r"results\['a'\] must be an Evaluation or a non-empty list"),
        (lambda own: ({"a": own, ("x", "b"): own},), "equally many parts"),
    ],
)
def test_bad_arguments_are_named(runs, change, message):
    with pytest.raises(InputError, match=message):
        compare(*change(runs(0.9)))


def test_only_what_is_shared_can_be_compared(runs):
    own = runs(0.9)
    with pytest.raises(InputError, match="'slab', which not every evaluation has"):
        compare({"a": own}, columns=["slab"])
    with pytest.raises(InputError, match="share alpha and level"):
        compare({"a": own, "b": runs(0.9, alpha=0.2)})
