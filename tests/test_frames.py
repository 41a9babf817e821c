"""Results come back as frames of the package that the outputs came in."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from trustsets import ModelOutputs, StandardConformal, evaluate
from trustsets.errors import InputError

TYPES = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.Table}
MAKERS = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}


def columns(n=300):
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=n)
    labels = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return {f"p_{place}": p[:, place] for place in range(3)} | {"y": labels}


def outputs_of(kind):
    return ModelOutputs.from_frame(MAKERS[kind](columns()), probabilities="p_*", label="y")


@pytest.mark.parametrize("kind", TYPES)
def test_results_are_of_the_kind_that_came(kind):
    outputs = outputs_of(kind)
    predictor = StandardConformal().calibrate(outputs)
    first, rest = outputs.split(0.5)
    for own in (predictor.predict_set(first), predictor.predict_set(rest)[:7]):
        assert isinstance(own.to_frame(), TYPES[kind])
    nested = predictor.predict_set(outputs, alpha=[0.1, 0.2])
    result = evaluate(nested.at(0.2), outputs)
    for own in (nested.at(0.1), result, result.tables["class"]):
        for asked, wanted in TYPES.items():
            assert isinstance(own.to_frame(asked), wanted)
        assert isinstance(own.to_frame(), TYPES[kind])


@pytest.mark.parametrize("kind", TYPES)
def test_frames_hold_the_same_values(kind):
    outputs = outputs_of(kind)
    sets = StandardConformal().calibrate(outputs).predict_set(outputs)
    found, own = sets.to_frame(), sets.to_columns()
    for name in own:
        assert _list(found[name]) == _list(own[name])
    result = evaluate(sets, outputs)
    values = _list(result.to_frame()["value"])
    np.testing.assert_array_equal(values, [item.value for item in result.metrics.values()])


def _list(values):
    names = ("to_pylist", "to_list", "tolist")
    return next((getattr(values, name)() for name in names if hasattr(values, name)), values)


def test_arrays_give_a_frame_of_what_is_installed():
    outputs = ModelOutputs(logits=np.eye(3)[np.arange(60) % 3], labels=np.arange(60) % 3)
    sets = StandardConformal().calibrate(outputs).predict_set(outputs)
    assert outputs.flavour is None and isinstance(sets.to_frame(), pd.DataFrame)
    with pytest.raises(InputError, match='flavour must be "pandas" or "polars" or "pyarrow"'):
        sets.to_frame("dask")


@pytest.mark.parametrize("kind", TYPES)
def test_the_lines_of_the_page_on_tools_run(kind):
    own = columns(400)
    names = np.array(["cat", "dog", "eel"])
    table = {f"prob_{name}": own[f"p_{place}"] for place, name in enumerate(names)}
    table |= {"truth": names[own["y"]].tolist(), "site": ["north", None] * 200}
    given = {"held_out": MAKERS[kind](table), "new": MAKERS[kind](table)}
    page = (Path(__file__).parents[1] / "docs" / "howto" / "tools.md").read_text(encoding="utf-8")
    section = page.split("## pandas and polars\n")[1]
    code = re.search(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
    exec(code[1], given)
    assert isinstance(given["sets"].to_frame(), TYPES[kind])


def test_names_that_are_no_columns_are_refused():
    frame = pd.DataFrame(columns())
    for given, message in [
        ({"label": "y*"}, r"label and groups: no column is 'y\*'; there are p_0"),
        ({"groups": "p_*"}, r"label and groups: no column is 'p_\*'"),
        ({"probabilities": [0, 1, 2]}, "probabilities must be texts, names of columns or patterns"),
        ({"label": 3}, "label and groups: no column is 3"),
    ]:
        with pytest.raises(InputError, match=message):
            ModelOutputs.from_frame(frame, **({"probabilities": "p_*"} | given))
