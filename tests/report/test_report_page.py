"""The page as text: what it holds, leaves out, refuses; and the data behind it."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from report_cases import CLASSES, render_report, sets_that_cover

from trustsets import Bins, Confidence, Groups, ModelOutputs, Trust, compare, evaluate, write_report
from trustsets.errors import InputError
from trustsets.metrics import Estimate, Evaluation, RankBins, number_of
from trustsets.report import (
    bin_lists,
    divisions,
    gap_chart,
    glance,
    number,
    percent,
    size_chart,
    worst_first,
)
from trustsets.report.content import ticks

VOID = {"meta", "input"}
ENDS = ["reading", "made"]


class Outline(HTMLParser):
    """Section ids in order, and whether every element is closed by its own tag."""

    def __init__(self, text):
        super().__init__()
        self.sections, self.ids, self.open = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.sections += [found["id"]] if tag == "section" else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def bare(outputs):
    return ModelOutputs(logits=outputs.logits, labels=outputs.labels, classes=outputs.classes)


def test_sections_come_in_the_order_of_reading(page):
    outline = Outline(page.read_text(encoding="utf-8"))
    assert outline.open == []
    assert len(set(outline.ids)) == len(outline.ids)
    bins = ["bins-1", "bins-2", "bins-3"]
    first = ["verdict", "methods", "maps", "gaps", "sizes"]
    assert outline.sections == [*first, *bins, "other", "guarantee", *ENDS]


def test_methods_at_equal_size_have_a_section_with_the_numbers_of_compare(case):
    """Both names stand for one predictor, so that every number appears in both columns."""
    some = case.outputs.take(slice(400))
    table = compare(case.predictors, outputs=some, equal_size="planted", n_bootstrap=20)
    text = render_report(case.results, comparison=table)
    section = text[text.index('id="equal-size"') : text.index('id="maps"')]
    assert "gives the mean size of planted on the test samples" in section
    for column, row in zip(table.columns, table.entries[2], strict=True):
        digits = percent(row.mean) if number_of(column).form == "share" else number(row.mean)
        assert section.count(f">{digits} <small>") >= 2, column
    assert json.loads(text.split('id="data">')[1].split("</script>")[0])["equal_size"] == (
        table.to_dict()
    )
    i = table.columns.index("excess_risk.under")
    assert f"and {number(table.entries[3][i].mean)} points by excess risk." in text
    assert "equal-size" not in render_report(case.results)
    for wrong in (
        compare(case.predictors, outputs=some.take(slice(20))),
        compare({"standard": case.predictors["standard"]}, outputs=some, equal_size=True),
        replace(table, alpha=0.2),
    ):
        with pytest.raises(InputError, match="comparison must have rows at equal size"):
            render_report(case.results, comparison=wrong)


def test_what_the_data_lack_is_left_out(case):
    sets = case.sets["standard"]
    result = evaluate(sets, bare(case.outputs), metrics=["class"])
    text = render_report(result)
    assert Outline(text).sections == ["verdict", "methods", "gaps", "sizes", "bins-1", *ENDS]
    assert "this method" in text
    nothing = render_report(evaluate(sets, bare(case.outputs), metrics=[]))
    assert Outline(nothing).sections == ["verdict", "methods", "sizes", *ENDS]


def test_same_input_gives_the_same_bytes(case, page, tmp_path):
    again = write_report(tmp_path / "again.html", case.results, **case.options)
    assert again == tmp_path / "again.html"
    assert again.read_bytes() == page.read_bytes()


def test_text_from_users_is_escaped_everywhere(case):
    evil = "</script><script>alert(1)</script><img src=x>"
    results, sets, predictors = (
        {evil: own["planted"]} for own in (case.results, case.sets, case.predictors)
    )
    texts = {"title": evil, "details": {evil: evil}}
    text = render_report(results, outputs=case.outputs, sets=sets, predictors=predictors, **texts)
    assert "<script>alert" not in text
    assert "<img" not in text
    assert text.count("<script") == 2
    assert Outline(text).open == []


def test_heatmaps_have_a_cell_per_bin_the_highest_row_first(case):
    bins = {"conf_rank": RankBins(counts=(4, 3), edges=(0, 1, 2, 6))}
    result = evaluate(case.sets["planted"], case.outputs, bins=bins, metrics=["conf_rank", "class"])
    (division,) = divisions({"planted": result})
    (heatmap,) = division.heatmaps
    assert [label for label, _ in heatmap.rows] == ["3–6", "2", "1"]
    table = result.tables["conf_rank"]
    for height, (_, cells) in enumerate(heatmap.rows):
        for x, cell in enumerate(cells):
            place = np.flatnonzero((table.index == (x, 2 - height)).all(axis=1))
            assert [cell.bin] == (place.tolist() or [None])


def test_samples_are_listed_the_worst_first(case):
    """The missed by their label's probability, then the covered with the largest sets."""
    for method, result in case.results.items():
        likely = case.outputs.probabilities[np.arange(result.n), case.outputs.codes]
        hits, sizes = case.sets[method].covers(case.outputs.labels), case.sets[method].sizes
        badness = [(h, -n if h else 0, p) for h, n, p in zip(hits, sizes, likely, strict=True)]
        assert [badness[i] for i in worst_first(result, likely)] == sorted(badness)


def test_rare_classes_are_summed_up_with_their_noise_floors(case):
    result = case.results["planted"]
    (_, by_class, by_site) = glance({"planted": result}, ["class", "group:site"])
    table = result.tables["class"]
    rows = dict(by_class.rows)
    own = table.shortfall
    assert rows["Shortfall, points"] == [
        (f"{own.value:.2f}", f"{own.lower:.2f}–{own.upper:.2f}, floor {own.floor:.2f}")
    ]
    (text, note) = rows["Macro coverage"][0]
    assert text == f"{100 * table.macro.value:.1f}%" and "floor" not in note
    assert "Macro coverage" in dict(by_site.rows)
    assert "Macro coverage" not in dict(glance({"m": result}, ["conf_frequency"])[1].rows)


def is_few(table, i):
    """Whether a bin says too little for a number: few samples, or a wide interval on the target."""
    wide = table.upper[i] - table.lower[i] > 0.3 and table.lower[i] <= 0.9 <= table.upper[i]
    return table.count[i] < 10 or wide


def test_tiny_cells_show_an_interval_and_no_number(case):
    result = case.results["standard"]
    maps = {item.name: item.heatmaps[0] for item in divisions({"m": result})}
    seen = set()
    for name, heatmap in maps.items():
        table = result.tables[name]
        for cell in (cell for _, row in heatmap.rows for cell in row if cell.bin is not None):
            few = is_few(table, cell.bin)
            seen.add((few, bool(table.count[cell.bin] < 10)))
            assert ("few" in cell.mark) == few == ("–" in cell.text)
    assert seen == {(True, True), (True, False), (False, False)}


def test_tables_of_tiny_bins_show_intervals_and_come_last(case):
    small = evaluate(case.sets["standard"][:60], case.outputs.take(slice(0, 60)), metrics=["class"])
    table = small.tables["class"]
    (listed,) = bin_lists({"m": small})
    kinds = []
    for name, cells in listed.rows:
        i, own = table.labels.index(name), cells[1]
        kinds.append(own.value is None)
        if is_few(table, i):
            ends = f"{100 * table.lower[i]:.1f}–{100 * table.upper[i]:.1f}%"
            assert (own.value, own.text, own.note) == (None, ends, "too few samples")
        else:
            assert own.text == f"{100 * table.coverage[i]:.1f}%"
    assert kinds == sorted(kinds) and len(set(kinds)) == 2
    rows = dict(row for group in glance({"m": small}, ["class"]) for row in group.rows)
    ((text, note),) = rows["Lowest coverage"]
    assert "–" in text and "too few samples" in note


def test_bins_over_three_axes_and_crossings_are_listed(case):
    bins = {
        "three": Bins(Confidence(), Trust(), Confidence(), counts=2, spacing="uniform"),
        "site again": Groups("site"),
    }
    result = evaluate(case.sets["planted"], case.outputs, bins=bins, metrics=[])
    assert [item.title for item in bin_lists({"m": result})] == ["three", "site again"]
    assert divisions({"m": result}) == []
    text = render_report(result, outputs=case.outputs, sets=case.sets["planted"])
    assert "maps" not in Outline(text).sections


def test_bins_of_the_same_name_are_all_listed(case):
    table = replace(case.results["planted"].tables["class"], labels=("same",) * len(CLASSES))
    result = replace(case.results["planted"], tables={"class": table})
    (listed,) = bin_lists({"a": result, "b": result})
    assert [row[1].value for _, row in listed.rows] == sorted(table.coverage.tolist())


def test_methods_may_have_different_divisions(case):
    some = evaluate(case.sets["standard"], case.outputs, metrics=["class", "conf_rank"])
    both = {"all": case.results["planted"], "some": some}
    titles = [item.title for item in divisions(both)]
    assert titles == ["Conf × Trust", "Conf × Rank", "Conf × Class frequency"]
    assert [len(item.heatmaps) for item in divisions(both)] == [1, 2, 1]
    (first, _) = glance(both, ["conf_trust"])[1].rows[0][1]
    assert first[0] == f"{case.results['planted'].tables['conf_trust'].gap.value:.2f}"
    assert Outline(render_report(both)).open == []


def test_charts_place_numbers_where_they_belong(case):
    chart = gap_chart(case.results, ["class"])
    end = float(chart.axis[-1][1])
    for mark in chart.rows[0][1]:
        gap = case.results[mark.method].tables["class"].gap
        places = (mark.floor, mark.low, mark.low + mark.width, mark.value)
        numbers = (gap.floor, gap.lower, gap.upper, gap.value)
        assert [place * end / 100.0 for place in places] == pytest.approx(numbers, abs=1e-3)
    gap = Estimate(value=1.0, lower=0.5, upper=2.0, floor=40.0)
    small = gap_chart({"a": SimpleNamespace(tables={"class": SimpleNamespace(gap=gap)})}, ["class"])
    assert small.rows[0][1][0].floor <= 100.0
    bars = [bar for _, row in size_chart(case.results) for bar in row]
    assert max(width for _, width, _ in bars) == 100.0


@pytest.mark.parametrize("top", [0.0, 1e-7, 3.0, 8, 12.5, 97.0])
def test_ticks_are_few_even_and_enclose(top):
    found = ticks(top)
    assert found[0] == 0.0 and top <= found[-1]
    assert 2 <= len(found) <= 8
    assert np.diff(found) == pytest.approx(found[1] - found[0])


def test_bad_arguments_say_what_to_do(case, tmp_path):
    results, outputs, sets = case.results, case.outputs, case.sets
    one = results["planted"]
    other = evaluate(sets["planted"][:100], outputs.take(slice(100)), metrics=[])
    shuffled = evaluate(sets["planted"][::-1], outputs.take(slice(None, None, -1)), metrics=[])
    read = Evaluation.from_json(one.to_json())
    listed = {"outputs": outputs, "sets": sets}
    cases = [
        ({}, {}, "evaluations must be .* non-empty mapping.*got dict"),
        ([one], {}, "evaluations must be .*got list.*Make them with evaluate"),
        ({"a": [one]}, {}, r"evaluations\['a'\] must be of type Evaluation; got list"),
        ({"a": one, "b": other}, {}, "share test samples.*same ModelOutputs"),
        ({"a": one, "b": shuffled}, {}, "share test samples.*same ModelOutputs"),
        (results, {"outputs": outputs}, "both outputs= and sets="),
        (results, {"sets": sets}, "both outputs= and sets="),
        (results, listed | {"outputs": outputs.logits}, "outputs must be ModelOutputs"),
        (results, {"comparison": 5}, "comparison must have rows at equal size"),
        (results, {"outputs": outputs, "sets": sets["planted"]}, "sets must be a mapping"),
        (results, {"predictors": {"nobody": 1}}, "predictors must name methods among.*nobody"),
        (results, {"predictors": {"planted": 1}}, r"\['planted'\] must be of type Predictor"),
        (results, {"predictors": case.predictors["planted"]}, "predictors must be a mapping"),
        (results, listed | {"sets": {"planted": sets["planted"]}}, "sets must name the methods"),
        (one, {"outputs": outputs, "sets": sets["standard"]}, "are not what .* was made from"),
        (read, {"outputs": outputs, "sets": sets["planted"]}, "read from JSON, which keeps no"),
    ]
    for evaluations, options, message in cases:
        with pytest.raises(match=message):
            write_report(tmp_path / "bad.html", evaluations, **options)
    paths = {tmp_path / "nowhere" / "bad.html": "its folder does not exist", tmp_path: "a folder"}
    for path, message in paths.items():
        with pytest.raises(InputError, match=message):
            write_report(path, one)
    for first in (one, results):
        with pytest.raises(InputError, match=r"path must be a text or .*; got (Eval|dict)"):
            write_report(first, tmp_path / "bad.html")
    assert list(tmp_path.iterdir()) == []


def test_evaluations_read_from_json_make_the_same_page(case):
    read = {name: Evaluation.from_json(item.to_json()) for name, item in case.results.items()}
    assert render_report(read) == render_report(case.results)


def test_class_names_of_any_type_are_listed(case):
    codes = np.arange(len(CLASSES))
    outputs = ModelOutputs(logits=case.outputs.logits, labels=case.outputs.codes, classes=codes)
    sets = sets_that_cover(np.ones(len(outputs), dtype=bool), outputs)
    text = render_report(evaluate(sets, outputs, metrics=["conf_rank"]), outputs=outputs, sets=sets)
    assert '"classes":["0","1","2","3","4","5"]' in text


def test_a_carriage_return_in_a_name_is_the_same_in_data_and_page(case):
    """A browser would read a bare carriage return as a line feed."""
    text = render_report({"one\rname": case.results["planted"]})
    assert "\r" not in text and 'data-method="one&#13;name"' in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))
    assert list(data["evaluations"]) == ["one\rname"]


def test_a_name_that_is_no_text_is_written_out(case):
    name = b"a\xff".decode("utf-8", "surrogateescape")
    assert "a\\udcff" in render_report({name: case.results["planted"]})
