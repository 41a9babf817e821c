from collections import Counter

import pytest

from trustsets_paper.sources import PAPER_DATASETS as DATASETS
from trustsets_paper.tables import printed_correlation, printed_values


def test_the_tables_have_the_shapes_of_the_paper():
    cells = Counter(table for table, *_ in printed_values())
    assert cells == {1: 4 * 3 * 5, 2: 3 * 5, 4: 4 * 4 * 5, 5: 4 * 3 * 3 * 5}
    assert {place[1] for place in printed_values()} == set(DATASETS)
    assert {place[2] for place in printed_values()} == {"softmax", "APS", "RAPS"}


@pytest.mark.parametrize(
    ("place", "mean", "error"),
    [
        ((1, "imagenet", "APS", "CONDITIONAL", "size"), 22.36, 0.83),
        ((1, "places365", "APS", "CONDITIONAL (NAIVE)", "conf_trust.gap"), 2.40, 0.16),
        ((2, "fitzpatrick17k", "APS", "GROUPWISE", "group:skin_type.gap"), 1.76, 0.18),
        ((2, "fitzpatrick17k", "APS", "CONDITIONAL", "group:skin_type.worst"), 0.87, 0.01),
        ((4, "places365-lt", "APS", "PCA FEATURES", "size"), 45.03, 0.13),
        ((5, "imagenet-lt", "softmax", "CONDITIONAL", "size"), 228.82, 1.44),
        ((5, "places365-lt", "RAPS", "CONDITIONAL", "class.gap"), 6.37, 0.01),
    ],
)
def test_single_numbers(place, mean, error):
    found = printed_values()[place]
    assert (found.mean, found.standard_error) == (mean, error)


def test_what_tables_repeat_agrees():
    """Tables 4 and 5 print the rows of table 1 again."""
    for (table, *place), item in printed_values().items():
        if table == 1:
            assert printed_values()[4, *place] == printed_values()[5, *place] == item


def test_the_notebook_prints_table_1_with_more_digits():
    """Rounded, its 60 means and errors are those of the table, wherever it is printed again."""
    for (table, *place), item in printed_values().items():
        in_notebook = table != 2 and place[1] == "APS" and place[2] != "PCA FEATURES"
        assert (item.exact_mean is not None) == in_notebook
        if in_notebook:
            assert round(item.exact_mean, 2) == item.mean
            assert round(item.exact_error, 2) == item.standard_error
    imagenet = printed_values()[1, "imagenet", "APS", "STANDARD", "conf_trust.gap"]
    assert (imagenet.exact_mean, imagenet.exact_error) == (6.348068, 0.114729)


def test_correlations():
    found = {name: printed_correlation(name) for name in DATASETS}
    assert found.pop("fitzpatrick17k") is None
    assert [item["spearman"] for item in found.values()] == [-0.53, -0.47, -0.43, -0.29]
    assert [item["pearson"] for item in found.values()] == [-0.09, -0.13, -0.02, -0.14]
    assert found["places365"]["pearson_p"] == "0.004"
