"""The commands of the README, of the first pages and of docs/cli.md run, in their order."""

import re
import shlex
from pathlib import Path

import pytest
from command_line import run, write_splits  # noqa: F401

ROOT = Path(__file__).parents[2]
CLI = ROOT / "docs" / "cli.md"
PAGES = [ROOT / "README.md", CLI, *sorted((ROOT / "docs" / "start").glob("*.md"))]
# tests/demo runs it.
ELSEWHERE = ("trustsets demo",)


def commands(path: Path) -> list[str]:
    """Lines of blocks for the shell, and of the text itself, that call the program."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`(trustsets \w+ [^`]*\.trustsets[^`]*)`", text)
    return [line for line in [*lines, *inline] if line.startswith("trustsets ")]


COMMANDS = {path: lines for path in PAGES if (lines := commands(path))}


def test_there_are_commands() -> None:
    assert len(COMMANDS[ROOT / "README.md"]) == 4 and len(COMMANDS[CLI]) >= 18
    assert {path.name for path in COMMANDS} >= {"install.md", "how_many_samples.md", "questions.md"}


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.name)
def test_commands_run_in_their_order(path, run, tmp_path, monkeypatch) -> None:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    write_splits(tmp_path, n=300)
    Path("calibration.npz").rename("held_out.npz")
    # As the command before would have left them; docs/cli.md has all commands.
    for name in () if path == CLI else ("model", "standard"):
        run("calibrate", "held_out.npz", "--method", "standard", "-o", f"{name}.trustsets")
    for line in COMMANDS[path]:
        if not line.startswith(ELSEWHERE):
            run(*shlex.split(line, comments=True)[1:])
