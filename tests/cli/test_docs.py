"""The commands in docs/cli.md run as they stand, in their order."""

import re
import shlex
from pathlib import Path

from command_line import write_splits

TEXT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL)
    for line in block.splitlines()
]


def test_every_command_of_the_page_runs(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_splits(tmp_path, n=300)
    (tmp_path / "calibration.npz").rename("held_out.npz")
    assert len(COMMANDS) >= 18
    for line in COMMANDS:
        program, *arguments = shlex.split(line)
        done = run(*arguments)
        assert program == "trustsets" and done.code == 0, (line, done.err)
