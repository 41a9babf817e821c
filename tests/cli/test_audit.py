"""``trustsets audit`` is the library's audit, on files."""

import json
from functools import partial

import pytest

import trustsets
from trustsets.auditing import excess_risk
from trustsets.files.source import open_outputs

QUICK = ("--permutations", "0", "--by", "groups", "--by", "classes")


def test_audit_is_the_library(run, folder):
    done = run("audit", "calibration.npz", "--method", "standard", "--json", *QUICK)
    assert done.code == 0
    found = json.loads(done.out)
    outputs = open_outputs("calibration.npz").read()
    truth = trustsets.audit(trustsets.StandardConformal(random_state=0).calibrate(outputs))
    given = found["evaluation"]
    assert given["more"].pop("excess_risk.under")["value"] is not None
    assert given | {"more": {}} == json.loads(truth.to_json())
    assert found["options"]["method"] == "standard" and found["regions"]["n"] == truth.n
    assert "No test set was used" in (folder / "audit.html").read_text(encoding="utf-8")


def test_training_samples_give_trust_to_methods_without_it(run, folder):
    words = ("audit", "calibration.npz", "--train", "train.npz", "--method", "standard", *QUICK)
    done = run(*words, "-o", "a.html", "--alpha", "0.2", "--json")
    found = json.loads(done.out)["evaluation"]
    assert "conf_trust" in found["tables"] and found["alpha"] == 0.2


def test_it_says_what_was_found_and_where_the_page_is(run, folder):
    done = run("audit", "calibration.npz", "--train", "train.npz", "-o", "a.html", *QUICK)
    assert done.code == 0 and done.out.startswith("Of all 1,")
    assert "No test set was used. The audit is in a.html" in done.err
    again = run("audit", "--config", "a.html", "-o", "b.html")
    assert again.code == 0
    one, two = ((folder / name).read_bytes() for name in ("a.html", "b.html"))
    assert one.replace(b"a.html", b"") == two.replace(b"b.html", b"")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("new.npz --method standard", "new.npz: there is no array 'labels'"),
        ("calibration.npz", "the trust score needs training samples"),
        ("calibration.npz --method standard -o a.txt", "written as .html"),
        ("calibration.npz --method standard --alpha 0", "alpha"),
        ("calibration.npz --method standard --by nonsense", "nonsense"),
        ("calibration.npz --method standard --by trust", "trust"),
        ("missing.npz", "missing.npz"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, folder, words, error):
    done = run("audit", *words.split())
    assert done.code == 2 and error in done.err and done.err.count("\n") == 1
    assert not (folder / "audit.html").exists()


def test_a_report_can_search_for_regions_too(run, folder, monkeypatch):
    quick = partial(excess_risk, n_permutations=0)
    monkeypatch.setattr("trustsets.files.evaluation.excess_risk", quick)
    words = ["report", "test.npz", "standard.trustsets", "--metric", "class"]
    done = run(*words, "--regions", "-o", "r.html", "--json")
    assert done.code == 0
    text = (folder / "r.html").read_text(encoding="utf-8")
    assert 'id="regions"' in text and 'id="risk"' in text and "No test set" not in text
    assert "excess_risk.under" in json.loads(done.out)["evaluations"]["standard"]["more"]
