"""Every command does what the library does, with the words of Python."""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import write_csv
from outputs_files import CLASSES

import trustsets
from trustsets import ConditionalConformal, ModelOutputs, StandardConformal, TrustScore
from trustsets.files import OutputsFile, open_outputs
from trustsets.metrics import FrequencyBins
from trustsets.metrics.catalogue import METRICS
from trustsets.recipes import AUTHORS_TRUST, METHODS, SCORES, make_predictor


def fitted_trust(**parameters):
    train = np.load("train.npz")
    return TrustScore(**parameters).fit(train["features"], train["classes"][train["labels"]])


def assert_same(model, predictor):
    """Both give the same sets of the new samples."""
    new = open_outputs("new.npz").read()
    one, two = (own.predict_set(new, alpha=0.1) for own in (trustsets.load(model), predictor))
    np.testing.assert_array_equal(one.thresholds, two.thresholds)
    np.testing.assert_array_equal(one.mask, two.mask)


@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_calibrate_is_the_library_for_every_method(method, trained, run, folder):
    """With and without training samples: the default on the command line is that of Python."""
    words = ["calibrate", "calibration.npz", "--method", method, "-o", "m.trustsets"]
    training = ["--train", "train.npz"] if trained else []
    if method == "naive" or (method == "paper" and not trained):
        done = run(*words, *training, code=2)
        remedy = "--method mondrian" if trained else "--train FILE"
        assert remedy in done.err and done.err.count("\n") == 1
        return
    done = run(*words, *training)
    outputs = open_outputs("calibration.npz").read()
    setting = AUTHORS_TRUST if method == "paper" else {}
    trust = fitted_trust(**setting) if trained else None
    own = make_predictor(method, trust=trust, n=len(outputs))
    assert_same("m.trustsets", own.calibrate(outputs))
    if method == "conditional":
        own = ConditionalConformal(trust=fitted_trust() if trained else None)
        assert_same("m.trustsets", own.calibrate(outputs))
        assert "groups by site" in done.err
        assert ("trust is not used" in done.err) == (not trained)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--method standard --score raps --set temperature=tuning", "RAPS"),
        ("--method standard --score saps --set lam=0.1", "lam=0.1"),
        ("--method standard --score lac --set scale=tail", "Softmax(scale='tail', floor=0.0)"),
        ("--method groups --group id", "columns=('id',)"),
        ("--method class --set temperature=1.5", "'temperature': 1.5"),
        ("--method bins --statistic confidence,entropy", "Entropy"),
        ("--statistic confidence --set degree=2 --set transform=log", "degree=2"),
        ("--statistic confidence --group group_site", "Groups(columns=('group_site',)"),
        ("--basis groups,intercept", "Intercept"),
        ("--set degree=2 --train train.npz", "Polynomial(degree=2, of=(Confidence(transform='rank"),
        ("--method paper --set degree=3 --train train.npz", "degree=3"),
        ("--method paper --train train.npz", "'squared': True}"),
        ("--method paper --set neighbour=3 --train train.npz", "{'neighbour': 3"),
        ("--train train.npz", "{'neighbour': 1"),
        ("--basis components --set components=2 --set randomized=true", "'randomized': True"),
        ("--train train.npz --set neighbour=2 --set own_mass=random", "own_mass='random'"),
        ("--method clustered --set tuning_fraction=0.4", "'tuning_fraction': 0.4"),
        ("--method standard --set prevalence=0.5", "'class_bias': ClassBias(prevalence=0.5)"),
        ("--statistic confidence --set per-class=true", "'per_class': True"),
        ("--method standard --set allow_empty=true", "'allow_empty': True"),
        ("--method standard --set random_state=7", "'random_state': 7"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
def test_calibrate_takes_the_parameters_of_python(options, expected, run, folder):
    done = run("calibrate", "calibration.npz", "-o", "m.trustsets", *options.split())
    assert "Saved to m.trustsets." in done.err and done.out == ""
    model = trustsets.load("m.trustsets")
    trust = getattr(model, "trust", None)
    setting = trust and {name: getattr(trust, name) for name in ("neighbour", "squared")}
    assert expected in f"{type(model).__name__} {model.get_params(deep=False)} {setting}"
    if "paper" not in options:
        run("predict", "m.trustsets", "new.npz", "-o", "sets.csv")


def test_help_names_every_method_score_and_metric(run):
    text = " ".join(run("calibrate", "--help").out.replace("│", " ").split())
    for name in [*{*METHODS} - {"naive"}, *SCORES, "lac"]:
        assert f"{name}" in text
    text = " ".join(run("evaluate", "--help").out.replace("│", " ").split())
    for name in METRICS:
        assert name in text


def test_groups_are_never_dropped_without_a_word(run, folder):
    """`--statistic confidence --group site` conditioned on confidence alone, silently."""
    words = ["calibrate", "calibration.npz", "-o", "m.trustsets", "--group", "site"]
    for more in ([], ["--statistic", "confidence"], ["--set", "degree=2"], ["--method", "groups"]):
        run(*words, *more)
        assert trustsets.load("m.trustsets").needed_groups == ("site",), more
    arrays = np.load("calibration.npz")
    np.savez("comma.npz", **{name.replace("site", "a,b"): own for name, own in arrays.items()})
    run("calibrate", "comma.npz", "--method", "groups", "-o", "comma.trustsets")
    run("predict", "comma.trustsets", "comma.npz", "-o", "s.csv")
    # Every model has the columns that it needs, whatever the first one does without.
    np.savez("plain.npz", **{name.removeprefix("group_"): own for name, own in arrays.items()})
    run("calibrate", "plain.npz", "--method", "groups", "--group", "site", "-o", "g.trustsets")
    run("evaluate", "plain.npz", "standard.trustsets", "g.trustsets")
    assert "Warning: coverage is not conditioned on site" in run(*words, "--method", "standard").err
    assert run(*words, "--method", "standard", "--quiet").err == ""


def test_training_samples_are_never_ignored_without_a_word(run, folder):
    """`--train` and `neighbour` of a method without trust had no effect, silently."""
    words = ["calibrate", "calibration.npz", "-o", "m.trustsets", "--train", "train.npz"]
    assert "--train is not used" not in run(*words).err
    assert "--train is not used" in run(*words, "--method", "standard").err
    done = run(*words, "--method", "standard", "--set", "neighbour=2", code=2)
    assert "has no parameter 'neighbour'" in done.err


def test_predict_is_the_library(run, folder):
    done = run("predict", "conditional.trustsets", "new.npz", "--alpha", "0.2", "-o", "s.parquet")
    assert done.out == ""
    assert "1,200 sets of" in done.err and "Written to s.parquet." in done.err
    sets = trustsets.load("conditional.trustsets").predict_set(
        open_outputs("new.npz").read(), alpha=0.2
    )
    table = pq.read_table("s.parquet")
    assert table.column("set").to_pylist() == [own.tolist() for own in sets]
    assert table.column("id").to_pylist() == np.load("new.npz")["id"].tolist()
    words = ["predict", "conditional.trustsets", "new.npz", "-o", "s.csv", "--max-size", "2"]
    run(*words, "--id", "group_site,id")
    with open("s.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:3] == ["row", "group_site", "id"]
    assert max(int(row["size"]) for row in rows) <= 2
    assert all(row["set"].count("|") == int(row["size"]) - 1 for row in rows)
    assert "[" not in rows[0]["set"] and '"' not in rows[0]["set"]


@pytest.mark.parametrize("columns", ["usual", "prefix", "odd"])
def test_a_model_remembers_its_columns(columns, run, folder):
    """Columns with the usual prefix need no options, others are named once, in any order."""
    names = {
        "usual": [f"prob_{name}" for name in CLASSES],
        "prefix": [f"p: {name}" for name in CLASSES],
        "odd": list("vwxyz"),
    }
    words = {
        "usual": ["--label-column", "truth"],
        "prefix": ["--label-column", "truth", "--probability-columns", "p: *"],
        "odd": ["--label-column", "truth", "--probability-columns", "v,w,x,y,z"],
    }[columns]
    if columns == "odd":
        (folder / "names.txt").write_text("\n".join(CLASSES))
        words += ["--classes", "names.txt"]
    for name in ("train", "calibration", "test", "new"):
        write_csv(folder / f"{name}.csv", np.load(f"{name}.npz"), names[columns])
    features = "f1,f2,f3,f4" if columns == "prefix" else "f*"
    words += ["--feature-columns", features, "--group", "site"]
    run("calibrate", "calibration.csv", "--train", "train.csv", *words, "-o", "m.trustsets")
    with open("new.csv") as file:
        rows = [line[::-1] for line in csv.reader(file)]
    with open("turned.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    run("predict", "m.trustsets", "turned.csv", "-o", "a.csv")
    (folder / "more.csv").write_text((folder / "new.csv").read_text().replace("f2", "f5", 1))
    done = run("predict", "m.trustsets", "more.csv", "-o", "b.csv", code=2)
    assert ("'features'" if columns == "prefix" else "'f2'") in done.err
    arrays = dict(np.load("new.npz"))
    probabilities = ModelOutputs(logits=arrays.pop("logits")).probabilities
    np.savez("arrays.npz", **arrays, probabilities=probabilities)
    run("predict", "m.trustsets", "arrays.npz", "-o", "b.csv")
    with open("a.csv") as one, open("b.csv") as two:
        assert [r["set"] for r in csv.DictReader(one)] == [r["set"] for r in csv.DictReader(two)]
    done = run("evaluate", "test.csv", "m.trustsets", "--metric", "class,groups", "--json")
    assert {"class", "group:site"} == set(json.loads(done.out)["evaluations"]["m"]["tables"])


def test_rounded_probabilities_are_taken_and_said_once(run, folder, monkeypatch):
    """Three digits were refused, with advice that led to wrong sets."""
    for name in ("calibration", "new"):
        arrays = dict(np.load(f"{name}.npz"))
        p = ModelOutputs(logits=arrays.pop("logits")).probabilities.round(3)
        assert (p.sum(axis=1) != 1.0).any()
        np.savez(f"{name}.npz", probabilities=p, **arrays)
    blocks = OutputsFile.blocks
    monkeypatch.setattr(OutputsFile, "blocks", lambda source: blocks(source, 100))
    words = ["calibrate", "calibration.npz", "--method", "standard", "-o", "m.trustsets"]
    for command in (words, ["predict", "m.trustsets", "new.npz", "-o", "s.csv"]):
        done = run(*command)
        assert done.err.count("Warning: ") == 1 and "divided by their sum" in done.err


def test_json_and_quiet(run, folder):
    done = run("predict", "standard.trustsets", "new.npz", "-o", "s.csv", "--json")
    answer = json.loads(done.out)
    assert done.err == "" and answer["n"] == 1200
    done = run("predict", "standard.trustsets", "new.npz", "-o", "s.csv", "--quiet")
    assert (done.out, done.err) == ("", "")
    words = ["calibrate", "calibration.npz", "-o", "m.trustsets", "--method", "standard"]
    assert json.loads(run(*words, "--json").out)["n"] == 1200


def test_evaluate_is_the_library(run, folder):
    words = ["test.npz", "standard.trustsets", "ours=conditional.trustsets"]
    results = json.loads(run("evaluate", *words, "--alpha", "0.2", "--json").out)["evaluations"]
    outputs = open_outputs("test.npz").read().with_trust(fitted_trust())
    models = {name: trustsets.load(f"{name}.trustsets") for name in ("standard", "conditional")}
    bins = {"conf_frequency": FrequencyBins(models["standard"].class_counts_)}
    for name, predictor in zip(("standard", "ours"), models.values(), strict=True):
        truth = trustsets.evaluate(predictor.predict_set(outputs, 0.2), outputs, bins=bins)
        assert results[name] == json.loads(truth.to_json())
    header, *rows = run("evaluate", *words, "--alpha", "0.2").out.splitlines()
    assert header.split() == "Metric Method Value 95% interval Noise floor".split()
    assert sum(row.startswith("Coverage") for row in rows) == 2
    value = results["standard"]["coverage"]["value"]
    assert rows[0].split()[:3] == ["Coverage", "standard", f"{value:.3f}"]
    done = run("evaluate", *words)
    assert "1,200 samples, 5 classes, alpha = 0.1." in done.err and "points" in done.err
    assert run("evaluate", *words, "--quiet").err == ""


def test_every_model_predicts_with_its_own_trust_score(run, folder):
    """All had that of the first one."""
    for neighbour in (1, 20):
        words = f"--method mondrian --statistic trust --train train.npz --set neighbour={neighbour}"
        run("calibrate", "calibration.npz", *words.split(), "-o", f"m{neighbour}.trustsets")
    outputs = open_outputs("test.npz").read()
    both = run("evaluate", "test.npz", "m1.trustsets", "m20.trustsets", "--json").out
    sizes = {name: item["sizes"]["mean"] for name, item in json.loads(both)["evaluations"].items()}
    assert sizes["m1"] != sizes["m20"]
    for name, size in sizes.items():
        sets = trustsets.load(f"{name}.trustsets").predict_set(outputs, alpha=0.1)
        assert size == sets.sizes.mean()


def test_report_and_audit_are_pages(run, folder):
    words = ["test.npz", "standard.trustsets", "ours=conditional.trustsets"]
    assert "report.html" in run("report", *words, "--metric", "class").err
    assert "ours" in (folder / "report.html").read_text()
    words = ("audit", "calibration.npz", "--train", "train.npz", "--method", "standard")
    found = json.loads(run(*words, "--alpha", "0.2", "--json").out)["evaluation"]
    outputs = open_outputs("calibration.npz").read().with_trust(fitted_trust())
    truth = trustsets.audit(StandardConformal().calibrate(outputs), alpha=0.2)
    assert "conf_trust" in found["tables"] and found["alpha"] == 0.2
    assert found["coverage"] == json.loads(truth.to_json())["coverage"]
    assert "Audit" in (folder / "audit.html").read_text(encoding="utf-8")


def test_plan_needs_no_files_and_reads_the_shares_of_outputs(run, folder):
    assert "854" in run("plan", "--samples", 500).out
    numbers = json.loads(run("plan", "--json", "--within", "0.05").out)
    assert numbers["within"] == 0.05 and numbers["rows"][0]["part"] == "all samples"
    done = run("plan", "test.npz")
    assert "You have " in done.out and "class " in done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("calibrate new.npz -o m.trustsets", "new.npz: there is no array 'labels'"),
        ("calibrate calibration.npz -o m.trustsets --statistic trust", "--train FILE"),
        ("calibrate calibration.npz -o no/m.trustsets", "folder does not exist"),
        ("calibrate calibration.npz -o m.trustsets --method odd", "method must be one of"),
        ("calibrate calibration.npz -o m.trustsets --score odd", "score must be one of"),
        ("calibrate calibration.npz -o m.trustsets --set degree", "--set must be NAME=VALUE"),
        ("calibrate calibration.npz -o m.trustsets --set odd=1", "has no parameter 'odd'"),
        ("calibrate calibration.npz -o m.trustsets --set degree=1e999", "degree"),
        ("calibrate calibration.npz -o m.trustsets --set degree=many", "degree"),
        ("calibrate calibration.npz -o m.trustsets --train missing.npz", "missing.npz: there is"),
        ("calibrate calibration.npz -o m.trustsets --set temperature=hot", "temperature must be"),
        ("calibrate calibration.npz -o m.trustsets --classes test.txt", "test.txt"),
        ("calibrate calibration.npz -o m.trustsets --group odd", "no group column 'odd'"),
        ("calibrate calibration.npz -o m.trustsets --set score=raps", "an option of its own"),
        ("calibrate calibration.npz -o m.trustsets --set 'score =raps'", "an option of its own"),
        ("calibrate calibration.npz -o m.trustsets --set degree=-1", "degree must be a whole"),
        ("calibrate floats.npz -o m.trustsets", "'labels' must hold integers or texts"),
        ("calibrate two.csv -o m.trustsets --probability-columns ,", "the name of a column"),
        ("evaluate test.npz a=", "a=: there is no such file"),
        ("verify standard.trustsets", "is no certificate (UnicodeDecodeError"),
        ("audit new.npz --method standard", "new.npz: there is no array 'labels'"),
        ("audit calibration.npz --method standard -o a.txt", "written as .html"),
        ("predict new.npz new.npz -o s.csv", "new.npz: not a .trustsets file"),
        ("predict missing.trustsets new.npz -o s.csv", "missing.trustsets: there is no such file"),
        ("predict standard.trustsets new.npz -o s.csv --alpha 2", "alpha"),
        ("predict standard.trustsets new.npz -o s.csv --alpha nan", "alpha"),
        ("predict conditional.trustsets new.npz -o s.csv --max-size 0", "max_size"),
        ("predict conditional.trustsets new.npz -o s.csv --max-size -99999999999999999999", "max_"),
        ("predict standard.trustsets new.npz -o s.xls", "s.xls: the result is written as"),
        ("predict standard.trustsets new.npz -o no/s.csv", "folder does not exist"),
        ("predict standard.trustsets new.npz -o s.csv --id nothing", "no column to copy 'nothing'"),
        ("predict standard.trustsets new.npz -o s.csv --id logits", "logits"),
        ("predict standard.trustsets rows.npz -o s.csv --id row", "'row' cannot be copied"),
        ("evaluate new.npz standard.trustsets", "new.npz: there is no array 'labels'"),
        ("evaluate test.npz standard.trustsets x/standard.trustsets", "two models are called"),
        ("evaluate test.npz test.npz", "test.npz: not a .trustsets file"),
        ("evaluate test.npz standard.trustsets --metric all", "all"),
        ("report test.npz standard.trustsets -o standard.trustsets", "is written as .html"),
        ("plan --within 2", "within"),
        ("plan --within 0.95", "within must be less than the coverage 0.9; got 0.95"),
        ("predict conditional.trustsets narrow.npz -o s.csv", "narrow.npz: "),
        ("plan --samples 9999999999999999999999999999999999999999", "whole number from 1 to"),
        ("plan new.npz", "new.npz"),
        ("predict standard.trustsets /dev/zero -o s.csv", "this is a pipe or a device"),
        ("predict standard.trustsets pipe.npz -o s.csv", "pipe.npz: this is a pipe or a device"),
        ("predict pipe.npz new.npz -o s.csv", "pipe.npz: this is"),
        ("predict standard.trustsets piped -o s.csv", "logits.npy: this is a pipe or a device"),
        ("calibrate calibration.npz -o m.trustsets --train pipe.npz", "this is a pipe"),
        ("calibrate calibration.npz -o m.trustsets --method standard --classes pipe.txt", "pipe"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, run, folder):
    for name in ("pipe.npz", "pipe.txt"):
        os.mkfifo(folder / name)
    (folder / "piped").mkdir()
    os.mkfifo(folder / "piped" / "logits.npy")
    np.savez("rows.npz", row=np.arange(1200)[::-1], **dict(np.load("new.npz")))
    arrays = dict(np.load("calibration.npz"))
    np.savez("narrow.npz", **arrays | {"features": arrays["features"][:, :2]})
    np.savez("floats.npz", **arrays | {"labels": arrays["labels"].astype(float)})
    (folder / "two.csv").write_text("prob_a,prob_b,label\n.5,.5,a\n.2,.8,b\n")
    before = sorted(item.name for item in folder.iterdir())
    done = run(*shlex.split(arguments), code=2)
    assert done.err.startswith("Error: ") and done.err.count("\n") == 1, done.err
    assert words in done.err and len(done.err) < 500
    assert done.out == ""
    assert sorted(item.name for item in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "lost"),
    [
        ("predict standard.trustsets new.parquet -o new.parquet", "new.parquet"),
        ("calibrate test.npz --classes names.trustsets -o names.trustsets", "names.trustsets"),
        ("calibrate calibration.npz --train train.trustsets -o train.trustsets", "train.trustsets"),
        ("report test.npz train.html -o train.html", "train.html"),
    ],
)  # fmt: skip
def test_an_output_never_replaces_an_input(arguments, lost, run, folder):
    pq.write_table(pa.table({"logits": list(np.load("new.npz")["logits"])}), "new.parquet")
    for name in ("names.trustsets", "train.html", "train.trustsets"):
        (folder / name).write_text("ant")
    before = (folder / lost).read_bytes()
    done = run(*arguments.split(), code=2)
    assert "which would be lost" in done.err
    assert (folder / lost).read_bytes() == before


def test_debug_warnings_and_stops(run, folder, monkeypatch):
    words = ["predict", "standard.trustsets", "missing.npz", "-o", "s.csv", "--debug"]
    with pytest.raises(trustsets.errors.InputError, match=r"missing\.npz"):
        trustsets.cli.main(words)
    words = ["calibrate", "calibration.npz", "-o", "m.trustsets", "--train", "calibration.npz"]
    done = run(*words)
    (line,) = [line for line in done.err.splitlines() if line.startswith("Warning: ")]
    assert "both the calibration file and the training file" in line
    for error, code in ((KeyboardInterrupt(), 130), (MemoryError("7 PiB"), 2)):

        def stop(own, *rows, error=error, **named):
            raise error

        monkeypatch.setattr(OutputsFile, "read", stop)
        done = run("predict", "standard.trustsets", "new.npz", "-o", "s.csv", code=code)
        assert ("not enough memory (7 PiB)" in done.err) == (code == 2)


@pytest.mark.parametrize("after", [0.0, 0.3])
def test_an_interrupt_while_modules_are_imported_ends_quietly(after, folder):
    """It ended in a traceback and exit code 1."""
    code = "from trustsets.cli import main; print('ready', flush=True); main()"
    words = ["predict", "standard.trustsets", "new.npz", "-o", "s.csv"]
    child = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    child.stdout.readline()
    time.sleep(0.05 + after)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate()
    # A signal that arrives when all is done ends the interpreter as it ends any other program.
    assert child.returncode in (130, 0, -signal.SIGINT), said
    assert b"Traceback" not in said


def test_an_interrupt_within_a_callback_is_not_lost(folder):
    """Importing runs callbacks, in which Python prints an interrupt and goes on."""
    code = (
        "import weakref, trustsets.files\n"
        "from trustsets.cli import main\n"
        "def callback(reference): raise KeyboardInterrupt\n"
        "def read(*arguments, **named):\n"
        "    held = set(); reference = weakref.ref(held, callback); del held\n"
        "    while True: pass\n"
        "trustsets.files.OutputsFile.read = read\n"
        "main()"
    )
    words = ["predict", "standard.trustsets", "new.npz", "-o", "s.csv"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, timeout=60)
    assert done.returncode == 130 and b"Traceback" not in done.stderr, done.stderr


def test_verify_tells_valid_from_not_valid_from_no_certificate(run, folder):
    predictor = trustsets.load("standard.trustsets")
    samples = open_outputs("new.npz").read(0, 1)
    certificate = predictor.certificate(samples, alpha=0.1)
    certificate.save("certificate.json")
    said = run("verify", "certificate.json").out
    assert said.startswith(f"valid: it proves the threshold {certificate.threshold:.6g}")
    content = json.loads((folder / "certificate.json").read_text())
    content["threshold"] += 0.01
    (folder / "wrong.json").write_text(json.dumps(content))
    done = run("verify", "wrong.json", code=1)
    assert done.out.strip() == "not valid: the threshold is not row @ coefficients"
    assert json.loads(run("verify", "wrong.json", "--json", code=1).out)["valid"] is False
    (folder / "deep.json").write_text("[" * 100_000)
    for name in ("new.npz", "missing.json", "standard.trustsets", "deep.json"):
        assert len(run("verify", name, code=2).err.splitlines()) == 1
