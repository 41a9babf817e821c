import numpy as np
import pytest
from kinds import Column

from trustsets import Bins, Groups, ModelOutputs, MondrianConformal
from trustsets.errors import InputError
from trustsets.metrics import FrequencyBins, RankBins, bin_samples, label_ranks, rank_edges_apart
from trustsets.metrics.binning import bin_by_class, bin_by_size, equal_cuts, quantile_cuts


def test_rank_against_sorting_each_row(make_outputs):
    outputs = make_outputs(n=100, n_classes=7)
    order = np.argsort(-outputs.probabilities, axis=1, kind="stable")
    slow = [1 + order[i].tolist().index(code) for i, code in enumerate(outputs.codes)]
    assert label_ranks(outputs).tolist() == slow


def conf_bins(outputs, count):
    conf = outputs.confidence
    step = (conf.max() - conf.min()) / count
    return np.array([min(int((c - conf.min()) / step), count - 1) for c in conf])


def test_split_ties_make_equal_sizes_in_rank_order(make_outputs):
    outputs = make_outputs(n=800, n_classes=4)
    binned = bin_samples(RankBins(counts=(5, 4)), outputs)
    outer, ranks = conf_bins(outputs, 5), label_ranks(outputs)
    assert binned.axes == ("Conf", "Rank")
    for cell in range(5):
        inner = binned.index[binned.cells[outer == cell], 1]
        assert np.ptp(np.bincount(inner, minlength=4)) <= 1
        own = [ranks[outer == cell][inner == j] for j in range(4)]
        assert all(own[j].max() <= own[j + 1].min() for j in range(3))
    # Heavily tied indeed: rank 1 must have been parted.
    first = np.flatnonzero(ranks == 1)
    assert len({tuple(binned.index[binned.cells[i]]) for i in first}) > 5


def ranked_outputs(ranks, n_classes=6):
    """Samples of one confidence whose labels have these ranks."""
    probabilities = np.tile(np.linspace(n_classes, 1, n_classes), (len(ranks), 1))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return ModelOutputs(probabilities=probabilities, labels=np.array(ranks) - 1)


@pytest.mark.parametrize("seed", range(4))
def test_plain_quantiles_against_counting(seed):
    rng = np.random.default_rng(seed)
    ranks = np.minimum(rng.geometric((0.75, 0.4, 0.2, 0.1)[seed], size=200), 90)
    edges = np.quantile(ranks, [0.25, 0.5, 0.75])
    cells = np.count_nonzero(ranks[:, None] >= quantile_cuts(ranks, 4), axis=1)
    assert cells.tolist() == [sum(rank > edge for edge in edges) for rank in ranks]


def test_edges_for_pictures_set_rank_1_apart():
    assert rank_edges_apart(np.repeat([1, 2, 3, 4, 5, 6], [90, 4, 4, 2, 1, 1])) == (0, 1, 2, 3, 6)
    assert rank_edges_apart(np.repeat([1, 2, 3, 40], [2, 30, 30, 30])) == (0, 1, 2, 3, 40)
    assert rank_edges_apart(np.ones(5, dtype=int)) == (0, 1, 2)
    # What the first bin leaves is shared by the others as if it were all there is.
    ranks = np.minimum(np.random.default_rng(0).geometric(0.08, size=300), 60)
    cuts = equal_cuts(ranks, 5)
    assert cuts[1:].tolist() == equal_cuts(ranks[ranks > cuts[0]], 4).tolist()
    ranks = np.array([1, 1, 3, 3])
    RankBins(edges=rank_edges_apart(ranks)).fit(ranked_outputs(ranks))


def test_edges_by_hand_hold_their_upper_end():
    probabilities = np.tile(np.linspace(6, 1, 6) / 21, (6, 1))
    outputs = ModelOutputs(probabilities=probabilities, labels=np.arange(6))
    binned = bin_samples(RankBins(counts=(1, 4), edges=(0, 1, 2, 4, 1000)), outputs)
    assert binned.cells.tolist() == [0, 1, 2, 2, 3, 3]
    names = [label.split(", ")[1] for label in binned.labels]
    assert names == ["Rank 1", "Rank 2", "Rank 3–4", "Rank 5–6"]


@pytest.mark.parametrize("ties", ["split", "quantiles"])
def test_global_edges_are_the_same_in_every_confidence_bin(make_outputs, ties):
    seen = make_outputs(n=500)
    fitted = RankBins(counts=(5, 3), nested=False, ties=ties).fit(seen)
    assert fitted.cuts[1].shape == (1, 2)
    assert RankBins(counts=(5, 3), ties=ties).fit(seen).cuts[1].shape == (5, 2)


def test_groups_classes_and_sizes_are_named(make_outputs):
    outputs = make_outputs(
        logits=np.zeros((4, 3)),
        labels=["b", "a", "b", "b"],
        features=None,
        classes=["a", "b", "c"],
        groups={"sex": list("fmmf"), "age": [1, 2, 1, 1]},
    )
    crossed = bin_samples(Groups("sex", "age"), outputs)
    assert [crossed.labels[cell] for cell in crossed.cells] == ["f, 1", "m, 2", "m, 1", "f, 1"]
    assert crossed.axes == ("sex x age",)
    by_class = bin_by_class(outputs)
    assert by_class.shape == (3,)
    assert [by_class.labels[cell] for cell in by_class.cells] == list("babb")
    sizes = bin_by_size(np.array([0, 1, 2, 3, 4, 10, 11, 100, 101, 500]), n_classes=500)
    names = ["Size 0–1", "Size 2–3", "Size 4–10", "Size 11–100", "Size 101–500"]
    assert [sizes.labels[cell] for cell in sizes.cells] == np.repeat(names, 2).tolist()


def test_rank_bins_cannot_serve_a_predictor(make_outputs):
    """New samples have no labels to rank: this must fail, not peek."""
    predictor = MondrianConformal(by=RankBins(counts=(2, 2)))
    with pytest.raises(InputError, match="needs the true labels"):
        predictor.calibrate(make_outputs(n=100)).predict_set(make_outputs(n=30))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RankBins(counts=(10, 0)), "counts must be two numbers"),
        (lambda: RankBins(counts=3), "counts must be two numbers"),
        (lambda: RankBins(edges="ab"), "two or more finite, increasing"),
        (lambda: RankBins(ties="random"), 'ties must be "split" or "quantiles"'),
        (lambda: RankBins(edges=(0,)), "two or more finite, increasing"),
        (lambda: RankBins(edges=(0, 2, 2)), "two or more finite, increasing"),
        (lambda: bin_samples("conf", None), "must be a Partition"),
        (lambda: FrequencyBins(counts=(0, 4)), "counts must be two numbers, 1 or more"),
        (lambda: FrequencyBins((0, 0)), r"0 or more and not all 0; got \(0, 0\)"),
        (lambda: FrequencyBins((3, -1)), "class_counts must be whole numbers"),
        (lambda: FrequencyBins((0.5, 0.5)), "class_counts must be whole numbers"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("spacing", ["quantile", ("uniform", "quantile", "quantile")])
def test_three_axes_divide_each_other_in_turn(spacing):
    """Every bin encloses its samples and no others; every cell of two axes is halved by the third.

    The columns depend on each other, so that edges of one cell do not fit another.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=1200)
    y = 3.0 * x + rng.normal(size=1200)
    values = np.column_stack([x, y, 5.0 * y + rng.normal(size=1200)])
    seen = ModelOutputs(logits=np.zeros((1200, 2)), features=values)
    of = (Column(0), Column(1), Column(2))
    binned = bin_samples(Bins(*of, counts=(4, 3, 2), spacing=spacing), seen)
    assert (binned.axes, binned.shape) == (("x0", "x1", "x2"), (4, 3, 2))
    assert binned.index.tolist() == [[*place] for place in np.ndindex(4, 3, 2)]
    sizes = np.bincount(binned.cells).reshape(4, 6)
    assert (np.ptp(sizes, axis=1) <= 1).all() and (spacing != "quantile" or (sizes == 50).all())
    for place, edges in enumerate(binned.edges):
        # An upper end is the lower end of the next bin; the largest value belongs to the last.
        high = np.where(edges[:, 1] == values.max(axis=0), np.inf, edges[:, 1])
        inside = ((values >= edges[:, 0]) & (values < high)).all(axis=1)
        np.testing.assert_array_equal(inside, binned.cells == place)
        name = ", ".join(f"x{i} {low:.3g} to {top:.3g}" for i, (low, top) in enumerate(edges))
        assert binned.labels[place] == name


def frequency_outputs(counts, seed=0):
    """Samples of classes with these counts in the test labels, in mixed order."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    return ModelOutputs(logits=rng.normal(size=(labels.size, len(counts))), labels=labels)


@pytest.mark.parametrize("given", [None, (700, 10, 90, 0, 200, 50)])
def test_class_frequency_against_a_loop(given):
    outputs = frequency_outputs([400, 5, 60, 2, 0, 33])
    binned = bin_samples(FrequencyBins(given, counts=(3, 4)), outputs)
    shares = [400, 5, 60, 2, 0, 33] if given is None else list(given)
    shares = [100 * share / sum(shares) for share in shares]
    occurring = [shares[code] for code in outputs.codes if shares[code] > 0]
    low, high = min(occurring), max(occurring)
    outer = conf_bins(outputs, 3)
    for i, code in enumerate(outputs.codes):
        row = sum(shares[code] >= low * (high / low) ** (j / 4) for j in (1, 2, 3))
        cell = binned.cells[i]
        assert tuple(binned.index[cell]) == (outer[i], row)
        assert binned.edges[cell, 1, 0] <= shares[code] <= binned.edges[cell, 1, 1]
    source = "test" if given is None else "calibration"
    assert binned.axes == ("Conf", f"Class frequency in {source} (%)")
    if given is not None:
        # The class without calibration samples is with the rarest of the others.
        rarest = binned.index[binned.cells[np.isin(outputs.codes, [1, 3])], 1]
        assert (rarest == 0).all()


def test_classes_of_about_equal_frequency_are_one_range():
    for counts in ([100, 100, 100], [100, 120, 199], [5]):
        outputs = frequency_outputs(counts)
        assert bin_samples(FrequencyBins(), outputs).shape[1] == 1
    tail = bin_samples(FrequencyBins(), frequency_outputs([1, 2, 4, 8, 16, 64]))
    assert tail.shape == (5, 4)
    unseen = bin_samples(FrequencyBins((0, 0, 9)), frequency_outputs([20, 20, 0]))
    assert unseen.shape[1] == 1
    assert unseen.labels[0].endswith("Class frequency in calibration (%) 0")


def test_class_frequencies_belong_to_their_samples():
    outputs = frequency_outputs([30, 10])
    with pytest.raises(InputError, match="one number for each of the 2 classes; got 3"):
        FrequencyBins((1, 2, 3)).fit(outputs)
    fitted = FrequencyBins().fit(outputs)
    with pytest.raises(InputError, match="needs the true labels"):
        fitted.cells(outputs.take([0, 1]))
