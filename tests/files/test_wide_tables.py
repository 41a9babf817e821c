"""Tables with one number a column: the same sets by every route, and clear errors."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trustsets import Groups, ModelOutputs, MondrianConformal, TrustScore
from trustsets.errors import InputError
from trustsets.files import TableColumns, csv_tables, open_outputs, predict_file, read_training
from trustsets.files.calibration import Recipe, calibrate_file

NAMES = ["ant", "bee", "cat"]
COLUMNS = TableColumns(probabilities=("p_*",), features=("x*",), label="truth")
RECIPE = Recipe(basis=("polynomial", "groups"), degree=1, groups=("site", "ward"))
UNLABELLED = TableColumns(probabilities=("p_*",), features=("x*",))


def samples(n=400, seed=0):
    """A pandas frame: probabilities, two features, labels by name, groups with missing values."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(3), size=n)
    labels = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    frame = pd.DataFrame(p, columns=[f"p_{name}" for name in NAMES])
    frame["x1"], frame["x2"] = rng.normal(size=n) + labels, rng.normal(size=n)
    frame["truth"] = np.array(NAMES)[labels]
    frame["site"] = rng.choice(["north", "south", None], size=n)
    frame["ward"] = np.where(rng.random(n) < 0.3, np.nan, rng.integers(1, 4, size=n))
    frame["id"] = [f"s{i}" for i in range(n)]
    return frame


def arrays_of(frame):
    """The same as arrays, with missing groups written out."""
    ward = ["(missing)" if np.isnan(own) else str(int(own)) for own in frame["ward"]]
    return {
        "probabilities": frame[[f"p_{name}" for name in NAMES]].to_numpy(),
        "features": frame[["x1", "x2"]].to_numpy(),
        "labels": frame["truth"].to_numpy().astype(str),
        "groups": {"site": frame["site"].fillna("(missing)").to_numpy().astype(str), "ward": ward},
        "classes": NAMES,
    }


def write_npz(path, frame):
    own = arrays_of(frame)
    groups = {f"group_{name}": values for name, values in own.pop("groups").items()}
    np.savez(path.with_suffix(".npz"), **own, **groups, id=frame["id"].to_numpy().astype(str))
    return path.with_suffix(".npz")


def write_csv(path, frame):
    frame.to_csv(path.with_suffix(".csv"), index=False)
    return path.with_suffix(".csv")


def write_polars_csv(path, frame):
    pl.from_pandas(frame).write_csv(path.with_suffix(".csv"))
    return path.with_suffix(".csv")


def write_excel_csv(path, frame):
    """With a byte order mark, semicolons and an index without a name."""
    frame.to_csv(path.with_suffix(".csv"), sep=";", encoding="utf-8-sig")
    return path.with_suffix(".csv")


def write_parquet(path, frame):
    pq.write_table(pa.Table.from_pandas(frame), path.with_suffix(".parquet"), row_group_size=70)
    return path.with_suffix(".parquet")


FILES = {
    "npz": write_npz,
    "csv": write_csv,
    "csv of polars": write_polars_csv,
    "csv of a spreadsheet": write_excel_csv,
    "wide parquet": write_parquet,
}
FRAMES = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "pyarrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
}


def from_frame(frame):
    return ModelOutputs.from_frame(
        frame, probabilities="p_*", features="x*", label="truth", groups=["site", "ward"]
    )


@pytest.fixture(scope="module")
def expected():
    """Sets by arrays, of a predictor that uses trust and both groups."""
    train, calibration, new = (arrays_of(samples(seed=seed)) for seed in (1, 2, 3))
    trust = TrustScore().fit(train["features"], train["labels"])
    sets = (
        RECIPE.build(trust).calibrate(ModelOutputs(**calibration)).predict_set(ModelOutputs(**new))
    )
    assert 1.0 < sets.sizes.mean() < 3.0
    return sets


@pytest.mark.parametrize("kind", FILES)
def test_files_of_every_kind_give_the_sets_of_arrays(kind, expected, tmp_path):
    train, calibration, new = (
        FILES[kind](tmp_path / name, samples(seed=seed))
        for seed, name in enumerate(("train", "calibration", "new"), start=1)
    )
    model = tmp_path / "m.trustsets"
    calibrate_file(calibration, model, RECIPE, train=train, columns=COLUMNS)
    predict_file(model, new, tmp_path / "sets.csv", columns=UNLABELLED, memory=200_000)
    found = pd.read_csv(tmp_path / "sets.csv")
    own = expected.to_frame("pandas")
    assert [json.loads(text) for text in found["set"]] == own["set"].tolist()
    np.testing.assert_array_equal(found["threshold"], own["threshold"])
    assert found["id"].tolist() == samples(seed=3)["id"].tolist()


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_of_every_kind_give_the_sets_of_arrays(kind, expected):
    train, calibration, new = (from_frame(FRAMES[kind](samples(seed=seed))) for seed in (1, 2, 3))
    trust = TrustScore().fit(train.features, train.labels)
    sets = RECIPE.build(trust).calibrate(calibration).predict_set(new)
    np.testing.assert_array_equal(sets.mask, expected.mask)
    np.testing.assert_array_equal(sets.thresholds, expected.thresholds)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("piece", [12, 1 << 20])
def test_every_range_is_a_slice(kind, piece, tmp_path, monkeypatch):
    monkeypatch.setattr(csv_tables, "_PIECE_CELLS", piece)
    frame = samples(200)
    path = FILES[kind](tmp_path / "outputs", frame)
    source = open_outputs(path, groups=["site", "ward"], columns=COLUMNS)
    whole, own = ModelOutputs(**arrays_of(frame)), source.row_bytes
    assert len(source) == 200 and own > 0
    for start, stop in ((0, 200), (0, 1), (199, 200), (37, 80), (80, 150), (20, 40)):
        found = source.read(start, stop)
        np.testing.assert_array_equal(found.probabilities, whole.probabilities[start:stop])
        np.testing.assert_array_equal(found.features, whole.features[start:stop])
        assert found.labels.tolist() == whole.labels[start:stop].tolist()
        for name, values in found.groups.items():
            assert values.tolist() == whole.groups[name][start:stop].tolist(), name


def test_missing_groups_are_a_group_at_calibration_and_prediction():
    calibration, new = samples(600, seed=5), samples(300, seed=6)
    with_gaps = MondrianConformal(by=Groups("ward")).calibrate(from_frame(calibration))
    written = [arrays_of(frame) for frame in (calibration, new)]
    by_text = MondrianConformal(by=Groups("ward")).calibrate(ModelOutputs(**written[0]))
    expected = by_text.predict_set(ModelOutputs(**written[1]))
    found = with_gaps.predict_set(from_frame(new))
    np.testing.assert_array_equal(found.thresholds, expected.thresholds)
    gone = np.isnan(new["ward"])
    assert len(set(found.thresholds[gone])) == 1
    assert set(found.thresholds[gone]).isdisjoint(found.thresholds[~gone])
    # A batch without gaps, in integers, is of the same groups.
    whole = new[~gone].astype({"ward": int})
    np.testing.assert_array_equal(with_gaps.predict_set(from_frame(whole)).mask, found.mask[~gone])


def test_groups_take_what_marks_missing_values():
    groups = {
        "texts": ["a", None, "a"],
        "numbers": [1.0, np.nan, 2.5],
        "nullable": pd.array([1, None, 2], dtype="Int64"),
        "dates": pd.to_datetime(["2026-01-02", None, "2026-01-02"]),
        "flags": pd.array([True, None, False], dtype="boolean"),
        "category": pd.Categorical(["a", None, "b"]),
    }
    found = ModelOutputs(logits=np.eye(3), groups=groups).groups
    for name, values in found.items():
        assert values[1] == "(missing)" and "(missing)" not in values[[0, 2]], name
    dates = ModelOutputs(logits=np.eye(2), groups={"dates": groups["dates"][[0, 2]]}).groups
    assert dates["dates"].astype(str).tolist() == found["dates"][[0, 2]].tolist()
    assert found["numbers"].tolist() == ["1", "(missing)", "2.5"]
    assert found["nullable"].tolist() == ["1", "(missing)", "2"]
    with pytest.raises(InputError, match=r"groups\['g'\] must not hold infinity"):
        ModelOutputs(logits=np.eye(2), groups={"g": [1.0, np.inf]})


def test_usual_names_need_no_options(tmp_path):
    (tmp_path / "a.csv").write_text("prob_0,prob_1,label,feature_a\n.5,.5,1,7\n.25,.75,0,8\n")
    found = open_outputs(tmp_path / "a.csv").read()
    assert found.classes.tolist() == [0, 1] and found.labels.tolist() == [1, 0]
    assert found.features.tolist() == [[7.0], [8.0]]
    features, labels = read_training(tmp_path / "a.csv")
    assert features.tolist() == [[7.0], [8.0]] and labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("header", "labels", "expected"),
    [
        ("p_1,p_2,p_x", ["1", "2"], ["1", "2"]),  # names, not positions
        ("p_01,p_02,p_03", ["01", "03"], ["01", "03"]),
        ("p_1,p_2,p_3", ["1", "3"], [1, 3]),
        ("p_a,p_b,p_c", ["0", "2"], ["a", "c"]),  # no class is called so: positions
    ],
)
def test_labels_that_look_like_numbers(header, labels, expected, tmp_path):
    rows = "".join(f"1,0,0,{label}\n" for label in labels)
    (tmp_path / "a.csv").write_text(f"{header},label\n{rows}")
    table = pd.read_csv(tmp_path / "a.csv", dtype={"label": str})
    if all(str(int(own)) == own for own in labels):
        table["label"] = table["label"].astype(int)
    table.to_parquet(tmp_path / "a.parquet")
    for path in (tmp_path / "a.csv", tmp_path / "a.parquet"):
        found = open_outputs(path, columns=TableColumns(logits=("p_*",))).read()
        assert found.labels.tolist() == expected


HOSTILE = {
    "empty": (b"", "it is empty; its first line must name the columns"),
    "only a header": (b"p_a,p_b,truth\n", "has the names of columns, but no rows"),
    "a name twice": (b"p_a,p_a,truth\n.5,.5,a\n", "two columns are called 'p_a'"),
    "a short row": (b"p_a,p_b,truth\n.5,.5,a\n.5,.5\n", r"row 1 has 2 cells, and .* 3 columns"),
    "a long row": (b"p_a,p_b,truth\n.5,.5,a,a\n", r"row 0 has 4 cells"),
    "a text": (b"p_a,p_b,truth\n.5,.5,a\n.5,high,a\n", "must hold numbers; row 1 holds 'high'"),
    "an empty number": (b"p_a,p_b,truth\n.5,,a\n", "'p_b' must hold numbers; row 0 is empty"),
    "decimal commas": (b"p_a;p_b;truth\n0,5;0,5;a\n", "Write numbers with a decimal point"),
    "other classes": (b"p_a,p_b,truth\n.5,.5,c\n", "labels must be among the 2 classes; row 0"),
    "a label missing": (b"p_a,p_b,truth\n.5,.5,a\n.5,.5,\n", "'truth' has no value in row 1"),
    "wrong sums": (b"p_a,p_b,truth\n.5,.6,a\n", r"must sum to 1; row 0 sums to 1\.1"),
    "negative": (b"p_a,p_b,truth\n-1,2,a\n", "must not be negative"),
    "not finite": (b"p_a,p_b,truth\nnan,.5,a\n", "must be finite; row 0"),
    "no such columns": (b"q_a,q_b,truth\n.5,.5,a\n", r"no column is 'p_\*'; there are q_a, q_b"),
    "no label": (b"p_a,p_b\n.5,.5\n", "there is no label column 'truth'; there are"),
    "Latin letters": ("p_ä,p_b,truth\n.5,.5,b\n".encode("latin-1"), "UTF-8"),
    "UTF-16": ("p_a,p_b,truth\n.5,.5,a\n".encode("utf-16"), "UTF-8|readable CSV"),
    "an open quote": (b'p_a,p_b,truth\n.5,.5,"a\n', "not a readable CSV file"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tables_are_refused_with_a_reason(case, tmp_path):
    content, message = HOSTILE[case]
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    columns = TableColumns(probabilities=("p_*",), label="truth")
    with pytest.raises(InputError, match=message) as raised:
        open_outputs(path, columns=columns).read()
    assert str(raised.value).startswith(str(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.assign(p_bee="high"), "'p_bee' must hold numbers"),
        (lambda f: f.assign(p_bee=f["p_bee"].where(f.index != 3)), "missing values|must be finite"),
        (lambda f: f.drop(columns=["p_ant", "p_bee", "p_cat"]), "no column is 'p_"),
        (lambda f: f.assign(truth="fox"), "must be among the 3 classes"),
        (lambda f: f.assign(p_ant=2.0), "must sum to 1"),
    ],
)
def test_hostile_frames_and_wide_parquet_are_refused(change, message, tmp_path):
    frame = change(samples(50))
    path = write_parquet(tmp_path / "a", frame)
    with pytest.raises(InputError, match=message):
        open_outputs(path, columns=COLUMNS).read()
    for kind, convert in FRAMES.items():
        with pytest.raises(InputError, match=message):
            from_frame(convert(frame)), kind


def test_patterns_and_frames_that_cannot_be_are_refused():
    frame = samples(20)
    for given, message in (
        ({}, "exactly one of logits and probabilities"),
        ({"probabilities": "*p_*"}, "one \\* in a pattern"),
        ({"probabilities": "p_*", "label": "y"}, "no column is 'y'"),
        ({"probabilities": ["p_*", "*_ant"]}, "two patterns match the column 'p_ant'"),
    ):
        with pytest.raises(InputError, match=message):
            ModelOutputs.from_frame(frame, **given)
    with pytest.raises(InputError, match="frame must be of pandas, polars or pyarrow; got dict"):
        ModelOutputs.from_frame({"p_a": [1.0]}, probabilities="p_*")
    twice = pd.concat([frame, frame[["p_ant"]]], axis=1)
    with pytest.raises(InputError, match="two columns are called 'p_ant'"):
        ModelOutputs.from_frame(twice, probabilities="p_*")
    with pytest.raises(InputError, match="probabilities or those of logits, not both"):
        TableColumns(probabilities=("a",), logits=("b",))
