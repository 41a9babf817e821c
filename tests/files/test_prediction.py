"""Sets in files and tables are those of `predict_set`, whatever the format and the batches."""

import csv
import datetime
import decimal
import os
import stat
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from outputs_files import CLASSES, WRITERS, arrow_table, simulated

from trustsets import (
    APS,
    RAPS,
    ClusteredConformal,
    ConditionalConformal,
    Confidence,
    Entropy,
    Groups,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    PrincipalComponents,
    Softmax,
    StandardConformal,
    TrustScore,
    load,
    storage,
)
from trustsets.errors import InputError
from trustsets.files import OutputsFile, check_output, open_outputs, predict_file, predict_table
from trustsets.recipes import make_bins


def outputs_of(arrays):
    return ModelOutputs(
        logits=arrays["logits"],
        features=arrays["features"],
        labels=CLASSES[arrays["labels"]],
        groups={"site": arrays["group_site"]},
        classes=CLASSES,
        rows=np.arange(len(arrays["logits"])),  # as in the table
    )


TRAIN = simulated(seed=3)
TRUST = TrustScore().fit(TRAIN["features"], CLASSES[TRAIN["labels"]])
PREDICTORS = {
    "standard": StandardConformal(temperature="tuning"),
    "random score": StandardConformal(score=APS(own_mass="random"), random_state=3),
    "groups": MondrianConformal(by=Groups("site"), score=RAPS()),
    "class": MondrianConformal(by="class", score=Softmax()),
    "bins": MondrianConformal(by=make_bins(n=200), trust=TRUST),
    "conditional": ConditionalConformal(basis=Polynomial(2), trust=TRUST),
    "randomised, with groups": ConditionalConformal(
        basis=Polynomial(2, of=(Confidence(transform="rank"), Entropy())) + Groups(),
        randomized=True,
    ),
    "components": ConditionalConformal(basis=PrincipalComponents(2)),
    "clusters": ClusteredConformal(n_clusters=2, tuning_fraction=0.4),
}
NEW = simulated(seed=2, n=157)
TABLE = arrow_table(NEW, fixed=True).append_column("row", pa.array(np.arange(157)))
COLUMNS = ["set", "size", "threshold", "status", "alpha"]


@pytest.fixture(params=PREDICTORS, scope="module")
def predictor(request):
    return PREDICTORS[request.param].calibrate(outputs_of(simulated(1500)))


@pytest.fixture(scope="module")
def standard():
    return StandardConformal().calibrate(outputs_of(simulated(1500)))


@pytest.fixture
def model(standard, tmp_path):
    standard.save(tmp_path / "m.trustsets")
    return tmp_path / "m.trustsets"


def likeliest_first(sets, outputs):
    """The classes of each set as the library lists them: by probability, but for class biases."""
    listed = [own.tolist() for own in sets]
    order = np.argsort(-outputs.probabilities, axis=1, kind="stable")
    plain = [
        CLASSES[own[inside[own]]].tolist() for own, inside in zip(order, sets.mask, strict=True)
    ]
    assert listed == plain
    return listed


def test_a_table_has_the_sets_of_predict_set(predictor):
    outputs = outputs_of(NEW)
    sets = predictor.predict_set(outputs, alpha=0.2)
    found = predict_table(predictor, TABLE, 0.2)
    assert found.column_names == ["row", "id", *COLUMNS]
    assert found.column("set").to_pylist() == likeliest_first(sets, outputs)
    frame = sets.to_frame("pandas")
    for name in ("size", "threshold", "status"):
        assert found.column(name).to_pylist() == frame[name].tolist()
    assert found.column("id").to_pylist() == NEW["id"].tolist()


def test_batches_and_order_change_nothing(predictor):
    whole = predict_table(predictor, TABLE, 0.2)
    order = np.random.default_rng(0).permutation(157)
    shuffled = TABLE.take(pa.array(order))
    batches = [
        predict_table(predictor, shuffled.slice(start, stop - start), 0.2)
        for start, stop in pairwise([0, 0, 1, 3, 40, 157, 157])
    ]
    assert len({str(batch.schema) for batch in batches}) == 1
    assert pa.concat_tables(batches).equals(whole.take(pa.array(order)))


def test_an_empty_partition_has_the_columns_of_the_others(standard):
    expected = predict_table(standard, TABLE)
    none = predict_table(standard, TABLE.slice(0, 0))
    more = TABLE.append_column("day", pa.array(np.arange(157)))
    pair = [predict_table(standard, part, ids="id,day") for part in (more, more.slice(0, 0))]
    assert pair[0].column_names == pair[1].column_names == ["row", "id", "day", *COLUMNS]
    assert none.schema == expected.schema and len(none) == 0
    for wrong in ({"prob_ant": [1.0]}, np.eye(5), None, pd.DataFrame({"prob_ant": [1.0]})):
        with pytest.raises(InputError, match=r"table must be a pyarrow\.Table"):
            predict_table(standard, wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns("logits"), "no array 'logits' or 'probabilities'"),
        (lambda t: t.drop_columns("group_site"), "no group column 'site'"),
        (lambda t: t.rename_columns(["size" if n == "id" else n for n in t.column_names]), "size"),
        (
            lambda t: t.set_column(0, "logits", pa.array([[1.0, 2.0]] * len(t))),
            "has 2 classes, and the model",
        ),
        (
            lambda t: t.set_column(0, "logits", pa.array([None] + [[1.0] * 5] * (len(t) - 1))),
            "row 0 has 0 numbers, and the first row 5",
        ),
    ],
)
def test_errors_of_tables_name_the_column(change, message):
    predictor = PREDICTORS["groups"].calibrate(outputs_of(simulated()))
    changed = change(TABLE)
    with pytest.raises(InputError, match=message):
        predict_table(predictor, changed, ids=["size"] if "size" in changed.column_names else [])


def test_random_draws_need_row_numbers_and_batches_that_matter_are_refused():
    random = PREDICTORS["random score"].calibrate(outputs_of(simulated()))
    with pytest.raises(InputError, match="table needs a column 'row'"):
        predict_table(random, TABLE.drop_columns("row"))
    steady = StandardConformal().calibrate(outputs_of(simulated()))
    assert "row" not in predict_table(steady, TABLE.drop_columns("row")).column_names
    with pytest.warns(UserWarning, match="learned from the calibration samples"):
        naive = MondrianConformal.paper(trust=TRUST).calibrate(outputs_of(simulated()))
    with pytest.raises(InputError, match="depend on what is predicted together"):
        predict_table(naive, TABLE)


def read_back(path):
    """Rows of a file of sets, as dictionaries of plain values."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    csv.field_size_limit(2**31 - 1)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["set"] = row["set"].split("|") if row["size"] != "0" else []
        row["row"], row["size"] = int(row["row"]), int(row["size"])
        row |= {name: float(row[name]) for name in ("threshold", "alpha")}
    return rows


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("kind", WRITERS)
def test_files_have_the_sets_of_predict_set(suffix, kind, standard, model, tmp_path):
    new = WRITERS[kind](tmp_path / "new", NEW)
    path = tmp_path / f"sets{suffix}"
    summary = predict_file(model, new, path, alpha=0.2)
    outputs = outputs_of(NEW)
    sets = standard.predict_set(outputs, 0.2)
    rows = read_back(path)
    assert [row["set"] for row in rows] == likeliest_first(sets, outputs)
    assert [row["row"] for row in rows] == list(range(157))
    assert [row["size"] for row in rows] == sets.sizes.tolist()
    assert [row["threshold"] for row in rows] == sets.thresholds.tolist()
    assert {row["alpha"] for row in rows} == {0.2}
    assert [row["status"] for row in rows] == sets.to_frame("pandas")["status"].tolist()
    assert summary == {
        "n": 157,
        "n_classes": 5,
        "mean_size": sets.sizes.mean(),
        "empty": (sets.sizes == 0).sum(),
        "full": (sets.sizes == 5).sum(),
        "status": {"exact": 157},
    }


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_blocks_change_nothing(suffix, predictor, tmp_path, monkeypatch):
    np.savez(tmp_path / "new.npz", **NEW)
    predictor.save(tmp_path / "m.trustsets")
    blocks, paths = OutputsFile.blocks, [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path, rows in zip(paths, (1 << 16, 40), strict=True):
        monkeypatch.setattr(OutputsFile, "blocks", lambda source, n=rows: blocks(source, n))
        predict_file(tmp_path / "m.trustsets", tmp_path / "new.npz", path)
    assert read_back(paths[0]) == read_back(paths[1])
    assert len(read_back(paths[0])) == 157


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_odd_class_names_come_back(suffix, tmp_path):
    names = np.array(["=1+1", "-2", "a,b", 'say "c"', "'@x"])
    arrays = simulated(900)
    outputs = ModelOutputs(logits=arrays["logits"], labels=names[arrays["labels"]], classes=names)
    predictor = StandardConformal().calibrate(outputs)
    predictor.save(tmp_path / "m.trustsets")
    np.savez(tmp_path / "new.npz", logits=NEW["logits"])
    for alpha in (0.1, 0.45):
        path = tmp_path / f"s{suffix}"
        predict_file(tmp_path / "m.trustsets", tmp_path / "new.npz", path, alpha=alpha)
        expected = predictor.predict_set(ModelOutputs(logits=NEW["logits"], classes=names), alpha)
        for row, members in zip(read_back(path), expected, strict=True):
            cell, text = "|".join(row["set"]), "|".join(members)
            if suffix == ".csv" and text.startswith(("=", "-2|")):
                text = f"'{text}"  # keeps a spreadsheet from running it; -2 alone is a number
            assert cell == text
    odd = ModelOutputs(logits=outputs.logits, labels=arrays["labels"] - 2, classes=range(-2, 3))
    predictor = StandardConformal().calibrate(odd)
    predictor.save(tmp_path / "m.trustsets")
    predict_file(tmp_path / "m.trustsets", tmp_path / "new.npz", path)
    expected = predictor.predict_set(ModelOutputs(logits=NEW["logits"], classes=range(-2, 3)))
    for row, members in zip(read_back(path), expected, strict=True):
        assert [int(member) for member in row["set"]] == members.tolist()
    if suffix == ".csv":
        bars = np.array(["a", "b", "c|d", "e", "f"])
        piped = ModelOutputs(logits=outputs.logits, labels=bars[arrays["labels"]], classes=bars)
        StandardConformal().calibrate(piped).save(tmp_path / "m.trustsets")
        with pytest.raises(InputError, match=r"'c\|d' holds '\|'.*Write \.parquet"):
            predict_file(tmp_path / "m.trustsets", tmp_path / "new.npz", path)


VALUES = [
    [2**53 + 1, 2**53 + 3], [True, False], [datetime.date(2024, 1, 31), datetime.date(2024, 2, 1)],
    [decimal.Decimal("0.10"), decimal.Decimal("12345678901234567.89")], [datetime.time(1)] * 2,
]  # fmt: skip


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_ids_and_groups_of_tables_keep_their_values(values, model, tmp_path, monkeypatch):
    """Integers with a missing one were floats, truth values 1.0, and dates refused."""
    ids, blocks, path = [None, None, *values], OutputsFile.blocks, tmp_path / "new.parquet"
    table = TABLE.slice(0, 4).set_column(TABLE.column_names.index("id"), "id", pa.array(ids))
    pq.write_table(table, path)
    # The first block has nothing but missing values, and the type of all.
    monkeypatch.setattr(OutputsFile, "blocks", lambda source: blocks(source, 2))
    for suffix, expected in ((".parquet", ids), (".csv", ["", "", *map(str, values)])):
        predict_file(model, path, tmp_path / f"s{suffix}")
        assert [row["id"] for row in read_back(tmp_path / f"s{suffix}")] == expected
    # Groups are those of arrays, with and without missing values.
    for start, stop in ((0, 4), (2, 4)):
        groups = open_outputs(path, groups=["id"]).read(start, stop).groups["id"]
        assert [*map(str, groups[-2:])] == [*map(str, values)]


def test_infinite_thresholds_and_sizes_of_their_own(model, tmp_path):
    np.savez(tmp_path / "new.npz", **NEW)
    predict_file(model, tmp_path / "new.npz", tmp_path / "s.parquet", alpha=1e-4)
    rows = read_back(tmp_path / "s.parquet")
    assert all(row["threshold"] == np.inf and row["size"] == 5 for row in rows)
    ConditionalConformal().calibrate(outputs_of(simulated(900))).save(model)
    predict_file(model, tmp_path / "new.npz", tmp_path / "s.csv", max_size=2)
    outputs = open_outputs(tmp_path / "new.npz").read()
    expected = load(model).predict_set(outputs, max_size=2)
    np.testing.assert_allclose(
        [row["alpha"] for row in read_back(tmp_path / "s.csv")], expected.alpha
    )


def test_models_and_outputs_must_fit_together(tmp_path):
    arrays, model = simulated(50), tmp_path / "m.trustsets"
    basis = Polynomial(1) + Groups("site")
    ConditionalConformal(basis=basis, trust=TRUST).calibrate(outputs_of(simulated(900))).save(model)
    for message, change in {
        "there is no array 'features', which": {"features": None},
        "names other classes": {"classes": CLASSES[::-1]},
        "there is no group column 'site'": {"group_site": None},
    }.items():
        changed = {name: own for name, own in (arrays | change).items() if own is not None}
        np.savez(tmp_path / "new.npz", **changed)
        with pytest.raises(InputError, match=message):
            predict_file(model, tmp_path / "new.npz", tmp_path / "sets.csv")
    assert {item.name for item in tmp_path.iterdir()} == {"new.npz", "m.trustsets"}
    np.savez(tmp_path / "new.npz", **arrays)
    for note in ({"columns": [1, 2]}, {"columns": "abc"}, {"features": 3}, [1]):
        storage.write(model, load(model), note)
        assert predict_file(model, tmp_path / "new.npz", tmp_path / "sets.csv")["n"] == 50


def test_an_interrupt_leaves_the_earlier_result(model, tmp_path, monkeypatch):
    new, path = tmp_path / "new.npz", tmp_path / "sets.csv"
    np.savez(new, **NEW)
    path.write_bytes(b"earlier")

    def stop(source, *rows, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(OutputsFile, "read", stop)
    with pytest.raises(KeyboardInterrupt):
        predict_file(model, new, path)
    assert path.read_bytes() == b"earlier"
    assert {item.name for item in tmp_path.iterdir()} == {"new.npz", "m.trustsets", "sets.csv"}


def test_an_output_is_no_input_and_goes_where_it_is_meant_to(model, tmp_path):
    np.savez(tmp_path / "new.npz", **NEW)
    path = tmp_path / "a.csv"
    path.write_bytes(b"1")
    (tmp_path / "link.csv").symlink_to("a.csv")
    os.link(path, tmp_path / "twin.csv")
    for name in ("a.csv", "link.csv", "twin.csv"):
        with pytest.raises(InputError, match="which would be lost"):
            check_output(tmp_path / name, (".csv",), [None, path])
    predict_file(model, tmp_path / "new.npz", tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink() and len(read_back(path)) == 157
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InputError, match=r"pipe\.csv: this is a folder, a pipe or a device"):
        predict_file(model, tmp_path / "new.npz", tmp_path / "pipe.csv")
    assert stat.S_ISFIFO((tmp_path / "pipe.csv").stat().st_mode)
