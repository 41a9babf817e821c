"""Laws of the checked arrays: any library in, the same numbers out; rules name themselves."""

import numpy as np
import pandas as pd
import pytest

from trustsets import _arrays as arrays
from trustsets._arrays import (
    MISSING,
    check_groups,
    check_probabilities,
    check_rows,
    column,
    encode_labels,
    floating_matrix,
    group_column,
    read_only,
    texts_of,
    to_numpy,
)
from trustsets.errors import InputError
from trustsets.scores import ranks_of

NUMBERS = [[1.0, 2.0], [3.0, 4.5]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_keep_their_type_and_their_memory(dtype):
    given = np.array(NUMBERS, dtype=dtype)
    found = floating_matrix(given, "x")
    assert found.dtype == dtype
    assert np.shares_memory(found, given)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.longdouble, ">f4"])
def test_other_numbers_become_native_float64(dtype):
    found = floating_matrix(np.array([[1, 0], [0, 1]], dtype=dtype), "x")
    assert found.dtype == np.float64 and found.dtype.isnative
    np.testing.assert_array_equal(found, np.eye(2))


@pytest.mark.parametrize("make", [read_only, lambda given: floating_matrix(given, "x")])
def test_the_result_cannot_be_written_and_the_original_can(make):
    given = np.array(NUMBERS)
    found = make(given)
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 9.0
    given[0, 0] = 9.0


def test_the_first_bad_row_is_found_in_any_piece(monkeypatch):
    """Rows are counted from the first of the whole array, also in later pieces and parts."""
    monkeypatch.setattr(
        arrays, "row_blocks", lambda n, _: (slice(i, i + 2) for i in range(0, n, 2))
    )
    table = np.zeros((10, 3))
    table[[7, 9], 2] = np.nan
    with pytest.raises(InputError, match="row 7, column 2"):
        floating_matrix(table, "x")
    floating_matrix(table[:7], "x")


@pytest.mark.parametrize("value", [[1, 2, 3], ["a", "b", "c"], [None, 1, 2], [[1], [2]]])
def test_a_column_has_one_value_per_sample(value):
    good = value != [None, 1, 2] and np.ndim(value) == 1
    n = 3 if good or None in value else 2
    if good:
        assert column(value, "x", n).tolist() == value
        value = value[:2]
    with pytest.raises(InputError, match=r"x must (have shape|not hold missing)"):
        column(value, "x", n)


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT])
def test_missing_values_of_any_kind_are_refused(missing):
    with pytest.raises(InputError, match="missing values"):
        column(np.array(["a", missing], dtype=object), "x", 2)
    assert column(np.array(["a", "nan"], dtype=object), "x", 2).tolist() == ["a", "nan"]


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, pd.NaT])
def test_missing_groups_are_a_group_of_their_own(missing):
    assert group_column(np.array(["a", missing], dtype=object), "x", 2).tolist() == ["a", MISSING]
    assert group_column([3.0, np.nan], "x", 2).tolist() == ["3", MISSING] == ["3", "(missing)"]


@pytest.mark.parametrize("values", [["a", "long"], [1, 20], [True, False], [1.5, 2.0]])
def test_texts_are_those_of_the_values(values):
    expected = [str(value) for value in values]
    assert texts_of(np.array(values)) == expected
    assert texts_of(np.array(values, dtype=object)) == expected


def test_numpy_arrays_are_not_copied():
    given = np.arange(3)
    assert to_numpy(given, "x") is given


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
    codes = encode_labels(labels, names)
    assert codes.dtype == np.int64
    assert names[codes].tolist() == labels.tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sums_may_be_off_by_the_rounding_of_the_type(dtype):
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(200), size=30).astype(dtype)
    assert check_probabilities(weights).dtype == dtype
    with pytest.raises(InputError, match="row 4 sums to"):
        check_probabilities(weights * np.where(np.arange(30) == 4, 0.9, 1.0)[:, None].astype(dtype))


def test_rows_are_counted_over_all_blocks(monkeypatch):
    monkeypatch.setattr(
        arrays, "row_blocks", lambda n, _: (slice(i, i + 3) for i in range(0, n, 3))
    )
    good = np.full((10, 2), 0.5)
    for change, message in (([0.5, 0.4], "row 8 sums to 0.9"), ([1.5, -0.5], "row 8 has -0.5")):
        bad = good.copy()
        bad[8] = change
        with pytest.raises(InputError, match=message):
            check_probabilities(bad)


def test_groups_come_as_array_mapping_or_table():
    site = ["a", "b", "a"]
    assert check_groups(None, 3) == {}
    assert check_groups(site, 3)["group"].tolist() == site
    for table in ({"site": site, 5: [1, 2, 3]}, pd.DataFrame({"site": site, 5: [1, 2, 3]})):
        found = check_groups(table, 3)
        assert list(found) == ["site", "5"]
        assert found["site"].tolist() == site and found["5"].tolist() == [1, 2, 3]
    with pytest.raises(InputError, match=r"groups\['site'\] must have shape \(4,\)"):
        check_groups({"site": site}, 4)


def test_rows_identify_the_samples():
    assert check_rows(None, 3).tolist() == [0, 1, 2]
    found = check_rows(np.array([5, 2, 9], dtype=np.uint8), 3)
    assert found.tolist() == [5, 2, 9] and found.dtype == np.int64
    for bad in ([1, -1, 2], [0.0, 1.0, 2.0]):
        with pytest.raises(InputError, match="rows must be non-negative integers"):
            check_rows(bad, 3)
