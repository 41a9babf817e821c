"""Explanations and certificates on the command line."""

import json

import numpy as np

import trustsets
from trustsets.files import open_outputs


def test_predict_explains_the_first_samples(run, folder):
    words = ["predict", "conditional.trustsets", "new.npz", "--explain", "2", "-o", "s.parquet"]
    done = run(*words)
    assert done.code == 0
    predictor = trustsets.load("conditional.trustsets")
    samples = open_outputs("new.npz", groups=predictor.needed_groups).read(0, 2)
    for place in range(2):
        summary = predictor.explain(samples[place]).summary()
        assert f"Sample {place}:\n{summary}\n" in done.out
    answer = json.loads(run(*words, "--json").out)
    assert [own["summary"] in done.out for own in answer["explanations"]] == [True, True]


def test_predict_explains_the_most_likely_class_where_each_has_a_threshold(run, folder):
    run("calibrate", "calibration.npz", "--method", "class", "-q", "-o", "c.trustsets")
    done = run("predict", "c.trustsets", "new.npz", "--explain", "1", "-o", "s.csv")
    (first, *_) = trustsets.ModelOutputs(
        logits=np.load("new.npz")["logits"][:1], classes=np.load("new.npz")["classes"]
    ).predicted
    assert done.code == 0 and f"Sample 0:\nClass {first} is " in done.out


def test_verify_tells_valid_from_not_valid_from_no_certificate(run, folder):
    predictor = trustsets.load("standard.trustsets")
    samples = open_outputs("new.npz").read(0, 1)
    own = predictor.certificate(samples, alpha=0.1)
    own.save("certificate.json")
    done = run("verify", "certificate.json")
    assert done.code == 0 and done.out.startswith(
        f"valid: it proves the threshold {own.threshold:.6g}"
    )
    content = json.loads((folder / "certificate.json").read_text())
    content["threshold"] += 0.01
    (folder / "wrong.json").write_text(json.dumps(content))
    done = run("verify", "wrong.json")
    assert done.code == 1
    assert done.out.strip() == "not valid: the threshold is not row @ coefficients"
    done = run("verify", "wrong.json", "--json")
    assert done.code == 1 and json.loads(done.out)["valid"] is False
    for name in ("new.npz", "missing.json", "standard.trustsets"):
        done = run("verify", name)
        assert done.code == 2 and len(done.err.splitlines()) == 1
