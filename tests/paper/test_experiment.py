import dataclasses
import shutil
from dataclasses import replace

import numpy as np
import pytest
from small_runs import CLASSES, QUICK, small_outputs, small_source, small_train

from trustsets import (
    APS,
    ConditionalConformal,
    Confidence,
    Groups,
    MondrianConformal,
    Polynomial,
    PrincipalComponents,
    Softmax,
    StandardConformal,
    Status,
    Trust,
    TrustScore,
    evaluate,
)
from trustsets.errors import InputError
from trustsets.metrics import correlate, label_ranks
from trustsets_paper.authors import authors_halves
from trustsets_paper.balls import Balls
from trustsets_paper.baselines import AuthorsStandard
from trustsets_paper.protocol import (
    CONDITIONAL,
    DEFAULT,
    GROUPWISE,
    MATCHED,
    NAIVE,
    PACKAGE_GROUPWISE,
    PCA,
    RANK_SHOWN,
    STANDARD,
    Cell,
    Experiment,
    Options,
    StageCache,
    parse_numbers,
)
from trustsets_paper.sources import Source

SCORES = {"softmax": Softmax(), "APS": APS()}
WORDS = {"temperature": "tuning", "tuning_fraction": 0.0, "allow_empty": True}
# STANDARD, GROUPWISE, NAIVE, CONDITIONAL, PCA FEATURES; the package's two rows.
METHODS = 7
# With APS, CONDITIONAL of another degree, and the package's default.
CELLS = 2 * METHODS + 2


def run(source, options=QUICK, folder=None, **changes):
    cache = StageCache(folder)
    return Experiment(source, replace(options, **changes), cache).run(), cache


def numbers(found):
    """Everything of a run as plain data, to be compared for equality."""
    cells = {cell: [item.to_dict() for item in own] for cell, own in found.evaluations.items()}
    return cells, [dataclasses.asdict(item) for item in found.correlations], found.temperatures


@pytest.fixture(scope="module")
def source():
    return small_source()


@pytest.fixture(scope="module")
def plain(source):
    """A run that nothing was kept of."""
    return run(source)[0]


@pytest.fixture(scope="module")
def trust():
    """The trust score of the authors' code."""
    return TrustScore(neighbour=2, squared=True).fit(*small_train())


def standard_hits(calibration, test):
    """Which sets of STANDARD with APS contain the label."""
    with pytest.warns(UserWarning, match="approximately"):
        predictor = AuthorsStandard(score=APS(), **WORDS).calibrate(calibration)
    return predictor.predict_set(test).covers(test.labels)


def direct(method, score, trust, default_trust):
    """The same method through the public predictors."""
    name, degree = method
    if name == DEFAULT:  # the default is the default: its score in the tail scale and no more
        return ConditionalConformal(score=type(score)(scale="tail"), trust=default_trust)
    if name == STANDARD:
        return AuthorsStandard(score=score, **WORDS)
    if name == GROUPWISE:
        return MondrianConformal(by=Groups("site"), score=score, paper_rules=True, **WORDS)
    if name == PACKAGE_GROUPWISE:
        return MondrianConformal(by=Groups("site"), score=score, **WORDS)
    if name == NAIVE:
        return MondrianConformal.paper(trust=trust, score=score)
    basis = PrincipalComponents(6) if name == PCA else Polynomial(degree=degree)
    return ConditionalConformal.paper(trust=trust, score=score, basis=basis)


@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
@pytest.mark.parametrize("fixed", [False, True])
def test_every_cell_is_what_the_predictors_give(fixed, source, plain, trust):
    """The shared scores, statistics and bins change nothing: all metrics are equal."""
    used = small_source(fixed=True) if fixed else source
    found = run(used)[0] if fixed else plain
    default_trust = TrustScore().fit(*small_train())
    for place, seed in enumerate(found.seeds):
        calibration, test = used.split(seed)
        for cell, runs in found.evaluations.items():
            if cell.method == MATCHED:
                continue
            method = (cell.method, cell.degree)
            predictor = direct(method, SCORES[cell.score], trust, default_trust)
            sets = predictor.calibrate(calibration).predict_set(test, alpha=0.1)
            names = ["conf_trust", "conf_rank", "class", "groups"]
            wanted = evaluate(sets, test.with_trust(trust), metrics=names, n_bootstrap=200)
            for name, value in wanted.metrics.items():
                got, expected = runs[place].metrics[name], (value.value, value.lower)
                assert (got.value, got.lower) == pytest.approx(expected, nan_ok=True), cell
    assert len(found.evaluations) == CELLS


def test_size_matched_standard_has_one_threshold_and_the_size_of_conditional(source, plain):
    """At the threshold between the sets of both, chosen without labels."""
    for score in ("softmax", "APS"):
        for place, seed in enumerate(plain.seeds):
            matched = plain.evaluations[Cell(score, MATCHED)][place]
            size = plain.evaluations[Cell(score, CONDITIONAL, 2)][place].sizes.mean
            test = source.split(seed)[1]
            scores = SCORES[score].matrix(test, temperature=plain.temperatures[place])
            sizes = [np.mean(np.sum(scores <= value, axis=1)) for value in np.unique(scores)]
            assert matched.sizes.mean == pytest.approx(min(x for x in sizes if x >= size - 1e-9))
            threshold = np.unique(scores)[sizes.index(matched.sizes.mean)]
            labels = SCORES[score].of_labels(test, temperature=plain.temperatures[place])
            assert matched.coverage.value == pytest.approx(np.mean(labels <= threshold))


@pytest.mark.parametrize(
    ("n", "alpha", "text", "code"),
    [
        (25_000, 0.1, 22_501, 22_502),
        (150, 0.1, 136, 137),
        (9, 0.1, 9, 9),  # the largest score stays itself
        (99, 0.45, 55, 57),  # 100 * (1 - 0.45) is a little more than 55 in floating point
    ],
)
def test_standard_is_the_authors_order_statistic(n, alpha, text, code):
    """One above that of the paper's text, ceil((n + 1)(1 - alpha))."""
    outputs = small_outputs(n, classes=range(CLASSES))
    scores = np.sort(Softmax().of_labels(outputs))
    for kind, order in ((StandardConformal, text), (AuthorsStandard, code)):
        sets = kind(score=Softmax()).calibrate(outputs).predict_set(outputs[:1], alpha)
        assert sets.thresholds[0] == scores[order - 1]


def test_too_few_samples_give_full_sets_by_the_authors_quantile():
    few = small_outputs(5, classes=range(CLASSES))
    sets = AuthorsStandard().calibrate(few).predict_set(few)
    assert sets.mask.all() and (sets.status == Status.TOO_FEW_POINTS).all()


def test_the_authors_halves_are_those_of_scikit_learn(source):
    """Their first half tests and their second calibrates, in the order of the files."""
    from sklearn.model_selection import train_test_split

    labels = source.parts["pool"].codes
    for seed in (1, 7):
        calibration, test = source.split(seed, "authors")
        words = {"test_size": 0.5, "random_state": seed, "stratify": labels}
        first, second = train_test_split(np.arange(labels.size), **words)
        assert test.rows.tolist() == sorted(first) and calibration.rows.tolist() == sorted(second)
        halves = authors_halves(labels, seed)
        np.testing.assert_array_equal(halves[0], second)
        np.testing.assert_array_equal(halves[1], first)
    ours, theirs = (run(source, seeds=(1,), splits=rule)[0] for rule in ("package", "authors"))
    assert ours.temperatures != theirs.temperatures
    lonely = small_outputs(5, labels=np.array([0, 0, 1, 1, 2]), classes=range(CLASSES))
    with pytest.raises(InputError, match=r"authors' split cannot be made.*--splits package"):
        Source("small", {"pool": lonely}).split(1, "authors")


def test_ball_centres_of_the_authors_are_new_for_every_radius_and_of_one_seed(source):
    theirs, _ = run(source, scores=("APS",), balls="authors")
    assert all(len(curves) == 1 for curves in theirs.balls.values())
    ours, _ = run(source, scores=("APS",))
    assert all(len(curves) == 2 for curves in ours.balls.values())
    cell = Cell("APS", STANDARD)
    assert not np.array_equal(theirs.balls[cell][0].gap, ours.balls[cell][0].gap)


def test_the_ablation_conditions_on_either_statistic(source, trust):
    """Each row is the public predictor with that basis."""
    found, _ = run(source, scores=("APS",), seeds=(1,), ablation=True)
    calibration, test = (part.with_trust(trust) for part in source.split(1))
    for name, statistic in (("Conf only", Confidence()), ("Trust only", Trust())):
        basis = Polynomial(degree=2, of=(statistic,))
        with pytest.warns(UserWarning, match="approximately"):
            predictor = ConditionalConformal.paper(basis=basis).calibrate(calibration)
        sets = predictor.predict_set(test)
        item = found.evaluations[Cell("APS", f"CONDITIONAL, {name}")][0]
        assert item.sizes.mean == pytest.approx(sets.sizes.mean())
        assert item.coverage.value == pytest.approx(sets.covers(test.labels).mean())
    package = [cell.method for cell in found.evaluations if "default's" in cell.method]
    assert len(package) == 3


def test_rank_edges_of_figures_can_be_quantiles(source):
    found, _ = run(source, scores=("APS",), seeds=(1,), rank_edges="quantiles")
    ranks = label_ranks(source.parts["pool"])
    table = found.evaluations[Cell("APS", STANDARD)][0].tables[RANK_SHOWN]
    edges = np.unique([0.0, *np.quantile(ranks, [0.25, 0.5, 0.75, 1.0])])
    assert table.shape == (10, edges.size - 1)
    for position, (low, high) in zip(table.index[:, 1], table.edges[:, 1], strict=True):
        assert edges[position] < low <= high <= edges[position + 1]


def test_balls_and_correlation_are_what_the_metrics_give(source, plain, trust):
    radii = Balls().typical_radii(source.parts["pool"].features)
    for place, seed in enumerate(plain.seeds):
        calibration, test = source.split(seed)
        values = trust.score(test.features, test.predicted)
        wanted = correlate(values, label_ranks(test))
        assert vars(plain.correlations[place]) == pytest.approx(vars(wanted))
        covered = standard_hits(calibration, test)
        curve = Balls(radii=radii).around(test.features).curve(covered, alpha=0.1)
        own = plain.balls[Cell("APS", STANDARD)][place]
        assert np.array_equal(own.gap, curve.gap)
    assert Cell("APS", CONDITIONAL, 1) not in plain.balls
    assert not any(cell.score == "softmax" for cell in plain.balls)


# Cells over two seeds and two scores.
ALL = 2 * CELLS
CHANGES = {
    "alpha": ({"alpha": 0.2}, {"trust": 0, "temperature": 0, "sets": ALL}),
    "bins": ({"bins": "code"}, {"trust": 0, "temperature": 0, "sets": 0, "metrics": ALL}),
    "one more degree": ({"degrees": (1, 2, 3)}, {"trust": 0, "sets": 2, "metrics": 2}),
    "fewer seeds": ({"seeds": (2,)}, {"temperature": 0, "sets": 0, "metrics": 0}),
    "one more seed": (
        {"seeds": (1, 2, 3)},
        {"trust": 0, "temperature": 1, "sets": ALL // 2, "metrics": ALL // 2},
    ),
    "one more score": (
        {"scores": ("softmax", "APS", "RAPS")},
        {"trust": 0, "temperature": 0, "sets": 2 * METHODS},
    ),
    # The default has a trust score of its own. With each score, NAIVE, CONDITIONAL and STANDARD of
    # its size depend on it, and CONDITIONAL of another degree with APS.
    "trust": ({"trust": "text"}, {"trust": 1, "temperature": 0, "sets": 2 * 7, "metrics": ALL}),
    "edges of ranks": ({"rank_edges": (0, 1, 9)}, {"sets": 0, "metrics": ALL}),
    "device": ({"device": "torch:cpu"}, {"trust": 0, "sets": 0, "metrics": 0}),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory, source):
    """A folder with a whole run."""
    folder = tmp_path_factory.mktemp("stages")
    run(source, folder=folder)
    return folder


def test_a_kept_run_is_the_same_and_is_not_repeated(source, plain, kept):
    again, cache = run(source, folder=kept)
    assert numbers(again) == numbers(plain)
    assert cache.made.total() == 0
    reused = [cache.reused[stage] for stage in ("trust", "temperature", "sets", "metrics")]
    assert reused == [2, 2, ALL, ALL]


@pytest.mark.parametrize("damage", [b"", b"not a safetensors file", None])
def test_a_damaged_result_is_made_again(tmp_path, source, plain, kept, damage):
    shutil.copytree(kept, tmp_path / "own")
    path = min((tmp_path / "own" / "metrics").iterdir())
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    again, cache = run(source, folder=tmp_path / "own")
    assert (cache.made.total(), cache.made["metrics"]) == (1, 1)
    assert numbers(again) == numbers(plain)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_option_reaches_exactly_what_depends_on_it(tmp_path, source, kept, name):
    changes, wanted = CHANGES[name]
    shutil.copytree(kept, tmp_path / "own")
    made = run(source, folder=tmp_path / "own", **changes)[1].made
    assert {stage: made[stage] for stage in wanted} == wanted


def test_changed_data_reach_exactly_what_depends_on_them(tmp_path, source, kept):
    pool = source.parts["pool"]
    site = np.array(["east", *pool.groups["site"][1:]])
    for name, values, wanted in (
        # GROUPWISE, the package's and the default look at the column, and so do all metrics.
        ("groups", {"site": site}, [0, 0, 2 * 5, ALL]),
        # The predictions are the same, and with them the trust scores.
        ("logits", 1.5 * pool.logits, [0, 2, ALL, ALL]),
    ):
        shutil.copytree(kept, tmp_path / name)
        made = run(small_source(**{name: values}), folder=tmp_path / name)[1].made
        assert [made[x] for x in ("trust", "temperature", "sets", "metrics")] == wanted


def test_without_training_points_what_needs_trust_is_left_out():
    found, cache = run(Source("small", {"pool": small_outputs()}))
    methods = {cell.method for cell in found.evaluations}
    assert methods == {STANDARD, GROUPWISE, PCA, PACKAGE_GROUPWISE}
    assert "trust" not in cache.made
    assert found.correlations == []
    assert "no training samples" in found.left_out[0]
    assert "conf_trust" not in next(iter(found.evaluations.values()))[0].tables


def test_degrees_beyond_the_calibration_samples_are_left_out_by_name():
    found, _ = run(small_source(n=30), degrees=(1, 6), degree=1, seeds=(1,), scores=("APS",))
    assert [text.split(":")[0] for text in found.left_out] == ["CONDITIONAL of degree 6", DEFAULT]
    assert Cell("APS", CONDITIONAL, 1) in found.evaluations


def test_rows_may_have_gaps(plain):
    """Row numbers of extracted outputs skip unreadable images; trust must not shift."""
    rows = np.arange(300) * 3 + 5
    spaced = run(small_source(rows=rows), seeds=(1,))[0]
    assert vars(spaced.correlations[0]) == vars(plain.correlations[0])
    for wrong in (rows[::-1], rows // 6):  # of the latter some are equal
        with pytest.raises(InputError, match="increasing"):
            small_source(rows=wrong)


def test_lists_of_numbers():
    for text, numbers in (("1-3", (1, 2, 3)), ("4", (4,)), ("2,1-2", (2, 1))):
        assert parse_numbers(text, "--seeds") == numbers
    for text in ("", "0", "3-1", "a", "1-", "-2", "1,,2"):
        with pytest.raises(InputError, match="--seeds"):
            parse_numbers(text, "--seeds")


def test_the_default_options_are_the_papers():
    options = Options()
    assert options.seeds == tuple(range(1, 11))
    assert (options.alpha, options.degree, options.trust) == (0.1, 5, "code")
    edges = options.partitions("imagenet")["conf_rank"].edges
    assert edges == (0.0, 1.0, 2.0, 4.0, 1000.0)
    code = Options(bins="code").partitions("places365")["conf_rank"]
    assert (code.nested, code.ties, code.edges) == (False, "quantiles", None)


def test_edges_by_hand_serve_any_dataset(source):
    found = run(source, seeds=(1,), scores=("APS",), bins="code", rank_edges=(0, 1, 2, 4, 1000))[0]
    table = found.evaluations[Cell("APS", STANDARD)][0].tables["conf_rank"]
    bins = {0: {1}, 1: {2}, 2: {3, 4}, 3: {5}}
    assert set(table.index[:, 1].tolist()) == set(bins)
    for place, ends in zip(table.index[:, 1], table.edges[:, 1].astype(int).tolist(), strict=True):
        assert set(ends) <= bins[place]


def test_code_bins_are_those_of_the_authors(source):
    """Conf x Rank counted by hand: equal widths of Conf, plain quantiles of Rank, no empty bin."""
    found = run(source, seeds=(1,), scores=("APS",), bins="code")[0]
    result = found.evaluations[Cell("APS", STANDARD)][0]
    calibration, test = source.split(1)
    covered = standard_hits(calibration, test)
    ranks, conf = label_ranks(test), test.confidence
    edges = np.quantile(ranks, [0.25, 0.5, 0.75])
    step = (conf.max() - conf.min()) / 10
    gaps = []
    for i in range(10):
        for low, high in zip([-np.inf, *edges], [*edges, np.inf], strict=True):
            here = np.minimum((conf - conf.min()) // step, 9) == i
            here &= (ranks > low) & (ranks <= high)
            if here.any():
                gaps.append(abs(covered[here].mean() - 0.9) * 100)
    assert result.tables["conf_rank"].gap.value == pytest.approx(np.mean(gaps))


def test_heatmaps_by_rank_set_rank_1_apart_with_the_same_edges_for_all_seeds(plain):
    tables = [item.tables[RANK_SHOWN] for item in plain.evaluations[Cell("APS", STANDARD)]]
    for table in tables:
        first = table.edges[table.index[:, 1] == 0, 1]
        assert (first == 1.0).all()
        assert (table.edges[table.index[:, 1] > 0, 1] > 1.0).all()
    assert tables[0].shape == tables[1].shape == (10, 4)


def test_both_kinds_of_trust_can_be_had(source):
    """The text's: plain distances to the nearest neighbour in the features as they are."""
    found = run(source, seeds=(1,), trust="text")[0]
    features = source.parts["pool"].features
    trust = TrustScore(normalize=False).fit(*small_train())
    wanted = trust.score(features, source.parts["pool"].predicted)
    np.testing.assert_array_equal(found.source.tested.trust, wanted)
