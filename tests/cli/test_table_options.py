"""Every command that reads outputs takes the columns of a table, and gives what arrays give."""

import csv
import json
import re

import numpy as np
import pytest
from first_tries import SECTIONS
from threadpoolctl import threadpool_limits

from trustsets import ModelOutputs

COLUMNS = ["--probability-columns", "p:*"]
LABELLED = [*COLUMNS, "--label-column", "truth"]
METHOD = ["--method", "standard"]


def write(path, arrays):
    """Probabilities as columns, labels by name and a group of which some are missing."""
    classes, groups = arrays["classes"], arrays["group_site"].astype(object)
    groups[::5] = ""
    probabilities = ModelOutputs(logits=arrays["logits"]).probabilities
    labels = classes[arrays["labels"]]
    with path.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow([*(f"p:{name}" for name in classes), "truth", "site"])
        rows.writerows([*p, y, g] for p, y, g in zip(probabilities, labels, groups, strict=True))
    groups[::5] = "(missing)"
    np.savez(
        path.with_suffix(".npz"),
        probabilities=probabilities,
        labels=labels.astype(str),
        classes=classes,
        group_site=groups.astype(str),
    )


@pytest.fixture
def tables(folder):
    for name in ("calibration", "test"):
        arrays = dict(np.load(f"{name}.npz"))
        cut = {key: own if key == "classes" else own[:240] for key, own in arrays.items()}
        write(folder / f"table_{name}", cut)
    return folder


def answers(run, *commands):
    """JSON that two commands print, without what names their files and options."""
    found = []
    for command in commands:
        done = run(*command, "--json")
        assert done.code in (0, 3), done.err
        own = json.loads(done.out)
        found.append({key: own[key] for key in own if key not in ("options", "output")})
    return found


def test_every_command_gives_what_arrays_give(run, tables):
    for kind, more in (("csv", LABELLED), ("npz", [])):
        model = ["-o", f"{kind}.trustsets"]
        assert run("calibrate", f"table_calibration.{kind}", *METHOD, *more, *model).code == 0
    table, arrays = answers(
        run,
        ["evaluate", "table_test.csv", "m=csv.trustsets", *LABELLED, "--group-columns", "site"],
        ["evaluate", "table_test.npz", "m=npz.trustsets"],
    )
    assert table == arrays
    assert "(missing)" in table["evaluations"]["m"]["tables"]["group:site"]["labels"]
    table, arrays = answers(
        run,
        ["plan", "table_test.csv", *LABELLED, "--group", "site"],
        ["plan", "table_test.npz"],
    )
    assert table == arrays
    state = ["--time", "now", "--batch", "one", "--state"]
    table, arrays = answers(
        run,
        ["monitor", "csv.trustsets", "table_test.csv", *LABELLED, *state, "a.trustsets"],
        ["monitor", "npz.trustsets", "table_test.npz", *state, "b.trustsets"],
    )
    assert table["samples"] == arrays["samples"] and table["labelled"] == arrays["labelled"]
    audit = ["-o", "a.html", "--permutations", "0", "--by", "confidence", *METHOD]
    with threadpool_limits(1):  # boosting on so few samples is slower with threads
        table, arrays = answers(
            run,
            ["audit", "table_test.csv", *LABELLED, *audit],
            ["audit", "table_test.npz", *audit],
        )
    assert table["evaluation"]["coverage"] == arrays["evaluation"]["coverage"]


def test_predictions_of_a_table_and_their_options_again(run, tables):
    model = ["calibrate", "table_calibration.csv", *METHOD, *LABELLED, "-o", "m.trustsets"]
    assert run(*model).code == 0
    assert run("calibrate", "--config", "m.trustsets", "-o", "again.trustsets").code == 0
    for name, outputs in (("table", "table_test.csv"), ("arrays", "table_test.npz")):
        more = COLUMNS if name == "table" else []
        assert run("predict", "m.trustsets", outputs, *more, "-o", f"{name}.csv").code == 0
        assert run("predict", "again.trustsets", outputs, *more, "-o", f"{name}2.csv").code == 0
    assert len({(tables / f"{n}.csv").read_text() for n in ("table", "arrays", "table2")}) == 1
    done = run("predict", "m.trustsets", "table_test.csv", "-o", "x.csv")
    assert done.code == 2 and "--probability-columns" in done.err


def test_the_commands_of_the_page_on_first_tries_run(run, tables):
    page = SECTIONS["A CSV file, without Python"]
    lines = re.findall(r"^    trustsets (.*)$", page, re.MULTILINE)
    text = (tables / "table_calibration.csv").read_text(encoding="utf-8").replace("p:", "prob_")
    for name in ("held_out.csv", "new.csv"):
        (tables / name).write_text(text, encoding="utf-8")
    assert len(lines) == 2
    for line in lines:
        assert run(*line.split()).code == 0, line
    assert len((tables / "sets.csv").read_text(encoding="utf-8").splitlines()) == 241
