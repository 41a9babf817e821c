"""Run the command line inside the test process, or as a process of its own."""

import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

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


def write_splits(folder, n=1200):
    """Training, calibration, test and new samples of one task, in `folder`."""
    from outputs_files import simulated

    everything = simulated(4 * n, seed=0)
    for place, name in enumerate(("train", "calibration", "test", "new")):
        rows = slice(place * n, (place + 1) * n)
        part = {
            key: own if key == "classes" else own[rows]
            for key, own in everything.items()
            if not (name == "new" and key == "labels")
        }
        np.savez(folder / f"{name}.npz", **part)
