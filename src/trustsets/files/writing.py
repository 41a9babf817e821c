"""Model outputs to files, as `open_outputs` reads them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from trustsets._common.arrays import Array
from trustsets._common.atomic import StrPath, atomic_path
from trustsets._common.optional import needed
from trustsets.errors import InputError
from trustsets.files.naming import GROUP_PREFIX
from trustsets.files.options import OPTIONS
from trustsets.files.paths import check_output
from trustsets.files.source import list_array
from trustsets.outputs import ModelOutputs


def write_outputs(
    path: StrPath, outputs: ModelOutputs, record: dict[str, Any] | None = None
) -> None:
    """Write outputs to an `.npz`, `.parquet` or `.safetensors` file, all of it or nothing.

    Labels are written as positions, and the names of the classes beside them.

    Examples
    --------
    >>> import tempfile
    >>> from trustsets.files import open_outputs
    >>> outputs = ModelOutputs(logits=np.eye(2), labels=["cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_outputs(f"{folder}/outputs.parquet", outputs)
    ...     open_outputs(f"{folder}/outputs.parquet").read().labels.tolist()
    ['cat', 'dog']
    """
    target = check_output(path, tuple(WRITERS))
    texts = {"classes": json.dumps(_names(outputs.classes).tolist())}
    if record is not None:
        texts[OPTIONS] = json.dumps(record)
    with atomic_path(target) as temporary:
        WRITERS[target.suffix.lower()](temporary, outputs, texts)


def _names(classes: Array) -> Array:
    """Names in a type that files can hold."""
    return classes.astype(str) if classes.dtype.kind == "O" else classes


def _arrays(outputs: ModelOutputs) -> dict[str, Array]:
    found: dict[str, Array] = {"logits": outputs.logits}
    if outputs.features is not None:
        found["features"] = outputs.features
    if outputs.codes is not None:
        named = outputs.classes.dtype.kind not in "iub"
        found["labels"] = outputs.codes if named else outputs.classes[outputs.codes]
    groups = {GROUP_PREFIX + name: _names(values) for name, values in outputs.groups.items()}
    return found | groups


def _write_npz(path: Path, outputs: ModelOutputs, texts: dict[str, str]) -> None:
    arrays: dict[str, Any] = _arrays(outputs) | {"classes": _names(outputs.classes)}
    if OPTIONS in texts:
        arrays[OPTIONS] = np.array(texts[OPTIONS])
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _write_parquet(path: Path, outputs: ModelOutputs, texts: dict[str, str]) -> None:
    pa = needed("pyarrow", f"{path}: a Parquet file")
    import pyarrow.parquet as pq

    columns = {
        name: list_array(values) if values.ndim == 2 else pa.array(values)
        for name, values in _arrays(outputs).items()
    }
    pq.write_table(pa.table(columns).replace_schema_metadata(texts), path)


def _write_tensors(path: Path, outputs: ModelOutputs, texts: dict[str, str]) -> None:
    from safetensors.numpy import save_file

    arrays = _arrays(outputs)
    for name, values in arrays.items():
        if values.dtype.kind not in "fiub":
            raise InputError(
                f"{path.name}: safetensors holds numbers only, and {name!r} holds texts. Write "
                ".npz or .parquet."
            )
    save_file({name: np.ascontiguousarray(values) for name, values in arrays.items()}, path, texts)


WRITERS = {".npz": _write_npz, ".parquet": _write_parquet, ".safetensors": _write_tensors}
"""How model outputs are written, by extension."""
