"""`predict` takes the memory it is given, however large the file."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc"
)
N_CLASSES = 50
MEMORY = 32  # MB
ROWS = 4 * MEMORY * 2**20 // (4 * N_CLASSES)

PEAK = """
import sys
from trustsets.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    status = ended.code
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(int(line.split()[1]) // 1024)
sys.exit(status)
"""


def peak_megabytes(folder, *arguments):
    """Largest memory that a command had, measured inside its own process."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def write_npz(path, logits):
    np.savez(path, logits=logits)


def write_parquet(path, logits):
    """One row group: nothing but pages to read it by."""
    flat = pa.array(logits.reshape(-1))
    table = pa.table({"logits": pa.FixedSizeListArray.from_arrays(flat, N_CLASSES)})
    pq.write_table(table, path, row_group_size=len(logits), compression="none")


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """A model, and logits four times the size of the memory."""
    from trustsets import ModelOutputs, StandardConformal

    folder = tmp_path_factory.mktemp("big")
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=3.0, size=(ROWS, N_CLASSES)).astype(np.float32)
    labels = logits[:2000].argmax(axis=1)
    outputs = ModelOutputs(logits=logits[:2000], labels=labels)
    StandardConformal().calibrate(outputs).save(folder / "model.trustsets")
    return folder, logits


def test_one_long_id_does_not_pad_the_others(big):
    """5,000 ids, one of 600 kB: padded to that they would take 12 GB."""
    folder, logits = big
    letters = np.random.default_rng(0).integers(97, 123, size=600_000, dtype=np.uint8)
    peaks = {}
    for name, long in {"short": "s", "long": letters.tobytes().decode()}.items():
        ids = [long] + [f"s{i}" for i in range(4999)]
        flat = pa.FixedSizeListArray.from_arrays(pa.array(logits[:5000].reshape(-1)), N_CLASSES)
        pq.write_table(pa.table({"logits": flat, "id": ids}), folder / f"{name}.parquet")
        arguments = [f"{name}.parquet", "-o", f"{name}.jsonl", "--memory", f"{MEMORY}MB"]
        peaks[name] = peak_megabytes(folder, "predict", "model.trustsets", *arguments)
        lines = (folder / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line)["id"] for line in lines] == ids
    assert peaks["long"] - peaks["short"] <= MEMORY


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_a_file_four_times_the_memory(kind, big):
    folder, logits = big
    write = {"npz": write_npz, "parquet": write_parquet}[kind]
    peaks = {}
    for name, rows in {"small": 1000, "large": ROWS}.items():
        path = folder / f"{name}.{kind}"
        write(path, logits[:rows])
        output = folder / f"{name}_sets.parquet"
        peaks[name] = peak_megabytes(
            folder, "predict", "model.trustsets", path, "-o", output, "--memory", f"{MEMORY}MB"
        )
        assert pq.ParquetFile(output).metadata.num_rows == rows
    assert (folder / f"large.{kind}").stat().st_size >= 4 * MEMORY * 2**20
    assert peaks["large"] - peaks["small"] <= MEMORY
