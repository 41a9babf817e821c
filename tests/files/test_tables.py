"""`predict_table` is `predict_set`, whatever the batches."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from outputs_files import CLASSES, simulated
from trustsets_paper import PluginConformal

from trustsets import (
    APS,
    RAPS,
    Bins,
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
)
from trustsets.errors import InputError
from trustsets.files import open_outputs, predict_table


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
    "random score": StandardConformal(APS(own_mass="random"), random_state=3),
    "groups": MondrianConformal(by=Groups("site"), score=RAPS()),
    "class": MondrianConformal(by="class", score=Softmax()),
    "bins": MondrianConformal(by=Bins(counts=(2, 2)), trust=TRUST),
    "conditional": ConditionalConformal(basis=Polynomial(2), trust=TRUST),
    "randomised, with groups": ConditionalConformal(
        basis=Polynomial(2, of=(Confidence(transform="rank"), Entropy())) + Groups(),
        randomized=True,
    ),
    "components": ConditionalConformal(basis=PrincipalComponents(2)),
    "plug-in": PluginConformal(basis=Polynomial(1), trust=TRUST),
    "clusters": ClusteredConformal(n_clusters=2, tuning_fraction=0.4),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "new.npz"
    np.savez(path, **simulated(seed=2, n=157))
    return open_outputs(path).table(0, 157)


@pytest.mark.parametrize("name", PREDICTORS)
def test_batches_and_order_change_nothing(name, table):
    predictor = PREDICTORS[name].calibrate(outputs_of(simulated(1500)))
    whole = predict_table(predictor, table, 0.2)
    order = np.random.default_rng(0).permutation(157)
    shuffled = table.take(pa.array(order))
    cuts = [0, 1, 3, 40, 157]
    batches = [
        predict_table(predictor, shuffled.slice(start, stop - start), 0.2)
        for start, stop in pairwise(cuts)
    ]
    assert pa.concat_tables(batches).equals(whole.take(pa.array(order)))


@pytest.mark.parametrize("name", PREDICTORS)
def test_the_result_is_that_of_predict_set(name, table):
    predictor = PREDICTORS[name].calibrate(outputs_of(simulated(1500)))
    sets = predictor.predict_set(outputs_of(simulated(seed=2, n=157)), alpha=0.2)
    found = predict_table(predictor, table, 0.2)
    assert found.column_names == ["row", "id", "set", "size", "threshold", "status"]
    assert found.column("set").to_pylist() == [own.tolist() for own in sets]
    assert found.column("size").to_pylist() == sets.sizes.tolist()
    assert found.column("threshold").to_pylist() == sets.to_frame()["threshold"].tolist()
    assert found.column("status").to_pylist() == sets.to_frame()["status"].tolist()
    assert found.column("id").to_pylist() == [f"s{i}" for i in range(157)]


def test_missing_groups_of_a_table_are_a_group():
    arrays = simulated(900)
    gone = np.arange(900) % 4 == 0
    arrays["group_site"] = np.where(gone, "(missing)", arrays["group_site"])
    predictor = PREDICTORS["groups"].calibrate(outputs_of(arrays))
    written = pa.array(arrays["group_site"])
    columns = {"row": pa.array(np.arange(900)), "logits": pa.array(list(arrays["logits"]))}
    whole = pa.table(columns | {"site": written})
    nulls = pa.table(columns | {"site": pa.array(np.where(gone, None, written))})
    assert nulls.column("site").null_count == gone.sum()
    assert predict_table(predictor, nulls).equals(predict_table(predictor, whole))


def test_types_are_the_same_for_every_batch(table):
    predictor = StandardConformal().calibrate(outputs_of(simulated()))
    one, none = predict_table(predictor, table[:1]), predict_table(predictor, table[:2])
    assert one.schema == none.schema
    assert str(one.schema.field("set").type).startswith("list<")


def test_random_draws_need_row_numbers(table):
    predictor = PREDICTORS["random score"].calibrate(outputs_of(simulated()))
    with pytest.raises(InputError, match="table needs a column 'row'"):
        predict_table(predictor, table.drop_columns("row"))
    steady = StandardConformal().calibrate(outputs_of(simulated()))
    assert "row" not in predict_table(steady, table.drop_columns("row")).column_names


def test_what_depends_on_the_batch_is_refused(table):
    with pytest.warns(UserWarning, match="learned from the calibration samples"):
        predictor = MondrianConformal.paper(TRUST).calibrate(outputs_of(simulated()))
    with pytest.raises(InputError, match="depend on what is predicted together"):
        predict_table(predictor, table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns("logits"), "no column 'logits' or 'probabilities'"),
        (lambda t: t.drop_columns("group_site"), "no group column 'site'"),
        (lambda t: t.rename_columns(["size" if n == "id" else n for n in t.column_names]), "size"),
        (
            lambda t: t.set_column(1, "logits", pa.array([[1.0, 2.0]] * len(t))),
            "has 2 classes, but calibration had 5",
        ),
        (
            lambda t: t.set_column(1, "logits", pa.array([[1.0]] + [[1.0, 2.0]] * (len(t) - 1))),
            "lists of 1 to 2 numbers",
        ),
        (
            lambda t: t.set_column(1, "logits", pa.array([None] + [[1.0] * 5] * (len(t) - 1))),
            "missing values",
        ),
    ],
)
def test_errors_name_the_column(change, message, table):
    predictor = PREDICTORS["groups"].calibrate(outputs_of(simulated()))
    changed = change(table)
    with pytest.raises(InputError, match=message):
        predict_table(predictor, changed, ids=["size"] if "size" in changed.column_names else [])


def test_engines_that_map_record_batches_get_the_same_sets():
    """What Spark's mapInArrow and a Dask partition call: an iterator of record batches."""
    predictor = PREDICTORS["conditional"].calibrate(outputs_of(simulated(seed=1)))
    arrays = simulated(seed=2)
    table = pa.table(
        {name: pa.array(list(arrays[name])) for name in ("logits", "features")}
    ).append_column("row", pa.array(np.arange(len(arrays["logits"]))))

    def predict_batches(batches):
        for batch in batches:
            yield from predict_table(predictor, pa.Table.from_batches([batch])).to_batches()

    expected = predict_table(predictor, table)
    for rows in (1, 7, 64):
        found = pa.Table.from_batches(predict_batches(table.to_batches(max_chunksize=rows)))
        assert found.combine_chunks().equals(expected.combine_chunks())
