"""The same outputs in files of every kind, for the tests of files and of the command line."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

CLASSES = np.array(["ant", "bee", "cat", "dog", "eel"])


def simulated(n=300, seed=0, n_classes=5, n_features=4, dtype=np.float32):
    """Overconfident logits, features that tell classes apart, labels as positions, groups."""
    rng = np.random.default_rng(seed)
    true = 1.5 * rng.normal(size=(n, n_classes))
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    features = rng.normal(size=(n, n_features)) + 2.0 * np.eye(n_classes, n_features)[labels]
    return {
        "logits": (1.7 * true).astype(dtype),
        "features": features.astype(dtype),
        "labels": labels,
        "group_site": rng.choice(["north", "south"], size=n),
        "id": np.array([f"s{i}" for i in range(n)]),
        "classes": CLASSES[:n_classes],
    }


def writer(suffix, write):
    """What writes a file with this suffix, and returns its path."""

    def to(path, content):
        write(content, path.with_suffix(suffix))
        return path.with_suffix(suffix)

    return to


write_npz = writer(".npz", lambda arrays, path: np.savez(path, **arrays))
write_compressed = writer(".npz", lambda arrays, path: np.savez_compressed(path, **arrays))


def write_by_column(path, arrays):
    return write_npz(path, {name: np.asfortranarray(own) for name, own in arrays.items()})


def write_folder(path, arrays):
    path.mkdir()
    for name, own in arrays.items():
        np.save(path / f"{name}.npy", own)
    return path


def arrow_table(arrays, fixed):
    columns = {}
    for name, own in arrays.items():
        if name == "classes":
            continue
        if own.ndim == 1:
            columns[name] = pa.array(own)
        elif fixed:
            flat = pa.array(np.ascontiguousarray(own).reshape(-1))
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, own.shape[1])
        else:
            columns[name] = pa.array(list(own))
    return pa.table(columns)


def in_pages(arrays, path):
    pq.write_table(arrow_table(arrays, fixed=False), path, row_group_size=70, data_page_size=500)


def numbers_only(arrays, path):
    save_file({name: own for name, own in arrays.items() if own.dtype.kind != "U"}, path)


write_parquet = writer(".parquet", in_pages)
write_fixed_parquet = writer(
    ".parquet", lambda arrays, path: pq.write_table(arrow_table(arrays, fixed=True), path)
)
write_tensors = writer(".safetensors", numbers_only)
WRITERS = {
    "npz": write_npz,
    "compressed npz": write_compressed,
    "npz by column": write_by_column,
    "folder of npy": write_folder,
    "parquet": write_parquet,
    "parquet of fixed lists": write_fixed_parquet,
    "safetensors": write_tensors,
}
