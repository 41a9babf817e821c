"""The first paragraph promises nothing that was not measured."""

from dataclasses import replace

import numpy as np
import pytest
from report_cases import render_report, sets_that_cover

from trustsets import Bins, Confidence, ModelOutputs, evaluate
from trustsets.metrics.inference import binomial_interval, under_coverage
from trustsets.report.summary import (
    BROKEN,
    KEPT,
    MORE,
    UNSURE,
    failing_parts,
    outcome_of,
    summarise,
)
from trustsets.report.text import percent


def measured(counts, covered, alpha=0.1, column="site", **options):
    """An evaluation with groups a, b, ... of these sizes, so many of them covered."""
    codes = np.repeat(np.arange(len(counts)), counts)
    hits = np.concatenate([np.arange(n) < k for n, k in zip(counts, covered, strict=True)])
    groups = {column: np.array(list("abcdefghij"))[codes]}
    n = codes.size
    outputs = ModelOutputs(logits=np.zeros((n, 3)), labels=np.zeros(n, dtype=int), groups=groups)
    sets = replace(sets_that_cover(hits, outputs), alpha=alpha)
    return evaluate(sets, outputs, metrics=["groups"], n_bootstrap=5, **options)


def answers(evaluations, **options):
    found = summarise(evaluations, **options)
    questions = ["What was promised", "Was it kept?", "For whom was it not?", "What to do"]
    assert [question for question, _ in found] == questions
    return [" ".join(sentences) for _, sentences in found]


@pytest.mark.parametrize("n", [20, 60, 200, 1000, 5000])
def test_kept_is_said_only_where_the_interval_allows_it(n):
    """Every count: the words follow from the two ends of the exact interval alone."""
    seen = set()
    for covered in range(int(0.7 * n), n + 1, max(n // 60, 1)):
        result = measured([n], [covered])
        low, high = (float(end) for end in binomial_interval(covered, n))
        said = answers({"m": result})[1]
        expected = (
            "Not kept"
            if high < 0.9
            else "More than kept"
            if low > 0.9
            else "Kept"
            if low >= 0.85
            else "Too few samples to say"
        )
        assert f"{expected}: " in said or f"{expected} on average: " in said
        assert ("Kept" in said) == (expected == "Kept")
        seen.add(outcome_of(result))
    assert UNSURE in seen if n <= 60 else {BROKEN, KEPT, MORE} <= seen


def test_the_slack_shrinks_with_alpha():
    """98% is a broken promise of 99%, though it is less than 5 points below."""
    assert outcome_of(measured([4000], [3960], alpha=0.01)) is KEPT
    assert outcome_of(measured([400], [396], alpha=0.01)) is UNSURE
    assert outcome_of(measured([2000], [1950], alpha=0.01)) is BROKEN


def test_numbers_of_the_paragraph_are_those_of_the_evaluation():
    result = measured([1000, 400], [905, 300])
    promised, kept, whom, advice = answers({"m": result})
    assert "90% of the sets should contain the true class" in promised
    assert f"{percent(result.coverage.value)} of the sets contain the true class" in kept
    assert f"{result.sizes.mean:.1f} classes a set" in kept and "1,400 test samples" in kept
    assert whom == "Not kept for 1 of 2 groups by site (“b”, 75.0% of 400 samples)."
    assert "Groups('site')" in advice


def test_only_what_was_seen_is_named():
    """The lowest group has 3 samples, and another is low by its own p-value only."""
    result = measured([1000, 400, 3, 40], [905, 316, 1, 32])
    assert (result.tables["group:site"].p_value <= 0.05).tolist() == [False, True, True, True]
    whom = answers({"m": result})[2]
    assert "1 of 4 groups by site (“b”, 79.0% of 400 samples)" in whom
    assert "“c”" not in whom and "“d”" not in whom


def test_tiny_groups_are_never_a_single_number():
    tiny = answers({"m": measured([1000, 8], [905, 1])})[2]
    assert "somewhere between 0–53% of 8 samples" in tiny and "12.5%" not in tiny
    # One with samples enough stands in for a lower one without.
    both = answers({"m": measured([1000, 8, 300], [905, 1, 200])})[2]
    assert "2 of 3 groups by site (lowest: “c”, 66.7% of 300 samples)" in both


def test_a_method_that_keeps_its_promise_is_rarely_blamed():
    """At most 5% of the time, however many tables there are; 2,000 perfect evaluations."""
    rng = np.random.default_rng(1)
    base = measured([500] * 4, [450] * 4)
    table = base.tables["group:site"]
    blamed = 0
    for _ in range(2000):
        tables = {}
        for name in ("group:one", "group:two", "group:three", "class"):
            covered = rng.binomial(table.count, 0.9)
            own = under_coverage(covered, table.count, 0.1)
            tables[name] = replace(table, name=name, covered=covered, p_value=own)
        blamed += bool(failing_parts(replace(base, tables=tables)))
    assert blamed / 2000 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)
    assert blamed > 20  # tests of 16 bins at once are not blind


def test_nothing_found_is_not_called_nothing_there():
    sound = answers({"m": measured([500, 500], [450, 452])})
    assert sound[2] == "No group was found for which the promise is broken."
    assert "may have gone unseen" in sound[3] and "Do not rely" not in sound[3]
    small = answers({"m": measured([30, 30], [28, 27])})
    assert "so few samples show only large failures" in small[2]
    assert small[3] == "Measure on about 230 samples or more."


def test_the_advised_number_of_samples_is_enough_and_not_far_too_many():
    lower = binomial_interval(207, 230)[0]
    assert lower >= 0.85 > binomial_interval(144, 160)[0]
    assert outcome_of(measured([230], [207])) is KEPT


def test_more_samples_are_advised_than_there_are():
    unsure = measured([400], [351])
    advice = answers({"m": unsure})[3]
    (n,) = (int(word.replace(",", "")) for word in advice.split() if word[0].isdigit())
    covered = int(n * unsure.coverage.value)
    assert n > 400 and outcome_of(measured([n], [covered])) is not UNSURE
    assert "about 24,000,000 samples" in answers({"m": measured([50], [50], alpha=1e-6)})[3]


def test_one_sample_is_no_plural():
    assert "Measured on 1 test sample of 3 classes." in answers({"m": measured([1], [1])})[1]


def test_of_several_methods_the_one_that_fails_least_is_preferred():
    low, sound = measured([1000, 400], [905, 300]), measured([1000, 400], [900, 362])
    whom, advice = answers({"one": low, "other": sound})[2:]
    assert "“one”: not kept for" in whom and "“other”: no such samples were found." in whom
    assert advice.startswith("Prefer “other”")
    assert "Prefer" not in answers({"one": sound, "other": sound})[3]
    broken = answers({"one": measured([1000, 400], [800, 300])})
    assert broken[1].count("Not kept on average: 78.6%") == 1
    assert "Do not rely on these sets yet." in broken[3]
    many = answers(dict.fromkeys("abcd", sound))[1]
    assert "Kept on average by all 4 methods: 90.1% to 90.1%" in many


def test_full_sets_are_not_preferred():
    """Sets of all classes keep every promise and tell nothing."""
    low = measured([1000, 400], [930, 330])
    assert outcome_of(low) is KEPT and failing_parts(low)
    n = 1400
    groups = {"site": np.repeat(["a", "b"], [1000, 400])}
    outputs = ModelOutputs(logits=np.zeros((n, 3)), labels=np.zeros(n, dtype=int), groups=groups)
    everything = replace(sets_that_cover(np.ones(n, bool), outputs), mask=np.ones((n, 3), bool))
    full = evaluate(everything, outputs, metrics=["groups"], n_bootstrap=5)
    assert "Prefer" not in answers({"low": low, "full": full})[3]
    assert answers({"full": full})[3].startswith("100% of the sets are full and tell nothing")


def test_names_are_written_as_they_are():
    codes = np.repeat([0, 1], [1000, 400])
    names = np.array(["Conf x", "Trust fund"])[codes]
    hits = np.arange(1400) % 1000 < np.where(codes == 0, 905, 300)
    outputs = ModelOutputs(logits=np.zeros((1400, 2)), labels=names)
    result = evaluate(sets_that_cover(hits, outputs), outputs, metrics=["class"])
    assert "“Trust fund”, 75.0% of 400 samples" in answers({"m": result})[2]


def test_bins_without_names_are_described():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3000, 3)) * 2
    outputs = ModelOutputs(logits=logits, labels=np.zeros(3000, dtype=int))
    hits = rng.random(3000) < np.where(outputs.confidence < 0.7, 0.6, 0.98)
    own = {"own": Bins((Confidence(),), (3,), ("quantile",))}
    result = evaluate(sets_that_cover(hits, outputs), outputs, metrics=[], bins=own)
    whom = answers({"m": result})[2]
    assert "1 of 3 ranges of own (confidence " in whom
    nothing = evaluate(sets_that_cover(hits, outputs), outputs, metrics=[])
    assert answers({"m": nothing})[2] == "No classes, groups or other parts were looked at."


def test_the_paragraph_stands_first_and_names_are_escaped():
    result = measured([1000, 400], [905, 300], column="<b>site</b>")
    text = render_report(result, details={"Options": '{"seed": 0}'})
    body = text[text.index("<main>") :]
    assert body.index("What was promised") < body.index("<table")
    assert "<b>site" not in text and "&lt;b&gt;site" in body
    # Options come last.
    assert body.index("seed&#34;: 0") > body.index('id="reading"')
