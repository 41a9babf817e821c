import numpy as np
import pytest

from trustsets.errors import InputError
from trustsets.metrics import binomial_interval
from trustsets_paper.slab import Slab, lowest_mean_run


def slow_lowest(row, shortest):
    n = len(row)
    return min(np.mean(row[i:j]) for i in range(n) for j in range(i + shortest, n + 1))


@pytest.mark.parametrize("shortest", [1, 2, 5, 13, 40])
def test_lowest_run_against_all_runs(shortest):
    rng = np.random.default_rng(shortest)
    hits = rng.random((30, 40)) < rng.choice([0.2, 0.5, 0.9], size=(30, 1))
    hits[0], hits[1] = True, False
    mean, first, last = lowest_mean_run(hits, shortest)
    for row in range(30):
        assert mean[row] == pytest.approx(slow_lowest(hits[row].astype(float), shortest))
        assert last[row] - first[row] + 1 >= shortest
        assert hits[row, first[row] : last[row] + 1].mean() == pytest.approx(mean[row])


def test_planted_slab_is_found_and_measured_on_other_samples():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(6000, 3))
    direction = np.array([0.6, 0.8, 0.0])
    bad = np.abs(features @ direction - 1.2) < 0.4
    hits = rng.random(6000) < np.where(bad, 0.4, 0.97)
    found = Slab().worst(features, hits, alpha=0.1)
    assert abs(found.direction @ direction) > 0.97
    np.testing.assert_allclose(np.linalg.norm(found.direction), 1.0)
    inside = (features @ found.direction >= found.lower) & (
        features @ found.direction <= found.upper
    )
    assert bad[inside].mean() > 0.8
    assert found.coverage.lower < hits[inside].mean() < found.coverage.upper
    assert found.coverage.value == found.covered / found.count
    # The held-out half has about half of the slab.
    assert abs(found.count - inside.sum() / 2) < 5 * np.sqrt(inside.sum() / 4)
    assert found.coverage.floor == 0.9


def test_held_out_slab_of_a_perfect_method_is_unbiased_where_the_searched_one_is_not():
    held, searched = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        features, hits = rng.normal(size=(400, 2)), rng.random(400) < 0.9
        found = Slab(n_directions=100, seed=seed).worst(features, hits, alpha=0.1)
        held.append(found.coverage.value)
        searched.append(found.searched)
    error = np.std(held) / np.sqrt(60)
    assert abs(np.mean(held) - 0.9) < 4 * error
    assert np.mean(searched) < 0.9 - 8 * error


def test_slab_holds_its_mass_of_the_searched_half():
    rng = np.random.default_rng(1)
    features, hits = rng.normal(size=(500, 2)), rng.random(500) < 0.8
    found = Slab(mass=1.0).worst(features, hits, alpha=0.1)
    order = np.random.default_rng(0).permutation(500)[:250]
    assert found.searched == pytest.approx(hits[order].mean())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Slab(mass=0.0), "mass must lie in"),
        (lambda: Slab(n_directions=0), "n_directions must be 1 or more"),
        (lambda: Slab().worst(np.zeros((3, 1)), np.ones(3, bool), 0.1), "at least four samples"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("mass", [0.05, 0.11, 0.34, 0.77, 1.0])
def test_the_worst_slab_holds_its_mass_and_not_more_than_it_must(mass):
    """On a line: the lowest mean over all runs of at least ``ceil(mass n)`` searched samples."""
    rng = np.random.default_rng(2)
    features, hits = rng.normal(size=(61, 1)), rng.random(61) < 0.6
    found = Slab(mass=mass, n_directions=3, seed=5).worst(features, hits, alpha=0.1)
    searched = np.random.default_rng(5).permutation(61)[:30]
    row = hits[searched][np.argsort(features[searched, 0])].astype(float)
    shortest = int(np.ceil(mass * 30))
    assert shortest > mass * 30 - 1e-9
    assert found.searched == pytest.approx(slow_lowest(row, shortest))
    along = features[searched] @ found.direction
    assert np.sum((along >= found.lower) & (along <= found.upper)) >= shortest


def test_the_slab_has_the_interval_of_the_level_asked_for():
    rng = np.random.default_rng(3)
    features, hits = rng.normal(size=(400, 2)), rng.random(400) < 0.8
    for level in (0.5, 0.95):
        found = Slab(n_directions=10).worst(features, hits, alpha=0.1, level=level)
        ends = binomial_interval(found.covered, found.count, level)
        np.testing.assert_array_equal([found.coverage.lower, found.coverage.upper], ends)
        assert 0 < found.covered < found.count
