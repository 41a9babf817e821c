"""Feed damaged files to the commands. Run as a script, in a process of its own.

Usage: fuzzing.py SEED COUNT FOLDER. Prints, as JSON, how often each kind of file gave which exit
code, and the largest memory the process had in MB. Any other outcome than exit code 0, or 2 with
one line, ends it with the case that led there.
"""

import contextlib
import io
import json
import os
import re
import resource
import struct
import sys
import traceback
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np

LIMIT = 1 << 30
"""Bytes that a command may take beyond what the program has after it has run once."""
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
        place = int(rng.integers(reach))
        place = place if rng.random() < 0.5 else len(content) - 1 - place
        kind = rng.integers(4)
        if kind == 0:
            content[place % len(content)] = rng.integers(256)
        elif kind == 1:
            width = int(rng.choice([2, 4, 8]))
            number = int(rng.choice(NUMBERS)) & ((1 << 8 * width) - 1)
            content[place : place + width] = number.to_bytes(width, "little")
        elif kind == 2:
            del content[place : place + int(rng.integers(1, 20))]
        else:
            content[place:place] = content[place : place + int(rng.integers(1, 20))]
        if not content:
            break
    return bytes(content)


def damaged_text(rng, text):
    """Put odd values in the place of numbers and names, or damage single characters."""
    found = list(TOKEN.finditer(text))
    if not found or rng.random() < 0.15:
        return damaged_bytes(rng, text.encode("utf-8", "surrogateescape")).decode(
            "utf-8", "surrogateescape"
        )
    for _ in range(rng.integers(1, 3)):
        token = found[rng.integers(len(found))]
        text = text[: token.start()] + str(rng.choice(ODD)) + text[token.end() :]
        found = list(TOKEN.finditer(text)) or found[:0]
        if not found:
            break
    return text


def damage_plain(rng, path):
    path.write_bytes(damaged_bytes(rng, path.read_bytes()))


def damage_text(rng, path):
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    path.write_bytes(damaged_text(rng, text).encode("utf-8", "surrogateescape"))


def damage_archive(rng, path):
    """Damage the members of an .npz file and pack them rightly again, in any packing."""
    with zipfile.ZipFile(path) as archive:
        members = {item.filename: archive.read(item) for item in archive.infolist()}
    name = str(rng.choice(list(members)))
    head = members[name][:128]
    if rng.random() < 0.6:
        shape = head[10:].decode("latin1")
        text = re.sub(r"\d+", lambda found: _perhaps(rng, found.group()), shape)
        members[name] = head[:10] + text.encode("latin1")[: len(shape)] + members[name][128:]
    else:
        members[name] = damaged_bytes(rng, members[name])
    packing = int(rng.choice([0, 0, 8, 8, 12, 14]))
    with zipfile.ZipFile(path, "w", packing) as archive:
        for own, content in members.items():
            archive.writestr(own, content)


def _perhaps(rng, digits):
    return str(rng.choice(["0", "-1", "9" * 12, "7"])) if rng.random() < 0.3 else digits


def damage_tensors(rng, path):
    """Damage the header of a safetensors file, and give its length rightly again."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    text = damaged_text(rng, content[8 : 8 + length].decode())
    header = text.encode("utf-8", "surrogateescape")
    path.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])


def damage_model(rng, path):
    """Damage the tree or the tensors of a model, with the checksum that belongs to them."""
    from safetensors.numpy import save

    from trustsets import _storage as storage

    header, arrays = storage._read_parts(path)
    if rng.random() < 0.5:
        header["tree"] = damaged_text(rng, header["tree"])
    else:
        key = str(rng.choice(list(arrays)))
        raw = np.frombuffer(damaged_bytes(rng, arrays[key].tobytes()), np.uint8)
        whole = raw[: raw.size - raw.size % arrays[key].itemsize].view(arrays[key].dtype)
        arrays[key] = np.resize(whole, arrays[key].shape) if rng.random() < 0.5 else whole.copy()
    text = header["tree"].encode("utf-8", "replace").decode()
    header |= {"tree": text, "sha256": storage._digest(text, arrays)}
    path.write_bytes(save(arrays, {storage.FORMAT: json.dumps(header)}))


def damage_folder(rng, path):
    """Damage one file of a folder, as the kind it is."""
    file = path / str(rng.choice(sorted(item.name for item in path.iterdir())))
    damage_plain(rng, file)


PREDICT = "predict standard.trustsets {} -o out.csv"
CALIBRATE = "calibrate few.npz --method standard -o out.trustsets --classes {}"
CASES = {
    "npz": (PREDICT, ".npz", [damage_plain, damage_archive]),
    "compressed npz": (PREDICT, ".npz", [damage_plain, damage_archive]),
    "npz by column": (PREDICT, ".npz", [damage_plain, damage_archive]),
    "folder of npy": (PREDICT, "", [damage_folder]),
    "parquet": (PREDICT, ".parquet", [damage_plain]),
    "parquet of fixed lists": (PREDICT, ".parquet", [damage_plain]),
    "safetensors": (PREDICT, ".safetensors", [damage_plain, damage_tensors]),
    "csv": (PREDICT, ".csv", [damage_text, damage_plain]),
    "wide parquet": (PREDICT, ".parquet", [damage_plain]),
    "train": ("calibrate few.npz --method bins --train {} -o out.trustsets", ".npz",
              [damage_plain, damage_archive]),
    "standard": ("predict {} few.npz -o out.parquet", ".trustsets", [damage_plain, damage_model]),
    "conditional": ("predict {} few.npz -o out.jsonl", ".trustsets", [damage_model]),
    "clustered": ("predict {} few.npz -o out.jsonl", ".trustsets", [damage_model]),
    "classes.txt": (CALIBRATE, ".txt", [damage_text, damage_plain]),
}  # fmt: skip


def originals(folder):
    """One good file of each kind, below `folder`."""
    from outputs_files import WRITERS, simulated

    found = {name: folder / "good" / name / "file" for name in CASES}
    for name, path in found.items():
        path.parent.mkdir(parents=True)
        suffix = CASES[name][1]
        if name in WRITERS:
            WRITERS[name](path, simulated(40))
        elif name in ("csv", "wide parquet"):
            import pandas as pd

            frame = pd.DataFrame(
                simulated(40)["logits"],
                columns=[f"logit_{name}" for name in ("ant", "bee", "cat", "dog", "eel")],
            )
            frame.to_csv(f"{path}.csv") if name == "csv" else frame.to_parquet(f"{path}.parquet")
        elif name == "train":
            WRITERS["npz"](path, simulated(60, seed=3))
        elif name in ("standard", "conditional", "clustered"):
            path.with_suffix(suffix).write_bytes(Path(f"{name}.trustsets").read_bytes())
    found["classes.txt"].with_suffix(".txt").write_text("ant\nbee\ncat\ndog\neel\n")
    return found


def run(arguments):
    """Exit code and what was said of a command in this process."""
    from trustsets.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(word) for word in arguments])
        except SystemExit as ended:
            return int(ended.code or 0), err.getvalue()
        except Exception:
            return 1, traceback.format_exc()
    return 1, err.getvalue()


def one_case(rng, name, good):
    """Damage a copy of a good file and give it to its command."""
    command, suffix, ways = CASES[name]
    work = Path("work")
    for item in sorted(work.rglob("*"), reverse=True):
        item.rmdir() if item.is_dir() else item.unlink()
    copy_tree(good.parent, work)
    path = work / f"file{suffix}"
    ways[rng.integers(len(ways))](rng, path)
    return run([word.format(path) for word in command.split()])


def copy_tree(source, target):
    for item in source.rglob("*"):
        place = target / item.relative_to(source)
        if item.is_dir():
            place.mkdir(exist_ok=True)
        else:
            place.write_bytes(item.read_bytes())


def status(field):
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", text).group(1)) << 10


def main_loop(seed, count, folder):
    sys.path.insert(0, str(Path(__file__).parents[1] / "files"))
    os.chdir(folder)
    Path("work").mkdir()
    warnings.simplefilter("ignore")
    good = originals(Path("."))
    for name in CASES:  # imports and compilers first
        command, suffix, _ = CASES[name]
        code, said = run([word.format(f"{good[name]}{suffix}") for word in command.split()])
        assert code == 0, said
    most = status("VmSize") + LIMIT
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    names, codes, wrong = list(CASES), Counter(), []
    for number in range(count):
        name = names[number % len(names)]
        rng = np.random.default_rng([seed, number])
        code, said = one_case(rng, name, good[name])
        lines = [line for line in said.splitlines() if not line.startswith("Warning: ")]
        one_line = len(lines) == 1 and lines[0].startswith("Error: ")
        if code not in (0, 2) or (code == 2 and not one_line):
            wrong.append(f"seed {seed}, number {number}, {name}: code {code}\n{said}")
        codes[f"{name}: {code}"] += 1
    if wrong:
        raise SystemExit("\n".join([f"{len(wrong)} wrong", *wrong[:20]]))
    print(json.dumps({"codes": codes, "peak": status("VmHWM") >> 20}))


if __name__ == "__main__":
    main_loop(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
