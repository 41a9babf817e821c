"""The options that made an output are stored with it, so that it can be made again.

A record is ``{"trustsets": version, "command": name, "options": {...}}``. It is in the metadata
of Parquet and safetensors files, an array of `.npz` files, the header of a model, the JSON of a
result and the facts of a report. `.csv` and `.jsonl` files have no place for it: it is in a small
file beside them, and for folders in a file inside.
"""

import json
import re
import tomllib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from trustsets._common import storage
from trustsets._common.atomic import atomic_path
from trustsets.errors import InputError
from trustsets.files.paths import arrow_file, content_digest, part_files, plain_file

OPTIONS = "options"
"""Name under which a record stands in the metadata or among the arrays of a file."""
_UNMARKED = (".csv", ".jsonl")
OPTIONS_FACT = "Options"
"""Fact of a report that holds its record."""
_DIGEST = "sha256"
# Options besides the output that run code or write files, so that only a person may give them.
_ACTING = {
    "extract": ("model", "transform"),
    "monitor": ("state",),
}
_PAGE_DATA = re.compile(r'<script type="application/json" id="[\w-]+">(.*?)</script>', re.DOTALL)


def sidecar(path: Path) -> Path:
    """File beside an output that has no place for a record."""
    return path.with_name(path.name + ".options.json")


def write_sidecar(path: Path, record: dict[str, Any], digest: str) -> None:
    """Write a record beside an output, bound to it by the SHA-256 of its content.

    A kill may come between the writing of the two. The digest then shows that the record belongs
    to an earlier output.
    """
    with atomic_path(sidecar(path)) as temporary:
        text = json.dumps(record | {_DIGEST: digest}, indent=2) + "\n"
        temporary.write_text(text, encoding="utf-8")


def read_options(path: Path, command: str, known: Collection[str]) -> dict[str, Any]:
    """Options of a command, of which `known` are all names, from a file.

    A TOML file has the options at its top or in a table ``[command]``, in the words of the command
    line with ``-`` or ``_``. Any other file is an output of the same command. As it may have come
    from anywhere, options that say where to write or which code to run are not taken from it.
    """
    if not path.exists():
        raise InputError(f"{path}: there is no such file to take options from.")
    if path.suffix.lower() == ".toml":
        found = _read_toml(path, command)
    else:
        record = read_record(path)
        if record["command"] != command:
            raise InputError(
                f"{path}: it was made by 'trustsets {record['command']}', so it holds no options "
                f"of 'trustsets {command}'."
            )
        acting = ("output", *_ACTING.get(command, ()))
        found = {name: own for name, own in record["options"].items() if name not in acting}
    options = {name.replace("-", "_"): value for name, value in found.items()}
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(
            f"{path}: {unknown[0]!r} is no option of 'trustsets {command}'; it has "
            f"{', '.join(sorted(known))}."
        )
    return options


def read_record(path: Path) -> dict[str, Any]:
    """The record that an output carries."""
    if not path.is_dir():
        (arrow_file if path.suffix.lower() == ".parquet" else plain_file)(path)
    try:
        record = storage.parse_json(_record_text(path))
        if not isinstance(record["command"], str) or not isinstance(record["options"], dict):
            raise TypeError("no record")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: it holds no options of trustsets. Give a TOML file, or an output of the "
            "same command."
        ) from error
    if path.suffix.lower() in _UNMARKED and record.get(_DIGEST) != content_digest(path):
        raise InputError(
            f"{path}: the options in {sidecar(path).name} belong to another file: one of the two "
            "was changed alone, or the command was interrupted between them. Make it again."
        )
    return {"command": record["command"], "options": record["options"]}


def _record_text(path: Path) -> str:
    readers: dict[str, Callable[[Path], str]] = {
        ".parquet": _parquet_metadata,
        ".safetensors": _tensor_metadata,
        ".npz": _array_text,
        ".trustsets": lambda path: json.dumps(storage.read_note(path)),
        ".html": _page_fact,
        ".json": lambda path: path.read_text(encoding="utf-8"),
    }
    if path.suffix.lower() in readers:
        return readers[path.suffix.lower()](path)
    beside = path / sidecar(path).name if path.is_dir() else sidecar(path)
    return beside.read_text(encoding="utf-8") if beside.is_file() else ""


def _parquet_metadata(path: Path) -> str:
    from trustsets.files.parquet import readable_parquet

    with readable_parquet(path):
        import pyarrow.parquet as pq

        metadata = pq.read_schema(next(iter(part_files(path)), path)).metadata or {}
    return str(metadata[OPTIONS.encode()].decode())


def _tensor_metadata(path: Path) -> str:
    from trustsets.files.tensors import opened

    with opened(path) as file:
        return str((file.metadata() or {})[OPTIONS])


def _array_text(path: Path) -> str:
    from trustsets.files.numpy_files import npz_columns

    return str(npz_columns(path)[OPTIONS].read_texts(0, 1)[0])


def _page_fact(path: Path) -> str:
    match = _PAGE_DATA.search(path.read_text(encoding="utf-8"))
    if match is None:
        raise ValueError("no data")
    return str(storage.parse_json(match.group(1))["facts"][OPTIONS_FACT])


def _read_toml(path: Path, command: str) -> dict[str, Any]:
    try:
        data = tomllib.loads(plain_file(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not a TOML file: {error}.") from error
    general = {name: value for name, value in data.items() if not isinstance(value, dict)}
    own = data.get(command, {})
    return general | (own if isinstance(own, dict) else {})
