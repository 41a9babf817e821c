import math
from itertools import combinations

import numpy as np
import pytest

from trustsets import ModelOutputs, PredictionSets, StandardConformal
from trustsets import auditing as regions_module
from trustsets.auditing import Regions, find_regions, search_regions
from trustsets.errors import InputError
from trustsets.metrics.risk import covariates

PLANTED = {
    "site is c": lambda o, t: o.groups["site"] == "c",
    "true class is 2": lambda o, t: o.codes == 2,
    "predicted class is 3": lambda o, t: o.predicted_codes == 3,
    "confidence": lambda o, t: o.confidence > 0.7,
    "trust": lambda o, t: t <= 1.0,
    "principal component 1": lambda o, t: o.features[:, 0] > 4.0,
}


def test_a_region_of_two_conditions_is_found(make_samples, draw):
    outputs, trust = make_samples(6000)
    region = (outputs.groups["sex"] == "f") & (trust > 1.7)
    found = find_regions(draw(region), outputs.with_trust(trust), alpha=0.1).regions[0]
    assert {item.name for item in found.conditions} == {"sex", "trust"}


def test_a_region_holds_the_value_at_its_upper_end_alone(make_samples, draw):
    outputs, trust = make_samples(3000)
    trust = np.ceil(2.0 * trust)
    for words, region in (("above", trust > 3.0), ("at most", trust <= 3.0)):
        found = find_regions(draw(region), outputs.with_trust(trust), alpha=0.1).regions[0]
        assert [str(item) for item in found.conditions] == [f"trust is {words} 3"]
        np.testing.assert_array_equal(found.members, np.flatnonzero(region))


def test_numbers_are_those_of_the_tested_half_alone(make_samples, draw):
    outputs, trust = make_samples()
    covered = draw(outputs.groups["site"] == "c")
    result = find_regions(covered, outputs.with_trust(trust), alpha=0.1, by=("groups",), seed=3)
    (found,) = result.regions
    members = outputs.groups["site"] == "c"
    counted = []
    for half in outputs.split_indices(0.5, 3):
        own = [i for i in half.tolist() if members[i]]
        rest = [i for i in half.tolist() if not members[i]]
        counted.append((len(own), sum(covered[own].tolist()), np.mean(covered[rest])))
    assert (found.count, found.covered, found.elsewhere) in counted
    assert found.coverage.value == found.covered / found.count


def test_p_values_are_sums_of_exact_probabilities(make_samples, draw):
    outputs, trust = make_samples(400)
    covered = draw(outputs.groups["site"] == "c", inside=0.7)
    result = find_regions(covered, outputs.with_trust(trust), alpha=0.1, by=("groups",), level=0.5)
    found = result.regions[0]
    n, k = found.count, found.covered
    binomial = sum(math.comb(n, i) * 0.9**i * 0.1 ** (n - i) for i in range(k + 1))
    (half,) = (
        part
        for part in outputs.split_indices(0.5)
        if np.isin(part, found.members).sum() == n
        and covered[part[np.isin(part, found.members)]].sum() == k
    )
    total, misses = half.size, int((~covered[half]).sum())
    ways = [math.comb(misses, i) * math.comb(total - misses, n - i) for i in range(n + 1)]
    fisher = sum(ways[n - k :]) / math.comb(total, n)
    assert found.p_value == pytest.approx(max(binomial, fisher), rel=1e-9)
    assert found.adjusted >= 2.0 * found.p_value


def test_p_values_are_adjusted_for_all_regions_of_a_direction(make_samples, draw, monkeypatch):
    """By Holm's definition, counted by hand: simulated false positives hardly notice it."""
    outputs, trust = make_samples(3000)
    covered = draw(outputs.groups["site"] == "c", inside=0.82)
    covered &= draw(outputs.codes == 2, inside=0.85, elsewhere=0.99, seed=2)
    covered &= draw(trust > 2.4, inside=0.85, elsewhere=0.99, seed=3)
    directions: dict[bytes, list[float]] = {}
    plain = regions_module._p_value

    def record(members, covered, tested, alpha):
        directions.setdefault(tested.tobytes(), []).append(plain(members, covered, tested, alpha))
        return directions[tested.tobytes()][-1]

    monkeypatch.setattr(regions_module, "_p_value", record)
    result = find_regions(covered, outputs.with_trust(trust), alpha=0.1, level=0.01)
    adjusted = {
        p: max(2.0 * q * sum(other >= q for other in p_values) for q in p_values if q <= p)
        for p_values in directions.values()
        for p in p_values
    }
    assert max(map(len, directions.values())) > 1
    assert result.regions
    for region in result.regions:
        assert region.adjusted == pytest.approx(min(adjusted[region.p_value], 1.0), rel=1e-12)


def test_nothing_about_a_region_depends_on_the_samples_it_is_tested_on(
    make_samples, draw, monkeypatch
):
    outputs, trust = make_samples()
    _, tested = outputs.split_indices(0.5, 0)
    seen = []

    def record(*args, **keywords):
        seen.append(search_regions(*args, **keywords))
        return seen[-1]

    monkeypatch.setattr(regions_module, "search_regions", record)
    covered = draw(outputs.features[:, 0] > 4.0)
    find_regions(covered, outputs.with_trust(trust), alpha=0.1)
    covered[tested], trust[tested] = True, 0.0
    features = outputs.features.copy()
    features[tested] = 50.0 * features[tested][:, ::-1] + 7.0  # other directions, other places
    changed = ModelOutputs(
        logits=outputs.logits, labels=outputs.labels, features=features, groups=outputs.groups
    )
    find_regions(covered, changed.with_trust(trust), alpha=0.1)
    assert seen[0] == seen[2]
    assert seen[1] != seen[3]


def slow_evidence(rule, columns, covered, target):
    """Count one sample at a time; the divergence by its definition."""
    count = hits = 0
    for i in range(len(covered)):
        values = {column.name: column for column in columns}
        held = True
        for item in rule:
            own = values[item.name]
            if item.category is not None:
                held &= own.levels[int(own.values[i])] == item.category
            if not math.isnan(item.above):
                held &= own.values[i] > item.above
            if not math.isnan(item.at_most):
                held &= own.values[i] <= item.at_most
        count, hits = count + held, hits + (held and covered[i])
    if count < 20 or hits / count >= target:
        return -1.0
    c = hits / count
    both = [(c, target), (1.0 - c, 1.0 - target)]
    return count * sum(p * math.log(p / q) for p, q in both if p > 0.0)


def test_the_search_finds_the_best_of_all_pairs_that_may_stand_together(make_samples, monkeypatch):
    outputs, trust = make_samples(90, n_classes=3)
    covered = np.random.default_rng(2).random(90) < 0.8
    by = ("trust", "groups", "classes")
    columns = covariates(outputs.with_trust(trust), None, by, (), 0, np.arange(90))
    monkeypatch.setattr(regions_module, "_BEAM", 10**6)
    best = search_regions(columns, covered, 0.9, max_conditions=2, fewest=20)[0]
    every = regions_module._Candidates(columns, 20).conditions
    reference, correction = float(covered.mean()), math.log(len(every))

    def value(rule):
        kinds = {item.name for item in rule}
        if "true class" in kinds and not kinds <= {"true class", "sex", "site"}:
            return -math.inf
        return slow_evidence(rule, columns, covered, reference) - len(rule) * correction

    rules = [(item,) for item in every] + list(combinations(every, 2))
    largest = max(value(rule) for rule in rules)
    found = slow_evidence(best, columns, covered, reference)
    lengths = (len(best), 2)  # two ends on one column are joined into one condition
    assert any(found - length * correction == pytest.approx(largest) for length in lengths)


def test_sets_and_their_hits_give_the_same_and_json_keeps_it(make_samples, draw):
    outputs, trust = make_samples(1200)
    covered = draw(outputs.groups["site"] == "a", inside=0.5)
    mask = np.ones((1200, 6), dtype=bool)
    mask[np.arange(1200), outputs.codes] = covered
    nothing = np.zeros(1200)
    sets = PredictionSets(mask, nothing, nothing.astype(np.int8), 0.2, outputs.classes)
    result = find_regions(sets, outputs.with_trust(trust))
    hits = find_regions(covered.astype(float), outputs.with_trust(trust), alpha=0.2)
    assert result.regions and result.to_dict() == hits.to_dict()
    again = Regions.from_json(result.to_json())
    assert again.to_dict() == result.to_dict() and again.summary() == result.summary()
    assert len(result.to_frame()) == len(result)


@pytest.mark.parametrize("name", ["confidence", "trust", "true class", "principal component 1"])
def test_the_name_of_a_group_column_does_not_matter(name, make_samples, draw):
    outputs, trust = make_samples()
    site = outputs.groups["site"]
    covered = draw(site == "c") & draw(outputs.confidence > 0.7, elsewhere=0.99, seed=2)
    columns = [outputs.with_trust(trust).replace(groups={key: site}) for key in ("site", name)]
    plain, renamed = (find_regions(covered, item, alpha=0.1).regions for item in columns)
    assert len(plain) > 1
    for one, other in zip(plain, renamed, strict=True):
        np.testing.assert_array_equal(one.members, other.members)


@pytest.mark.parametrize("fill", [True, False])
def test_all_covered_or_all_missed_is_no_region(fill, make_samples):
    outputs, trust = make_samples(100)
    result = find_regions(np.full(100, fill), outputs.with_trust(trust), alpha=0.1)
    assert result.regions == () and "No region" in result.summary()
    assert list(result.to_frame())[:2] == ["region", "share"]


def test_odd_columns_do_no_harm(draw):
    n = 500
    rng = np.random.default_rng(0)
    trust = np.where(rng.random(n) < 0.3, np.inf, rng.choice([1e-300, 1e30], n))
    outputs = ModelOutputs(
        logits=np.zeros((n, 1)),
        labels=np.zeros(n, dtype=int),
        features=np.full((n, 3), 7.0),
        groups={"own": np.arange(n), "one": np.zeros(n), "site": rng.choice(["x, y", ""], n)},
    )
    found = find_regions(draw(trust == np.inf), outputs.with_trust(trust), alpha=0.1).regions
    assert str(found[0].conditions[0]) == "trust is above 1e+30"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"alpha": None}, "alpha must be given"),
        ({"alpha": [0.1]}, "alpha must lie strictly between 0 and 1"),
        ({"by": "trust"}, "write by="),
        ({"by": 3}, "by must be a sequence of names"),
        ({"by": ("rank",)}, "none of confidence"),
        ({"by": ("sizes",)}, "needs PredictionSets"),
        ({"trust": None, "by": ("trust",)}, "needs trust"),
        ({"by": ()}, "at least one kind"),
        ({"sets": np.full(100, 2)}, "True or False"),
        ({"sets": np.full(99, 1)}, r"shape \(100,\)"),
    ],
)
def test_bad_arguments_are_named(changes, words, make_samples):
    outputs, trust = make_samples(100)
    options = {"sets": np.ones(100), "trust": trust, "alpha": 0.1} | changes
    outputs = outputs.with_trust(options.pop("trust"))
    with pytest.raises(InputError, match=words):
        find_regions(options.pop("sets"), outputs, **options)


def test_sets_of_other_samples_or_several_alphas_are_refused(make_samples):
    outputs, _ = make_samples(100)
    predictor = StandardConformal().calibrate(outputs)
    with pytest.raises(InputError, match="same samples"):
        find_regions(predictor.predict_set(outputs, alpha=0.1), outputs.take(np.arange(50)))
    with pytest.raises(InputError, match="one alpha"):
        find_regions(predictor.predict_set(outputs, alpha=(0.1, 0.2)), outputs)
    with pytest.raises(InputError, match="know their own"):
        find_regions(predictor.predict_set(outputs, alpha=0.1), outputs, alpha=0.1)
    with pytest.raises(InputError, match="at least 40"):
        find_regions(np.ones(39), outputs.take(np.arange(39)), alpha=0.1)


def test_divisions_have_few_digits_and_stay_near_their_shares():
    values = np.random.default_rng(0).normal(size=4000)
    cuts = regions_module._cuts(values)
    shares = np.array([np.mean(values <= cut) for cut in cuts])
    assert np.abs(shares - np.arange(1, 16) / 16).max() <= 1 / 48 + 1e-3
    assert all(len(repr(abs(cut)).replace(".", "").lstrip("0")) <= 2 for cut in cuts)


@pytest.mark.parametrize("elsewhere", [0.8, 0.88, 0.95])
@pytest.mark.parametrize("name", PLANTED)
def test_planted_regions_of_every_kind_are_found_whether_or_not_overall_coverage_is_low(
    name, elsewhere, make_samples, draw
):
    """A search against the target alone would report everything, or a part that is nowhere."""
    outputs, trust = make_samples(6000)
    region = PLANTED[name](outputs, trust)
    covered = draw(region, inside=elsewhere - 0.3, elsewhere=elsewhere)
    result = find_regions(covered, outputs.with_trust(trust), alpha=0.1)
    assert elsewhere > 0.9 or result.coverage.upper < 0.9
    found, members = result.regions[0], np.zeros(len(outputs), dtype=bool)
    members[found.members] = True
    assert found.name.startswith(name) and found.share == members.mean()
    assert (members & region).sum() > 0.6 * (members | region).sum()
    assert found.coverage.value < elsewhere - 0.1 < found.elsewhere
    assert found.name in found.sentence and f"{found.coverage.value:.1%}" in found.sentence
