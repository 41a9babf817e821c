"""Laws of the checked arrays: any library in, the same numbers out; rules name themselves."""

import numpy as np
import pandas as pd
import pytest
import torch

from trustsets import _arrays as arrays
from trustsets import probabilities
from trustsets.errors import InputError
from trustsets.scores import ranks_of

NUMBERS = [[1.0, 2.0], [3.0, 4.5]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_keep_their_type_and_their_memory(dtype):
    given = np.array(NUMBERS, dtype=dtype)
    found = arrays.floating_matrix(given, "x")
    assert found.dtype == dtype
    assert np.shares_memory(found, given)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.longdouble, ">f4", object])
def test_other_numbers_become_native_float64(dtype):
    found = arrays.floating_matrix(np.array([[1, 0], [0, 1]], dtype=dtype), "x")
    assert found.dtype == np.float64 and found.dtype.isnative
    np.testing.assert_array_equal(found, np.eye(2))


@pytest.mark.parametrize(
    "make", [arrays.read_only, lambda given: arrays.floating_matrix(given, "x")]
)
def test_the_result_cannot_be_written_and_the_original_can(make):
    given = np.array(NUMBERS)
    found = make(given)
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 9.0
    given[0, 0] = 9.0


@pytest.mark.parametrize("kind", ["Float64", "Int64", "float64[pyarrow]"])
def test_frames_of_pandas_own_types_are_matrices(kind):
    frame = pd.DataFrame([[1, 0], [0, 1]], dtype=kind)
    np.testing.assert_array_equal(arrays.floating_matrix(frame, "x"), np.eye(2))
    for wrong in (frame.mask(frame == 0), frame.astype(str).astype(object)):
        with pytest.raises(InputError, match="real numbers, none missing; got dtype object"):
            arrays.floating_matrix(wrong, "x")


@pytest.mark.parametrize("step", [2, 3])
def test_the_first_bad_row_is_found_in_any_block(monkeypatch, step):
    """Rows are counted from the first of the whole array, also in later blocks."""
    blocks = [slice(i, i + step) for i in range(0, 10, step)]
    for module in (arrays, probabilities):
        monkeypatch.setattr(module, "row_blocks", lambda *_: blocks)
    table = np.zeros((10, 3))
    table[[7, 9], 2] = np.nan
    with pytest.raises(InputError, match="row 7, column 2"):
        arrays.floating_matrix(table, "x")
    arrays.floating_matrix(np.where(table == 0.0, table, 1.0), "x")
    good = np.full((10, 2), 0.5)
    for change, message in (([0.5, 0.4], "row 8 sums to 0.9"), ([1.5, -0.5], "row 8 has -0.5")):
        bad = good.copy()
        bad[8] = change
        with pytest.raises(InputError, match=message):
            probabilities.check_probabilities(bad)


@pytest.mark.parametrize("value", [[1, 2, 3], ["a", "b", "c"], [None, 1, 2], [[1], [2]]])
def test_a_column_has_one_value_per_sample(value):
    good = value != [None, 1, 2] and np.ndim(value) == 1
    n = 3 if good or None in value else 2
    if good:
        assert arrays.column(value, "x", n).tolist() == value
        value = value[:2]
    with pytest.raises(InputError, match=r"x must (have shape|not hold missing)"):
        arrays.column(value, "x", n)


NOT_A_TIME = np.datetime64("NaT")
MISSING = [None, float("nan"), pd.NA, pd.NaT, np.float32("nan"), complex("nan"), NOT_A_TIME]


@pytest.mark.parametrize("missing", MISSING, ids=repr)
def test_missing_values_are_refused_as_labels_and_are_a_group_of_their_own(missing):
    for values in (np.array(["a", missing], dtype=object), np.array(["2020", NOT_A_TIME], "M8[Y]")):
        with pytest.raises(InputError, match="missing values"):
            arrays.column(values, "x", 2)
        assert arrays.group_column(values, "x", 2).tolist() == [str(values[0]), "(missing)"]
    assert arrays.column(np.array(["a", "nan"], dtype=object), "x", 2).tolist() == ["a", "nan"]


def test_floats_and_bytes_are_groups_by_their_texts():
    assert arrays.group_column([3.0, np.nan], "x", 2).tolist() == ["3", "(missing)"]
    for kind in (bytes, object):
        bits = np.array([b"3", b"\xff", "\xe9".encode()], dtype=kind)
        assert arrays.group_column(bits, "x", 3).tolist() == ["3", r"\xff", "\xe9"]


@pytest.mark.parametrize("values", [["a", "long"], [1, 20], [True, False], [1.5, 2.0]])
def test_texts_are_those_of_the_values(values):
    expected = [str(value) for value in values]
    assert arrays.texts_of(np.array(values)) == expected
    assert arrays.texts_of(np.array(values, dtype=object)) == expected


def test_numpy_arrays_are_not_copied():
    given = np.arange(3)
    assert arrays.to_numpy(given, "x") is given


def test_arrays_of_other_kinds_are_plain_arrays_or_refused():
    assert type(arrays.to_numpy(np.eye(2).view(np.matrix), "x")) is np.ndarray
    texts = np.array(["a", "long"], dtype=np.dtypes.StringDType())
    assert arrays.column(texts, "x", 2).dtype == object
    matrix = torch.eye(2, requires_grad=True)
    assert arrays.to_numpy(matrix.as_subclass(type("Own", (torch.Tensor,), {})), "x").sum() == 2.0
    none = (matrix.to_sparse(), matrix.to(torch.float8_e4m3fn), torch._neg_view(matrix), [matrix])
    for value in none:
        with pytest.raises(InputError, match=r"^x must be an array: .*[^.]\.$"):
            arrays.to_numpy(value, "x")


@pytest.mark.parametrize("n_values", [2, 5, 1000])
def test_ranks_are_positions_in_a_stable_sort(n_values):
    """Rows of few different values (many ties) up to none."""
    rng = np.random.default_rng(0)
    probabilities = rng.integers(0, n_values, size=(300, 7)).astype(float)
    codes, order = rng.integers(0, 7, 300), np.argsort(-probabilities, axis=1, kind="stable")
    expected = [list(row).index(code) for row, code in zip(order, codes, strict=True)]
    assert ranks_of(probabilities, codes).tolist() == expected


@pytest.mark.parametrize(
    "classes",
    [[0, 1, 2], [2, 0, 1], [10, 20, 30], ["b", "a", "c"], [1.5, 0.5, 2.5], [None, "x", 3]],
)
def test_codes_lead_back_to_the_labels(classes):
    names = np.array(classes, dtype=object if None in classes else None)
    labels = names[np.random.default_rng(0).integers(0, 3, 50)]
    codes = arrays.encode_labels(labels, names)
    assert codes.dtype == np.int64
    assert names[codes].tolist() == labels.tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sums_may_be_off_by_the_rounding_of_the_type(dtype):
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(200), size=30).astype(dtype)
    assert probabilities.check_probabilities(weights).dtype == dtype
    with pytest.raises(InputError, match="row 4 sums to"):
        probabilities.check_probabilities(
            weights * np.where(np.arange(30) == 4, 0.9, 1.0)[:, None].astype(dtype)
        )


def test_groups_come_as_array_mapping_or_table():
    site = ["a", "b", "a"]
    assert arrays.check_groups(None, 3) == {}
    assert arrays.check_groups(site, 3)["group"].tolist() == site
    for table in ({"site": site, 5: [1, 2, 3]}, pd.DataFrame({"site": site, 5: [1, 2, 3]})):
        found = arrays.check_groups(table, 3)
        assert list(found) == ["site", "5"]
        assert found["site"].tolist() == site and found["5"].tolist() == [1, 2, 3]
    with pytest.raises(InputError, match=r"groups\['site'\] must have shape \(4,\)"):
        arrays.check_groups({"site": site}, 4)
    with pytest.raises(InputError, match="groups: two columns are called '5'"):
        arrays.check_groups({"5": site, 5: site}, 3)


def test_rows_identify_the_samples():
    assert arrays.check_rows(None, 3).tolist() == [0, 1, 2]
    found = arrays.check_rows(np.array([5, 2, 9], dtype=np.uint8), 3)
    assert found.tolist() == [5, 2, 9] and found.dtype == np.int64
    for bad in ([1, -1, 2], [0.0, 1.0, 2.0], np.array([2**63, 1, 2], np.uint64)):
        with pytest.raises(InputError, match="rows must be non-negative integers"):
            arrays.check_rows(bad, 3)
