"""Hostile and damaged files: exit code 2, one line, no code run, bounded memory."""

import io
import json
import pickle
import re
import resource
import shutil
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from outputs_files import CLASSES, WRITERS, simulated, write_npz, write_parquet, write_tensors
from safetensors.numpy import save

from trustsets import (
    ClusteredConformal,
    ConditionalConformal,
    Groups,
    ModelOutputs,
    Polynomial,
    TrustScore,
    storage,
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
    text, facts = io.BytesIO(), {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(text, facts)
    return text.getvalue()


def zipped(content):
    """An archive whose logits are these bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logits.npy", content)
    return holding("bad.npz", file.getvalue())


def holding(name, content):
    """A file of these bytes; in a folder, where the name has one."""

    def make(folder):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        return folder / Path(name).parts[0]

    return make


def evil_header():
    """A header is Python text; it must be read as data."""
    text = f"{{'descr': __import__('pathlib').Path('{MARK}').touch(), 'shape': (1,)}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


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


GIANT = header((10**12, 5)) + bytes(100)


TENSOR = b'{"logits": {"dtype": "F32", "shape": [1000000000, 5], "data_offsets": [0, 8]}}'


def lists_that_end(*last):
    """A table of lists of five numbers, and then of these."""
    file = io.BytesIO()
    pq.write_table(pa.table({"logits": [[1.0] * 5] * 58 + [*last]}), file)
    return holding("bad.parquet", file.getvalue())


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
    "pickle in an npz": (
        npz(logits=np.array([Trap()] * 60, dtype=object)),
        ["'logits'", "Python objects", "pickle can run code"],
    ),
    "pickle after a header": (
        zipped(header((60, 5)) + pickle.dumps([Trap()] * 60)),
        ["'logits'", "claims shape (60, 5)", "damaged"],
    ),
    "pickle as a member": (zipped(pickle.dumps(Trap())), ["'logits'", "is no NumPy array"]),
    "pickle called npz": (holding("bad.npz", pickle.dumps(Trap())), ["it cannot be read"]),
    "code in a header": (zipped(evil_header()), ["'logits'", "is no NumPy array"]),
    "zip bomb": (
        bomb(zipfile.ZIP_DEFLATED, 128),
        ["'logits'", "as a zip bomb does", "numpy.savez"],
    ),
    "bzip2 bomb": (bomb(zipfile.ZIP_BZIP2, 96), ["'logits'", "NumPy never writes"]),
    "claimed bytes": (claimed_bytes, ["as a zip bomb does"]),
    "negative shape": (zipped(header((-1, -5))), ["'logits'", "claims shape"]),
    "texts of no width": (zipped(header((10**12,), "<U0")), ["'logits'", "claims shape"]),
    "no columns": (npz(logits=np.ones((60, 0))), ["'logits'", "not empty"]),
    "claimed giant": (zipped(GIANT), ["'logits'", "claims shape (1000000000000, 5)"]),
    "claimed giant npy": (
        holding("bad/logits.npy", GIANT),
        ["'logits'", "claims shape (1000000000000, 5)"],
    ),
    "truth value as shape": (holding("bad/logits.npy", header((True, 3)) + bytes(12)), ["bad"]),
    "100 dimensions": (holding("bad/logits.npy", header((1,) * 100) + bytes(4)), ["bad"]),
    "the largest shape": (holding("bad/logits.npy", header((0, 2**63 - 1))), ["bad"]),
    "claimed giant tensor": (
        holding("bad.safetensors", struct.pack("<Q", len(TENSOR)) + TENSOR + bytes(8)),
        ["it cannot be read"],
    ),
    # As many numbers in all as rows of five would have.
    "evenly ragged lists": (
        lists_that_end([1.0] * 4, [1.0] * 6),
        ["'logits'", "row 58 has 4 numbers"],
    ),
    "missing numbers": (
        lists_that_end([1.0] * 4 + [None]),
        ["logits", "row 58, column 4 holds nan"],
    ),
    "empty folder": (lambda f: (f / "bad").mkdir() or f / "bad", ["holds no .npy files"]),
    "unknown kind": (lambda f: npz()(f).rename(f / "bad.pkl"), ["'.pkl' are not read", ".npz"]),
    "no text": (npz(id=no_text()), ["'id'", "no text"]),
    "bytes that are no text": (npz(id=np.array([b"\xff"] * 60)), ["'id'", "no text"]),
}


def check(done, words=(), path=""):
    """One line that says which file and what, nothing else, and no code was run."""
    assert done.err.startswith("Error: ") and done.err.count("\n") == 1, done.err
    for word in [*words, str(path)]:
        assert word in done.err
    assert done.out == ""
    assert not MARK.exists()


COMMANDS = {
    "predict": "predict standard.trustsets {} -o sets.parquet",
    "calibrate": "calibrate {} -o m.trustsets --method standard",
    "train": "calibrate calibration.npz --train {} -o m.trustsets",
    "evaluate": "evaluate {} standard.trustsets",
    "report": "report {} standard.trustsets",
}
OFTEN = ["pickle in an npz", "zip bomb", "claimed giant", "NaN"]
REFUSED = [("predict", name) for name in BAD]
REFUSED += [(command, name) for command in COMMANDS if command != "predict" for name in OFTEN]


@pytest.mark.parametrize(("command", "name"), REFUSED)
def test_bad_files_are_refused(command, name, run, folder):
    make, words = BAD[name]
    if command == "train" and name == "NaN":
        make, words = npz(features=np.full((60, 4), np.nan)), []
    path = make(folder)
    before = sorted(folder.rglob("*"))
    tracemalloc.start()
    done = run(*COMMANDS[command].format(path.name).split(), code=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    check(done, words if command == "predict" else [], path.name)
    assert peak < MEMORY
    assert sorted(folder.rglob("*")) == before


def test_arrays_beyond_memory_are_refused_before_they_are_read(run, folder):
    """A hole of 8 TB in a file takes no disk; only its length is looked at."""
    (folder / "huge").mkdir()
    n = 2 * 10**11
    for name, shape, descr in [("logits", (n, 5), "<f8"), ("labels", (n,), "<i8")]:
        with (folder / "huge" / f"{name}.npy").open("wb") as file:
            first = header(shape, descr)
            file.write(first)
            file.truncate(len(first) + 8 * int(np.prod(shape)))
    done = run("calibrate", "huge", "-o", "m.trustsets", "--method", "standard", code=2)
    check(done, ["huge", "GiB of memory", "are free"])


# Damage at random: every reader gives exit code 0, or 2 and one line, in bounded memory.

LIMIT = 1 << 30
ROUNDS = 15
ODD = ["-1", "0", "1e999", "-0.0", "99999999999999999999", "Infinity", "NaN", "null", "true",
       '""', '"\\u001b[2J"', "[]", "{}", "[" * 2000, '{"a":' * 500, "1.5", '"x"', "4294967296",
       '"<U1000000000"', '"<f8"', "2147483647", '"O"']  # fmt: skip
TOKEN = re.compile(r'-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|"[^"]*"|true|false|null')
NUMBERS = [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1]


def damaged_bytes(rng, content):
    """Cut, overwrite, remove or repeat; the ends, where headers are, more often than the rest."""
    content = bytearray(content)
    if len(content) < 2 or rng.random() < 0.15:
        return bytes(content[: rng.integers(len(content) + 1)])
    reach = len(content) if rng.random() < 0.4 else min(400, len(content))
    for _ in range(rng.integers(1, 4)):
        start = int(rng.integers(reach))
        start = start if rng.random() < 0.5 else max(0, len(content) - 1 - start)
        width = int(rng.choice([1, 2, 4, 8, 19]))
        number = int(rng.choice(NUMBERS)) & ((1 << 8 * width) - 1)
        piece = [number.to_bytes(width, "little"), b"", 2 * content[start : start + width]]
        content[start : start + width] = piece[rng.integers(3)]
    return bytes(content)


def damaged_text(rng, text):
    """Odd values instead of numbers and names, or damage to single characters."""
    for _ in range(rng.integers(1, 3)):
        tokens = list(TOKEN.finditer(text))
        if not tokens or rng.random() < 0.15:
            return damaged_bytes(rng, text.encode("utf-8")).decode("utf-8", "surrogateescape")
        token = tokens[rng.integers(len(tokens))]
        text = text[: token.start()] + str(rng.choice(ODD)) + text[token.end() :]
    return text


def damage_plain(rng, path):
    path = path / "logits.npy" if path.is_dir() else path
    path.write_bytes(damaged_bytes(rng, path.read_bytes()))


def damage_text(rng, path):
    text = damaged_text(rng, path.read_text(encoding="utf-8"))
    path.write_bytes(text.encode("utf-8", "surrogateescape"))


def damage_archive(rng, path):
    """Damage a member of an .npz file, or numbers of its header, and pack it rightly again."""
    with zipfile.ZipFile(path) as archive:
        members = {item.filename: archive.read(item) for item in archive.infolist()}
    name = str(rng.choice(list(members)))
    head, rest = members[name][:128].decode("latin1"), members[name][128:]
    if rng.random() < 0.6:
        odd = ["0", "-1", "9" * 12, "7"]
        text = re.sub(r"\d+", lambda m: str(rng.choice(odd)) if rng.random() < 0.3 else m[0], head)
        members[name] = text.encode("latin1")[:128] + rest
    else:
        members[name] = damaged_bytes(rng, members[name])
    with zipfile.ZipFile(path, "w", int(rng.choice([0, 0, 8, 8, 12, 14]))) as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def damage_tensors(rng, path):
    """Damage the header of a safetensors file, and give its length rightly again."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    text = damaged_text(rng, content[8 : 8 + length].decode()).encode("utf-8", "surrogateescape")
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def damage_model(rng, path):
    """Damage the tree or the tensors of a model, with the checksum that belongs to them."""
    with storage._opened(path) as (file, header):
        tensors = {key: file.get_tensor(key) for key in file.keys()}
    if rng.random() < 0.5:
        header["tree"] = damaged_text(rng, header["tree"]).encode("utf-8", "replace").decode()
    else:
        key = str(rng.choice(list(tensors)))
        kind, shape = tensors[key].dtype, tensors[key].shape
        raw = np.frombuffer(damaged_bytes(rng, tensors[key].tobytes()), np.uint8)
        whole = raw[: raw.size - raw.size % kind.itemsize].view(kind)
        tensors[key] = np.resize(whole, shape) if rng.random() < 0.5 else whole.copy()
    header["sha256"] = storage._digest(header["tree"], tensors)
    path.write_bytes(save(tensors, {storage.FORMAT: json.dumps(header)}))


def write_wide_csv(path, arrays):
    header = ",".join(f"logit_{name}" for name in CLASSES)
    rows = [",".join(map(str, row)) for row in arrays["logits"]]
    path.with_suffix(".csv").write_text("\n".join([header, *rows]) + "\n")
    return path.with_suffix(".csv")


def write_wide_parquet(path, arrays):
    table = pa.table({f"logit_{name}": arrays["logits"][:, i] for i, name in enumerate(CLASSES)})
    pq.write_table(table, path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def write_names(path, arrays):
    path.with_suffix(".txt").write_text("\n".join(CLASSES))
    return path.with_suffix(".txt")


def copy_model(name):
    return lambda path, arrays: Path(shutil.copy(f"{name}.trustsets", f"{path}.trustsets"))


PREDICT = "predict standard.trustsets {} -o out.csv"
MODEL = "predict {} few.npz -o out.csv"
ARCHIVE = (damage_plain, damage_archive)
CASES = {
    "npz": (write_npz, PREDICT, ARCHIVE),
    "compressed npz": (WRITERS["compressed npz"], PREDICT, ARCHIVE),
    "folder of npy": (WRITERS["folder of npy"], PREDICT, [damage_plain]),
    "parquet": (write_parquet, PREDICT, [damage_plain]),
    "parquet of fixed lists": (WRITERS["parquet of fixed lists"], PREDICT, [damage_plain]),
    "wide parquet": (write_wide_parquet, PREDICT, [damage_plain]),
    "safetensors": (write_tensors, PREDICT, [damage_plain, damage_tensors]),
    "csv": (write_wide_csv, PREDICT, [damage_text, damage_plain]),
    "train": (write_npz, "calibrate few.npz --method bins --train {} -o out.trustsets", ARCHIVE),
    "standard": (copy_model("standard"), MODEL, [damage_plain, damage_model]),
    "conditional": (copy_model("conditional"), MODEL, [damage_model]),
    "clustered": (copy_model("clustered"), MODEL, [damage_model]),
    "classes": (write_names, "calibrate bare.npz --method standard -o out.trustsets --classes {}",
                [damage_text, damage_plain]),
}  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory, prepared):
    """Few samples, and models that are quick to load."""
    folder = tmp_path_factory.mktemp("small")
    shutil.copy(prepared / "standard.trustsets", folder)
    few, many = simulated(80), simulated(200)
    np.savez(folder / "few.npz", **few)
    np.savez(folder / "bare.npz", logits=few["logits"], labels=few["labels"])
    labelled = ModelOutputs(
        logits=many["logits"],
        features=many["features"],
        labels=CLASSES[many["labels"]],
        groups={"site": many["group_site"]},
        classes=CLASSES,
    )
    trust = TrustScore().fit(few["features"], CLASSES[few["labels"]])
    for name, predictor in {
        "conditional": ConditionalConformal(basis=Polynomial(1) + Groups("site"), trust=trust),
        "clustered": ClusteredConformal(n_clusters=2, tuning_fraction=0.5),
    }.items():
        predictor.calibrate(labelled).save(folder / f"{name}.trustsets")
    return folder


@pytest.fixture
def limited():
    """No more than 1 GB beyond what the process has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10
    yield lambda: resource.setrlimit(resource.RLIMIT_AS, (taken + LIMIT, before[1]))
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_damaged_files_give_0_or_one_line(name, run, small, limited, tmp_path, monkeypatch):
    shutil.copytree(small, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    write, command, ways = CASES[name]
    path = write(tmp_path / "file", simulated(40))
    words = command.format(path).split()
    run(*words, "-q")
    limited()
    codes, file = [], path / "logits.npy" if path.is_dir() else path
    good = file.read_bytes()
    for number in range(ROUNDS):
        rng = np.random.default_rng([number, len(name)])
        file.write_bytes(good)
        ways[number % len(ways)](rng, path)
        done = run(*words, "-q", code=None)
        is_one_line = done.err.startswith("Error: ") and done.err.count("\n") == 1
        assert done.code == 0 or (done.code == 2 and is_one_line), (number, done)
        codes.append(done.code)
    assert codes.count(2) >= 3
