"""Run the command line inside the test process, or as a process of its own."""

import csv
import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from outputs_files import CLASSES, simulated

from trustsets import ModelOutputs
from trustsets.cli import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys):
    """Return a function that runs a command in this process."""

    def run(*arguments) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(item) for item in arguments])
        code = 0 if ended.value.code is None else ended.value.code
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


def spawn(*arguments, **options) -> subprocess.CompletedProcess:
    """Run a command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "trustsets.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "80", "TERM": "dumb"},
        check=False,
        **options,
    )


def write_csv(path, arrays, names):
    """Probabilities in columns of these names, features, groups, ids and labels by name."""
    probabilities = ModelOutputs(logits=arrays["logits"]).probabilities
    columns = dict(zip(names, probabilities.T, strict=True))
    columns |= {f"f{number}": values for number, values in enumerate(arrays["features"].T, 1)}
    columns |= {"site": arrays["group_site"], "id": arrays["id"]}
    if "labels" in arrays:
        columns["truth"] = CLASSES[arrays["labels"]]
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])


def write_splits(folder, n=1200):
    """Training, calibration, test and new samples of one task, in `folder`."""
    everything = simulated(4 * n, seed=0)
    for place, name in enumerate(("train", "calibration", "test", "new")):
        rows = slice(place * n, (place + 1) * n)
        part = {
            key: own if key == "classes" else own[rows]
            for key, own in everything.items()
            if not (name == "new" and key == "labels")
        }
        np.savez(folder / f"{name}.npz", **part)
