"""Every command does what the library does, and what it stores can be run again."""

import json
import os
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trustsets
from trustsets import ConditionalConformal, ModelOutputs, StandardConformal, TrustScore
from trustsets.files import open_outputs
from trustsets.files.options import read_record
from trustsets.metrics import FrequencyBins


def test_calibrate_is_the_library(folder):
    model = trustsets.load(folder / "conditional.trustsets")
    train, outputs = np.load(folder / "train.npz"), open_outputs(folder / "calibration.npz").read()
    trust = TrustScore().fit(train["features"], train["classes"][train["labels"]])
    own = ConditionalConformal(trust=trust).calibrate(outputs)
    new = open_outputs(folder / "new.npz").read()
    np.testing.assert_array_equal(model.predict_set(new).mask, own.predict_set(new).mask)
    assert model.classes_.tolist() == ["ant", "bee", "cat", "dog", "eel"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--method standard --score raps --temperature tuning", "RAPS"),
        ("--method standard --score saps --lam 0.1", "lam=0.1"),
        ("--method standard --score softmax --scale tail --seed 7", "Softmax(scale='tail')"),
        ("--method groups", "Groups"),
        ("--method groups --group id", "Groups"),
        ("--method class --temperature 1.5", "'temperature': 1.5"),
        ("--method bins --train train.npz", "Bins("),
        ("--method bins --statistic confidence --statistic entropy", "Entropy"),
        ("--statistic confidence --degree 2 --transform log", "degree=2"),
        ("--basis groups --basis intercept", "Intercept"),
        ("--degree 2 --train train.npz", "Polynomial(degree=2, of=(Confidence(transform='rank'), "),
        ("--paper --degree 3 --train train.npz", "degree=3"),
        ("--basis components --components 2 --randomized", "'randomized': True"),
        ("--train train.npz --neighbour 2 --own-mass random", "own_mass='random'"),
        ("--method plugin --statistic margin", "PluginConformal"),
        ("--method clustered --tuning-fraction 0.4", "ClusteredConformal"),
        ("--paper --train train.npz --allow-empty", "'temperature': 'tuning'"),
        ("--method bins --paper --train train.npz", "'paper_rules': True"),
        ("--method standard --tuning test.npz --temperature tuning", "tuning"),
        ("--method standard --prevalence 0.5", "'class_bias': ClassBias(prevalence=0.5)"),
        ("--method class --prevalence 0", "'class_bias': ClassBias()"),
        ("--statistic confidence --prevalence 1 --per-class", "'per_class': True"),
        ("--statistic confidence --no-per-class", "'per_class': False"),
        ("--statistic confidence", "'per_class': 'auto'"),
    ],
)
def test_calibrate_knows_every_method(options, expected, run, folder):
    done = run("calibrate", "calibration.npz", "-o", "m.trustsets", *options.split())
    assert done.code == 0, done.err
    assert "Saved to m.trustsets." in done.err and done.out == ""
    model = trustsets.load("m.trustsets")
    assert expected in f"{type(model).__name__} {model.get_params(deep=False)}"
    if "paper" not in options:
        assert run("predict", "m.trustsets", "new.npz", "-o", "sets.csv").code == 0


def test_predict_is_the_library(run, folder):
    done = run("predict", "conditional.trustsets", "new.npz", "--alpha", "0.2", "-o", "s.parquet")
    assert done.code == 0 and done.out == ""
    assert "1,200 sets of" in done.err and "Written to s.parquet." in done.err
    sets = trustsets.load("conditional.trustsets").predict_set(
        open_outputs("new.npz").read(), alpha=0.2
    )
    table = pq.read_table("s.parquet")
    assert table.column("set").to_pylist() == [own.tolist() for own in sets]
    assert table.column("id").to_pylist() == np.load("new.npz")["id"].tolist()


def test_predict_limits_sizes_and_writes_p_values(run, folder):
    done = run("predict", "standard.trustsets", "new.npz", "--p-values", "2", "-o", "p.parquet")
    assert done.code == 0, done.err
    names = ["class_1", "p_1", "class_2", "p_2", "confidence", "credibility"]
    assert pq.read_table("p.parquet").column_names[-6:] == names
    done = run("predict", "conditional.trustsets", "new.npz", "--max-size", "2", "-o", "s.parquet")
    assert done.code == 0, done.err
    table = pq.read_table("s.parquet")
    assert table.column_names[-1] == "alpha"
    assert max(table.column("size").to_pylist()) <= 2
    done = run("evaluate", "test.npz", "s.parquet")
    assert done.code == 2 and "each has an alpha of its own" in done.err
    for wrong in (["--max-size", "0"], ["--p-values", "99"]):
        done = run("predict", "conditional.trustsets", "new.npz", *wrong, "-o", "other.csv")
        assert (done.code, done.err.count("\n")) == (2, 1), done.err


def test_json_and_quiet(run, folder):
    done = run("predict", "standard.trustsets", "new.npz", "-o", "s.csv", "--json")
    answer = json.loads(done.out)
    assert done.err == "" and answer["n"] == 1200 and answer["command"] == "predict"
    done = run("predict", "standard.trustsets", "new.npz", "-o", "s.csv", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    done = run(
        "calibrate", "calibration.npz", "-o", "m.trustsets", "--method", "standard", "--json"
    )
    assert json.loads(done.out)["n"] == 1200
    done = run("evaluate", "test.npz", "standard.trustsets", "--metric", "class", "--json")
    answer = json.loads(done.out)["evaluations"]["standard"]
    assert answer["n"] == 1200 and list(answer["tables"]) == ["class"]


def test_evaluate_is_the_library(run, folder):
    run("predict", "standard.trustsets", "test.npz", "-o", "sets.parquet", "-q")
    run("predict", "standard.trustsets", "test.npz", "-o", "sets.jsonl", "-q")
    arguments = ["test.npz", "standard.trustsets", "a=sets.parquet", "b=sets.jsonl"]
    done = run("evaluate", *arguments, "--train", "train.npz", "-o", "result.json")
    assert done.code == 0, done.err
    found = json.loads((folder / "result.json").read_text())["evaluations"]
    outputs = open_outputs("test.npz").read()
    train = np.load("train.npz")
    trust = TrustScore().fit(train["features"], train["classes"][train["labels"]])
    predictor = trustsets.load("standard.trustsets")
    sets = predictor.predict_set(outputs)
    bins = {"conf_frequency": FrequencyBins(predictor.class_counts_)}
    truth = json.loads(trustsets.evaluate(sets, outputs.with_trust(trust), bins=bins).to_json())
    assert truth["tables"]["conf_frequency"]["axes"][1] == "Class frequency in calibration (%)"
    assert found["standard"] == found["a"] == found["b"] == truth
    header, *rows = done.out.splitlines()
    assert header.split() == "Metric Method Value 95% interval Noise floor".split()
    assert sum(row.startswith("Coverage") for row in rows) == 3
    value = truth["coverage"]["value"]
    assert rows[0].split()[:3] == ["Coverage", "standard", f"{value:.3f}"]


def test_shares_of_poorly_covered_classes_are_of_any_size(run, folder):
    arguments = ["evaluate", "test.npz", "standard.trustsets", "--metric", "class"]
    done = run(*arguments, "--below", "0.7", "--below", "0.95")
    assert "Class share below 0.7" in done.out and "Class share below 0.95" in done.out
    assert "Class share below 0.5" in run(*arguments).out
    done = run(*arguments, "--below", "70")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "below must be shares above 0 and up to 1" in done.err


def test_an_interrupted_evaluation_continues(run, folder, monkeypatch):
    from trustsets.files import evaluation

    arguments = ["evaluate", "test.npz", "standard.trustsets", "conditional.trustsets"]
    arguments += ["--metric", "class", "-o", "result.json"]
    measured = []
    measure = evaluation.evaluate

    def count(sets, *rest, **named):
        if len(measured) == 1:
            measured.append("stopped")
            raise KeyboardInterrupt
        measured.append(sets)
        return measure(sets, *rest, **named)

    monkeypatch.setattr(evaluation, "evaluate", count)
    assert run(*arguments).code == 130
    assert not (folder / "result.json").exists()
    assert run(*arguments).code == 0
    assert len(measured) == 3  # the first method was not measured again
    again = (folder / "result.json").read_text()
    assert run(*arguments).code == 0
    assert (folder / "result.json").read_text() == again


def test_report_is_a_page_with_its_options(run, folder):
    arguments = ["test.npz", "standard.trustsets", "ours=conditional.trustsets"]
    done = run("report", *arguments, "--title", "Animals & co", "--metric", "class")
    assert done.code == 0 and "report.html" in done.err
    page = (folder / "report.html").read_text()
    assert "Animals &amp; co" in page and "ours" in page
    assert read_record(folder / "report.html")["options"]["title"] == "Animals & co"
    assert '<div id="alpha"' in page
    assert run("report", *arguments, "--metric", "class", "--no-slider").code == 0
    assert '<div id="alpha"' not in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("command", "result"),
    [
        (["predict", "standard.trustsets", "new.npz", "--alpha", "0.3", "-o"], "r.parquet"),
        (["predict", "standard.trustsets", "new.npz", "--id", "group_site", "-o"], "r.csv"),
        (["predict", "standard.trustsets", "new.npz", "--memory", "1MB", "-o"], "r.jsonl"),
        (["calibrate", "calibration.npz", "--statistic", "entropy", "--seed", "4", "-o"],
         "r.trustsets"),
        (["evaluate", "test.npz", "x=standard.trustsets", "--metric", "class", "-o"], "r.json"),
        (["report", "test.npz", "x=standard.trustsets", "--metric", "class", "-o"], "r.html"),
    ],
)  # fmt: skip
def test_every_output_can_be_made_again_from_itself(command, result, run, folder):
    assert run(*command, result).code == 0
    before = (folder / result).read_bytes()
    (folder / result).rename(f"first_{result}")
    beside = folder / f"{result}.options.json"
    if beside.exists():
        beside.rename(folder / f"first_{result}.options.json")
    done = run(command[0], "--config", f"first_{result}", "-o", result)
    assert done.code == 0, done.err
    assert (folder / result).read_bytes() == before


def test_only_a_toml_file_or_a_person_says_where_to_write(run, folder):
    (folder / "precious.csv").write_text("years of work")
    record = {
        "command": "predict",
        "options": {"model": "standard.trustsets", "outputs": "new.npz", "output": "precious.csv"},
    }
    (folder / "received.json").write_text(json.dumps(record))
    done = run("predict", "--config", "received.json")
    assert done.code == 2 and "--output" in done.err
    assert run("predict", "--config", "received.json", "-o", "typed.csv").code == 0
    report = record | {"command": "report"}
    report["options"] = {"outputs": "test.npz", "methods": ["standard.trustsets"]}
    report["options"] |= {"metric": ["class"], "output": "precious.html"}
    (folder / "received.json").write_text(json.dumps(report))
    assert run("report", "--config", "received.json").code == 0
    assert (folder / "report.html").exists() and not (folder / "precious.html").exists()
    assert (folder / "precious.csv").read_text() == "years of work"


def test_a_toml_file_gives_options_and_the_command_line_wins(run, folder):
    (folder / "run.toml").write_text(
        'alpha = 0.3\n[predict]\nmodel = "standard.trustsets"\noutputs = "new.npz"\n'
        'output = "s.parquet"\nid = ["group_site"]\n[calibrate]\nmethod = "class"\n'
    )
    assert run("predict", "--config", "run.toml").code == 0
    assert read_record(folder / "s.parquet")["options"]["alpha"] == 0.3
    assert "group_site" in pq.read_schema("s.parquet").names
    assert run("predict", "--config", "run.toml", "--alpha", "0.2").code == 0
    assert read_record(folder / "s.parquet")["options"]["alpha"] == 0.2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "alfa = 0.1", "a.toml: 'alfa' is no option of 'trustsets predict'"),
        ("a.toml", "alpha = ", "a.toml: not a TOML file"),
        ("a.json", '{"command": "evaluate", "options": {}}', "was made by 'trustsets evaluate'"),
        ("a.json", "[]", "a.json: it holds no options of trustsets"),
        ("a.html", "<p>", "a.html: it holds no options"),
        ("a.csv", "row", "a.csv: it holds no options"),
        ("a.parquet", "PAR1", "a.parquet: it holds no options"),
        ("missing.toml", None, "missing.toml: there is no such file"),
    ],
)
def test_bad_configuration(name, text, message, run, folder):
    if text is not None:
        (folder / name).write_text(text)
    done = run("predict", "--config", name)
    assert done.code == 2 and message in done.err and done.err.count("\n") == 1


def test_debug_shows_the_traceback(folder):
    from trustsets.cli import main

    with pytest.raises(trustsets.InputError, match=r"missing\.npz"):
        main(["predict", "standard.trustsets", "missing.npz", "-o", "s.csv", "--debug"])


def test_warnings_are_one_line(run, folder):
    done = run(
        "calibrate", "calibration.npz", "-o", "m.trustsets", "--paper", "--train", "train.npz"
    )
    (line,) = [line for line in done.err.splitlines() if line.startswith("Warning: ")]
    assert "guarantee holds only approximately" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("calibrate new.npz -o m.trustsets", "new.npz: there is no array 'labels'"),
        ("calibrate calibration.npz -o m.trustsets", "--train FILE"),
        ("calibrate calibration.npz -o no/m.trustsets", "folder does not exist"),
        ("calibrate calibration.npz -o m.trustsets --method standard --paper", "conditional and"),
        ("calibrate calibration.npz -o m.trustsets --train missing.npz", "missing.npz: there is"),
        ("calibrate calibration.npz --statistic confidence -o m.trustsets --temperature hot",
         "temperature must be"),
        ("calibrate calibration.npz -o m.trustsets --method standard --classes test.txt",
         "test.txt"),
        ("predict new.npz new.npz -o s.csv", "new.npz: not a .trustsets file"),
        ("predict missing.trustsets new.npz -o s.csv", "missing.trustsets: there is no such file"),
        ("predict standard.trustsets new.npz -o s.csv --alpha 2", "alpha"),
        ("predict standard.trustsets new.npz -o s.csv --memory much", "such as 512MB"),
        ("predict standard.trustsets new.npz -o s.xls", "s.xls: the result is written as"),
        ("predict standard.trustsets new.npz -o no/s.csv", "folder does not exist"),
        ("predict standard.trustsets new.npz -o s.csv --id nothing", "no column to copy 'nothing'"),
        ("evaluate new.npz standard.trustsets", "new.npz: there is no array 'labels'"),
        ("evaluate test.npz standard.trustsets x/standard.trustsets", "two methods are called"),
        ("evaluate test.npz test.npz", "neither a model (.trustsets) nor predictions"),
        ("evaluate test.npz standard.trustsets --metric all", "all"),
        ("evaluate test.npz standard.trustsets --alpha 0", "alpha"),
        ("report test.npz standard.trustsets -o no/r.html", "folder does not exist"),
        ("predict standard.trustsets new.npz -o s", "s: the result is written as"),
        ("calibrate calibration.npz -o m --method standard", "m: the result is written as .trust"),
        ("calibrate calibration.npz -o calibration.npz --method standard", "as .trustsets"),
        ("evaluate test.npz standard.trustsets -o r", "r: the result is written as .json"),
        ("evaluate test.npz standard.trustsets -o test.npz", "is written as .json"),
        ("report test.npz standard.trustsets -o standard.trustsets", "is written as .html"),
        ("predict standard.trustsets pipe.npz -o s.csv", "pipe.npz: this is a pipe or a device"),
        ("predict pipe.npz new.npz -o s.csv", "pipe.npz: this is"),
        ("predict standard.trustsets piped -o s.csv", "logits.npy: this is a pipe or a device"),
        ("calibrate calibration.npz -o m.trustsets --train pipe.npz", "this is a pipe"),
        ("calibrate calibration.npz -o m.trustsets --method standard --classes pipe.txt", "pipe"),
        ("evaluate test.npz pipe.parquet", "pipe.parquet: this is a pipe or a device"),
        ("evaluate test.npz pipe.csv", "pipe.csv: this is a pipe or a device"),
        ("predict --config pipe.toml", "pipe.toml: this is a pipe or a device"),
        ("predict --config pipe.json", "pipe.json: this is a pipe or a device"),
        ("predict standard.trustsets new.npz -o s.csv --id logits", "logits"),
        ("predict standard.trustsets new.npz -o s.csv --id features", "features"),
        ("predict standard.trustsets rows.npz -o s.csv --id row", "'row' cannot be copied"),
        ("predict standard.trustsets rows.npz -o s.csv --id size", "'size' cannot be copied"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, run, folder):
    for name in ("pipe.npz", "pipe.txt", "pipe.parquet", "pipe.csv", "pipe.toml", "pipe.json"):
        os.mkfifo(folder / name)
    (folder / "piped").mkdir()
    os.mkfifo(folder / "piped" / "logits.npy")
    new = dict(np.load("new.npz"))
    np.savez("rows.npz", row=np.arange(1200)[::-1], size=np.arange(1200), **new)
    before = sorted(item.name for item in folder.iterdir())
    done = run(*arguments.split())
    assert done.code == 2
    assert done.err.startswith("Error: ") and done.err.count("\n") == 1
    assert words in done.err
    assert done.out == ""
    assert sorted(item.name for item in folder.iterdir()) == before


def test_sets_of_two_levels_are_not_compared(run, folder):
    for alpha in ("0.1", "0.2"):
        run("predict", "standard.trustsets", "test.npz", "-o", f"s{alpha}.csv", "--alpha", alpha)
    done = run("evaluate", "test.npz", "a=s0.1.csv", "b=s0.2.csv")
    assert done.code == 2 and "alpha=0.2, and the others have alpha=0.1" in done.err
    done = run("evaluate", "calibration.npz", "s0.2.csv", "--metric", "class")
    assert done.code == 0  # as many samples: it cannot know better


def test_a_model_with_names_reads_outputs_without(run, folder):
    arrays = dict(np.load("test.npz"))
    del arrays["classes"]
    np.savez("nameless.npz", **arrays)
    for model in ("standard.trustsets", "conditional.trustsets"):
        assert run("predict", model, "nameless.npz", "-o", "a.csv").code == 0
        assert run("predict", model, "test.npz", "-o", "b.csv").code == 0
        assert (folder / "a.csv").read_bytes() == (folder / "b.csv").read_bytes()
        assert run("evaluate", "nameless.npz", model, "--metric", "class").code == 0


@pytest.mark.parametrize("model", ["standard.trustsets", "conditional.trustsets"])
def test_a_fresh_process_loads_every_model(model, run, folder):
    """And predicts the same bytes; tests/test_storage.py has all kinds of models."""
    from command_line import spawn

    done = spawn("predict", model, "new.npz", "-o", "fresh.csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert run("predict", model, "new.npz", "-o", "here.csv").code == 0
    fresh, here = ((folder / name).read_bytes() for name in ("fresh.csv", "here.csv"))
    assert fresh == here
    assert fresh.count(b"\n") == 1201


def test_standard_is_the_library(folder):
    model = trustsets.load(folder / "standard.trustsets")
    arrays = np.load(folder / "calibration.npz")
    outputs = ModelOutputs(
        logits=arrays["logits"],
        labels=arrays["classes"][arrays["labels"]],
        classes=arrays["classes"],
    )
    own = StandardConformal().calibrate(outputs)
    np.testing.assert_array_equal(own.state_.learned.scores, model.state_.learned.scores)


def test_odd_names_are_printed_as_they_are(run, folder):
    (folder / "standard.trustsets").rename("[bold]x[1].trustsets")
    done = run("evaluate", "test.npz", "[bold]x[1].trustsets", "--metric", "class")
    assert "[bold]x[1]" in done.out
    done = run("predict", "[bold]x[1].trustsets", "new.npz", "-o", "s[1].csv")
    assert done.code == 0 and "Written to s[1].csv." in done.err
    assert run("predict", "[missing].trustsets", "new.npz", "-o", "s.csv").err.startswith(
        "Error: [missing].trustsets: there is no such file"
    )


def test_predict_opens_its_input_once_and_reads_each_block_once(run, folder, monkeypatch):
    from trustsets.files import source

    opened, read, once = [], [], source.open_columns

    def watched(path, *more):
        opened.append(path)
        columns = once(path, *more)
        logits = columns["logits"]
        original = logits.read
        logits.read = lambda *rows: read.append(rows) or original(*rows)
        return columns

    monkeypatch.setattr(source, "open_columns", watched)
    arguments = ["predict", "standard.trustsets", "new.npz", "-o", "s.csv", "--memory", "100KB"]
    assert run(*arguments).code == 0
    assert len(opened) == 1
    assert len(read) > 1 and len(read) == len(set(read))


def test_stopping_says_how_to_go_on(run, folder, monkeypatch):
    from trustsets.files.prediction import BlockPredictor

    def stop(own, block):
        raise KeyboardInterrupt

    monkeypatch.setattr(BlockPredictor, "predict", stop)
    done = run("predict", "standard.trustsets", "new.npz", "-o", "s.csv")
    assert done.code == 130 and "Give the same command again" in done.err


def test_too_little_memory_is_one_line(run, folder, monkeypatch):
    from trustsets.files.prediction import BlockPredictor

    def fail(own, block):
        raise MemoryError("Unable to allocate 7 PiB")

    monkeypatch.setattr(BlockPredictor, "predict", fail)
    done = run("predict", "standard.trustsets", "new.npz", "-o", "s.csv")
    assert done.code == 2 and "not enough memory (Unable to allocate 7 PiB)" in done.err


def test_tuning_samples_have_the_same_classes(run, folder):
    arrays = dict(np.load("test.npz"))
    arguments = ["calibrate", "calibration.npz", "-o", "m.trustsets", "--method", "standard"]
    arguments += ["--temperature", "tuning", "--tuning"]
    np.savez("turned.npz", **(arrays | {"classes": arrays["classes"][::-1]}))
    done = run(*arguments, "turned.npz")
    assert done.code == 2 and "turned.npz: its classes are not those" in done.err
    del arrays["classes"]
    np.savez("nameless.npz", **arrays)
    temperatures = []
    for name in ("test.npz", "nameless.npz"):
        assert run(*arguments, name).code == 0
        temperatures.append(trustsets.load("m.trustsets").temperature_)
    assert temperatures[0] == temperatures[1] != 1.0


@pytest.mark.parametrize(
    ("arguments", "lost"),
    [
        ("predict standard.trustsets new.parquet -o new.parquet", "new.parquet"),
        ("predict standard.trustsets new.parquet -o link.parquet", "new.parquet"),
        ("calibrate calibration.npz --method standard --classes names.trustsets "
         "-o names.trustsets", "names.trustsets"),
        ("calibrate calibration.npz --train train.trustsets -o train.trustsets", "train.trustsets"),
        ("report test.npz standard.trustsets --classes names.html -o names.html", "names.html"),
        ("evaluate test.npz standard.trustsets --classes names.json -o names.json", "names.json"),
    ],
)  # fmt: skip
def test_an_output_never_replaces_an_input(arguments, lost, run, folder):
    new = np.load("new.npz")
    pq.write_table(pa.table({"logits": list(new["logits"])}), "new.parquet")
    (folder / "link.parquet").symlink_to("new.parquet")
    for name in ("names.trustsets", "names.html", "names.json", "train.trustsets"):
        (folder / name).write_text("ant")
    before = (folder / lost).read_bytes()
    done = run(*arguments.split())
    assert done.code == 2 and "which would be lost" in done.err
    assert (folder / lost).read_bytes() == before


def test_options_beside_a_result_are_bound_to_it(run, folder):
    """A kill between the two files leaves the new sets beside the options of the old ones."""
    for suffix in ("csv", "jsonl"):
        arguments = ["predict", "standard.trustsets", "test.npz", "-q", "-o", f"s.{suffix}"]
        assert run(*arguments, "--alpha", "0.3").code == 0
        beside = folder / f"s.{suffix}.options.json"
        old = beside.read_bytes()
        assert read_record(folder / f"s.{suffix}")["options"]["alpha"] == 0.3
        assert run(*arguments, "--alpha", "0.1").code == 0
        beside.write_bytes(old)
        done = run("evaluate", "test.npz", f"s.{suffix}", "--metric", "class")
        assert done.code == 2 and "belong to another file" in done.err
        assert run("predict", "--config", f"s.{suffix}", "-o", "t.csv").code == 2
        assert run(*arguments, "--alpha", "0.1").code == 0
        assert run("evaluate", "test.npz", f"s.{suffix}", "--metric", "class").code == 0


@pytest.mark.parametrize("alpha", ['"0.1"', "Infinity", "NaN", "1.5", "true", "[0.1]", "null"])
def test_a_record_with_an_odd_alpha_is_one_line(alpha, run, folder):
    assert run("predict", "standard.trustsets", "test.npz", "-q", "-o", "s.csv").code == 0
    beside = folder / "s.csv.options.json"
    beside.write_text(beside.read_text().replace('"alpha": 0.1', f'"alpha": {alpha}'))
    done = run("evaluate", "test.npz", "s.csv", "--metric", "class")
    assert done.code == 2 and done.err.count("\n") == 1 and done.err.startswith("Error: s.csv: ")


@pytest.mark.parametrize(
    "command",
    [
        "calibrate test.npz --method standard -o m.trustsets",
        "evaluate test.npz standard.trustsets --metric class -o r.json",
        "report test.npz standard.trustsets --metric class -o r.html",
    ],
)
def test_an_input_replaced_while_it_is_used_is_noticed(command, run, folder, monkeypatch):
    from trustsets.files import calibration, evaluation

    for module in (calibration, evaluation):
        read = module.load_labelled

        def swap(source, purpose, read=read):
            found = read(source, purpose)
            np.savez("other.npz", **np.load("calibration.npz"))
            (folder / "other.npz").replace("test.npz")
            return found

        monkeypatch.setattr(module, "load_labelled", swap)
    done = run(*command.split())
    assert done.code == 2 and "test.npz: it was changed while it was read" in done.err
    assert not (folder / command.split()[-1]).exists()


def test_an_evaluation_continues_by_content(run, folder, monkeypatch):
    """As large and as old as before, but another file: what was measured is of no use."""
    from trustsets.files import evaluation

    arguments = ["evaluate", "test.npz", "standard.trustsets", "conditional.trustsets"]
    arguments += ["--metric", "class", "-o", "result.json"]
    measure, measured = evaluation.evaluate, []

    def stop(*rest, **named):
        measured.append(None)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return measure(*rest, **named)

    monkeypatch.setattr(evaluation, "evaluate", stop)
    assert run(*arguments).code == 130
    before = (folder / "test.npz").stat()
    np.savez("test.npz", **np.load("calibration.npz"))
    os.utime("test.npz", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (folder / "test.npz").stat().st_size == before.st_size
    assert run(*arguments).code == 0
    assert len(measured) == 2 + 2


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ("--method standard", {}),
        ("--method standard --shift covariate", {"shift": "covariate"}),
        ("--train train.npz --shift covariate --of features", {"of": "features"}),
    ],
)
def test_calibrate_adapts_to_another_population(options, chosen, run, folder):
    """Labels of the other samples are not read; the file may have none, or wrong ones."""
    arrays = dict(np.load("new.npz"))
    harder = arrays["logits"].max(axis=1) < np.median(arrays["logits"].max(axis=1))
    part = {key: own if key == "classes" else own[harder] for key, own in arrays.items()}
    np.savez("other.npz", **part, labels=np.full(harder.sum(), -1))
    words = ["calibrate", "calibration.npz", "-o", "m.trustsets", "--adapt", "other.npz"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trustsets.errors.TrustSetsWarning)
        done = run(*words, *options.split())
        assert done.code == 0, done.err
        trust, calibration = None, open_outputs("calibration.npz").read()
        if "train" in options:
            train = np.load("train.npz")
            trust = TrustScore().fit(train["features"], train["classes"][train["labels"]])
        own = StandardConformal() if trust is None else ConditionalConformal(trust=trust)
        other = open_outputs("other.npz").without_labels().read()
        if "covariate" in options:
            chosen = {"shift": "covariate"} | chosen
        adapted = own.calibrate(calibration).adapt(other, **chosen)
        model = trustsets.load("m.trustsets")
        expected = adapted.predict_set(other).mask
        np.testing.assert_array_equal(model.predict_set(other).mask, expected)
        assert run("predict", "m.trustsets", "other.npz", "-o", "s.parquet").code == 0
    sizes = pq.read_table("s.parquet").column("size").to_pylist()
    assert sizes == expected.sum(axis=1).tolist()
    assert (own.predict_set(other).mask != expected).any()
    done = run(*words[:-1], "calibration.npz.missing", *options.split())
    assert done.code == 2 and "missing" in done.err


def test_what_differs_needs_samples_that_differ(run, folder):
    done = run("calibrate", "calibration.npz", "-o", "m.trustsets", "--shift", "covariate")
    assert done.code == 2 and "name their file with --adapt FILE" in done.err
