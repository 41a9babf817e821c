"""Run the command line inside the test process, and write files for it."""

import csv
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
    """Return a function that runs a command in this process, which must end with this code."""

    def run(*arguments, code: int | None = 0) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(item) for item in arguments])
        done = Done(ended.value.code or 0, *capsys.readouterr())
        assert code is None or done.code == code, done
        return done

    return run


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
