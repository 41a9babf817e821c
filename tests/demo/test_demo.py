"""What the demo ships, measures and says."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import run as cli  # noqa: F401
from scipy.stats import beta, binomtest

import trustsets.cli
import trustsets.demo
from trustsets import ConditionalConformal, StandardConformal, TrustScore
from trustsets.demo import TASKS, Comparison, compare_methods, load
from trustsets.errors import InputError

DATA = Path(trustsets.demo.__file__).parent / "data"
SPLIT, MATCHED, CONDITIONAL = "split conformal", "same size", "trustsets"


@pytest.fixture(scope="module", params=sorted(TASKS))
def task(request):
    return load(request.param)


@pytest.fixture(scope="module")
def result(task, tmp_path_factory) -> Comparison:
    return compare_methods(task, tmp_path_factory.mktemp("demo") / "page.html")


class TestTasks:
    def test_halves_are_disjoint_and_complete(self, task):
        rows = np.sort(np.concatenate([task.calibration.rows, task.test.rows]))
        np.testing.assert_array_equal(rows, np.arange(rows.size))
        assert abs(len(task.calibration) - len(task.test)) <= 1
        for part in (task.calibration, task.test):
            assert part.features is not None and part.labels is not None
            assert (part.require_trust("the test") > 0).all()

    def test_a_seed_gives_the_same_task_and_another_seed_another(self, task):
        again, other = load(task.name), load(task.name, seed=1)
        np.testing.assert_array_equal(again.test.logits, task.test.logits)
        assert not np.array_equal(other.test.logits, task.test.logits)

    def test_the_real_network_is_small_and_overconfident_and_its_classes_have_names(self):
        assert (DATA / "cifar100.npz").stat().st_size < 4e6
        test = load("real").test
        accuracy = (test.predicted == test.labels).mean()
        assert 0.74 < accuracy < 0.78 and test.confidence.mean() > accuracy + 0.05
        assert {"apple", "sweet pepper", "worm"} <= set(test.classes.tolist())
        # Labels and logits belong together in each class, and trust tells right from wrong.
        right = test.predicted == test.labels
        assert min(right[test.codes == code].mean() for code in range(100)) > 0.3
        assert np.median(test.trust[right]) > np.median(test.trust[~right]) + 0.3

    def test_trust_images_and_training_samples_of_the_digits_belong_together(self):
        task = load("digits")
        fitted = TrustScore().fit(task.train.features, task.train.labels)
        expected = fitted.score(task.test.features, task.test.predicted)
        np.testing.assert_allclose(task.test.trust, expected)
        assert len(task.train_images) == len(task.train)
        # The mean image of a digit is nearer to its own images than to those of other digits.
        means = [task.train_images[task.train.codes == own].mean(axis=0) for own in range(10)]
        distances = ((task.images[task.test.rows][:, None] - np.array(means)) ** 2).sum((2, 3))
        assert (distances.argmin(axis=1) == task.test.codes).mean() > 0.7

    def test_another_name_is_refused(self):
        with pytest.raises(InputError, match="name must be one of real, digits; got 'faces'"):
            load("faces")


def cell_of(test, cell):
    """Samples of a cell, from the words of its ranges."""
    ends = [float(text) for text in re.findall(r"[\d.]+", cell.confidence)]
    low, high = (0.0, *ends) if len(ends) == 1 else ends
    inside = (test.confidence > low / 100) & (test.confidence <= high / 100)
    edge = float(re.search(r"[\d.]+", cell.trust)[0])
    return inside & (test.trust < edge if cell.trust.startswith("<") else test.trust >= edge)


class TestComparison:
    def test_numbers_are_those_of_the_predictors_and_a_page_has_them(self, task, result):
        page = Path(result.report).read_text(encoding="utf-8")
        assert page.startswith("<!doctype html>") and result.title in page
        standard = StandardConformal().calibrate(task.calibration)
        conditional = ConditionalConformal(trust=task.trust).calibrate(task.calibration)
        sets = {
            SPLIT: standard.predict_set(task.test, alpha=0.1),
            MATCHED: standard.predict_set(task.test, alpha=result.methods[MATCHED].alpha),
            CONDITIONAL: conditional.predict_set(task.test, alpha=0.1),
        }
        covered = {name: own.covers(task.test.labels) for name, own in sets.items()}
        for name, own in sets.items():
            assert result.methods[name].coverage == covered[name].mean()
            assert result.methods[name].size == own.sizes.mean()
        assert sets[MATCHED].sizes.mean() == pytest.approx(sets[CONDITIONAL].sizes.mean(), rel=0.02)
        for cell in result.cells:
            inside = cell_of(task.test, cell)
            wins = (covered[CONDITIONAL] & ~covered[MATCHED])[inside].sum()
            losses = (covered[MATCHED] & ~covered[CONDITIONAL])[inside].sum()
            expected = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
            assert cell.p_value == pytest.approx(expected)

    def test_the_spread_counts_both_sources_of_variability(self, task, result):
        variance = 0.09 / len(task.calibration) + 0.09 / len(task.test)
        said = float(re.search(r"varies by about ([\d.]+) points", result.setting)[1])
        assert said == pytest.approx(200 * np.sqrt(variance), abs=0.051)

    def test_cells_are_disjoint_and_large_and_their_intervals_exact(self, task, result):
        for cell in result.cells:
            inside = cell_of(task.test, cell)
            assert cell.n == inside.sum() >= 30
            assert cell.accuracy == (task.test.predicted == task.test.labels)[inside].mean()
            for own in cell.methods.values():
                hits = round(own.coverage * cell.n)
                assert own.lower == pytest.approx(beta.ppf(0.025, hits, cell.n - hits + 1))
        assert sum(cell.n for cell in result.cells) > 0.95 * len(task.test)

    def test_three_samples_are_told_truthfully(self, task, result):
        assert len(result.examples) == 3
        row_of = {int(row): place for place, row in enumerate(task.test.rows)}
        for (title, *lines), kind in zip(result.examples, [(0, 1), (1, 0), (1, 1)], strict=True):
            row, label = re.search(r"Sample (\d+): ([\w ]+)\. The network says", title).groups()
            place = row_of[int(row)]
            assert label == str(task.test.labels[place])
            assert f"says {task.test.predicted[place]} " in title
            listed = [line.partition(":")[2].strip().split(", ") for line in lines]
            assert tuple(int(label in own) for own in listed) == kind

    def test_the_finding_follows_the_numbers(self, result):
        """Whatever was measured: the worst cell is named, and every cell where it does worse."""
        cells = [
            replace(
                cell,
                methods={
                    SPLIT: replace(cell.methods[SPLIT], coverage=0.5 + number / 100),
                    MATCHED: replace(cell.methods[MATCHED], coverage=0.8),
                    CONDITIONAL: replace(cell.methods[CONDITIONAL], coverage=0.8 + sign / 10),
                },
            )
            for (number, cell), sign in zip(
                enumerate(result.cells), [1, -1, 0, 1, -1], strict=False
            )
        ]
        text = replace(result, cells=cells).finding
        assert f"do worst at {cells[0]}: they cover 50%" in text
        assert "any cell is 50%, 80% and 70%" in text
        named = [str(cell) for cell in cells if f"{cell} (p" in text]
        worse = [
            str(cell)
            for cell in cells
            if cell.methods[CONDITIONAL].coverage < cell.methods[MATCHED].coverage
        ]
        assert named == worse
        assert "too few samples" in replace(result, cells=[]).finding


class TestCommand:
    """The command on what was measured above; the test of the wheel runs all of it."""

    @pytest.fixture
    def demo(self, result, tmp_path, monkeypatch, cli):  # noqa: F811
        monkeypatch.setattr(trustsets.demo, "compare_methods", lambda *_, **options: result)
        monkeypatch.setenv("COLUMNS", "80")
        return lambda *words, **more: cli("demo", "--output", tmp_path, *words, **more)

    def test_text_and_json_have_the_same_numbers(self, demo, result):
        out = demo().out
        assert result.report in out
        lines = [line for line in out.splitlines() if not line.startswith("  /")]
        assert max(map(len, lines)) <= 80 and "\x1b" not in out
        if result.title.endswith("CIFAR-100"):
            assert "defaults of this package were chosen on" in " ".join(out.split())
        methods = json.loads(demo("--json").out)["methods"]
        assert list(methods) == [SPLIT, MATCHED, CONDITIONAL]
        for name, own in methods.items():
            assert name in out and f"{own['size']:.2f}" in out
            assert f"{100 * own['coverage']:.1f}%" in out

    @pytest.mark.parametrize("terminal", [True, False])
    def test_rows_of_tables_are_single_lines(self, terminal, demo, result, monkeypatch):
        """The second table wrapped at 80 columns."""
        monkeypatch.setattr(trustsets.cli, "_width", lambda stream: 80 if terminal else None)
        _, out, _ = demo()
        lines = [" ".join(line.split()) for line in out.splitlines()]
        tables = [part for part in result.story if isinstance(part, tuple)]
        for header, rows in tables:
            for words in (header, *rows):
                assert " ".join(words).strip() in lines

    @pytest.mark.parametrize("arguments", [["--task", "faces"], ["--output", "FILE/x"]])
    def test_bad_input_ends_with_code_2(self, arguments, demo, tmp_path):
        (tmp_path / "FILE").write_text("")
        words = [text.replace("FILE", str(tmp_path / "FILE")) for text in arguments]
        _, out, err = demo(*words, code=2)
        assert out == "" and "Traceback" not in err
        assert "faces" in arguments or err.count("\n") == 1
        assert ("faces" if "faces" in arguments else str(tmp_path / "FILE")) in err
