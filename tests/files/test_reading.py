"""Any range of rows of any kind of file is that slice of the arrays, and damage is refused."""

import datetime
import decimal
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from outputs_files import CLASSES, WRITERS, simulated, write_npz, writer
from safetensors.torch import save_file

from trustsets import ModelOutputs
from trustsets.errors import InputError
from trustsets.files import open_outputs, read_classes, read_training

# More rows than one batch of a row group has.
MANY = 40_000
NAMES = ["ant", "bee", "cat"]
# Kinds of files that hold no class names.
NAMELESS = ("parquet", "parquet of fixed lists", "safetensors")


def wide(n=200, seed=0):
    """A frame of probabilities, features, labels by name, and groups with missing values."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(3), size=n)
    labels = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    frame = pd.DataFrame(p, columns=[f"prob_{name}" for name in NAMES])
    frame["feature_1"], frame["feature_2"] = rng.normal(size=n) + labels, rng.normal(size=n)
    frame["label"] = np.array(NAMES)[labels]
    frame["group_site"] = rng.choice(["north", "south", None], size=n)
    frame["group_ward"] = np.where(rng.random(n) < 0.3, np.nan, rng.integers(1, 4, size=n))
    frame["id"] = [f"s{i}" for i in range(n)]
    return frame


write_csv = writer(".csv", partial(pd.DataFrame.to_csv, index=False))
# With a byte order mark, semicolons and an index without a name.
write_excel_csv = writer(".csv", partial(pd.DataFrame.to_csv, sep=";", encoding="utf-8-sig"))
TABLES = {
    "csv": write_csv,
    "csv of polars": writer(".csv", lambda frame, path: pl.from_pandas(frame).write_csv(path)),
    "csv of a spreadsheet": write_excel_csv,
    "wide parquet": writer(".parquet", partial(pd.DataFrame.to_parquet, row_group_size=30_000)),
}


def ranges(n, seed=0):
    """Ends, neighbours, what crosses a batch, and ranges at random, forwards and back."""
    rng = np.random.default_rng(seed)
    some = [tuple(sorted(rng.choice(n + 1, 2, replace=False))) for _ in range(6)]
    return [(0, n), (0, 1), (n - 1, n), (n // 5, n // 2), (n // 2, n - 1), *some]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_range_is_a_slice(kind, dtype, tmp_path):
    arrays = simulated(dtype=dtype)
    named = {"classes": CLASSES} if kind in NAMELESS else {}
    source = open_outputs(WRITERS[kind](tmp_path / "outputs", arrays), **named)
    assert len(source) == 300 and source.n_classes == 5
    for start, stop in ranges(300):
        found = source.read(start, stop)
        np.testing.assert_array_equal(found.logits, arrays["logits"][start:stop])
        assert found.logits.dtype == dtype
        np.testing.assert_array_equal(found.features, arrays["features"][start:stop])
        np.testing.assert_array_equal(found.labels, CLASSES[arrays["labels"][start:stop]])
        np.testing.assert_array_equal(found.rows, np.arange(start, stop))
        for name, own in found.groups.items():
            assert name == "site"
            np.testing.assert_array_equal(own, arrays["group_site"][start:stop])
    assert list(found.groups) == ([] if kind == "safetensors" else ["site"])


@pytest.mark.parametrize("kind", [name for name in WRITERS if "parquet" in name])
def test_ranges_past_one_batch_of_a_row_group_are_slices(kind, tmp_path):
    arrays = {key: own for key, own in simulated(MANY).items() if key != "features"}
    source = open_outputs(WRITERS[kind](tmp_path / "outputs", arrays), classes=CLASSES)
    for start, stop in [*ranges(MANY), (16_383, 16_386), (20_000, 33_000), (33_000, 33_001)]:
        found = source.read(start, stop)
        np.testing.assert_array_equal(found.logits, arrays["logits"][start:stop])
        np.testing.assert_array_equal(found.labels, CLASSES[arrays["labels"][start:stop]])
        ids = source.ids["id"].read_names(start, stop)
        assert ids.tolist() == arrays["id"][start:stop].tolist()


@pytest.mark.parametrize(("kind", "n"), [*((kind, 200) for kind in TABLES), ("wide parquet", MANY)])
def test_every_range_of_a_table_is_a_slice(kind, n, tmp_path):
    frame = wide(n)
    source = open_outputs(TABLES[kind](tmp_path / "outputs", frame))
    whole = ModelOutputs.from_frame(
        frame,
        probabilities="prob_*",
        features="feature_*",
        label="label",
        groups=["group_site", "group_ward"],
    )
    for start, stop in ranges(n):
        found, own = source.read(start, stop), whole.take(slice(start, stop))
        np.testing.assert_array_equal(found.probabilities, own.probabilities)
        np.testing.assert_array_equal(found.features, own.features)
        assert found.labels.tolist() == own.labels.tolist()
        for name, values in found.groups.items():
            # Cells stay as they are: pandas writes 3.0 where other integers are missing.
            texts = [text.removesuffix(".0") for text in values]
            assert texts == own.groups[f"group_{name}"].tolist(), name


# Every exact or floating type that a column of numbers may have.
TYPES = {
    "float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64(),
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "uint8": pa.uint8(), "uint16": pa.uint16(), "uint32": pa.uint32(), "uint64": pa.uint64(),
    "decimal128": pa.decimal128(12, 3), "decimal256": pa.decimal256(40, 3),
    "dictionary": pa.dictionary(pa.int32(), pa.float64()),
}  # fmt: skip
CELLS = [[0, 1, 3], [2, 0, 1], [1, 2, 0], [3, 1, 1]]


@pytest.mark.parametrize("first", TYPES)
@pytest.mark.parametrize("second", ["float64", "float32", "int8", "decimal128"])
def test_numbers_do_not_depend_on_types_and_order_of_columns(first, second, tmp_path):
    """An integer first column truncated all others; a decimal one was left out without a word."""
    values = {name: [row[place] for row in CELLS] for place, name in enumerate(NAMES)}
    values["bee"] = [0.5, 0.25, 1.5, -2.0] if second.startswith("float") else values["bee"]
    values["cat"] = [number / 3 for number in values["cat"]]
    columns = {name: pa.array(cells, pa.float64()) for name, cells in values.items()}
    ant, columns["bee"] = columns["ant"], columns["bee"].cast(TYPES[second])
    columns["ant"] = ant.dictionary_encode() if first == "dictionary" else ant.cast(TYPES[first])
    expected = np.array([values[name] for name in NAMES]).T
    for order in (NAMES, NAMES[::-1], ["bee", "ant", "cat"]):
        table = pa.table({f"logit_{name}": columns[name] for name in order})
        pq.write_table(table, tmp_path / "a.parquet")
        for source in (open_outputs(tmp_path / "a.parquet"), open_outputs(table)):
            assert source.classes.tolist() == order
            found = source.read().logits[:, [order.index(name) for name in NAMES]]
            np.testing.assert_array_equal(found, expected)
        # A model's classes say in which order the columns come, whatever the table's is.
        named = open_outputs(tmp_path / "a.parquet", classes=np.array(NAMES))
        np.testing.assert_array_equal(named.read().logits, expected)


@pytest.mark.parametrize("dtype", ["decimal128", "int16", "uint64", "float16"])
def test_lists_of_any_numbers_are_rows(dtype, tmp_path):
    flat = pa.array(np.array(CELLS).ravel().astype(float)).cast(TYPES[dtype])
    lists = pa.FixedSizeListArray.from_arrays(flat, 3)
    pq.write_table(pa.table({"logits": lists}), tmp_path / "a.parquet")
    np.testing.assert_array_equal(open_outputs(tmp_path / "a.parquet").read().logits, CELLS)


def test_frames_of_any_numbers_are_read():
    frame = pd.DataFrame({"p_ant": [decimal.Decimal("0.25"), "0.5"]})
    frame["p_bee"] = pd.array([0.25, 0.5], dtype=pd.ArrowDtype(pa.float64()))
    frame["p_cat"] = pd.array([0.5, 0.0], dtype=pd.ArrowDtype(pa.decimal128(4, 2)))
    read = partial(ModelOutputs.from_frame, probabilities="p_*")
    np.testing.assert_array_equal(read(frame).probabilities, [[0.25, 0.25, 0.5], [0.5, 0.5, 0.0]])
    for cell, problem in ((None, "is empty"), (pd.NA, "is empty"), ("a", "holds 'a'")):
        with pytest.raises(InputError, match=f"column 'p_ant' must hold numbers; row 1 {problem}"):
            read(frame.assign(p_ant=pd.Series([0.25, cell], dtype=object)))


@pytest.mark.parametrize(
    "values",
    [
        ["high", "low"],
        [datetime.date(2026, 1, 1)] * 2,
        [datetime.timedelta(1)] * 2,
        [{"a": 1}] * 2,
        [[1.0]] * 2,
        [None, None],
    ],
)
@pytest.mark.parametrize("kind", ["logit_bee", "feature_1"])
def test_a_column_that_holds_no_numbers_is_refused_by_name(values, kind, tmp_path):
    """It used to vanish: a model of two of three classes, with exit code 0."""
    columns = {"logit_ant": [1.0, 2.0], "logit_bee": [1.0, 2.0], "feature_0": [1.0, 2.0]}
    table = pa.table(columns | {"label": [0, 1], kind: pa.array(values)})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=rf"{kind}|must be finite; row 0, column 1"):
        open_outputs(tmp_path / "a.parquet").read()


def test_two_columns_of_one_name_and_names_beyond_integers_are_one_line(tmp_path):
    table = pa.table([pa.array([1.0]), pa.array([2.0])], names=["logit_a", "logit_a"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: two columns are called 'logit_a'"):
        open_outputs(tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text('logit_a,logit_b,"a;b;c;d"\n1,2,3\n')
    assert open_outputs(tmp_path / "a.csv").classes.tolist() == ["a", "b"]
    huge = str(2**64)
    (tmp_path / "a.csv").write_text(f"logit_{huge},logit_1,label\n1,2,{huge}\n3,4,1\n")
    found = open_outputs(tmp_path / "a.csv").read()
    assert found.classes.tolist() == [huge, "1"] and found.labels.tolist() == [huge, "1"]


def test_remembered_columns_are_used_where_they_are(tmp_path):
    frame = wide().rename(columns={"prob_ant": "a", "prob_bee": "b", "prob_cat": "c"})
    frame = frame.rename(columns={"label": "truth", "feature_1": "y", "feature_2": "x"})
    frame["truth"] = frame["truth"].str[0]
    columns = {"probabilities": "a,b,c", "features": "x,y", "label": "truth"}
    first = open_outputs(write_csv(tmp_path / "a", frame), columns=columns)
    turned = write_csv(tmp_path / "b", frame[frame.columns[::-1]])
    again = open_outputs(turned, classes=first.classes, columns=columns, if_present=True)
    np.testing.assert_array_equal(again.read().probabilities, first.read().probabilities)
    np.testing.assert_array_equal(again.read().features, first.read().features)
    assert again.read().labels is not None
    renamed = write_csv(tmp_path / "c", wide())
    other = open_outputs(renamed, classes=np.array(NAMES), columns=columns, if_present=True)
    np.testing.assert_array_equal(other.read().probabilities, first.read().probabilities)
    with pytest.raises(InputError, match="no column is 'a'"):
        open_outputs(renamed, columns=columns)


@pytest.mark.parametrize("kind", ["npz", "compressed npz"])
def test_a_flipped_bit_of_an_archive_is_noticed(kind, tmp_path):
    """An array that is stored as it is was read without its checksum: 20 of 300 rows differed."""
    arrays = simulated()
    path = WRITERS[kind](tmp_path / "a", arrays)
    with zipfile.ZipFile(path) as archive:
        members = {item.filename: item for item in archive.infolist()}
    content = path.read_bytes()
    for name in ("logits", "features", "labels", "group_site"):
        item = members[f"{name}.npy"]
        for share in (0.3, 0.6, 0.999):
            damaged = bytearray(content)
            place = item.header_offset + 200 + int(share * (item.compress_size - 200))
            damaged[place] ^= 4
            path.write_bytes(damaged)
            with pytest.raises(InputError, match=r"a\.npz"):
                open_outputs(path).read(0, 5)
    path.write_bytes(content)
    open_outputs(path).read()


def test_rows_in_messages_are_those_of_the_file(tmp_path):
    """They were those of a block, for what only the whole sample shows to be wrong."""
    row, start = 34_567, 30_000
    p = np.full((MANY, 3), 1 / 3)
    logits = np.random.default_rng(0).normal(size=p.shape)
    wrong = np.arange(MANY) == row
    for arrays in (
        {"probabilities": p * np.where(wrong, 2.0, 1.0)[:, None]},
        {"probabilities": np.where(wrong[:, None], -1.0, p)},
        {"logits": np.where(wrong[:, None], np.nan, logits)},
        {"logits": logits, "labels": np.where(wrong, 9, 0)},
        {"logits": logits, "labels": np.where(wrong, "fox", "ant")},
    ):
        np.savez(tmp_path / "a.npz", **arrays)
        columns = {key: pa.array(values.tolist()) for key, values in arrays.items()}
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        for path in (tmp_path / "a.npz", tmp_path / "a.parquet"):
            source = open_outputs(path, classes=np.array(NAMES))
            source.read(0, 100)
            with pytest.raises(InputError, match=rf"a\.\w+: .*row {row}\b"):
                source.read(start, MANY)
    table = pa.table({"logits": logits.tolist(), "trust": pa.array(np.ones(MANY), mask=wrong)})
    with pytest.raises(InputError, match=f"'trust' must hold numbers; row {row} is empty"):
        open_outputs(table).read(start, MANY)


def test_free_memory_is_counted_in_kilobytes(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda _: "MemAvailable:     100 kB")
    source = open_outputs(write_npz(tmp_path / "a", {"logits": np.eye(3000, 4)}))  # 96 kB
    with pytest.raises(InputError, match=r"its arrays need .* GiB of memory"):
        source.read_all()


def test_tables_have_many_columns_and_cells_any_length(tmp_path):
    """A cell of 131,073 characters was refused."""
    n = 50_000
    header = ",".join(f"logit_{i}" for i in range(n)) + ",label\n"
    row = ",".join(["0.5"] * n)
    (tmp_path / "a.csv").write_text(f"{header}{row},0\n{row},49999\n")
    assert open_outputs(tmp_path / "a.csv").read().logits.shape == (2, n)
    (tmp_path / "b.csv").write_text(f"logit_a,logit_b,id\n1,2,{'x' * 200_000}\n")
    (name,) = open_outputs(tmp_path / "b.csv").ids["id"].read_names(0, 1)
    assert len(name) == 200_000


@pytest.mark.parametrize(
    ("header", "labels", "expected"),
    [
        ("p_1,p_2,p_x", ["1", "2"], ["1", "2"]),  # names, not positions
        ("p_01,p_02,p_03", ["01", "03"], ["01", "03"]),
        ("p_1,p_2,p_3", ["1", "3"], [1, 3]),
        ("p_a,p_b,p_c", ["0", "2"], ["a", "c"]),  # no class is called so: positions
        ("p_0,p_1,p_2", ["0.0", "2.0"], [0, 2]),  # as tools write integers
        ("p_1.0,p_1,p_2.0", ["1.0", "2.0"], ["1.0", "2.0"]),
        ("p_1.0,p_2.0,p_x", ["1", "2"], ["1.0", "2.0"]),
    ],
)
def test_labels_that_look_like_numbers(header, labels, expected, tmp_path):
    rows = "".join(f"1,0,0,{label}\n" for label in labels)
    (tmp_path / "a.csv").write_text(f"{header},label\n{rows}")
    table = pd.read_csv(tmp_path / "a.csv", dtype={"label": str})
    if all(own.isdecimal() and str(int(own)) == own for own in labels):
        table["label"] = table["label"].astype(int)
    table.to_parquet(tmp_path / "a.parquet")
    for path in (tmp_path / "a.csv", tmp_path / "a.parquet"):
        found = open_outputs(path, columns={"logits": "p_*"}).read()
        assert found.labels.tolist() == expected


@pytest.mark.parametrize("label", [-1, -5, 5])
@pytest.mark.parametrize("classes", [CLASSES, None, np.arange(5)], ids=["names", "none", "numbers"])
def test_a_label_that_is_no_class_is_refused(label, classes, tmp_path):
    arrays = simulated()
    arrays["labels"][7] = label
    arrays["classes"] = classes
    kept = {name: own for name, own in arrays.items() if own is not None}
    path = write_npz(tmp_path / "a", kept)
    with pytest.raises(InputError, match=r"a\.npz"):
        open_outputs(path).read()
    if classes is not None:
        assert len(open_outputs(path).read(8, 20)) == 12
    training = {name: arrays[name] for name in ("features", "labels")}
    if classes is CLASSES:
        with pytest.raises(InputError, match=rf"a\.npz.*'labels'.*row 7 holds {label}"):
            read_training(write_npz(tmp_path / "a", training), CLASSES)


@pytest.mark.parametrize("name", ["logits", "labels", "features", "trust", "id", "classes"])
def test_an_array_without_rows_is_refused_by_name(name, tmp_path):
    """A single number as labels was an IndexError where they name the classes."""
    for classes in ({}, {"classes": CLASSES}):
        arrays = {key: own for key, own in simulated(60).items() if key != "classes"} | classes
        path = write_npz(tmp_path / "a", arrays | {name: np.array(1)})
        with pytest.raises(InputError, match=rf"a\.npz: array '{name}' has shape \(\)"):
            open_outputs(path).read()


def test_truth_values_are_no_positions_of_named_classes(tmp_path):
    arrays = simulated(60) | {"labels": np.arange(60) % 2 == 0}
    with pytest.raises(InputError, match="row 0 holds True"):
        open_outputs(write_npz(tmp_path / "a", arrays)).read()


def test_training_samples_need_no_logits(tmp_path):
    arrays = simulated()
    path = write_npz(tmp_path / "a", {name: arrays[name] for name in ("features", "labels")})
    features, labels = read_training(path, CLASSES)
    np.testing.assert_array_equal(features, arrays["features"])
    np.testing.assert_array_equal(labels, CLASSES[arrays["labels"]])
    # Names of its own, in another order, say what its positions mean.
    write_npz(path.with_suffix(""), dict(np.load(path)) | {"classes": CLASSES[::-1]})
    np.testing.assert_array_equal(read_training(path, CLASSES)[1], CLASSES[::-1][arrays["labels"]])
    with pytest.raises(InputError, match="there is no array 'features'"):
        read_training(write_npz(tmp_path / "b", {"labels": arrays["labels"]}))


def test_groups_ids_and_class_names(tmp_path):
    arrays = simulated()
    arrays["site"] = arrays.pop("group_site")
    path = write_npz(tmp_path / "a", arrays | {"sex": arrays["site"]})
    assert open_outputs(path).read(0, 3).groups == {}
    assert list(open_outputs(path, groups=["site,sex"]).read(0, 3).groups) == ["site", "sex"]
    assert list(open_outputs(path, ids=["labels"]).ids) == ["labels", "id"]
    with pytest.raises(InputError, match=r"a\.npz: there is no group column 'age'; there are"):
        open_outputs(path, groups=["age"])
    lines = "\r\n".join(["\ufeffant", *CLASSES[1:], "", ""])
    (tmp_path / "names.txt").write_bytes(lines.encode())
    assert read_classes(tmp_path / "names.txt").tolist() == CLASSES.tolist()
    # An exact name goes before a list; one array may have any name.
    path = write_npz(tmp_path / "odd", {"logits": np.eye(5), "sex,age": CLASSES, "e": np.eye(5)})
    odd = open_outputs(path, ids="sex,age", columns={"features": "e"})
    assert [*odd.ids] == ["sex,age"] and odd.read().features.tolist() == np.eye(5).tolist()
    np.savez(tmp_path / "six.npz", logits=np.eye(6))
    with pytest.raises(InputError, match=r"has 6 classes, and .* names 5"):
        open_outputs(tmp_path / "six.npz", classes=CLASSES).read()
    del arrays["classes"]
    arrays["labels"] = CLASSES[arrays["labels"]]
    # A part that lacks some classes still has all their names.
    named = open_outputs(write_npz(tmp_path / "b", arrays))
    assert named.read(0, 2).classes.tolist() == CLASSES.tolist()


COLUMNS = {"probabilities": "p_*", "label": "truth"}
HOSTILE = {
    "empty": (b"", "it is empty; its first line must name the columns"),
    "only a header": (b"p_a,p_b,truth\n", "has the names of columns, but no rows"),
    "a name twice": (b"p_a,p_a,truth\n.5,.5,a\n", "two columns are called 'p_a'"),
    "a short row": (b"p_a,p_b,truth\n.5,.5,a\n\n.5,.5\n", r"row 1 \(line 4\) has 2 cells, .* 3"),
    "a long row": (b"p_a,p_b,truth\n.5,.5,a,a\n", r"row 0 \(line 2\) has 4 cells"),
    "a text": (b"p_a,p_b,truth\n.5,.5,a\n.5,high,a\n", "must hold numbers; row 1 holds 'high'"),
    "an underscore": (b"p_a,p_b,truth\n1_0,2,a\n", "must hold numbers; row 0 holds '1_0'"),
    "an empty number": (b"p_a,p_b,truth\n.5,,a\n", "'p_b' must hold numbers; row 0 is empty"),
    "decimal commas": (b"p_a;p_b;truth\n0,5;0,5;a\n", "Write numbers with a decimal point"),
    "other classes": (b"p_a,p_b,truth\n.5,.5,c\n", "labels must be among the 2 classes; row 0"),
    "a label missing": (b"p_a,p_b,truth\n.5,.5,a\n.5,.5,\n", "labels must not .*; row 1 does"),
    "wrong sums": (b"p_a,p_b,truth\n.5,.6,a\n", r"must sum to 1; row 0 sums to 1\.1"),
    "negative": (b"p_a,p_b,truth\n-1,2,a\n", "must not be negative"),
    "not finite": (b"p_a,p_b,truth\nnan,.5,a\n", "must be finite; row 0, column 0"),
    "no such columns": (b"q_a,q_b,truth\n.5,.5,a\n", r"no column is 'p_\*'; there are q_a, q_b"),
    "no label": (b"p_a,p_b\n.5,.5\n", "label: no column is 'truth'; there are"),
    "Latin letters": ("p_ä,p_b,truth\n.5,.5,b\n".encode("latin-1"), "UTF-8"),
    "UTF-16": ("p_a,p_b,truth\n.5,.5,a\n".encode("utf-16"), "UTF-8|readable CSV"),
    "an open quote": (b'p_a,p_b,truth\n.5,.5,"a\n', "not a readable CSV file"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tables_are_refused_with_a_reason(case, tmp_path):
    content, message = HOSTILE[case]
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        open_outputs(path, columns=COLUMNS).read()
    assert str(raised.value).startswith(str(path))


@pytest.mark.parametrize("labels", [[0, 1, 2, 3] * 5, [1, 2, 3, 4] * 5, [10, 20, 30, 40] * 5])
def test_parts_of_a_file_have_the_class_names_of_the_whole(labels, tmp_path):
    """A part may lack a class, and its integers alone would then name other columns, or none."""
    np.savez(tmp_path / "a.npz", logits=np.zeros((20, 4)), labels=labels)
    source = open_outputs(tmp_path / "a.npz")
    whole = source.read()
    for start in range(20):
        for stop in range(start + 1, 21):
            part = source.read(start, stop)
            np.testing.assert_array_equal(part.classes, whole.classes)
            np.testing.assert_array_equal(part.labels, whole.labels[start:stop])
    np.savez(tmp_path / "b.npz", logits=np.zeros((3, 4)), labels=[1, 2, 3])
    with pytest.raises(InputError, match=r"b\.npz: labels from 1 to 3 may be positions"):
        open_outputs(tmp_path / "b.npz").read()


def test_a_type_that_numpy_lacks_is_no_damage(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"logits": torch.eye(3).bfloat16()}, path)
    with pytest.raises(InputError, match=r"a\.safetensors: array 'logits' is of type BF16, which"):
        open_outputs(path).read()
