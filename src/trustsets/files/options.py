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
from trustsets.errors import InputError
from trustsets.files.paths import arrow_file, content_digest, part_files, plain_file

__all__ = ["OPTIONS", "OPTIONS_FACT", "bound_record", "read_options", "read_record", "sidecar"]

OPTIONS = "options"
"""Name under which a record stands in the metadata or among the arrays of a file."""
_UNMARKED = (".csv", ".jsonl")
OPTIONS_FACT = "Options"
"""Fact of a report that holds its record."""
_DIGEST = "sha256"
_ACTING = {
    "extract": ("model", "transform"),
    "monitor": ("state", "history", "metrics", "page"),
}
_PAGE_DATA = re.compile(r'<script type="application/json" id="[\w-]+">(.*?)</script>', re.DOTALL)


def sidecar(path: Path) -> Path:
    """File beside an output that has no place for a record."""
    return path.with_name(path.name + ".options.json")


def bound_record(record: dict[str, Any], digest: str) -> str:
    """Text of a record beside an output, bound to it by the SHA-256 of its content.

    A kill may come between the writing of the two. The digest then shows that the record belongs
    to an earlier output.
    """
    return json.dumps(record | {_DIGEST: digest}, indent=2) + "\n"


def read_options(path: Path, command: str, known: Collection[str]) -> dict[str, Any]:
    """Options of a command from a TOML file, or from any output of the same command.

    Parameters
    ----------
    path : path
        A TOML file has the options at its top or in a table ``[command]``, in the words of the
        command line with ``-`` or ``_``. From any other file, which may have come from anywhere,
        options that say where to write or which code to run are not taken.
    command : str
        Name of the command.
    known : collection of str
        Names of its options.
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
        found = {name: own for name, own in record["options"].items() if not _acts(command, name)}
    options = {name.replace("-", "_"): value for name, value in found.items()}
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(
            f"{path}: {unknown[0]!r} is no option of 'trustsets {command}'; it has "
            f"{', '.join(sorted(known))}."
        )
    return options


def _acts(command: str, name: str) -> bool:
    """Whether an option writes a file or runs code, so that only a person may give it."""
    return name.replace("-", "_") in _ACTING.get(command, ()) or name == "output"


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
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        first = next(iter(part_files(path)), path)
        metadata = pq.read_schema(first).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error
    return str(metadata[OPTIONS.encode()].decode())


def _tensor_metadata(path: Path) -> str:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return str((file.metadata() or {})[OPTIONS])
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _array_text(path: Path) -> str:
    from trustsets.files.columns import check_texts
    from trustsets.files.numpy_files import npz_columns

    column = npz_columns(path)[OPTIONS]
    return str(check_texts(column, column.read_all()))


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
