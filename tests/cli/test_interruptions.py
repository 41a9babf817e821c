"""Kills and full disks: the result is whole or absent, and the work goes on."""

import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("killing.py")


def test_twenty_kills_and_a_restart_give_the_same_bytes(run, folder, monkeypatch):
    new = np.load(folder / "new.npz")
    few = {name: new[name] if name == "classes" else new[name][:600] for name in new.files}
    np.savez(folder / "few.npz", **few)
    arguments = ["predict", folder / "conditional.trustsets", folder / "few.npz", "-q"]
    arguments += ["--memory", "25KB", "-o", "sets.parquet"]  # some 40 samples at a time
    for name in ("whole", "killed"):
        (folder / name).mkdir()
    monkeypatch.chdir(folder / "whole")
    assert run(*arguments).code == 0
    done = subprocess.run(
        [sys.executable, SCRIPT, "20", folder / "whole" / "sets.parquet", *map(str, arguments)],
        cwd=folder / "killed",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("20 kills")


@contextmanager
def largest_file(n_bytes):
    """Let no file grow beyond this; a write then fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_a_full_disk_is_said_clearly_and_the_earlier_output_stays(suffix, run, folder):
    output = folder / f"sets{suffix}"
    arguments = ["predict", "standard.trustsets", "new.npz", "-o", output.name]
    arguments += ["--memory", "100KB"]
    assert run(*arguments).code == 0
    whole = output.read_bytes()
    output.write_bytes(b"earlier")
    # No part fits; then parts do and the whole does not; then there is room again.
    for limit in (1000, len(whole) - 1):
        with largest_file(limit):
            done = run(*arguments)
        assert done.code == 2
        assert done.err.startswith("Error: ") and done.err.count("\n") == 1
        assert "The disk is full" in done.err and "run the same command again" in done.err
        assert output.read_bytes() == b"earlier"
    done = run(*arguments)
    assert done.code == 0 and "Continued an earlier run" in done.err
    assert output.read_bytes() == whole
    assert not list(folder.glob(".*"))
