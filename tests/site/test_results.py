"""Pages of results were made with the default that ships, and say how."""

import importlib.util
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from trustsets import ConditionalConformal
from trustsets import learned as auto
from trustsets.predictors import conditional

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("results", ROOT / "studies" / "results.py")
results = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(results)


@pytest.mark.parametrize("page", results.PAGES)
def test_pages_were_made_with_the_default_that_ships(page):
    """`make results` remakes them."""
    stamps = results.STAMP.findall((results.RESULTS / page).read_text())
    assert stamps == [results.fingerprint()]


def test_the_benchmark_judged_the_default_that_ships():
    """`make evidence` runs it again."""
    content = json.loads((results.RESULTS / "coverage.json").read_text())
    assert content["default"] == results.fingerprint()


def test_every_parameter_and_constant_of_the_default_is_in_the_fingerprint(monkeypatch):
    before = results.fingerprint()
    parameters = ConditionalConformal().get_params()
    assert set(parameters) == {field.name for field in fields(ConditionalConformal) if field.init}
    for name in parameters:
        changed = parameters | {name: "another"}
        with monkeypatch.context() as context:
            context.setattr(ConditionalConformal, "get_params", lambda self, new=changed: new)
            assert results.fingerprint() != before
    for module, name, value in (
        (conditional, "_PREVALENCE", 0.5),
        (auto, "POLYNOMIALS", ((4, 10.0),)),
        (auto, "LEARNED", replace(auto.LEARNED, quantiles=(0.5,))),
    ):
        with monkeypatch.context() as context:
            context.setattr(module, name, value)
            assert results.fingerprint() != before
    assert before == results.fingerprint()
