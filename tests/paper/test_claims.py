"""Verdicts on claims, by hand and on simulated seeds."""

import numpy as np
import pytest
from small_runs import QUICK, small_source

from trustsets_paper import tables
from trustsets_paper.protocol import CONDITIONAL, STANDARD, Cell, Experiment
from trustsets_paper.tables import CLAIMS, Claim, claims_rows, judge

BETTER = Claim("", CONDITIONAL, STANDARD, "conf_trust.gap")
COMPARABLE = Claim("", CONDITIONAL, STANDARD, "size", comparable=True)
HIGHER = Claim("", CONDITIONAL, STANDARD, "groups.worst", higher=True)


@pytest.fixture(scope="module")
def run():
    return Experiment(small_source(), QUICK).run()


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
def test_a_claim_is_judged_by_paired_differences(claim, differences, word, monkeypatch, run):
    """Seeds differ by 10, and a difference of 1 in all of them is certain."""
    base = np.array([10.0, 20.0, 30.0])
    values = {claim.row: base + differences, claim.against: base}
    monkeypatch.setattr(tables, "_claim_values", lambda run, claim, method: values[method])
    item = judge(claim, run)
    assert item.word == word
    assert item.difference == pytest.approx(np.mean(differences))
    assert item.standard_error == pytest.approx(np.std(differences, ddof=1) / np.sqrt(3))


def test_values_are_those_of_the_tables(run):
    """Every claim of the paper is judged, with the numbers that its tables have."""
    header, rows = claims_rows([run])
    assert header == ["Claim", "Section", "printed", "small"]
    # RAPS was not run.
    assert len(rows) == len(CLAIMS) - 1
    item = judge(BETTER, run)
    row, base = (
        [evaluation.metrics["conf_trust.gap"].value for evaluation in run.evaluations[cell]]
        for cell in (Cell("APS", CONDITIONAL, 2), Cell("APS", STANDARD))
    )
    assert (item.value, item.against) == (np.mean(row), np.mean(base))
    worst = judge(next(claim for claim in CLAIMS if claim.column == "groups.worst"), run)
    values = [
        evaluation.metrics["group:site.worst"].value
        for evaluation in run.evaluations[Cell("APS", CONDITIONAL, 2)]
    ]
    assert worst.value == pytest.approx(np.mean(values))


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
