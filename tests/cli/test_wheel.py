"""The whole way on the command line alone, from the built wheel in a fresh environment."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from command_line import write_splits

import trustsets

ROOT = Path(__file__).parents[2]


def run(*command, cwd=None):
    """Run a command with nothing in its environment that could lead back to the checkout."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


def borrow_kernels(package):
    """Copy machine code that numba made for the same source; it is known by name and time.

    Compiling it again takes a minute and shows nothing; what does not fit is compiled.
    """
    own = Path(trustsets.__file__).parent
    for file in own.rglob("__pycache__/*.nb[ic]"):
        target = package / file.relative_to(own)
        target.parent.mkdir(exist_ok=True)
        shutil.copy2(file, target)
    for file in own.rglob("*.py"):
        copy = package / file.relative_to(own)
        assert copy.read_bytes() == file.read_bytes()
        os.utime(copy, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A new environment with the wheel; its dependencies are borrowed, trustsets is not."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "-q", "-w", folder)
    (wheel,) = folder.glob("trustsets-*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    # Only the path: .pth files found there (an editable install) are not followed.
    borrowed = Path(own.stdout.strip()) / "borrowed.pth"
    borrowed.write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", "-q", "--no-deps", "--no-index", wheel)
    borrow_kernels(borrowed.parent / "trustsets")
    return folder / "venv"


REST = """
import json, sys, trustsets.cli
print(trustsets.cli.__file__)
for line in sys.argv[1:]:
    try:
        trustsets.cli.main(line.split())
    except SystemExit as ended:
        if ended.code:
            raise
"""


def test_from_arrays_to_a_report(fresh, tmp_path):
    """The command itself, and then the others in one process."""
    write_splits(tmp_path, n=200)
    words = ["calibrate", "calibration.npz", "--train", "train.npz", "-o", "ours.trustsets"]
    run(fresh / "bin" / "trustsets", *words, cwd=tmp_path)
    lines = [
        "predict ours.trustsets test.npz --alpha 0.1 -o sets.parquet -q",
        "evaluate test.npz ours.trustsets -q --json",
        "report test.npz ours.trustsets -o report.html -q",
        "demo --output demo",  # on outputs that are in the wheel
        "paper --help",
    ]
    done = run(fresh / "bin" / "python", "-c", REST, *lines, cwd=tmp_path)
    assert done.stdout.startswith(str(fresh)) and "extract" in done.stdout
    start = done.stdout.index("{")
    printed, _ = json.JSONDecoder().raw_decode(done.stdout[start:])
    assert 0.8 < printed["evaluations"]["ours"]["coverage"]["value"] < 1.0
    assert (tmp_path / "sets.parquet").is_file()
    assert "ours" in (tmp_path / "report.html").read_text()
    assert "CIFAR-100" in (tmp_path / "demo" / "real.html").read_text()
