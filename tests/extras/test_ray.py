"""Prediction and trust scores on two real nodes: the bits of one process, whatever dies."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trustsets import APS, ConditionalConformal, InputError, ModelOutputs, Monitor, TrustScore
from trustsets.extras.ray import (
    check_answers,
    connected,
    predict_dataset,
    predict_files,
    read_outputs,
    watch_dataset,
)
from trustsets.files import predict_table

pytest.importorskip("ray.data")
# Ray sets fields of its own that it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")

CLASSES, WIDTH = 4, 6
ROWS = (300, 41, 500, 159)


def lists(matrix):
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), matrix.shape[1])


def make_table(rng, n):
    return pa.table(
        {
            "id": [f"{value:x}" for value in rng.integers(0, 1 << 40, n)],
            "logits": lists(rng.normal(size=(n, CLASSES))),
            "features": lists(rng.normal(size=(n, WIDTH)).astype(np.float32)),
        }
    )


@pytest.fixture(scope="module")
def training():
    rng = np.random.default_rng(0)
    labels = np.append(np.arange(CLASSES), rng.integers(0, CLASSES, 596))
    return rng.normal(size=(600, WIDTH)).astype(np.float32), labels


@pytest.fixture(scope="module")
def predictor(training):
    """A predictor that draws at random twice for each row, and looks at all training points."""
    return calibrated(TrustScore().fit(*training))


def calibrated(trust):
    rng = np.random.default_rng(1)
    outputs = ModelOutputs(
        logits=rng.normal(size=(800, CLASSES)),
        features=rng.normal(size=(800, WIDTH)).astype(np.float32),
        labels=rng.integers(0, CLASSES, 800),
    )
    method = ConditionalConformal(score=APS(own_mass="random"), trust=trust, randomized=True)
    return method.calibrate(outputs)


@pytest.fixture
def inputs(tmp_path):
    """Parquet files with row groups of uneven sizes."""
    rng = np.random.default_rng(2)
    folder = tmp_path / "new"
    folder.mkdir()
    for place, rows in enumerate(ROWS):
        path = folder / f"{place}.parquet"
        pq.write_table(make_table(rng, rows), path, row_group_size=70 + 60 * place)
    return folder


def in_one_process(predictor, folder):
    """The law: all rows at once, here."""
    table = pa.concat_tables(pq.read_table(path) for path in sorted(folder.glob("*.parquet")))
    numbered = table.append_column("row", pa.array(np.arange(len(table))))
    return predict_table(predictor, numbered)


def written(result):
    """A result as any reader of Parquet sees it, without the options in its schema."""
    return pq.read_table(result).replace_schema_metadata()


def assert_same(found, expected):
    assert found.select(expected.column_names).equals(expected.combine_chunks())


def hidden(folder):
    return [path for path in folder.iterdir() if path.name.startswith(".")]


class Background:
    """A job in a thread; `parts` are those it has finished so far."""

    def __init__(self, folder, work):
        self._folder, self.error = folder, None
        self._thread = threading.Thread(target=self._run, args=(work,))
        self._thread.start()

    def _run(self, work):
        try:
            work()
        except Exception as error:
            self.error = error

    @property
    def parts(self):
        if self.error is not None:
            raise self.error
        return len(list(self._folder.glob(".*.parts/parts/*.parquet")))

    def join(self):
        self._thread.join(120)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def slow(trust, seconds):
    """The same scores, but so slowly that there is time to kill something."""

    class Slow:
        def score(self, features, predicted):
            time.sleep(seconds)
            return trust.score(features, predicted)

    return Slow()


@pytest.mark.parametrize("part_rows", [97, 1000])
def test_files_give_the_bits_of_one_process(cluster, predictor, inputs, tmp_path, part_rows):
    result, done = tmp_path / "sets.parquet", []
    summary = predict_files(
        predictor,
        inputs,
        result,
        part_rows=part_rows,
        memory=200_000,
        progress=lambda total: nullcontext(done.append),
    )
    expected = in_one_process(predictor, inputs)
    assert_same(written(result), expected)
    assert sum(done) == summary.n == len(expected)
    assert summary.mean_size == pytest.approx(np.mean(expected["size"].to_numpy()))
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("batch_rows", [33, 4096])
def test_dataset_gives_the_bits_of_one_process(cluster, predictor, inputs, batch_rows):
    dataset = predict_dataset(predictor, read_outputs(inputs, part_rows=111), batch_rows=batch_rows)
    found = pa.concat_tables(dataset.iter_batches(batch_format="pyarrow", batch_size=None))
    assert_same(found.sort_by("row"), in_one_process(predictor, inputs))


def test_a_pipeline_watches_and_predicts_on_its_way(cluster, predictor, inputs, tmp_path):
    labels = np.random.default_rng(3).integers(0, CLASSES, sum(ROWS))

    def with_labels(batch):
        return batch.append_column("labels", pa.array(labels[batch["row"].to_numpy()]))

    dataset = read_outputs(inputs, part_rows=250).map_batches(with_labels, batch_format="pyarrow")
    watched = watch_dataset(predictor, dataset, tmp_path / "watch.trustsets", batch_rows=400)
    sets = predict_dataset(predictor, watched).iter_batches(batch_format="pyarrow", batch_size=None)
    expected = in_one_process(predictor, inputs)
    assert_same(pa.concat_tables(sets).sort_by("row"), expected)
    found = Monitor.load(tmp_path / "watch.trustsets", predictor).verdict()
    names = predictor.classes_[labels].tolist()
    covered = sum(name in own for name, own in zip(names, expected["set"].to_pylist(), strict=True))
    assert found.samples == found.labelled == sum(ROWS)
    assert found.parts[0].covered == covered


def test_a_killed_worker_and_a_killed_node_change_nothing(cluster, training, inputs, tmp_path):
    trust = TrustScore().fit(*training)
    predictor = calibrated(trust)
    expected = in_one_process(predictor, inputs)
    predictor.trust = slow(trust, 0.5)
    result = tmp_path / "sets.parquet"
    job = Background(tmp_path, lambda: predict_files(predictor, inputs, result, part_rows=40))
    at_work = cluster.wait_until(lambda: job.parts >= 2 and cluster.working("MapBatches"))
    os.kill(at_work[-1], signal.SIGKILL)
    reached = job.parts + 3
    cluster.wait_until(lambda: job.parts >= reached)
    assert not result.exists()
    cluster.kill_node()
    cluster.wait_until(lambda: job.parts > reached)
    assert not result.exists()
    job.join()
    assert_same(written(result), expected)
    assert written(result)["row"].to_pylist() == list(range(sum(ROWS)))
    assert hidden(tmp_path) == []


def test_bad_input_names_file_and_row_and_leaves_nothing(cluster, predictor, inputs, tmp_path):
    path, result = inputs / "2.parquet", tmp_path / "sets.parquet"
    good = path.read_bytes()
    table = pq.read_table(path)
    logits = np.stack(table["logits"].to_numpy())
    logits[345, 2] = np.nan
    pq.write_table(table.set_column(1, "logits", lists(logits)), path)
    with pytest.raises(InputError, match=r"2\.parquet.*'logits' must be finite; row 345, column 2"):
        predict_files(predictor, inputs, result, part_rows=100)
    assert not result.exists()
    path.write_bytes(good)
    predict_files(predictor, inputs, result, part_rows=100)
    assert_same(written(result), in_one_process(predictor, inputs))
    assert hidden(tmp_path) == []


def test_an_interrupted_run_goes_on(cluster, predictor, inputs, tmp_path):
    result, steps = tmp_path / "sets.parquet", []

    class Stop(Exception):
        pass

    def stop_after_two(done):
        steps.append(done)
        if len(steps) == 2:
            raise Stop

    with pytest.raises(Stop):
        predict_files(
            predictor,
            inputs,
            result,
            part_rows=100,
            progress=lambda total: nullcontext(stop_after_two),
        )
    assert not result.exists()
    summary = predict_files(predictor, inputs, result, part_rows=100)
    assert summary.continued >= sum(steps)
    assert_same(written(result), in_one_process(predictor, inputs))


def test_what_cannot_be_written_is_said_before_work(cluster, predictor, inputs, tmp_path):
    with pytest.raises(InputError, match=r"ends in \.parquet"):
        predict_files(predictor, inputs, tmp_path / "sets.csv")
    (tmp_path / "there.parquet").mkdir()
    with pytest.raises(InputError, match="exists already"):
        predict_files(predictor, inputs, tmp_path / "there.parquet")
    with pytest.raises(InputError, match="no such file"):
        predict_files(predictor, [tmp_path / "none.parquet"], tmp_path / "sets.parquet")


def test_the_blocks_of_the_page_run(cluster, training, inputs, tmp_path):
    """docs/scale.md, on this cluster: two workers, and paths that they all know."""
    rng = np.random.default_rng(5)
    own, labels = rng.normal(size=(800, WIDTH)).astype(np.float32), rng.integers(0, CLASSES, 800)
    calibration = ModelOutputs(logits=own[:, :CLASSES], features=own, labels=labels)
    predictor = ConditionalConformal(trust=TrustScore().fit(*training)).calibrate(calibration)
    predictor.save(tmp_path / "model.trustsets")
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    on_ray = [block for block in blocks if "trustsets.extras.ray" in block]
    assert len(on_ray) == 3
    names = {"predictor": predictor, "calibration": calibration, "nullcontext": nullcontext}
    for block in on_ray:
        small = block.replace('connected("10.0.0.1:6379")', "nullcontext()")
        small = re.sub(r'"([\w.]+(?:/|\.parquet|\.trustsets))"', rf'"{tmp_path}/\1"', small)
        exec(compile(small, "scale.md", "exec"), names)
        made = tmp_path / ("sets" if "write_parquet" in block else "sets.parquet")
        assert sum(len(pq.read_table(part)) for part in made.glob("*.parquet")) == sum(ROWS)
        shutil.rmtree(made)


def test_command_line_on_the_cluster(cluster, predictor, inputs, tmp_path):
    model, result = tmp_path / "model.trustsets", tmp_path / "sets.parquet"
    predictor.save(model)
    words = ["predict", model, inputs, "-o", result, "--json", "--ray", cluster.address]
    done = subprocess.run(
        [sys.executable, "-m", "trustsets.cli", *map(str, words)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["n"] == sum(ROWS)
    assert_same(written(result), in_one_process(predictor, inputs))
    options = json.loads(pq.read_table(result).schema.metadata[b"options"])
    assert "ray" not in options["options"]


@pytest.mark.parametrize(
    ("words", "address"),
    [
        (["--ray"], "local"),
        (["--ray", "--alpha", "0.2"], "local"),
        (["--ray", "10.0.0.1:6379"], "10.0.0.1:6379"),
        (["--ray=auto"], "auto"),
    ],
)
def test_the_address_may_be_left_out(monkeypatch, tmp_path, words, address):
    from trustsets.cli import main, predict

    asked = []
    monkeypatch.setattr(predict, "_predict", lambda *given: asked.append(given[0]) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["predict", "model", "outputs", "-o", "sets.parquet", *words])
    assert asked == [address]


def test_the_predictor_is_shared_and_the_threads_are_few(cluster, predictor):
    """Workers read the training points where they are, and a task of one core has one thread."""
    import ray

    from trustsets.extras.ray_work import share

    @ray.remote
    def look(held):
        from trustsets._common.blocks import available_cores
        from trustsets.extras.ray_work import _fetch

        points = _fetch(held[0]).trust._points
        return points.features.flags.owndata, points.features.flags.writeable, available_cores()

    assert ray.get(look.remote([share(predictor, 0.1)])) == (False, False, 1)


def test_without_ray_the_error_says_how_to_install_it(monkeypatch, predictor, inputs, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install .trustsets\[ray\]"):
        predict_files(predictor, inputs, tmp_path / "sets.parquet")
    with pytest.raises(InputError, match=r"pip install .trustsets\[ray\]"), connected():
        pass


def test_an_address_without_a_cluster_is_said_at_once():
    pytest.importorskip("ray")
    started = time.monotonic()
    with pytest.raises(InputError, match="no Ray cluster answers"):
        check_answers("127.0.0.1:9")
    assert time.monotonic() - started < 30
