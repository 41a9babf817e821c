"""Hostile and damaged files: exit code 2, one line, no code run, bounded memory."""

import io
import json
import pickle
import shutil
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzzing import CASES
from outputs_files import CLASSES, simulated, write_npz, write_parquet, write_tensors

from trustsets import (
    ClusteredConformal,
    ConditionalConformal,
    Groups,
    ModelOutputs,
    Polynomial,
    TrustScore,
)

MARK = Path("code_was_run")
MEMORY = 48 << 20


class Trap:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (MARK,)


def arrays(**changes):
    changed = simulated(60) | changes
    return {name: own for name, own in changed.items() if own is not None}


def truncated(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    return path


def header(shape, descr="<f4"):
    """First bytes of an .npy file."""
    text = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        text, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return text.getvalue()


def zipped(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def pickled_npz(folder):
    np.savez(folder / "bad.npz", **arrays(logits=np.array([Trap()] * 60, dtype=object)))
    return folder / "bad.npz"


def disguised_pickle(folder):
    """The header claims numbers, and a pickle follows."""
    content = header((60, 5)) + pickle.dumps([Trap()] * 60)
    return zipped(folder / "bad.npz", {"logits": content})


def bare_pickle(folder):
    return zipped(folder / "bad.npz", {"logits": pickle.dumps(Trap())})


def pickle_called_npz(folder):
    (folder / "bad.npz").write_bytes(pickle.dumps(Trap()))
    return folder / "bad.npz"


def evil_header(folder):
    """A header is Python text; it must be read as data."""
    text = f"{{'descr': __import__('pathlib').Path('{MARK}').touch(), 'shape': (1,)}}\n".encode()
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    return zipped(folder / "bad.npz", {"logits": content})


def bomb(compression, megabytes):
    """Zeros that take little room; bzip2 and lzma are unpacked at once, whatever is asked for."""

    def make(folder):
        rows = (megabytes << 20) // 20
        path = folder / "bad.npz"
        with zipfile.ZipFile(path, "w", compression) as archive:
            with archive.open("logits.npy", "w") as member:
                member.write(header((rows, 5)))
                zeros = bytes(20 << 16)
                for _ in range(rows >> 16):
                    member.write(zeros)
                member.write(bytes(20 * (rows % (1 << 16))))
        assert path.stat().st_size < 1 << 18
        return path

    return make


def claimed_bytes(folder):
    """The archive says that a stored member has a terabyte."""
    path = npz()(folder)
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 20 : entry + 28] = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
    path.write_bytes(content)
    return path


def odd_shape(shape, descr="<f4"):
    return lambda folder: zipped(folder / "bad.npz", {"logits": header(shape, descr)})


def claimed_giant(folder):
    return zipped(folder / "bad.npz", {"logits": header((10**12, 5)) + bytes(100)})


def giant_npy(folder):
    (folder / "bad").mkdir()
    (folder / "bad" / "logits.npy").write_bytes(header((10**12, 5)) + bytes(100))
    return folder / "bad"


def giant_tensor(folder):
    text = json.dumps({"logits": {"dtype": "F32", "shape": [10**9, 5], "data_offsets": [0, 8]}})
    content = struct.pack("<Q", len(text)) + text.encode() + bytes(8)
    (folder / "bad.safetensors").write_bytes(content)
    return folder / "bad.safetensors"


def ragged_parquet(folder):
    lists = [[1.0] * 5] * 59 + [[1.0] * 4]
    pq.write_table(pa.table({"logits": lists}), folder / "bad.parquet")
    return folder / "bad.parquet"


def evenly_ragged_parquet(folder):
    """As many numbers in all as rows of five would have."""
    lists = [[1.0] * 5] * 58 + [[1.0] * 4, [1.0] * 6]
    pq.write_table(pa.table({"logits": lists}), folder / "bad.parquet")
    return folder / "bad.parquet"


def parquet_with_holes(folder):
    lists = [[1.0] * 5] * 58 + [[1.0] * 4 + [None], [1.0] * 5]
    pq.write_table(pa.table({"logits": lists}), folder / "bad.parquet")
    return folder / "bad.parquet"


def nan_at(row):
    logits = simulated(60)["logits"]
    logits[row, 1] = np.nan
    return logits


def no_text():
    """Text whose first code point does not exist."""
    texts = np.array(["abc"] * 60)
    texts.view(np.uint32)[0] = 0x110000
    return texts


def npz(**changes):
    return lambda folder: write_npz(folder / "bad", arrays(**changes))


BAD = {
    "truncated npz": (lambda f: truncated(npz()(f)), ["it cannot be read", "save it again"]),
    "npz cut at the end": (lambda f: truncated(npz()(f), 0.99), ["it cannot be read"]),
    "empty npz": (lambda f: truncated(npz()(f), 0), ["it cannot be read"]),
    "truncated parquet": (
        lambda f: truncated(write_parquet(f / "bad", arrays())),
        ["it cannot be read"],
    ),
    "truncated safetensors": (
        lambda f: truncated(write_tensors(f / "bad", arrays())),
        ["it cannot be read"],
    ),
    "text dtype": (npz(logits=np.full((60, 5), "a")), ["'logits'", "must hold numbers", "<U1"]),
    "complex dtype": (npz(logits=np.ones((60, 5), complex)), ["'logits'", "must hold numbers"]),
    "dates": (npz(group_site=np.zeros(60, "M8[s]")), ["'group_site'", "integers or texts"]),
    "record dtype": (npz(logits=np.zeros((60, 5), "f4,f4")), ["'logits'", "must hold numbers"]),
    "one dimension": (npz(logits=np.ones(60)), ["'logits'", "has shape (60,)", "two dimensions"]),
    "three dimensions": (npz(logits=np.ones((60, 5, 2))), ["'logits'", "two dimensions"]),
    "no rows": (npz(logits=np.ones((0, 5))), ["'logits'", "not empty"]),
    "fewer rows": (npz(features=np.ones((59, 4))), ["'features'", "59 rows", "the logits have 60"]),
    "NaN": (npz(logits=nan_at(37)), ["logits must be finite", "row 37, column 1 holds nan"]),
    "infinity": (npz(logits=np.full((60, 5), np.inf)), ["logits", "row 0, column 0"]),
    "other classes": (
        npz(logits=np.ones((60, 3)), classes=None),
        ["'logits'", "3 classes", "names 5"],
    ),
    "other names": (npz(classes=np.array(list("vwxyz"))), ["names other classes"]),
    "no logits": (npz(logits=None), ["no array 'logits' or 'probabilities'", "features"]),
    "no probabilities": (
        npz(logits=None, probabilities=np.ones((60, 5))),
        ["must sum to 1", "row 0"],
    ),
    "pickle in an npz": (pickled_npz, ["'logits'", "Python objects", "pickle can run code"]),
    "pickle after a header": (disguised_pickle, ["'logits'", "claims shape (60, 5)", "damaged"]),
    "pickle as a member": (bare_pickle, ["'logits'", "is no NumPy array"]),
    "pickle called npz": (pickle_called_npz, ["it cannot be read"]),
    "code in a header": (evil_header, ["'logits'", "is no NumPy array"]),
    "zip bomb": (
        bomb(zipfile.ZIP_DEFLATED, 128),
        ["'logits'", "as a zip bomb does", "numpy.savez"],
    ),
    "bzip2 bomb": (bomb(zipfile.ZIP_BZIP2, 96), ["'logits'", "NumPy never writes"]),
    "lzma bomb": (bomb(zipfile.ZIP_LZMA, 96), ["'logits'", "NumPy never writes"]),
    "claimed bytes": (claimed_bytes, ["as a zip bomb does"]),
    "negative shape": (odd_shape((-1, -5)), ["'logits'", "claims shape"]),
    "texts of no width": (odd_shape((10**12,), "<U0"), ["'logits'", "claims shape"]),
    "no columns": (npz(logits=np.ones((60, 0))), ["'logits'", "not empty"]),
    "claimed giant": (claimed_giant, ["'logits'", "claims shape (1000000000000, 5)"]),
    "claimed giant npy": (giant_npy, ["'logits'", "claims shape (1000000000000, 5)"]),
    "claimed giant tensor": (giant_tensor, ["it cannot be read"]),
    "ragged lists": (ragged_parquet, ["'logits'", "lists of one length"]),
    "evenly ragged lists": (evenly_ragged_parquet, ["'logits'", "row 58 has 4 numbers"]),
    "missing numbers": (parquet_with_holes, ["logits", "row 58, column 4 holds nan"]),
    "empty folder": (lambda f: (f / "bad").mkdir() or f / "bad", ["holds no .npy files"]),
    "unknown kind": (lambda f: npz()(f).rename(f / "bad.pkl"), ["'.pkl' are not read", ".npz"]),
    "no text": (npz(id=no_text()), ["'id'", "no text"]),
    "bytes that are no text": (npz(id=np.array([b"\xff"] * 60)), ["'id'", "no text"]),
}


def check(done, words=(), path=""):
    """One line that says which file and what, nothing else, and no code was run."""
    assert done.code == 2, done
    assert done.err.startswith("Error: ") and done.err.count("\n") == 1, done.err
    for word in [*words, str(path)]:
        assert word in done.err
    assert done.out == ""
    assert not MARK.exists()


@pytest.mark.parametrize("name", BAD)
def test_predict_refuses(name, run, folder):
    make, words = BAD[name]
    path = make(folder)
    before = sorted(folder.rglob("*"))
    tracemalloc.start()
    done = run("predict", "standard.trustsets", path, "-o", "sets.parquet")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    check(done, words, path.name)
    assert peak < MEMORY
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", ["pickle in an npz", "zip bomb", "claimed giant", "NaN"])
@pytest.mark.parametrize("command", ["calibrate", "train", "evaluate", "report"])
def test_other_commands_refuse(name, command, run, folder):
    path = BAD[name][0](folder)
    arguments = {
        "calibrate": ["calibrate", path, "-o", "m.trustsets", "--method", "standard"],
        "train": ["calibrate", "calibration.npz", "--train", path, "-o", "m.trustsets"],
        "evaluate": ["evaluate", path, "standard.trustsets"],
        "report": ["report", path, "standard.trustsets"],
    }[command]
    if command == "train" and name == "NaN":
        path = npz(features=np.full((60, 4), np.nan))(folder)
    tracemalloc.start()
    done = run(*arguments)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    check(done, path=path.name)
    assert peak < MEMORY


def test_arrays_beyond_memory_are_refused_before_they_are_read(run, folder):
    """A hole of 8 TB in a file takes no disk; only its length is looked at."""
    (folder / "huge").mkdir()
    n = 2 * 10**11
    for name, shape, descr in [("logits", (n, 5), "<f8"), ("labels", (n,), "<i8")]:
        with (folder / "huge" / f"{name}.npy").open("wb") as file:
            first = header(shape, descr)
            file.write(first)
            file.truncate(len(first) + 8 * int(np.prod(shape)))
    done = run("calibrate", "huge", "-o", "m.trustsets", "--method", "standard")
    check(done, ["huge", "GiB of memory", "are free"])


@pytest.fixture(scope="module")
def small(tmp_path_factory, prepared):
    """Few samples, and models that are quick to load."""
    folder = tmp_path_factory.mktemp("small")
    shutil.copy(prepared / "standard.trustsets", folder)
    np.savez(folder / "few.npz", **simulated(80))
    labels = ModelOutputs(
        logits=simulated(200)["logits"],
        features=simulated(200)["features"],
        labels=CLASSES[simulated(200)["labels"]],
        groups={"site": simulated(200)["group_site"]},
        classes=CLASSES,
    )
    trust = TrustScore().fit(simulated(60)["features"], CLASSES[simulated(60)["labels"]])
    basis = Polynomial(1) + Groups("site")
    ConditionalConformal(basis=basis, trust=trust).calibrate(labels).save(
        folder / "conditional.trustsets"
    )
    ClusteredConformal(n_clusters=2, tuning_fraction=0.5).calibrate(labels).save(
        folder / "clustered.trustsets"
    )
    return folder


def test_two_hundred_damaged_files_give_0_or_one_line(small, tmp_path):
    """Every reader; no traceback, no other exit code, and no more than 1 GB of memory."""
    shutil.copytree(small, tmp_path / "files")
    script = Path(__file__).with_name("fuzzing.py")
    done = subprocess.run(
        [sys.executable, script, "0", "210", tmp_path / "files"],
        capture_output=True,
        text=True,
        errors="backslashreplace",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["peak"] < 1024 and sum(found["codes"].values()) == 210
    for name in CASES:
        assert found["codes"].get(f"{name}: 2", 0) >= 3, (name, found)
