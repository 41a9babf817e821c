"""What the demo says is what it measured, and stays true whatever that is."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trustsets import ModelOutputs, TrustScore
from trustsets.cli import demo as command
from trustsets.demo import MethodResult, TaskResult, compare_methods, simulated_task, story
from trustsets.demo.comparison import contradicted
from trustsets.metrics.plain import from_plain, to_plain
from trustsets.report import percent


@pytest.fixture(scope="module")
def task():
    return simulated_task(0, n_train=400, n_pool=1600, n_classes=15, n_features=6)


@pytest.fixture(scope="module")
def result(task, tmp_path_factory) -> TaskResult:
    return compare_methods(task, tmp_path_factory.mktemp("demo") / "page.html", seed=0)


def method(coverage: float, size: float = 2.0, there: float | None = None) -> MethodResult:
    there = coverage if there is None else there
    return MethodResult(coverage, size, there, there - 0.02, there + 0.02, size + 1.0, 3.0, 1.0)


def made_up(standard: float, conditional: float, **changes) -> TaskResult:
    plain = TaskResult(
        task="t",
        title="T",
        about="About.",
        alpha=0.1,
        n_classes=10,
        n_calibration=500,
        n_test=500,
        n_contradicted=100,
        accuracy=0.7,
        confidence=0.8,
        calibration_error=0.1,
        contradicted_accuracy=0.4,
        contradicted_confidence=0.75,
        methods={
            "STANDARD": method(0.9, 2.0, standard),
            "NAIVE": method(0.9, 2.5, 0.88),
            "CONDITIONAL": method(0.9, 3.0, conditional),
        },
        grown_coverage=0.85,
        grown_size=3.0,
        p_value=0.001,
        report="page.html",
    )
    return replace(plain, **changes)


class TestComparison:
    def test_contradicted_means_that_the_nearest_training_sample_is_of_another_class(self, task):
        trust = TrustScore().fit(task.train.features, task.train.labels)
        pool = task.pool
        values = trust.score(pool.features, pool.predicted)
        train, new = (
            part.features / np.linalg.norm(part.features, axis=1, keepdims=True)
            for part in (task.train, pool)
        )
        nearest = task.train.codes[(new @ train.T).argmax(axis=1)]
        expected = (nearest != pool.predicted_codes) & (pool.confidence >= 0.5)
        assert (contradicted(pool, values) == expected).mean() > 0.999

    def test_numbers_are_those_of_the_sets(self, task, result):
        from trustsets import StandardConformal

        calibration, test = task.pool.split(0.5, seed=0)
        sets = StandardConformal().calibrate(calibration).predict_set(test, alpha=0.1)
        trust = TrustScore().fit(task.train.features, task.train.labels)
        chosen = contradicted(test, trust.score(test.features, test.predicted))
        covered = sets.covers(test.labels)
        truth = (sets.mask * task.label_probabilities[test.rows]).sum(axis=1)
        own = result.standard
        assert own.coverage == pytest.approx(covered.mean())
        assert own.contradicted_coverage == pytest.approx(covered[chosen].mean())
        assert own.contradicted_size == pytest.approx(sets.sizes[chosen].mean())
        assert own.low_coverage == pytest.approx((truth < 0.8).mean())
        assert result.n_contradicted == chosen.sum()

    def test_grown_standard_sets_are_at_least_as_large_as_the_conditional_ones(self, result):
        assert result.grown_size >= min(result.conditional.size, result.n_classes)
        assert result.grown_coverage >= result.standard.contradicted_coverage

    def test_the_report_speaks_of_the_same_inputs(self, result):
        page = Path(result.report).read_text(encoding="utf-8")
        assert "Contradicted samples" in page
        assert percent(result.standard.contradicted_coverage) in page

    def test_every_step_is_announced_once(self, task, tmp_path):
        from contextlib import nullcontext

        said: list[str] = []

        def step(text: str):
            said.append(text)
            return nullcontext()

        compare_methods(task, tmp_path / "page.html", step=step)
        assert len(said) == len(set(said)) == 5

    def test_a_task_without_contradicted_inputs_is_no_error(self, task, tmp_path):
        sure = task.pool.predicted_codes
        far = replace(
            task,
            # Features that are the predicted class itself agree with every prediction.
            train=ModelOutputs(
                logits=task.train.logits,
                features=np.eye(15)[task.train.codes] + 0.1,
                labels=task.train.labels,
            ),
            pool=ModelOutputs(
                logits=task.pool.logits, features=np.eye(15)[sure] + 0.1, labels=task.pool.labels
            ),
        )
        found = compare_methods(far, tmp_path / "page.html")
        assert found.n_contradicted == 0
        assert np.isnan(found.standard.contradicted_coverage)
        assert "cannot tell" in story.finding(found)
        assert not any("contradicted" in row[0] for row in story.rows(found))
        assert "None of" in story.setting(found)
        assert "nan" not in str(to_plain(found)).lower()

    def test_results_survive_json(self, result):
        assert from_plain(TaskResult, to_plain(result)) == result


class TestWords:
    def test_numbers_in_the_sentences_are_those_of_the_result(self, result):
        said = [int(text) for text in re.findall(r"(\d+)%", story.finding(result))]
        own = result.methods
        shares = [own[name].contradicted_coverage for name in ("STANDARD", "CONDITIONAL", "NAIVE")]
        shares += [result.grown_coverage] * (result.conditional.size > result.standard.size)
        shares += [0.8, *(own[name].low_coverage for name in ("STANDARD", "CONDITIONAL", "NAIVE"))]
        expected = [100 * share for share in [0.9, *shares]]
        assert len(said) == len(expected)
        np.testing.assert_allclose(said, expected, atol=0.5001)
        assert f"{result.conditional.size:.2f} classes" in story.finding(result)

    def test_the_headline_has_the_numbers_and_admits_what_does_as_well(self, result):
        first, more = story.headline(result)
        own = result.methods
        said = [int(text) for text in re.findall(r"(\d+)%", first + more)]
        shares = [own[name].contradicted_coverage for name in ("STANDARD", "CONDITIONAL", "NAIVE")]
        shares += [result.grown_coverage] * (result.conditional.size > result.standard.size)
        np.testing.assert_allclose(said, 100 * np.array(shares), atol=0.5001)
        assert f"{result.conditional.size:.2f} classes a set" in more
        assert "no less" not in story.headline(made_up(0.80, 0.90))[1]
        assert (
            "it covers 91%, which is no less"
            in story.headline(made_up(0.80, 0.90, grown_coverage=0.91))[1]
        )
        assert "NAIVE covers 88%, which is no less" in story.headline(made_up(0.80, 0.87))[1]
        assert "may be noise" in story.headline(made_up(0.80, 0.90, p_value=0.2))[0]
        assert "no sample" in story.headline(made_up(0.8, 0.9, n_contradicted=0))[0]

    def test_higher_coverage_is_told_with_the_size_of_its_sets(self):
        said = story.finding(made_up(0.80, 0.90))
        assert "only 80%" in said and "sets for 90% (NAIVE: 88%)." in said
        assert "larger: 3.00 classes on average instead of 2.00." in said
        assert "enlarged to that size would reach 85%." in said

    def test_a_method_that_does_worse_is_not_praised(self):
        lost = made_up(0.80, 0.70)
        assert "CONDITIONAL does worse" in story.finding(lost)
        assert "CONDITIONAL sets do not cover significantly more." in story.take_away([lost])
        assert "in none of them" in story.take_away([lost, lost])
        assert "larger" not in story.take_away([lost])

    def test_a_difference_that_is_not_significant_is_called_so(self):
        doubt = made_up(0.80, 0.90, p_value=0.2)
        assert "noise alone can explain" in story.finding(doubt)
        assert "CONDITIONAL sets do not cover significantly more." in story.take_away([doubt])

    def test_size_that_would_do_as_well_is_admitted(self):
        assert "size alone" in story.finding(made_up(0.80, 0.90, grown_coverage=0.91))
        assert "size alone" not in story.finding(made_up(0.80, 0.90))

    def test_where_standard_holds_nothing_is_claimed(self):
        fine = made_up(0.90, 0.95)
        assert "only" not in story.finding(fine)
        assert "is not significantly too low" in story.take_away([fine])

    def test_the_take_away_counts_tasks(self):
        short, fine, lost = made_up(0.8, 0.9), made_up(0.9, 0.9), made_up(0.8, 0.7)
        assert "in all 3 tasks" in story.take_away([short] * 3)
        assert "in each of them, but are larger" in story.take_away([short] * 3)
        assert "too little in both tasks" in story.take_away([short, lost])
        assert "in 1 of them" in story.take_away([short, lost])
        assert "too little in 1 of 3 tasks" in story.take_away([short, fine, fine])
        assert "in this task" in story.take_away([short])

    def test_smaller_sets_are_not_called_larger(self):
        own = made_up(0.80, 0.90)
        small = own.methods | {"CONDITIONAL": method(0.9, 1.5, 0.90)}
        said = story.finding(replace(own, methods=small))
        assert "1.50 classes on average, STANDARD sets 2.00" in said and "larger" not in said

    def test_rows_mark_what_falls_short(self):
        table = story.rows(made_up(0.80, 0.90))
        there = next(row for row in table if "contradicted" in row[0])
        assert there[1:] == ("[red]80.0%[/]", "[green]88.0%[/]", "[green]90.0%[/]")


def test_three_tasks_fit_one_screen(monkeypatch, capsys, tmp_path):
    """24 lines of 80 columns, whatever the terminal; the longest titles that there are."""
    monkeypatch.setenv("COLUMNS", "80")
    titles = ["Handwritten digits", "Functions of Python's standard library", "Simulated long tail"]
    page = str(tmp_path / "page.html")
    results = [made_up(0.8, 0.9, title=title, report=page, p_value=0.06) for title in titles]
    for place, result in enumerate(results):
        command._show(result, False, first=place == 0)
    command._close(results)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(len(line) for line in lines if not line.startswith("  ")) <= 80
    assert sum(title in "\n".join(lines) for title in titles) == 3
