"""Pages of results say what the files of results say, and were made with the default that ships."""

import importlib.util
import json
from dataclasses import fields, replace
from pathlib import Path

import coverage_page
import pytest
from coverage_page import RESULTS, Results

from trustsets import ConditionalConformal
from trustsets import learned as auto
from trustsets.predictors import conditional

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("results", ROOT / "studies" / "results.py")
stamped = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(stamped)
EXPLANATIONS = json.loads(coverage_page.EXPLANATIONS.read_text())


@pytest.mark.parametrize("page", stamped.PAGES)
def test_pages_were_made_with_the_default_that_ships(page):
    """`make results` remakes them."""
    stamps = stamped.STAMP.findall((stamped.RESULTS / page).read_text())
    assert stamps == [stamped.fingerprint()]


def test_the_benchmark_judged_the_default_that_ships():
    """`make evidence` runs it again."""
    content = json.loads((stamped.RESULTS / "coverage.json").read_text())
    assert content["default"] == stamped.fingerprint()


def test_every_parameter_and_constant_of_the_default_is_in_the_fingerprint(monkeypatch):
    before = stamped.fingerprint()
    parameters = ConditionalConformal().get_params()
    assert set(parameters) == {field.name for field in fields(ConditionalConformal) if field.init}
    for name in parameters:
        changed = parameters | {name: "another"}
        with monkeypatch.context() as context:
            context.setattr(ConditionalConformal, "get_params", lambda self, new=changed: new)
            assert stamped.fingerprint() != before
    for module, name, value in (
        (conditional, "_PREVALENCE", 0.5),
        (auto, "POLYNOMIALS", ((4, 10.0),)),
        (auto, "LEARNED", replace(auto.LEARNED, quantiles=(0.5,))),
    ):
        with monkeypatch.context() as context:
            context.setattr(module, name, value)
            assert stamped.fingerprint() != before
    assert before == stamped.fingerprint()


@pytest.fixture(scope="module")
def results() -> Results:
    return Results.read()


@pytest.mark.parametrize("name", ["coverage.md", "coverage_methods.md", "headline.md"])
def test_text_is_made_from_the_file(results: Results, name: str) -> None:
    made = coverage_page.OUTPUTS[name](results, EXPLANATIONS)
    assert made == (RESULTS.parent / name).read_text()


def test_the_figure_shows_every_data_set(results: Results) -> None:
    text = (RESULTS.parent / "coverage.svg").read_text()
    for name in results.content["sets"]:
        assert name in text


def test_every_significant_loss_is_explained(results: Results) -> None:
    lost = {row[0] for row in coverage_page.losses(results) if row[4]}
    assert lost <= set(EXPLANATIONS)


def test_the_file_is_small_and_complete(results: Results) -> None:
    assert RESULTS.stat().st_size < 300_000
    assert len(results.sets()) >= 10
    assert {data["splits"] for data in results.content["sets"].values()} == {10}
    kinds = {results.content["sets"][name]["kind"] for name in results.sets()}
    assert kinds == {"images", "text", "table", "simulated"}
    assert Path(coverage_page.__file__).with_name("PROTOCOL.md").exists()


def test_a_changed_number_changes_the_page(results: Results) -> None:
    content = json.loads(json.dumps(results.content))
    name = results.sets()[0]
    content["sets"][name]["methods"]["default"]["mean"][content["measures"].index("ert")] += 1.0
    changed = Results(content)
    assert coverage_page.page(changed, {}) != coverage_page.page(results, {})
    assert coverage_page.headline(changed) != coverage_page.headline(results)


def test_a_single_data_set_has_a_page_without_an_interval(results: Results) -> None:
    name = results.sets()[0]
    single = Results(results.content | {"sets": {name: results.content["sets"][name]}})
    for make in coverage_page.OUTPUTS.values():
        assert name in make(single, {}) or make is coverage_page.OUTPUTS["headline.md"]
    assert coverage_page.interval([1.0]) == (-float("inf"), float("inf"))


def test_page_and_file_have_every_method_and_data_set(results: Results) -> None:
    page, file = coverage_page.page(results, {}), coverage_page.methods_file(results)
    for name in (*results.sets(), *results.methods()):
        assert f"\n| {name} " in page
    for name in (*results.content["sets"], *results.methods()):
        assert f"\n| {name} " in file
