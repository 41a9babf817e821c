"""Laws of the benchmark of conditional coverage: splits, equal sizes, measures, sources, pieces."""

import argparse
import importlib.util
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import data_sets
import evidence
import measures
import numpy as np
import pytest
from coverage_page import Results, holm, interval
from data_sets import DATA_SETS, DataSet, Library, Source, Task, Trained
from measures import Judge
from methods import METHODS, REFERENCE
from splits import ALPHA, Split

judged = pytest.mark.skipif(
    importlib.util.find_spec("covmetrics") is None, reason="needs covmetrics, see make evidence"
)


def task_of(n: int = 1200, n_classes: int = 6, seed: int = 0, **changes) -> Task:
    """A pool of simulated outputs, with groups and known label probabilities."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(n, n_classes))
    truth = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    features = rng.normal(size=(n, 8)).astype(np.float32)
    fields = {
        "kind": "logits",
        "values": 1.7 * logits,
        "features": features,
        "labels": (logits + rng.gumbel(size=logits.shape)).argmax(axis=1),
        "trust": rng.lognormal(size=n),
        "paper_trust": rng.lognormal(size=n),
        "raw": features[:, :3],
        "groups": {"site": rng.choice(["a", "b"], size=n)},
        "truth": truth,
        "seconds": 0.0,
        "trust_seconds": 0.0,
    }
    return Task(**(fields | changes))


def test_a_split_has_two_disjoint_halves_and_a_limit() -> None:
    task = task_of()
    split = Split.draw(task, 3, largest_test=500)
    assert len(split.calibration) == 600
    assert len(split.test) == 500
    assert not set(split.calibration) & set(split.test)
    again = Split.draw(task, 3, largest_test=500)
    np.testing.assert_array_equal(split.test, again.test)
    assert (split.test != Split.draw(task, 4, largest_test=500).test).any()


def test_sets_of_equal_size_have_that_size_and_are_nested() -> None:
    split = Split.draw(task_of(), 1)
    judge = Judge(split)
    conformal = METHODS[REFERENCE].fit(split)()
    np.testing.assert_array_equal(judge.of_size(int(conformal.sum())), conformal)
    smaller = judge.of_size(judge.n)
    for order in (judge.order, judge.lac_order):
        for total in (judge.n + 1, 2 * judge.n + 7, 4 * judge.n):
            mask = judge.of_size(total, order)
            assert mask.sum() == total
            assert mask.any(axis=1).all()
    assert smaller.sum(axis=1).max() == 1
    assert (judge.of_size(3 * judge.n) & ~judge.of_size(3 * judge.n + 1)).sum() == 0


@judged
def test_excess_risk_sees_what_was_planted() -> None:
    task = task_of(n=8000)
    judge = Judge(Split.draw(task, 1, largest_test=4000))
    rng = np.random.default_rng(0)
    side = task.raw[judge.split.test][:, 0] > 0.0
    even = rng.random(judge.n) < 1.0 - ALPHA
    uneven = rng.random(judge.n) < np.where(side, 0.7, 1.0)
    columns = judge.columns["raw_ert"]
    assert abs(judge._excess_risk("ert", columns, even)["ert"]) < 1.5
    # Half of the samples lack 20 points and half have 10 too many: 15 in all, 10 of them under.
    numbers = judge._excess_risk("ert", columns, uneven)
    assert numbers["ert"] == pytest.approx(15.0, abs=2.0)
    assert numbers["ert_under"] == pytest.approx(10.0, abs=2.0)


@judged
def test_the_floor_is_what_sets_with_the_top_class_cannot_avoid() -> None:
    """Against the truth, from which a judge that sees nothing would be 5 points away."""
    logits = 8.0 * np.random.default_rng(1).normal(size=(6000, 4))
    truth = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (logits + np.random.default_rng(2).gumbel(size=logits.shape)).argmax(axis=1)
    features = np.random.default_rng(3).normal(size=(6000, 8)).astype(np.float32)
    task = task_of(6000, 4, values=logits, truth=truth, labels=labels, features=features)
    judge = Judge(Split.draw(task, 1))
    best = truth[judge.split.test].max(axis=1)
    unavoidable = 100.0 * np.maximum(best - 0.9, 0.0).mean()
    floor = judge.over_coverage(judge.of_size(judge.n))
    assert unavoidable > 5.0 and abs(floor["ert"] - unavoidable) < 0.6
    assert floor["raw_ert"] < 1.0
    for size in (1.2, 1.5, 2.0):
        assert judge.over_coverage(judge.of_size(int(size * judge.n)))["ert"] > floor["ert"] - 0.3


@judged
def test_measures_agree_with_loops() -> None:
    task = task_of()
    judge = Judge(Split.draw(task, 1))
    rng = np.random.default_rng(1)
    mask = rng.random((judge.n, 6)) < 0.8
    numbers = judge.measure(mask)
    covered = np.array([mask[i, label] for i, label in enumerate(judge.labels)])
    classes = [max(0.0, 0.9 - covered[judge.labels == k].mean()) for k in range(6)]
    assert numbers["coverage"] == covered.mean()
    assert numbers["class_under"] == pytest.approx(100.0 * np.mean(classes))
    sites = task.groups["site"][judge.split.test]
    groups = [max(0.0, 0.9 - covered[sites == site].mean()) for site in ("a", "b")]
    assert numbers["worst_group"] == pytest.approx(100.0 * max(groups))
    cells = [
        (judge.cells == cell).sum() * max(0.0, 0.9 - covered[judge.cells == cell].mean())
        for cell in np.unique(judge.cells)
    ]
    assert numbers["conf_trust_under"] == pytest.approx(100.0 * sum(cells) / judge.n)
    assert len(np.unique(judge.cells)) == 40
    true = [(task.truth[row] * mask[i]).sum() for i, row in enumerate(judge.split.test)]
    assert numbers["true_below"] == pytest.approx(100.0 * np.mean(np.array(true) < 0.8))


def test_worst_slab_finds_a_planted_one_and_judges_it_on_other_samples() -> None:
    task = task_of(n=6000, features=np.random.default_rng(5).normal(size=(6000, 1)))
    judge = Judge(Split.draw(task, 1))
    component = judge.columns["ert"][:, -1]
    covered = ~(component > np.quantile(component, 0.85))
    assert judge._worst_slab(covered) > 40.0
    noise = np.random.default_rng(0).random(judge.n) < 0.9
    assert judge._worst_slab(noise) < 12.0


@pytest.mark.parametrize("name", ["simulated_regions", "simulated_tail"])
def test_labels_of_simulated_sets_are_drawn_from_their_probabilities(name: str) -> None:
    trained = DATA_SETS[name].make(Library())
    np.testing.assert_allclose(trained.truth.sum(axis=1), 1.0)
    observed = trained.truth[np.arange(len(trained.labels)), trained.labels].mean()
    assert observed == pytest.approx((trained.truth**2).sum(axis=1).mean(), abs=0.02)


def test_training_samples_have_every_class_and_no_pool_sample() -> None:
    labels = np.repeat(np.arange(9), 2 ** np.arange(1, 10))
    train, pool = data_sets._parts(labels, 100, 500)
    assert set(labels[train]) == set(range(9))
    assert len(train) == 100
    assert not set(train) & set(pool)


def test_other_content_than_expected_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "owner+name"
    folder.mkdir()
    (folder / "a.csv").write_text("1,2")
    source = Source("owner/name", "free", "3 B", {"a.csv": "0" * 64})
    with pytest.raises(ValueError, match="SHA-256"):
        Library(tmp_path / "cache", tmp_path).read(source, "a.csv")


def test_a_bare_repository_and_a_folder_give_the_same_file(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.csv").write_text("1,2")
    commands = (
        ["git", "init", "-q"],
        ["git", "add", "."],
        ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "-m", "a"],
        ["git", "clone", "-q", "--bare", ".", str(tmp_path / "owner+name" / "repo")],
    )
    for command in commands:
        subprocess.run(command, cwd=work, check=True)
    digest = data_sets.hashlib.sha256(b"1,2").hexdigest()
    source = Source("owner/name", "free", "3 B", {"a.csv": digest})
    assert Library(tmp_path / "cache", tmp_path).read(source, "a.csv") == b"1,2"


def make_small(library: Library) -> Trained:
    """A set that takes no time to make."""
    task = task_of(400)
    return Trained(
        labels=task.labels,
        features=task.features,
        raw=task.raw,
        logits=task.values,
        train_features=task.features[:50],
        train_labels=task.labels[:50],
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> DataSet:
    data = DataSet("small", "table", "model", "columns", "columns", make_small)
    monkeypatch.setitem(DATA_SETS, "small", data)
    chosen = {name: METHODS[name] for name in (REFERENCE, "default")}
    monkeypatch.setitem(evidence.PARTS, "package", chosen)
    monkeypatch.setitem(evidence.PARTS, "peers", {})
    monkeypatch.setattr(measures, "SLAB_DIRECTIONS", 10)
    return data


@judged
@pytest.mark.filterwarnings("ignore")
def test_a_second_run_gives_the_same_numbers(small: DataSet, tmp_path: Path) -> None:
    runs = []
    for folder in ("first", "second"):
        library = Library(tmp_path / folder)
        small.load(library)
        evidence.run_split("package", "small", 1, library)
        runs.append(json.loads(evidence.result_path("package", "small", 1, library).read_text()))
    for name, row in runs[0].items():
        assert row["at_alpha"] == runs[1][name]["at_alpha"]
        assert row["equal_size"] == runs[1][name]["equal_size"]
        assert row["equal_size"]["size"] == pytest.approx(row["at_alpha"]["size"])


@judged
@pytest.mark.filterwarnings("ignore")
def test_what_is_summarised_is_what_was_run(small: DataSet, tmp_path: Path) -> None:
    library = Library(tmp_path)
    small.load(library)
    rows = []
    for seed in (1, 2, 3):
        evidence.run_split("package", "small", seed, library)
        rows.append(json.loads(evidence.result_path("package", "small", seed, library).read_text()))
    options = argparse.Namespace(splits=10, parts=["package"])
    summary = evidence.summarize(options, [small], library)
    results = Results(summary)
    assert summary["sets"]["small"]["splits"] == 3
    expected = [row["default"]["at_alpha"]["ert"] for row in rows]
    mean, deviation = results.pair("small", "default", "at_alpha", "ert")
    assert mean == pytest.approx(np.mean(expected), rel=1e-3, abs=1e-3)
    assert deviation == pytest.approx(np.std(expected, ddof=1), rel=1e-3)
    paired = [row["default"]["at_alpha"]["ert"] - row[REFERENCE]["at_alpha"]["ert"] for row in rows]
    difference, _ = results.pair("small", REFERENCE, "default_minus_it", "ert")
    assert difference == pytest.approx(np.mean(paired), rel=1e-3, abs=1e-3)


def test_results_of_other_data_or_code_are_not_reused(
    small: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path)
    small.load(library)
    before = evidence.result_path("package", "small", 1, library)
    monkeypatch.setattr(evidence, "fingerprint", lambda part: "other")
    assert evidence.result_path("package", "small", 1, library).parent != before.parent
    monkeypatch.undo()
    (tmp_path / "tasks" / "small.npz").unlink()
    trained = make_small(library)
    other = replace(small, make=lambda _: replace(trained, logits=trained.logits + 1e-9))
    other.load(library)
    assert evidence.result_path("package", "small", 1, library).name != before.name


def test_holm_and_interval() -> None:
    # Sorted: 0.001 < .05/4, 0.01 < .05/3, 0.03 > .05/2, so two are rejected.
    assert holm([0.03, 0.001, 0.01, 0.5]) == [False, True, True, False]
    low, high = interval([1.0, 2.0, 3.0])
    assert (low + high) / 2 == pytest.approx(2.0)
    assert high - low == pytest.approx(2 * 4.302652729911275 / 3**0.5)
