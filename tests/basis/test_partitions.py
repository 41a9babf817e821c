import numpy as np
import pytest
from kinds import Column

from trustsets import Bins, Confidence, Groups, ModelOutputs, Polynomial
from trustsets.errors import InputError


def observed(features):
    features = np.asarray(features, dtype=float)
    return ModelOutputs(logits=np.zeros((len(features), 2)), features=features)


def slow_cells(bins, x, points):
    """Nested bins, one point and one condition at a time."""
    (n_outer, n_inner), low, high = bins.counts, x[:, 0].min(), x[:, 0].max()
    outer_edges = [low + (high - low) * i / n_outer for i in range(1, n_outer)]

    def outer(value):
        return sum(value >= edge for edge in outer_edges)

    cells = []
    for point in points:
        mine = [row[1] for row in x if not bins.nested or outer(row[0]) == outer(point[0])]
        mine = mine or [row[1] for row in x]
        edges = [np.quantile(mine, i / n_inner) for i in range(1, n_inner)]
        cells.append(outer(point[0]) * n_inner + sum(point[1] >= edge for edge in edges))
    return cells


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_bins_against_one_point_at_a_time(nested, seed):
    rng = np.random.default_rng(seed)
    train, test = rng.normal(size=(80, 2)).round(1), rng.normal(size=(40, 2)).round(1) * 2
    bins = Bins(Column(0), Column(1), counts=(5, 3), spacing=("uniform", "quantile"), nested=nested)
    fitted = bins.fit(observed(train))
    for points in (train, test):
        assert fitted.cells(observed(points)).tolist() == slow_cells(bins, train, points)
    assert fitted.n_cells == 15


def test_given_edges_are_used_and_nothing_is_learned():
    bins = Bins(Column(0), edges=((1.0, 2.0),))
    assert not bins.learns
    fitted = bins.fit(observed([[0.0]]))
    assert fitted.cells(observed([[0.5], [1.0], [1.5], [2.0], [9.0]])).tolist() == [0, 1, 1, 2, 2]


def test_groups_combine_columns_and_mark_strangers():
    def with_groups(**groups):
        n = len(next(iter(groups.values())))
        return ModelOutputs(logits=np.zeros((n, 2)), groups=groups)

    seen = with_groups(sex=["f", "m", "f"], age=[1, 2, 2])
    fitted = Groups().fit(seen)
    assert fitted.cells(seen).tolist() == [0, 2, 1]
    new = with_groups(sex=["m", "m", "x"], age=[2, 1, 1])
    assert fitted.cells(new).tolist() == [2, -1, -1]
    assert fitted.unseen_groups(new).tolist() == [False, False, True]
    assert Groups("age").fit(seen).cells(new).tolist() == [1, 0, 0]
    # A file with a missing value may have 2.0 for 2; where both were seen, they are two values.
    texts = with_groups(age=["2.0", "1", "2", "2.5"])
    assert Groups("age").fit(seen).cells(texts).tolist() == [1, 0, 1, -1]
    assert Groups("age").fit(texts.take([0, 1])).cells(seen).tolist() == [0, 1, 1]
    assert Groups("age").fit(texts).cells(texts).tolist() == [2, 0, 1, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bins(counts=(10,)), "one for each statistic"),
        (lambda: Bins(counts=(10, 0)), "counts must be whole numbers, 1 or more"),
        (lambda: Bins(spacing=("uniform", "log")), 'spacing must be "uniform" or'),
        (lambda: Bins(Confidence(), edges=((2.0, 1.0),)), "edges must be sequences of finite"),
        (lambda: Bins(Confidence(), edges=((1.0, 1.0),)), "edges must be sequences of finite"),
        (lambda: Bins(Confidence(), edges=()), "one sequence for each"),
        (lambda: Polynomial(of=()), "non-empty tuple of statistics"),
        (lambda: Polynomial(of=Confidence()), "non-empty tuple of statistics"),
        (lambda: Groups().fit(observed([[0.0]])), "pass groups="),
        (lambda: Groups("sex").fit(observed([[0.0]])), "no group column 'sex'"),
        (lambda: Bins().fit(observed([[0.0]])), "pass trust="),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
