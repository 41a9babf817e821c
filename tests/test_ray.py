"""Sets of a Ray dataset are bitwise identical to those of one process."""

import re
from pathlib import Path

import numpy as np
import pytest

from trustsets import APS, ConditionalConformal, StandardConformal, TrustScore
from trustsets.errors import InputError
from trustsets.files import predict_table
from trustsets.ray import predict_dataset

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")
# Ray sets fields of its own that it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")


@pytest.fixture(scope="module", autouse=True)
def local_ray():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("OMP_NUM_THREADS", raising=False)  # Ray sets it for each task
        ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error",
            object_store_memory=100_000_000,
        )  # fmt: skip
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def table(make_outputs):
    new = make_outputs(500, seed=2)
    columns = {"name": [f"s{i}" for i in range(500)], "row": np.arange(500)}
    return pa.table(
        columns | {"logits": list(new.logits), "features": list(new.features.astype(np.float32))}
    )


@pytest.fixture(scope="module")
def predictors(make_outputs):
    """One draws at random twice for each row and looks at all training samples."""
    train = make_outputs(600, seed=0)
    trust = TrustScore().fit(train.features, train.labels)
    random = ConditionalConformal(score=APS(own_mass="random"), trust=trust, randomized=True)
    methods = {"standard": StandardConformal(), "random, trust": random}
    return {
        name: own.calibrate(make_outputs(800, seed=1, groups=None)) for name, own in methods.items()
    }


@pytest.mark.parametrize(
    ("name", "sets", "options"),
    [
        ("standard", {}, {"num_cpus": 2, "concurrency": 1}),
        ("random, trust", {"max_size": 3}, {"batch_rows": 33}),
    ],
)
def test_sets_are_those_of_one_process(name, sets, options, predictors, table):
    predictor = predictors[name]
    parts = [table.slice(0, 200), table.slice(200, 1), table.slice(201)]
    asked = {"alpha": 0.2, "ids": ["name"]} | sets
    found = predict_dataset(ray.data.from_arrow(parts), predictor, **asked, **options)
    found = pa.concat_tables(found.iter_batches(batch_format="pyarrow", batch_size=None))
    expected = predict_table(predictor, table, **asked)
    assert expected.column_names[:2] == ["row", "name"]
    assert found.sort_by("row").select(expected.column_names).equals(expected.combine_chunks())


def test_the_lines_of_the_page_run(predictors, table, tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "scale.md").read_text(encoding="utf-8")
    lines = re.search(r"## Datasets on Ray.*?```python\n(.*?)```", page, flags=re.DOTALL)[1]
    (tmp_path / "new").mkdir()
    pq.write_table(
        table.rename_columns(["id", *table.column_names[1:]]), tmp_path / "new/0.parquet"
    )
    predictors["standard"].save(tmp_path / "model.trustsets")
    for name in ("new/", "sets/", "model.trustsets"):
        lines = lines.replace(f'"{name}"', repr(str(tmp_path / name)))
    exec(lines, {})
    assert pq.read_table(tmp_path / "sets").num_rows == len(table)


def test_mistakes_are_told_before_it_starts(predictors, table):
    dataset = ray.data.from_arrow(table)
    for alpha in (1.5, [0.1, 0.2]):
        with pytest.raises(InputError, match="alpha"):
            predict_dataset(dataset, predictors["standard"], alpha=alpha)
    for wrong in ((dataset, StandardConformal()), (None, "model"), (None, predictors["standard"])):
        with pytest.raises(ValueError, match="calibrate"):
            predict_dataset(*wrong)
