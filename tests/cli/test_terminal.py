"""What reaches a terminal, a spreadsheet or a closed pipe: nothing that acts, and no traceback."""

import csv
import io
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from outputs_files import simulated

from trustsets.cli import main, visible
from trustsets.files import open_outputs

ESCAPE = "\x1b[2J\x1b]0;title\x07"
BYTES = b"a\xff".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    "text", [ESCAPE, "\x9b31m", "\u202etxt.exe", "\u2028", "\x7f", "a\rb\nc", BYTES]
)
def test_hidden_characters_are_written_out(text):
    assert visible(text).isprintable()
    assert visible("Zoë \u3000 猫 \U0001f600") == "Zoë \u3000 猫 \U0001f600"


def acts(*texts):
    """Whether any text holds a character that a terminal would obey."""
    return any(char not in "\n" and not char.isprintable() for text in texts for char in text)


def test_names_do_nothing_on_any_terminal_path(run, folder):
    name = f"a{ESCAPE}b"
    (folder / "standard.trustsets").rename(f"{name}.trustsets")
    arrays = dict(np.load("new.npz")) | {f"group_{name}": np.full(1200, "x")}
    np.savez("odd.npz", **arrays)
    arrays = dict(np.load("calibration.npz"))
    np.savez("groups.npz", **arrays, **{f"group_{name}": arrays["group_site"]})
    for code, command in [
        (0, ["evaluate", "test.npz", f"{name}.trustsets", "--metric", "class"]),
        (2, ["evaluate", "test.npz", f"{name}.trustsets", "--metric", name]),
        (0, ["predict", f"{name}.trustsets", "new.npz", "-o", f"{name}.csv"]),
        (2, ["predict", f"{name}.trustsets", "odd.npz", "-o", "s.csv", "--id", "nothing"]),
        (2, ["predict", f"{name}x.trustsets", "new.npz", "-o", "s.csv"]),
        (2, ["predict", f"{name}.trustsets", "new.npz", "-o", f"{name}.xls"]),
        (0, ["calibrate", "groups.npz", "--basis", "groups", "-o", "m.trustsets"]),
        (0, ["calibrate", "calibration.npz", "-o", f"{name}2.trustsets", "--method", "standard"]),
        (0, ["report", "test.npz", f"{name}.trustsets", "--metric", "class", "-o", f"{name}.html"]),
    ]:
        done = run(*command, code=code)
        assert not acts(done.out, done.err), command
        assert "\\x1b[2J" in done.out + done.err or "nothing" in done.err


def test_letters_that_the_terminal_lacks_are_written_out(folder, monkeypatch):
    """It was another error, with exit code 2, after the state of a monitor was saved."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    np.savez("new.npz", **dict(np.load("test.npz")) | {"classes": np.array([*"猫犬鳥魚牛"])})
    with pytest.raises(SystemExit) as ended:
        main(["plan", "new.npz"])
    assert not ended.value.code and rb"class \u" in sys.stdout.buffer.getvalue()


def test_cells_of_a_table_are_no_formulas(run, folder):
    starts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "plain", "a\r=1", "a\n=1"]
    arrays = simulated(9)
    columns = {"logits": list(arrays["logits"]), "id": starts, "=evil": starts}
    pq.write_table(pa.table(columns), "new.parquet")
    run("predict", "standard.trustsets", "new.parquet", "-o", "s.csv", "--id", "=evil")
    with open("s.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert not any(cell.startswith(("=", "@", "\t", "\r")) for row in rows for cell in row)
    expected = ["'=1+1", "+1", "-1", "'@SUM(A1)", "'\t=1", "'\r=1", *starts[6:]]
    assert [row[1] for row in rows[1:]] == expected


def test_parquet_with_dots_and_ragged_columns_is_read(run, folder):
    """Names with dots, structures before the logits, and lists that no one asked for."""
    arrays = simulated(60)
    columns = {
        "nested": [{"logits": [1.0], "x": {"y": 1}}] * 60,
        "tags": [["a"] * (i % 3) for i in range(60)],
        "boxes": [[1.0] * (5 - i % 3) for i in range(60)],
        "a.b": [[1.0, 2.0]] * 60,
        "logits": list(arrays["logits"]),
        "features.raw": [[1.0]] * 60,
    }
    pq.write_table(pa.table(columns), "new.parquet")
    np.testing.assert_array_equal(open_outputs("new.parquet").read().logits, arrays["logits"])
    run("predict", "standard.trustsets", "new.parquet", "-o", "s.csv")
    columns["logits"] = columns.pop("boxes")
    pq.write_table(pa.table(columns), "new.parquet")
    done = run("predict", "standard.trustsets", "new.parquet", "-o", "s.csv", code=2)
    assert "'logits' must have lists of one length" in done.err


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("{} evaluate test.npz standard.trustsets --metric class >&-", 2),
        ("{} evaluate test.npz standard.trustsets --metric class --json > /dev/full", 2),
        ("{} predict standard.trustsets new.npz -o s.csv >&-", 0),
    ],
)
def test_a_closed_or_full_stdout_is_one_line(command, code, folder):
    words = ["bash", "-c", command.format(f"{sys.executable} -m trustsets.cli")]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    if code:
        assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_one_line(folder):
    """More than a pipe holds, to a reader that has closed it."""
    code = (
        "import os, sys\nfrom trustsets.cli import console, main\n"
        "r, w = os.pipe(); os.close(r); os.dup2(w, 1)\n"
        "from trustsets.cli import Console\n"
        "Console.print_table = lambda *rows, **more: console.print_lines(['x' * 99] * 9999)\n"
        "main(['evaluate', 'test.npz', 'standard.trustsets', '--metric', 'class'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr == "Error: standard output cannot be written: Broken pipe.\n"


def test_names_that_are_no_text(run, folder):
    """Bytes that are no UTF-8 in names of files, methods and columns."""
    os.rename("standard.trustsets", os.fsencode(BYTES) + b".trustsets")
    table = pa.table({"logits": list(np.load("new.npz")["logits"])})
    pq.write_table(table, "new.parquet")
    os.rename("new.parquet", os.fsencode(BYTES) + b".parquet")
    (folder / "arrays").mkdir()
    np.save("arrays/logits.npy", np.load("new.npz")["logits"])
    np.save(f"arrays/group_{BYTES}.npy", np.load("new.npz")["group_site"])
    model = f"{BYTES}.trustsets"
    for code, arguments in [
        (0, ["predict", model, "new.npz", "-o", f"{BYTES}.csv", "--json"]),
        (0, ["evaluate", "test.npz", model, "--metric", "class"]),
        (0, ["report", "test.npz", model, "--metric", "class", "-o", f"{BYTES}.html"]),
        (2, ["predict", model, f"{BYTES}.parquet", "-o", "s.csv"]),
        (0, ["predict", model, "arrays", "-o", "s.csv"]),
    ]:
        done = run(*arguments, code=code)
        assert not acts(done.out, done.err)
        assert code == 0 or done.err.count("\n") == 1


@pytest.mark.parametrize("columns", [40, 60, 100])
@pytest.mark.parametrize(
    "command",
    [
        "calibrate calibration.npz --train train.npz -o m.trustsets",
        "predict conditional.trustsets new.npz -o s.csv",
        "evaluate test.npz standard.trustsets conditional.trustsets",
        "plan test.npz",
    ],
)
def test_lines_are_as_long_as_asked_for(columns, command, run, folder, monkeypatch):
    """84 to 131 characters came at COLUMNS=40."""
    monkeypatch.setenv("COLUMNS", str(columns))
    done = run(*command.split())
    longest = max((done.out + done.err).splitlines(), key=len)
    assert len(longest) <= columns, longest
    assert len((done.out + done.err).split()) > 10
