"""The first thing a person sees: it teaches, fits, and comes at once."""

import re
import subprocess
import sys

import pytest
import typer

from trustsets import __version__
from trustsets.cli import app

PINNED = ["demo", "plan", "calibrate", "predict", "evaluate", "report", "monitor"]
PINNED += ["audit", "explore", "verify", "warmup", "paper"]
COMMANDS = [name for name in typer.main.get_command(app).commands if name != "paper"]


def test_version(run):
    assert run("--version").out.strip() == f"trustsets {__version__}"


def test_help_lists_the_commands_and_completion(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = run("--help").out
    for name in {*COMMANDS, *PINNED}:
        assert re.search(rf"^\W*{name}\s+\w", text, re.MULTILINE)
    assert "--install-completion" in text
    assert "trustsets demo" in text and max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_with_an_example_and_fits_80_columns(command, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = run(command, "--help")
    assert max(map(len, done.out.splitlines())) <= 80
    assert "Example:" in done.out
    # One line that can be copied, whose options exist.
    (example,) = [
        line.strip()
        for line in done.out.splitlines()
        if f"trustsets {command} " in line and "Usage" not in line
    ]
    for option in re.findall(r"--[\w-]+", example):
        assert f"{option} " in done.out


def test_help_imports_nothing_heavy():
    heavy = "numpy scipy numba sklearn pandas pyarrow matplotlib torch jinja2".split()
    code = (
        "import sys, trustsets.cli\n"
        "try: trustsets.cli.main(['predict', '--help'])\n"
        f"except SystemExit: print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_wrong_usage_is_exit_code_2(run):
    for words in (["predict"], ["nonsense"], "predict a b -o c --alpha many".split()):
        run(*words, code=2)
