import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from small_runs import QUICK, small_source

from trustsets import compare
from trustsets.metrics import Correlation
from trustsets_paper import tables
from trustsets_paper.pages import differences, write_run
from trustsets_paper.protocol import (
    CONDITIONAL,
    DEFAULT,
    MATCHED,
    NAIVE,
    STANDARD,
    Cell,
    Experiment,
)
from trustsets_paper.sources import PAPER_DATASETS as DATASETS
from trustsets_paper.tables import (
    CLAIMS,
    MARK,
    Claim,
    Number,
    Printed,
    claims_rows,
    correlation_table,
    judge,
    paper_tables,
    printed_correlation,
    printed_values,
    share_by_chance,
)


@pytest.fixture(scope="module")
def runs():
    """Runs under a name that the paper knows, under another, and with a fixed split."""
    sources = {
        "paper": small_source("places365"),
        "other": small_source("small"),
        "fixed": small_source("places365-lt", fixed=True),
    }
    return {key: Experiment(own, QUICK).run() for key, own in sources.items()}


def number(mean, error, printed, printed_error):
    return Number(mean, error, printed=Printed(printed, printed_error))


@pytest.mark.parametrize(
    ("found", "differs"),
    [
        (number(4.32, 0.0, 4.32, 0.0), False),
        (number(4.3249, 0.0, 4.32, 0.0), False),  # rounding of print
        (number(4.3251, 0.0, 4.32, 0.0), True),
        (number(5.0, 0.3, 4.0, 0.4), False),  # the error of the difference is 0.5
        (number(5.01, 0.3, 4.0, 0.4), True),
        (number(2.98, 0.3, 4.0, 0.4), True),
        (number(4.1, math.nan, 4.0, 0.05), False),
        (Number(9.0, 0.0), False),
        # Six digits leave no room for rounding.
        (Number(4.3249, 0.0, printed=Printed(4.32, 0.0, 4.318164, 0.0)), True),
        # The same test samples: their sampling error cancels, and only the printed error counts.
        (replace(number(4.5, 0.3, 4.0, 0.1), paired=True), True),
        (replace(number(4.2, 0.3, 4.0, 0.1), paired=True), False),
    ],
)
def test_difference_from_print(found, differs):
    assert found.differs is differs


@pytest.mark.parametrize("paired", [False, True])
def test_chance_marks_the_stated_share(paired):
    """Both sides are means of ten seeds of the same law, or one is and the other is exact."""
    rng = np.random.default_rng(0)
    sides = rng.normal(size=(2, 20_000, 10))
    means, errors = sides.mean(axis=2), sides.std(axis=2) / np.sqrt(10)
    if paired:
        means[0] = errors[0] = 0.0
    ours, theirs = np.stack([means, errors], axis=2)
    marked = [
        Number(*one, printed=Printed(*other, *other), paired=paired).differs
        for one, other in zip(ours, theirs, strict=True)
    ]
    assert np.mean(marked) == pytest.approx(share_by_chance(10, paired=paired), abs=0.006)


def test_tables_hold_means_and_standard_errors_over_seeds(runs):
    run = runs["other"]
    tables = {table.number: table for table in paper_tables(run)}
    assert list(tables) == [1, 2, 4, 5, None]
    degrees = [(*row.block, row.name) for row in tables[None].rows]
    assert degrees == [("softmax", "2"), ("APS", "1"), ("APS", "2")]
    row = next(row for row in tables[5].rows if (*row.block, row.name) == ("softmax", CONDITIONAL))
    values = [item.sizes.mean for item in run.evaluations[Cell("softmax", CONDITIONAL, 2)]]
    size = row.numbers[tables[5].columns.index("size")]
    assert size.mean == pytest.approx(np.mean(values))
    # As in the printed tables: the standard deviation divides by the number of seeds.
    assert size.standard_error == pytest.approx(np.std(values, ddof=0) / np.sqrt(len(values)))


def test_bold_and_floor_are_those_of_compare(runs):
    run = runs["other"]
    table = paper_tables(run)[0]
    methods = [(STANDARD, None), (NAIVE, None), (CONDITIONAL, 2)]
    results = {name: run.evaluations[Cell("APS", name, degree)] for name, degree in methods}
    wanted = compare(results, columns=table.columns)
    # The package's rows do not compete.
    assert [row.name for row in table.rows] == [*results, MATCHED, DEFAULT]
    assert not any(number.best for row in table.rows[3:] for number in row.numbers)
    for row, entries in zip(table.rows[:3], wanted.entries, strict=True):
        assert [n.best for n in row.numbers] == [entry.best for entry in entries]
        floors = [entry.floor for entry in entries]
        assert [n.floor for n in row.numbers] == pytest.approx(floors, nan_ok=True)


def test_printed_numbers_stand_beside_ours_where_the_paper_has_them(runs):
    tables = paper_tables(runs["paper"])
    compared = differences(tables)
    # Table 1: 3 methods; 4: 3 and PCA; 5: 3 for each of the two scores; table 2 is another set's.
    assert len(compared) == 5 * (3 + 4 + 6)
    for item in compared:
        place = (item["table"], "places365", item["score"], item["method"], item["column"])
        printed = printed_values()[place]
        assert (item["printed"], item["notebook"]) == (printed.mean, printed.exact_mean)
        assert item["difference"] == pytest.approx(item["mean"] - printed.target[0])
    text = tables[0].to_markdown()
    assert "14.17 (0.07)" in text and "printed" in text and MARK in text
    tables = paper_tables(runs["other"])
    assert differences(tables) == []
    assert "printed" not in "".join(table.to_markdown() for table in tables)
    assert "printed" not in correlation_table([runs["other"]]).to_markdown()


def test_a_fixed_split_has_errors_of_sampling_and_is_paired(runs):
    table = paper_tables(runs["fixed"])[0]
    size = table.rows[0].numbers[table.columns.index("size")]
    sizes = runs["fixed"].evaluations[Cell("APS", STANDARD)][0].sizes
    assert size.standard_error == pytest.approx(sizes.standard_error)
    run = runs["fixed"].evaluations[Cell("APS", STANDARD)][0]
    worst, z = run.tables["class"].worst, stats.norm.isf(0.025 / run.tables["class"].count.size)
    error = tables.summarise([run], "class.worst").standard_error
    assert error == pytest.approx((worst.upper - worst.lower) / 2.0 / z)
    assert all(n.standard_error > 0.0 and n.paired for row in table.rows for n in row.numbers)
    free = paper_tables(runs["paper"])[0]
    assert not any(n.paired for row in free.rows for n in row.numbers)


def test_correlations_are_printed_with_the_papers(runs):
    lines = correlation_table([runs["paper"]]).to_markdown().splitlines()
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    assert cells[0] == ["Dataset", "Pearson", "p-value", "Spearman", "p-value"]
    assert len(runs["paper"].correlations) == 2
    assert cells[2][0] == "places365"
    assert cells[3] == ["printed", "-0.02", "0.004", "-0.43", "< 0.001"]
    assert len(cells) == 4


def test_the_largest_p_value_of_the_seeds_is_shown(runs):
    """One seed without a correlation must not be hidden by the others, or by the mean."""
    found = [
        Correlation(-0.5, 1e-9, -0.4, 0.0009),
        Correlation(-0.3, 0.0312, -0.2, 0.0001),
        Correlation(-0.1, 1e-4, -0.3, 0.0003),
    ]
    first = runs["other"].evaluations[Cell("APS", STANDARD)][0]
    seeds = [replace(first, correlation=item) for item in found]
    run = replace(runs["other"], evaluations={Cell("APS", STANDARD): seeds})
    text = correlation_table([run]).to_markdown()
    cells = [cell.strip() for cell in text.splitlines()[2].strip("| ").split("|")]
    assert cells[2:5:2] == ["0.031", "< 0.001"]
    assert cells[1].startswith("-0.300 (0.094") and cells[3].startswith("-0.300 (0.047")


def test_a_run_leaves_results_tables_figures_and_a_page(runs, tmp_path):
    write_run(runs["paper"], tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["dataset"] == "places365"
    assert len(results["comparison"]) == 65
    assert [table["number"] for table in results["tables"]] == [1, 2, 4, 5, None]
    folders = (tmp_path / "tables", tmp_path / "figures")
    made, pictures = (sorted(path.name for path in folder.iterdir()) for folder in folders)
    assert made == ["degrees.md", *(f"table{number}.md" for number in range(1, 6))]
    assert pictures == [f"figure{i}.png" for i in range(1, 8)]
    page = (tmp_path / "README.md").read_text()
    for name in pictures:
        assert f"(figures/{name})" in page
    for title in ("Table 1", "Table 2", "Table 3", "Table 4", "Table 5", "by degree"):
        assert title in page
    assert "within 0.1" in page and "Conformal Prediction Sets" in page


def test_pictures_are_left_out_where_there_is_nothing_to_show(tmp_path):
    options = replace(QUICK, scores=("softmax",), degrees=(2,), seeds=(1,))
    run = Experiment(small_source(n=60), options).run()
    write_run(run, tmp_path)
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["figure6.png"]


BETTER = Claim("", CONDITIONAL, STANDARD, "conf_trust.gap")
COMPARABLE = Claim("", CONDITIONAL, STANDARD, "size", comparable=True)
HIGHER = Claim("", CONDITIONAL, STANDARD, "groups.worst", higher=True)


@pytest.mark.parametrize(
    ("claim", "differences", "word"),
    [
        (BETTER, [-1.0, -1.0, -1.0], "yes"),
        (BETTER, [1.0, 1.0, 1.0], "no"),
        # A mean of 1 with a standard error of 0.58 is within two of them, on either side.
        (BETTER, [0.0, -1.0, -2.0], "undecided"),
        (BETTER, [0.0, 1.0, 2.0], "undecided"),
        (COMPARABLE, [-1.0, 1.0, -1.0], "yes"),
        (COMPARABLE, [1.0, 1.0, 1.0], "no"),
        (HIGHER, [1.0, 1.0, 1.0], "yes"),
        (HIGHER, [-1.0, -1.0, -1.0], "no"),
    ],
)
def test_a_claim_is_judged_by_paired_differences(claim, differences, word, monkeypatch, runs):
    """Seeds differ by 10, and a difference of 1 in all of them is certain."""
    base = np.array([10.0, 20.0, 30.0])
    values = {claim.row: base + differences, claim.against: base}
    monkeypatch.setattr(tables, "_claim_values", lambda run, claim, method: values[method])
    item = judge(claim, runs["other"])
    assert item.word == word
    assert item.difference == pytest.approx(np.mean(differences))
    assert item.standard_error == pytest.approx(np.std(differences, ddof=1) / np.sqrt(3))


def test_values_are_those_of_the_tables(runs):
    """Every claim of the paper is judged, with the numbers that its tables have."""
    run = runs["other"]

    def mean(metric, *cell):
        return np.mean([item.metrics[metric].value for item in run.evaluations[Cell("APS", *cell)]])

    header, rows = claims_rows([run])
    assert header == ["Claim", "Section", "printed", "small"]
    # RAPS was not run.
    assert len(rows) == len(CLAIMS) - 1
    item = judge(BETTER, run)
    assert item.value == mean("conf_trust.gap", CONDITIONAL, 2)
    assert item.against == mean("conf_trust.gap", STANDARD)
    worst = judge(next(claim for claim in CLAIMS if claim.column == "groups.worst"), run)
    assert worst.value == pytest.approx(mean("group:site.worst", CONDITIONAL, 2))


def test_printed_numbers_are_judged_by_the_same_rule():
    """Table 1 by hand: sets are significantly larger on all sets but Places365-LT."""
    words = {(claim.text, claim.score): tables._printed_words(claim) for claim in CLAIMS}
    larger = "CONDITIONAL's sets are not significantly larger than STANDARD's"
    assert words[larger, "APS"] == "1 yes, 3 no"
    assert words["CONDITIONAL has a smaller Conf x Trust gap than STANDARD", "APS"] == "4 yes"
    pca = "CONDITIONAL has a smaller class gap than PCA FEATURES"
    assert words[pca, "APS"] == "2 yes, 1 no, 1 undecided"


def test_verdicts_name_the_noise_floor():
    item = tables.Verdict("yes", 3.00, 5.47, -2.47, 0.11, floor=3.54)
    assert item.text == "yes: 3.00 against 5.47, -2.47 (0.11); noise floor 3.54"
    assert "floor" not in tables.Verdict("yes", 4.0, 5.0, -1.0, 0.1, floor=3.54).text


def test_the_tables_have_the_shapes_of_the_paper():
    cells = Counter(table for table, *_ in printed_values())
    assert cells == {1: 4 * 3 * 5, 2: 3 * 5, 4: 4 * 4 * 5, 5: 4 * 3 * 3 * 5}
    assert {place[1] for place in printed_values()} == set(DATASETS)
    assert {place[2] for place in printed_values()} == {"softmax", "APS", "RAPS"}


@pytest.mark.parametrize(
    ("place", "mean", "error"),
    [
        ((1, "imagenet", "APS", "CONDITIONAL", "size"), 22.36, 0.83),
        ((1, "places365", "APS", "CONDITIONAL (NAIVE)", "conf_trust.gap"), 2.40, 0.16),
        ((2, "fitzpatrick17k", "APS", "GROUPWISE", "group:skin_type.gap"), 1.76, 0.18),
        ((2, "fitzpatrick17k", "APS", "CONDITIONAL", "group:skin_type.worst"), 0.87, 0.01),
        ((4, "places365-lt", "APS", "PCA FEATURES", "size"), 45.03, 0.13),
        ((5, "imagenet-lt", "softmax", "CONDITIONAL", "size"), 228.82, 1.44),
        ((5, "places365-lt", "RAPS", "CONDITIONAL", "class.gap"), 6.37, 0.01),
    ],
)
def test_single_numbers(place, mean, error):
    found = printed_values()[place]
    assert (found.mean, found.standard_error) == (mean, error)


def test_what_tables_repeat_agrees():
    """Tables 4 and 5 print the rows of table 1 again."""
    for (table, *place), item in printed_values().items():
        if table == 1:
            assert printed_values()[4, *place] == printed_values()[5, *place] == item


def test_the_notebook_prints_table_1_with_more_digits():
    """Rounded, its 60 means and errors are those of the table, wherever it is printed again."""
    for (table, *place), item in printed_values().items():
        in_notebook = table != 2 and place[1] == "APS" and place[2] != "PCA FEATURES"
        assert (item.exact_mean is not None) == in_notebook
        if in_notebook:
            assert round(item.exact_mean, 2) == item.mean
            assert round(item.exact_error, 2) == item.standard_error
    imagenet = printed_values()[1, "imagenet", "APS", "STANDARD", "conf_trust.gap"]
    assert (imagenet.exact_mean, imagenet.exact_error) == (6.348068, 0.114729)


def test_correlations():
    found = {name: printed_correlation(name) for name in DATASETS}
    assert found.pop("fitzpatrick17k") is None
    assert [item["spearman"] for item in found.values()] == [-0.53, -0.47, -0.43, -0.29]
    assert [item["pearson"] for item in found.values()] == [-0.09, -0.13, -0.02, -0.14]
    assert found["places365"]["pearson_p"] == "0.004"
