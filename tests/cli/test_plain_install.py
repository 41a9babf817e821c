"""What a plain install lacks is never needed for arrays, CSV files, sets and a report."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from command_line import write_csv, write_splits
from outputs_files import CLASSES

ABSENT = ("pandas", "polars", "pyarrow", "torch", "ray")
RUN = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from trustsets.cli import main
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit as ended:
        print("exit", ended.code or 0, flush=True)
"""


def run_without(folder, *lines):
    """Exit codes of commands in one process that cannot import what a plain install lacks."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *lines],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(code) for code in re.findall(r"^exit (\d+)$", done.stdout, re.M)], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_the_whole_way_without_optional_packages(kind, tmp_path):
    write_splits(tmp_path, n=300)
    table = ""
    if kind == "csv":
        columns = [f"prob_{name}" for name in CLASSES]
        for name in ("train", "calibration", "test", "new"):
            write_csv(tmp_path / f"{name}.csv", np.load(tmp_path / f"{name}.npz"), columns)
        table = "--feature-columns f* --label-column truth"
    codes, said = run_without(
        tmp_path,
        f"calibrate calibration.{kind} --train train.{kind} {table} -q -o m.trustsets",
        f"predict m.trustsets new.{kind} -q -o sets.csv",
        f"report test.{kind} m.trustsets -q -o report.html",
    )
    assert codes == [0] * 3, said
    header, *rest = (tmp_path / "sets.csv").read_text().splitlines()
    assert header == "row,id,set,size,threshold,status,alpha" and len(rest) == 300
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_what_needs_another_package_says_how_to_install_it(tmp_path):
    write_splits(tmp_path, n=60)
    (tmp_path / "new.parquet").write_bytes(b"PAR1")
    codes, said = run_without(
        tmp_path,
        "calibrate calibration.npz --method standard -q -o m.trustsets",
        "paper --help",
        "predict m.trustsets new.npz -o sets.parquet",
        "predict m.trustsets new.parquet -o sets.csv",
        "paper extract imagenet --images . --weights x.pt",
    )
    assert codes == [0, 0, 2, 2, 2], said
    *tables, paper = said.splitlines()
    assert len(tables) == 2 and 'pip install "trustsets[paper]"' in paper
    for line in tables:
        assert "needs pyarrow, which is not installed" in line
        assert 'pip install "trustsets[tables]"' in line and ".part" not in line
