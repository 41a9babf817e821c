"""Sets, thresholds and statuses of every predictor x score x basis stay bitwise what they were.

`golden.npz` holds the samples and what the predictors made of them. A change that is meant to
move results records the cases it names, and says in its commit why they moved:

    python tests/contract/test_golden.py                      # list the cases that differ
    python tests/contract/test_golden.py record CASE [CASE]   # record some, or all without names

The bits of exp, log and matrix products depend on the processor. On one whose bits differ from
those of the recording, thresholds are compared up to rounding, and masks and statuses exactly.
"""

import sys
import warnings
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trustsets
from trustsets import (
    APS,
    RAPS,
    SAPS,
    Bins,
    ClassBias,
    Classes,
    ClusteredConformal,
    ConditionalConformal,
    Confidence,
    Custom,
    Entropy,
    Groups,
    Intercept,
    Margin,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    PrincipalComponents,
    Softmax,
    StandardConformal,
    Trust,
    TrustScore,
)
from trustsets.basis import ClassClusters
from trustsets.scores import MarginScore, TopK
from trustsets_paper.baselines import (
    Atypicality,
    InterpolatedConformal,
    PluginConformal,
    RankCalibratedConformal,
    atypicality_groups,
)

FILE = Path(__file__).with_name("golden.npz")
ALPHAS = (0.05, 0.1, 0.3)
GRID = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
N_CLASSES = 6
SOURCES = ("logits", "float32", "probabilities", "tied", "votes")

Results = dict[str, np.ndarray]


# --- The interface: everything that depends on how predictors are called is in this part. ---


def samples(source: str, part: str) -> ModelOutputs:
    """Samples of a part (calibration, test, more), with outputs of one of the `SOURCES`."""
    data, dtype = recorded(), np.float32 if source == "float32" else np.float64
    kind = "logits" if source in ("logits", "float32") else "probabilities"
    name = "logits" if source == "float32" else source
    return ModelOutputs(
        **{kind: data[f"{part}/{name}"].astype(dtype)},
        features=data[f"{part}/features"].astype(dtype),
        labels=data[f"{part}/labels"],
        groups={"site": data[f"{part}/site"], "device": data[f"{part}/device"]},
        classes=np.arange(N_CLASSES),
    )


@cache
def trust_score(**settings: Any) -> TrustScore:
    data = recorded()
    return TrustScore(**settings).fit(data["training/features"], data["training/labels"])


def grid_bins(*statistics: Any, counts: Any, spacing: Any, nested: bool = True) -> Any:
    """Cells of all the statistics."""
    return Bins(*statistics, counts=counts, spacing=spacing, nested=nested)


def additive_bins(*statistics: Any, counts: Any, spacing: Any) -> Any:
    """Bins of each statistic by itself."""
    parts = zip(statistics, counts, spacing, strict=True)
    first, *others = [Bins(of, counts=count, spacing=gaps) for of, count, gaps in parts]
    return sum(others, start=first)


def edge_bins(statistic: Any, edges: tuple[float, ...]) -> Any:
    return Bins(statistic, edges=(edges,))


def polynomial(degree: int, *statistics: Any, penalty: float = 0.0) -> Any:
    return Polynomial(degree=degree, of=statistics, penalty=penalty)


def standard(**settings: Any) -> Any:
    return StandardConformal(**settings)


def mondrian(by: Any, **settings: Any) -> Any:
    return MondrianConformal(by=by, **({"trust": trust_score()} | settings))


def conditional(basis: Any = "auto", **settings: Any) -> Any:
    return ConditionalConformal(basis=basis, **({"trust": trust_score()} | settings))


def clustered(**settings: Any) -> Any:
    return ClusteredConformal(**settings)


def naive_of_the_paper() -> Any:
    return MondrianConformal.paper(trust=trust_score(neighbour=2, squared=True))


def conditional_of_the_paper() -> Any:
    return ConditionalConformal.paper(trust=trust_score(neighbour=2, squared=True))


def plug_in() -> Any:
    return PluginConformal(trust=trust_score())


def atypicality_cells() -> Any:
    data = recorded()
    atypicality = Atypicality.from_training(data["training/features"], data["training/labels"])
    return atypicality_groups(atypicality, groups=3)


def calibrate(
    predictor: Any, source: str, sample_alphas: Any = None, tuning: str | None = None
) -> Any:
    return predictor.calibrate(
        samples(source, "calibration"),
        alphas=sample_alphas,
        tuning=None if tuning is None else samples(source, tuning),
    )


def sets_of(predictor: Any, outputs: ModelOutputs, alpha: Any, max_size: Any = None) -> Results:
    return _results(predictor.predict_set(outputs, alpha, max_size=max_size))


def sets_by_sample(predictor: Any, outputs: ModelOutputs, sample_alphas: np.ndarray) -> Results:
    return _results(predictor.predict_set(outputs, sample_alphas=sample_alphas))


def p_values(predictor: Any, outputs: ModelOutputs) -> Results:
    return {"values": predictor.predict_p(outputs, GRID)}


def left_out_sets(predictor: Any) -> Results:
    return _results(predictor.leave_one_out(list(ALPHAS)))


def trust_values(source: str, **settings: Any) -> Results:
    outputs = samples(source, "test")
    return {"values": trust_score(**settings).score(outputs.features, outputs.predicted)}


def _results(sets: Any) -> Results:
    return {"mask": sets.mask, "thresholds": sets.thresholds, "status": sets.status}


# --- The cases. ---


def of_outputs(outputs: ModelOutputs) -> np.ndarray:
    """A basis of one's own."""
    return np.stack([np.ones(len(outputs)), outputs.confidence, outputs.features[:, 0]], axis=1)


def of_candidate(outputs: ModelOutputs, codes: np.ndarray) -> np.ndarray:
    """A basis of one's own that depends on the candidate label."""
    top = codes == outputs.predicted_codes
    return np.stack([np.ones(len(outputs)), top, outputs.features[:, 1]], axis=1)


# With the default of RAPS, ranks up to 6 would have no penalty.
RANKED = {"aps": APS, "raps": partial(RAPS, lam=0.05, k_reg=1), "saps": SAPS, "topk": TopK}
SCALES = ("raw", "tail")
SCORES = {
    f"{name}-{scale}": score(scale=scale)
    for (name, score), scale in product(
        (RANKED | {"softmax": Softmax, "margin": MarginScore}).items(), SCALES
    )
}
OWN_MASS = {
    f"{name}-{mass}-{scale}": score(own_mass=mass, scale=scale)
    for (name, score), mass, scale in product(RANKED.items(), ("include", "random"), SCALES)
}
RANKS = (Confidence(transform="rank"), Trust(transform="rank"))
BASES = {
    "intercept": Intercept(),
    "line": polynomial(1, Confidence()),
    "quadratic": polynomial(2, Confidence(), Trust()),
    "quintic": polynomial(5, Confidence(), Trust()),
    "log-trust": polynomial(2, Confidence(), Trust(transform="log")),
    "ranks": polynomial(3, *RANKS),
    "penalised-ranks": polynomial(4, *RANKS, penalty=2.0),
    "entropy-margin": polynomial(2, Entropy(), Margin()),
    "groups": Groups(),
    "site": Groups("site"),
    "groups-penalised": Intercept() + Groups(penalty=1.0),
    "bins": grid_bins(Confidence(), Trust(), counts=(3, 2), spacing=("quantile", "quantile")),
    "bins-additive": additive_bins(
        Confidence(), Trust(), counts=(4, 3), spacing=("uniform", "quantile")
    ),
    "bins-edges": edge_bins(Confidence(), (0.5, 0.8)),
    "components": PrincipalComponents(4),
    "custom": Custom(of_outputs),
    "sum": polynomial(2, *RANKS) + Groups("site") + PrincipalComponents(2),
    "product": Intercept() + polynomial(1, Confidence()) * Groups("device"),
}
LABEL_BASES = {
    "classes": Classes(),
    "classes-penalised": Intercept() + Classes(penalty=3.0),
    "line-classes": polynomial(1, Confidence()) + Classes(),
    "classes-by-site": Classes() + Classes() * Groups("site"),
    "class-clusters": polynomial(1, *RANKS) + ClassClusters(2),
    "custom-label": Custom(of_candidate, of_label=True),
}
PARTITIONS: dict[str, Any] = {
    "class": "class",
    "site": Groups("site"),
    "groups": Groups(),
    "bins-quantile": grid_bins(
        Confidence(), Trust(), counts=(3, 3), spacing=("quantile", "quantile")
    ),
    "bins-uniform": grid_bins(
        Confidence(), Trust(), counts=(5, 2), spacing=("uniform", "quantile"), nested=False
    ),
    "bins-edges": edge_bins(Confidence(), (0.4, 0.6, 0.9)),
}


def predict(build: Callable[[], Any], source: str) -> Callable[[], Results]:
    """Sets at each alpha alone and at all of them."""

    def run() -> Results:
        predictor, test = calibrate(build(), source), samples(source, "test")
        return _predictions(predictor, test)

    return run


def _predictions(predictor: Any, test: ModelOutputs) -> Results:
    alphas = {f"alpha {alpha}": alpha for alpha in ALPHAS} | {"alphas": list(ALPHAS)}
    return _named({name: sets_of(predictor, test, alpha) for name, alpha in alphas.items()})


def _named(parts: dict[str, Results]) -> Results:
    return {
        f"{part} {name}": values
        for part, results in parts.items()
        for name, values in results.items()
    }


def queries(build: Callable[[], Any], source: str) -> Callable[[], Results]:
    """P-values on a grid, and sets of the calibration samples, each left out."""

    def run() -> Results:
        predictor, test = calibrate(build(), source), samples(source, "test")
        return _named({"p": p_values(predictor, test), "leave_one_out": left_out_sets(predictor)})

    return run


def p_only(build: Callable[[], Any], source: str) -> Callable[[], Results]:
    return lambda: p_values(calibrate(build(), source), samples(source, "test"))


def limited(build: Callable[[], Any], source: str, size: int) -> Callable[[], Results]:
    """Sets of at most so many classes."""

    def run() -> Results:
        predictor = calibrate(build(), source, tuning="more")
        return sets_of(predictor, samples(source, "test"), 0.1, max_size=size)

    return run


def by_sample(build: Callable[[], Any], source: str) -> Callable[[], Results]:
    """An alpha for each sample, as a function of its confidence."""

    def run() -> Results:
        calibration, test = samples(source, "calibration"), samples(source, "test")
        alphas = [0.05 + 0.4 * (1.0 - part.confidence) for part in (calibration, test)]
        return sets_by_sample(calibrate(build(), source, alphas[0]), test, alphas[1])

    return run


def updated(build: Callable[[], Any], source: str) -> Callable[[], Results]:
    """Sets after more samples were added and some were removed."""

    def run() -> Results:
        predictor = calibrate(build(), source).update(samples(source, "more"))
        added = _predictions(predictor, samples(source, "test"))
        predictor.forget(np.arange(0, 90, 3))
        removed = _predictions(predictor, samples(source, "test"))
        return _named({"added": added, "removed": removed})

    return run


def adapted(build: Callable[[], Any], source: str, shift: str) -> Callable[[], Results]:
    def run() -> Results:
        predictor, test = calibrate(build(), source), samples(source, "test")
        return sets_of(predictor.adapt(samples(source, "more"), shift=shift), test, list(ALPHAS))

    return run


Build = tuple[Callable[[], Any], str]


def standard_builds() -> dict[str, Build]:
    builds: dict[str, Build] = {}
    for name, score in (SCORES | OWN_MASS).items():
        builds[f"standard {name}"] = partial(standard, score=score), "logits"
    for name, score in SCORES.items():
        builds[f"standard {name} tied"] = partial(standard, score=score), "tied"
    for source in SOURCES:
        builds[f"standard {source}"] = partial(standard, score=APS(own_mass="include")), source
    variants: dict[str, dict[str, Any]] = {
        "temperature": {"temperature": "tuning"},
        "temperature 1.5": {"temperature": 1.5},
        "class-bias": {"class_bias": ClassBias(prevalence=1.0)},
        "allow-empty": {"allow_empty": True},
    }
    for (name, settings), source in product(variants.items(), ("logits", "probabilities")):
        builds[f"standard {name} {source}"] = partial(standard, **settings), source
    return builds


def mondrian_builds() -> dict[str, Build]:
    builds: dict[str, Build] = {}
    for (name, by), source in product(PARTITIONS.items(), ("logits", "tied")):
        builds[f"mondrian {name} {source}"] = partial(mondrian, by), source
    for name in ("softmax-tail", "raps-random-raw"):
        score = (SCORES | OWN_MASS)[name]
        builds[f"mondrian {name}"] = partial(mondrian, Groups("site"), score=score), "logits"
    for source in ("logits", "tied"):
        builds[f"mondrian paper {source}"] = naive_of_the_paper, source
    return builds


def conditional_builds() -> dict[str, Build]:
    builds: dict[str, Build] = {}
    for name, basis in (BASES | LABEL_BASES).items():
        builds[f"conditional {name}"] = partial(conditional, basis), "logits"
    for name in ("intercept", "quadratic", "ranks", "groups", "bins", "sum", "classes"):
        basis = (BASES | LABEL_BASES)[name]
        builds[f"conditional {name} tied"] = partial(conditional, basis), "tied"
    for name, score in (SCORES | OWN_MASS).items():
        build = partial(conditional, BASES["quadratic"], score=score)
        builds[f"conditional quadratic {name}"] = build, "logits"
    for source in SOURCES:
        builds[f"conditional auto {source}"] = conditional, source
    variants: dict[str, dict[str, Any]] = {
        "without trust": {"trust": None},
        "class-bias none": {"class_bias": None},
        "class-bias 0": {"class_bias": ClassBias(prevalence=0.0)},
        "temperature": {"temperature": "tuning"},
        "allow-empty": {"allow_empty": True},
        "randomized": {"randomized": True, "allow_empty": True},
        "softmax": {"score": Softmax(scale="tail")},
        "seed": {"random_state": 7},
    }
    for name, settings in variants.items():
        builds[f"conditional auto {name}"] = partial(conditional, **settings), "logits"
    exact = {"randomized": True, "allow_empty": True}
    for source in ("logits", "tied"):
        builds[f"conditional per-class {source}"] = partial(conditional, per_class=True), source
        build = partial(conditional, BASES["quadratic"], **exact)
        builds[f"conditional quadratic randomized {source}"] = build, source
        builds[f"conditional paper {source}"] = conditional_of_the_paper, source
    return builds


def other_builds() -> dict[str, Build]:
    variants: dict[str, dict[str, Any]] = {
        "auto": {},
        "2": {"n_clusters": 2},
        "own": {"n_clusters": 3, "null_cluster": "own"},
        "softmax": {"score": Softmax(), "n_clusters": 2},
        "saps-random": {"score": SAPS(own_mass="random"), "n_clusters": 2},
    }
    builds: dict[str, Build] = {
        f"clustered {name}": (partial(clustered, **settings), "logits")
        for name, settings in variants.items()
    }
    return builds | {
        "clustered tied": (partial(clustered, n_clusters=2), "tied"),
    }


# The paper's baselines, which are not saved.
BASELINES: dict[str, Build] = {
    "plug-in": (plug_in, "logits"),
    "rank-calibrated": (RankCalibratedConformal, "logits"),
    "interpolated": (InterpolatedConformal, "logits"),
    "atypicality": (atypicality_cells, "logits"),
}
BUILDS = standard_builds() | mondrian_builds() | conditional_builds() | other_builds()


def make_cases() -> dict[str, Callable[[], Results]]:
    cases = {name: predict(*build) for name, build in (BUILDS | BASELINES).items()}
    for name in (
        "standard aps-raw",
        "standard aps-raw tied",
        "standard aps-random-raw",
        "mondrian site logits",
        "mondrian class tied",
        "mondrian bins-quantile logits",
        "conditional quadratic",
        "conditional quadratic tied",
        "conditional ranks",
        "conditional groups",
        "conditional quadratic randomized logits",
        "conditional auto logits",
    ):
        cases[f"queries: {name}"] = queries(*BUILDS[name])
    for name in ("clustered 2", "conditional classes", "conditional per-class logits"):
        cases[f"p-values: {name}"] = p_only(*BUILDS[name])
    bases = ("intercept", "line", "quadratic", "ranks", "penalised-ranks", "groups", "auto logits")
    for name, size in product(bases, (1, 2)):
        cases[f"max_size={size}: {name}"] = limited(*BUILDS[f"conditional {name}"], size)
    for name in ("intercept", "quadratic", "groups", "auto logits"):
        cases[f"sample_alphas: {name}"] = by_sample(*BUILDS[f"conditional {name}"])
    for name in (
        "standard aps-raw",
        "mondrian site logits",
        "mondrian class logits",
        "conditional quadratic",
        "conditional groups",
        "conditional auto logits",
        "conditional classes",
        "clustered 2",
    ):
        cases[f"updated: {name}"] = updated(*BUILDS[name])
    shifted = ("standard aps-raw", "mondrian site logits", "conditional quadratic")
    for name, shift in product(shifted, ("label", "covariate")):
        cases[f"{shift} shift: {name}"] = adapted(*BUILDS[name], shift)
    cases["trust: default"] = partial(trust_values, "logits")
    cases["trust: paper"] = partial(trust_values, "logits", neighbour=2, squared=True)
    cases["trust: not normalised"] = partial(trust_values, "logits", normalize=False)
    return cases


CASES = make_cases()


# --- Recording and comparing. ---


@cache
def recorded() -> Results:
    with np.load(FILE) as file:
        return {name: file[name] for name in file.files}


def run_case(name: str) -> Results:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trustsets.errors.TrustSetsWarning)
        return CASES[name]()


def differences(name: str, results: Results) -> list[str]:
    """What differs from the recording, in words; empty if nothing does."""
    data, lines = recorded(), []
    for kind, packed in packed_by_kind(results).items():
        before = data.get(f"case/{name}/{kind}", np.empty(0, packed.dtype))
        if before.size != packed.size:
            lines.append(f"{kind}: {before.size} were recorded, and there are {packed.size} now")
        else:
            lines += _parts_that_differ(kind, before, results)
    return lines


def packed_by_kind(results: Results) -> Results:
    """All masks, statuses and numbers of a case, each end to end; masks as bits."""
    kinds: dict[str, list[np.ndarray]] = {}
    for name, values in results.items():
        kinds.setdefault(_kind(name), []).append(_flat(values))
    packed = {kind: np.concatenate(parts) for kind, parts in kinds.items()}
    return {kind: np.packbits(v) if v.dtype == bool else v for kind, v in packed.items()}


def _kind(name: str) -> str:
    return name.split()[-1]


def _flat(values: np.ndarray) -> np.ndarray:
    """In an order that compresses well: alphas first."""
    return np.moveaxis(values, -1, 0).ravel() if values.ndim > 1 else values


def _parts_that_differ(kind: str, before: np.ndarray, results: Results) -> list[str]:
    """Compare the recorded values of a kind with each result of that kind."""
    values = np.unpackbits(before).astype(bool) if kind == "mask" else before
    start, lines = 0, []
    for name, now in results.items():
        if _kind(name) == kind:
            differ = _differ(values[start : start + now.size], _flat(now))
            if differ.any():
                old, new = values[start : start + now.size][differ], _flat(now)[differ]
                examples = ", ".join(f"{a} -> {b}" for a, b in zip(old[:2], new[:2], strict=True))
                lines.append(f"{name}: {differ.sum()} of {now.size} differ, such as {examples}")
            start += now.size
    return lines


def _differ(before: np.ndarray, now: np.ndarray) -> np.ndarray:
    if now.dtype != np.float64:
        return before != now
    differ = before.view(np.int64) != np.ascontiguousarray(now).view(np.int64)
    return differ if same_processor() else differ & ~np.isclose(before, now, 1e-9, 1e-9)


def _probe() -> np.ndarray:
    """Numbers whose last bits depend on the processor."""
    grid = np.linspace(-4.0, 3.0, 97)
    table = np.sin(np.arange(96.0)).reshape(12, 8)
    return np.concatenate([np.exp(grid), np.log(grid**2 + 0.1), (table @ table.T).ravel()])


@cache
def same_processor() -> bool:
    return bool(np.array_equal(recorded()["probe"], _probe()))


def make_samples() -> Results:
    """Fixed samples: a class centre in 8 dimensions, rare classes, overconfident logits."""
    rng = np.random.default_rng(20)
    centres = 1.1 * rng.normal(size=(N_CLASSES, 8))
    shares = np.array([0.3, 0.23, 0.2, 0.14, 0.1, 0.03])
    data: Results = {}
    for part, n in {"training": 240, "calibration": 400, "test": 120, "more": 90}.items():
        labels = rng.choice(N_CLASSES, p=shares, size=n)
        features = np.round(centres[labels] + rng.normal(size=(n, 8)), 3)
        logits = np.round(1.6 * features @ centres.T / 3.0 + 0.5 * rng.normal(size=(n, 6)), 3)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = odds / odds.sum(axis=1, keepdims=True)
        data |= {
            f"{part}/labels": labels.astype(np.int64),
            f"{part}/features": features,
            f"{part}/logits": logits,
            f"{part}/probabilities": probabilities,
            # Exact fractions of 64 are tied, and sum to 1 exactly; those of 50 are rounded.
            f"{part}/tied": _votes(probabilities, 64),
            f"{part}/votes": _votes(probabilities, 50),
            f"{part}/site": rng.choice(np.array(["a", "b", "c"]), p=[0.6, 0.3, 0.1], size=n),
            f"{part}/device": np.where(features[:, 0] > rng.normal(size=n), "x", "y"),
        }
    # A group that calibration never met.
    data["test/site"][:3] = "d"
    return data


def _votes(probabilities: np.ndarray, count: int) -> np.ndarray:
    """Fractions of a number of votes that sum to 1, nearest to the probabilities."""
    votes = np.floor(probabilities * count)
    order = np.argsort(votes - probabilities * count, axis=1, kind="stable")
    missing = (count - votes.sum(axis=1)).astype(int)
    for row, places, number in zip(votes, order, missing, strict=True):
        row[places[:number]] += 1
    return votes / count


def record(names: list[str]) -> None:
    """Record the cases of these names; without names, all of them."""
    if not FILE.exists():
        np.savez_compressed(FILE, **make_samples())
    data = recorded() | {"probe": _probe()}
    for name in names or CASES:
        data = {key: v for key, v in data.items() if not key.startswith(f"case/{name}/")}
        packed = packed_by_kind(run_case(name))
        data |= {f"case/{name}/{kind}": values for kind, values in packed.items()}
    np.savez_compressed(FILE, **data)
    recorded.cache_clear()


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_recorded(name):
    assert differences(name, run_case(name)) == []


def test_every_recorded_case_is_run():
    names = {key.split("/")[1] for key in recorded() if key.startswith("case/")}
    assert names == set(CASES)


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
def test_a_saved_predictor_gives_the_same_bits(name, tmp_path):
    build, source = BUILDS[name]
    predictor, test = calibrate(build(), source), samples(source, "test")
    predictor.save(tmp_path / "model.trustsets")
    loaded = trustsets.load(tmp_path / "model.trustsets")
    expected = sets_of(predictor, test, 0.1)
    for key, values in sets_of(loaded, test, 0.1).items():
        assert np.array_equal(values, expected[key]), key


if __name__ == "__main__":
    if sys.argv[1:2] == ["record"]:
        record(sys.argv[2:])
    for case in CASES:
        for line in differences(case, run_case(case)):
            print(f"{case}: {line}")
