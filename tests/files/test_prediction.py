"""`predict_file`: one result whatever the memory, the kind of file and the interruptions."""

import json
import os

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from outputs_files import CLASSES, WRITERS, simulated

from trustsets import (
    APS,
    ConditionalConformal,
    Groups,
    ModelOutputs,
    Polynomial,
    StandardConformal,
    TrustScore,
)
from trustsets.errors import InputError
from trustsets.files import open_outputs, predict_file
from trustsets.files.prediction import BlockPredictor
from trustsets.files.set_files import read_predictions

ROW = 4 * (4 * 9 + 8 + 20 + 20) + 64 * 5  # bytes that a sample is taken to need, about


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A predictor with all that depends on a sample: trust, groups, random draws."""
    folder = tmp_path_factory.mktemp("model")
    train, calibration = simulated(seed=1), simulated(900, seed=2)
    trust = TrustScore().fit(train["features"], CLASSES[train["labels"]])
    outputs = ModelOutputs(
        logits=calibration["logits"],
        features=calibration["features"],
        labels=CLASSES[calibration["labels"]],
        groups={"site": calibration["group_site"]},
        classes=CLASSES,
    )
    predictor = ConditionalConformal(
        APS(own_mass="random"), Polynomial(2) + Groups("site"), trust, randomized=True
    )
    predictor.calibrate(outputs).save(folder / "model.trustsets")
    return folder / "model.trustsets"


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    arrays = simulated(900, seed=2)
    outputs = ModelOutputs(
        logits=arrays["logits"], labels=CLASSES[arrays["labels"]], classes=CLASSES
    )
    StandardConformal().calibrate(outputs).save(folder / "model.trustsets")
    return folder / "model.trustsets"


@pytest.fixture
def new(tmp_path):
    path = tmp_path / "new.npz"
    np.savez(path, **simulated(500, seed=5))
    return path


@pytest.mark.parametrize("rows", [7, 300, 10_000])
def test_memory_does_not_change_the_sets(rows, model, new, tmp_path):
    predict_file(model, new, tmp_path / "whole.parquet")
    predict_file(model, new, tmp_path / "blocks.parquet", memory=int(1.3 * ROW * rows))
    whole, blocks = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("whole", "blocks"))
    assert whole.equals(blocks)
    groups = pq.ParquetFile(tmp_path / "blocks.parquet").metadata.num_row_groups
    assert (groups == 1) == (rows == 10_000)


@pytest.mark.parametrize("kind", WRITERS)
def test_the_kind_of_file_does_not_change_the_sets(kind, plain_model, tmp_path):
    arrays = simulated(500, seed=5)
    path = WRITERS[kind](tmp_path / "outputs", arrays)
    predict_file(plain_model, path, tmp_path / "sets.parquet", memory=100 * ROW)
    found = pq.read_table(tmp_path / "sets.parquet")
    from trustsets import load

    sets = load(plain_model).predict_set(ModelOutputs(logits=arrays["logits"]))
    assert found.column("set").to_pylist() == [own.tolist() for own in sets]
    assert found.column("row").to_pylist() == list(range(500))


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_every_form_reads_back(suffix, model, new, tmp_path):
    record = {"command": "predict", "options": {"alpha": 0.3}}
    path = tmp_path / f"sets{suffix}"
    summary = predict_file(model, new, path, alpha=0.3, memory=100 * ROW, record=record)
    from trustsets import load

    predictor = load(model)
    truth = predictor.predict_set(open_outputs(new).read(), alpha=0.3)
    found = read_predictions(path, CLASSES)
    np.testing.assert_array_equal(found.mask, truth.mask)
    np.testing.assert_array_equal(found.thresholds, truth.thresholds)
    np.testing.assert_array_equal(found.status, truth.status)
    assert found.alpha == 0.3
    assert summary.n == 500 and summary.mean_size == pytest.approx(truth.sizes.mean())
    assert summary.sizes[5] == np.count_nonzero(truth.sizes == 5)
    assert sum(summary.status.values()) == 500


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
@pytest.mark.parametrize(
    "names", [["a,b", 'c"d', "e\nf", "ü", "[]"], [10, 20, 30, 40, 50], [0.5, 1.5, 2.5, 3.5, 4.5]]
)
def test_class_names_of_any_kind_come_back(suffix, names, new, tmp_path):
    arrays = simulated(500, seed=5)
    names = np.array(names)
    outputs = ModelOutputs(logits=arrays["logits"], labels=names[arrays["labels"]], classes=names)
    predictor = StandardConformal().calibrate(outputs)
    predictor.save(tmp_path / "m.trustsets")
    np.savez(new, logits=arrays["logits"])
    predict_file(tmp_path / "m.trustsets", new, tmp_path / f"sets{suffix}")
    found = read_predictions(tmp_path / f"sets{suffix}", names)
    np.testing.assert_array_equal(found.mask, predictor.predict_set(outputs).mask)


def first_row(block):
    return int(block["row"][0])


def test_infinite_thresholds_are_valid_json(plain_model, new, tmp_path):
    predict_file(plain_model, new, tmp_path / "sets.jsonl", alpha=1e-4)
    lines = [json.loads(line) for line in (tmp_path / "sets.jsonl").read_text().splitlines()]
    assert all(line["threshold"] is None and line["size"] == 5 for line in lines)
    assert lines[0]["status"] == "too_few_points"
    found = read_predictions(tmp_path / "sets.jsonl", CLASSES)
    assert np.isinf(found.thresholds).all()


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
@pytest.mark.parametrize("stop_at", [0, 1, 3])
def test_an_interrupted_run_continues_to_the_same_bytes(
    suffix, stop_at, model, new, tmp_path, monkeypatch
):
    whole, broken = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    predict_file(model, new, whole, memory=130 * ROW)
    broken.write_bytes(b"earlier")
    done = []
    predict = BlockPredictor.predict

    def stop(own, block):
        if len(done) == stop_at:
            raise KeyboardInterrupt
        done.append(first_row(block))
        return predict(own, block)

    monkeypatch.setattr(BlockPredictor, "predict", stop)
    with pytest.raises(KeyboardInterrupt):
        predict_file(model, new, broken, memory=130 * ROW)
    assert broken.read_bytes() == b"earlier"
    again = []
    monkeypatch.setattr(
        BlockPredictor, "predict", lambda own, b: again.append(first_row(b)) or predict(own, b)
    )
    summary = predict_file(model, new, broken, memory=130 * ROW)
    assert broken.read_bytes() == whole.read_bytes()
    assert not set(done) & set(again)
    assert (summary.continued > 0) == (stop_at > 0)
    assert not list(tmp_path.glob(".*"))


def test_a_changed_input_starts_anew(model, new, tmp_path, monkeypatch):
    predict = BlockPredictor.predict

    def fail(own, block):
        if first_row(block):
            raise KeyboardInterrupt
        return predict(own, block)

    with monkeypatch.context() as patch:
        patch.setattr(BlockPredictor, "predict", fail)
        with pytest.raises(KeyboardInterrupt):
            predict_file(model, new, tmp_path / "sets.parquet", memory=130 * ROW)
    # As large and as old as it was: only its content is another.
    times = (new.stat().st_atime_ns, new.stat().st_mtime_ns)
    size = new.stat().st_size
    np.savez(new, **simulated(500, seed=6))
    os.utime(new, ns=times)
    assert new.stat().st_size == size
    assert predict_file(model, new, tmp_path / "sets.parquet", memory=130 * ROW).continued == 0
    predict_file(model, new, tmp_path / "anew.parquet", memory=130 * ROW)
    again, anew = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("sets", "anew"))
    assert again.equals(anew)


def test_an_input_replaced_while_it_is_read_is_noticed(model, new, tmp_path, monkeypatch):
    predict = BlockPredictor.predict

    def swap(own, block):
        if first_row(block):
            np.savez(tmp_path / "other.npz", **simulated(500, seed=6))
            (tmp_path / "other.npz").replace(new)
        return predict(own, block)

    monkeypatch.setattr(BlockPredictor, "predict", swap)
    with pytest.raises(InputError, match=r"new\.npz: it was changed while it was read"):
        predict_file(model, new, tmp_path / "sets.csv", memory=130 * ROW)
    assert not (tmp_path / "sets.csv").exists()


def test_errors_name_the_file_and_its_row(plain_model, tmp_path):
    arrays = simulated(500)
    arrays["logits"][321, 2] = np.nan
    np.savez(tmp_path / "new.npz", **arrays)
    with pytest.raises(
        InputError, match=r"new\.npz: array 'logits' must be finite; row 321, column 2 holds nan"
    ):
        predict_file(plain_model, tmp_path / "new.npz", tmp_path / "s.csv", memory=100 * ROW)


def test_models_and_outputs_must_fit_together(model, tmp_path):
    arrays = simulated(50)
    cases = {
        "there is no array 'features', which": {"features": None},
        "names other classes": {"classes": CLASSES[::-1]},
        "there is no group column 'site'": {"group_site": None},
        "has 3 classes, and .* was calibrated with 5": {
            "logits": arrays["logits"][:, :3],
            "classes": None,
        },
    }
    for message, change in cases.items():
        changed = {name: own for name, own in (arrays | change).items() if own is not None}
        np.savez(tmp_path / "new.npz", **changed)
        with pytest.raises(InputError, match=message):
            predict_file(model, tmp_path / "new.npz", tmp_path / "sets.csv")
    assert [item.name for item in tmp_path.iterdir()] == ["new.npz"]


def test_too_little_memory_and_unknown_forms(plain_model, new, tmp_path):
    with pytest.raises(InputError, match=r"memory=100 bytes is too little: one sample"):
        predict_file(plain_model, new, tmp_path / "sets.csv", memory=100)
    with pytest.raises(InputError, match=r"sets\.txt: the result is written as \.parquet"):
        predict_file(plain_model, new, tmp_path / "sets.txt")
    with pytest.raises(InputError, match="alpha"):
        predict_file(plain_model, new, tmp_path / "sets.csv", alpha=1.5)


@pytest.fixture(scope="module")
def sized_model(tmp_path_factory):
    arrays = simulated(900, seed=2)
    outputs = ModelOutputs(
        logits=arrays["logits"], labels=CLASSES[arrays["labels"]], classes=CLASSES
    )
    path = tmp_path_factory.mktemp("sized") / "model.trustsets"
    ConditionalConformal().calibrate(outputs).save(path)
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_sizes_and_p_values_are_columns(suffix, sized_model, new, tmp_path):
    from trustsets import load

    path, asked = tmp_path / f"sets{suffix}", {"max_size": 2, "p_values": 3}
    record = {"command": "predict", "options": {"alpha": 0.1} | asked}
    predict_file(sized_model, new, path, **asked, memory=14 * 60 * ROW, record=record)
    readers = {".parquet": pd.read_parquet, ".csv": pd.read_csv}
    table = readers.get(suffix, lambda own: pd.read_json(own, lines=True))(path)
    predictor, outputs = load(sized_model), open_outputs(new).read()
    sets, points = predictor.predict_set(outputs, max_size=2), predictor.predict_confidence(outputs)
    assert table["size"].tolist() == sets.sizes.tolist() and table["size"].max() == 2
    np.testing.assert_allclose(table["alpha"], sets.alpha, rtol=1e-12)
    p = np.sort(predictor.predict_p(outputs), axis=1)[:, ::-1]
    for place in range(3):
        np.testing.assert_allclose(table[f"p_{place + 1}"], points.p_values[:, place])
        names = CLASSES[points.codes[:, place]].tolist()
        assert table[f"class_{place + 1}"].tolist() == names
    np.testing.assert_allclose(table["p_3"], p[:, 2])
    np.testing.assert_allclose(table["confidence"], 1.0 - table["p_2"])
    np.testing.assert_allclose(table["credibility"], table["p_1"])
    with pytest.raises(InputError, match="alpha of its own"):
        read_predictions(path, CLASSES)


def test_sizes_and_p_values_that_cannot_be(sized_model, plain_model, new, tmp_path):
    for wrong in (0, 6):
        with pytest.raises(InputError, match="p_values must lie between 1 and 5"):
            predict_file(sized_model, new, tmp_path / "s.csv", p_values=wrong)
    with pytest.raises(InputError, match="max_size is for ConditionalConformal"):
        predict_file(plain_model, new, tmp_path / "s.csv", max_size=2)
    with pytest.raises(InputError, match="max_size must be a whole number"):
        predict_file(sized_model, new, tmp_path / "s.csv", max_size=0)
    np.savez(new, **simulated(500, seed=5), confidence=np.arange(500))
    predict_file(sized_model, new, tmp_path / "s.csv", ids=["confidence"])
    with pytest.raises(InputError, match="column 'confidence' cannot be copied"):
        predict_file(sized_model, new, tmp_path / "s.csv", ids=["confidence"], p_values=1)
