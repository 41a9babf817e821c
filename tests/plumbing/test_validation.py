"""Laws of the rules for `ModelOutputs`: codes lead back to labels, and each rule names itself."""

import numpy as np
import pandas as pd
import pytest

from trustsets import _arrays as validation
from trustsets._arrays import check_groups, check_probabilities, check_rows, encode_labels
from trustsets.errors import InputError


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
        validation, "row_blocks", lambda n, _: (slice(i, i + 3) for i in range(0, n, 3))
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
