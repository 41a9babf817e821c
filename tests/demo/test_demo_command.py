"""`trustsets demo` from the command line."""

import json
import os
import subprocess
import sys

import pytest


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trustsets.cli", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "80"},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def shown(folder):
    return demo("--task", "digits", "--output", str(folder / "new"), "--details")


def test_it_prints_the_comparison_and_where_the_report_is(shown, folder):
    assert shown.returncode == 0, shown.stderr
    page = folder / "new" / "digits.html"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert str(page) in shown.stdout
    assert "STANDARD" in shown.stdout and "CONDITIONAL" in shown.stdout
    assert "With 90% promised on average" in shown.stdout


def test_it_fits_80_columns_and_is_plain_when_piped(shown):
    text = [line for line in shown.stdout.splitlines() if not line.startswith("  /")]
    assert max(map(len, text)) <= 80
    assert "\x1b" not in shown.stdout and "[red]" not in shown.stdout


def test_json_has_the_numbers_of_the_text(shown, folder):
    done = demo("--task", "digits", "--output", str(folder / "new"), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["command"] == "demo" and found["options"]["seed"] == 0
    (digits,) = found["tasks"]
    for name in ("STANDARD", "NAIVE", "CONDITIONAL"):
        assert f"{digits['methods'][name]['size']:.2f}" in shown.stdout
    assert f"{100 * digits['methods']['STANDARD']['contradicted_coverage']:.1f}%" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--task", "faces"], "faces"),
        (["--seed", "-1"], "seed"),
        (["--task", "digits", "--output", "FILE/x"], "FILE"),
    ],
)
def test_bad_input_ends_with_code_2_and_one_line(arguments, told, tmp_path):
    (tmp_path / "FILE").write_text("")
    arguments = [text.replace("FILE", str(tmp_path / "FILE")) for text in arguments]
    done = demo(*arguments, "--quiet")
    assert done.returncode == 2
    assert told.replace("FILE", str(tmp_path / "FILE")) in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
