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
# Exact fractions of 64 are tied, and sum to 1 exactly; those of 50 votes are rounded.
SOURCES = ("logits", "float32", "probabilities", "tied", "votes")

Results = dict[str, np.ndarray]


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


def trust_values(**settings: Any) -> Results:
    outputs = samples("logits", "test")
    return {"values": trust_score(**settings).score(outputs.features, outputs.predicted)}


def mondrian(by: Any, **settings: Any) -> Any:
    return MondrianConformal(by=by, trust=trust_score(), **settings)


def conditional(basis: Any = "auto", **settings: Any) -> Any:
    return ConditionalConformal(basis=basis, **({"trust": trust_score()} | settings))


def of_the_paper(method: Any) -> Any:
    return method.paper(trust=trust_score(neighbour=2, squared=True))


def atypicality_cells() -> Any:
    data = recorded()
    atypicality = Atypicality.from_training(data["training/features"], data["training/labels"])
    return atypicality_groups(atypicality, groups=3)


def of_outputs(outputs: ModelOutputs) -> np.ndarray:
    """A basis of one's own."""
    return np.stack([np.ones(len(outputs)), outputs.confidence, outputs.features[:, 0]], axis=1)


def of_candidate(outputs: ModelOutputs, codes: np.ndarray) -> np.ndarray:
    """A basis of one's own that depends on the candidate label."""
    top = codes == outputs.predicted_codes
    return np.stack([np.ones(len(outputs)), top, outputs.features[:, 1]], axis=1)


def class_by_site(outputs: ModelOutputs, codes: np.ndarray) -> np.ndarray:
    """An indicator of each class within each site."""
    values = [*np.unique(recorded()["calibration/site"]), "another"]
    sites = outputs.groups["site"][:, None] == np.array(values)
    both = np.eye(N_CLASSES)[codes][:, :, None] * sites[:, None]
    return both.reshape(len(outputs), -1)


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
LINE = Polynomial(1, (Confidence(),))
RANKS = (Confidence(transform="rank"), Trust(transform="rank"))
BASES = {
    "intercept": Intercept(),
    "line": LINE,
    "quadratic": Polynomial(2),
    "quintic": Polynomial(5),
    "log-trust": Polynomial(2, (Confidence(), Trust(transform="log"))),
    "ranks": Polynomial(3, RANKS),
    "penalised-ranks": Polynomial(4, RANKS, penalty=2.0),
    "entropy-margin": Polynomial(2, (Entropy(), Margin())),
    "groups": Groups(),
    "site": Groups("site"),
    "groups-penalised": Intercept() + Groups(penalty=1.0),
    "bins": Bins(counts=(3, 2), spacing="quantile"),
    "bins-additive": Bins(Confidence(), counts=4, spacing="uniform")
    + Bins(Trust(), counts=3, spacing="quantile"),
    "bins-edges": Bins(Confidence(), edges=((0.5, 0.8),)),
    "components": PrincipalComponents(4),
    "custom": Custom(of_outputs),
    "sum": Polynomial(2, RANKS) + Groups("site") + PrincipalComponents(2),
}
LABEL_BASES = {
    "classes": Classes(),
    "classes-penalised": Intercept() + Classes(penalty=3.0),
    "line-classes": LINE + Classes(),
    "classes-by-site": Classes() + Custom(class_by_site, of_label=True),
    "custom-label": Custom(of_candidate, of_label=True),
}
PARTITIONS: dict[str, Any] = {
    "class": "class",
    "site": Groups("site"),
    "groups": Groups(),
    "bins-quantile": Bins(counts=(3, 3), spacing="quantile"),
    "bins-uniform": Bins(counts=(5, 2), spacing=("uniform", "quantile"), nested=False),
    "bins-edges": Bins(Confidence(), edges=((0.4, 0.6, 0.9),)),
}


Build = tuple[Callable[[], Any], str]


def standard_builds() -> dict[str, Build]:
    builds: dict[str, Build] = {}
    for name, score in (SCORES | OWN_MASS).items():
        builds[f"standard {name}"] = partial(StandardConformal, score=score), "logits"
    for name, score in SCORES.items():
        builds[f"standard {name} tied"] = partial(StandardConformal, score=score), "tied"
    include = partial(StandardConformal, score=APS(own_mass="include"))
    builds |= {f"standard {source}": (include, source) for source in SOURCES}
    variants: dict[str, dict[str, Any]] = {
        "temperature": {"temperature": "tuning"},
        "temperature 1.5": {"temperature": 1.5},
        "class-bias": {"class_bias": ClassBias(prevalence=1.0)},
        "allow-empty": {"allow_empty": True},
    }
    for (name, settings), source in product(variants.items(), ("logits", "probabilities")):
        builds[f"standard {name} {source}"] = partial(StandardConformal, **settings), source
    return builds


def mondrian_builds() -> dict[str, Build]:
    builds: dict[str, Build] = {}
    for (name, by), source in product(PARTITIONS.items(), ("logits", "tied")):
        builds[f"mondrian {name} {source}"] = partial(mondrian, by), source
    for name in ("softmax-tail", "raps-random-raw"):
        score = (SCORES | OWN_MASS)[name]
        builds[f"mondrian {name}"] = partial(mondrian, Groups("site"), score=score), "logits"
    for source in ("logits", "tied"):
        builds[f"mondrian paper {source}"] = partial(of_the_paper, MondrianConformal), source
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
        build = partial(of_the_paper, ConditionalConformal)
        builds[f"conditional paper {source}"] = build, source
    return builds


CLUSTERED: dict[str, Build] = {
    f"clustered {name}": (partial(ClusteredConformal, **settings), source)
    for name, source, settings in (
        ("auto", "logits", {}),
        ("2", "logits", {"n_clusters": 2}),
        ("own", "logits", {"n_clusters": 3, "null_cluster": "own"}),
        ("softmax", "logits", {"score": Softmax(), "n_clusters": 2}),
        ("saps-random", "logits", {"score": SAPS(own_mass="random"), "n_clusters": 2}),
        ("tied", "tied", {"n_clusters": 2}),
    )
}
# The paper's baselines, which are not saved.
BASELINES: dict[str, Build] = {
    "plug-in": (lambda: PluginConformal(trust=trust_score()), "logits"),
    "rank-calibrated": (RankCalibratedConformal, "logits"),
    "interpolated": (InterpolatedConformal, "logits"),
    "atypicality": (atypicality_cells, "logits"),
}
BUILDS = standard_builds() | mondrian_builds() | conditional_builds() | CLUSTERED


def calibrated(build: Callable[[], Any], source: str, **words: Any) -> tuple[Any, ModelOutputs]:
    """A calibrated predictor, and the test samples."""
    return build().calibrate(samples(source, "calibration"), **words), samples(source, "test")


def results_of(sets: Any, prefix: str = "") -> Results:
    names = ("mask", "thresholds", "status")
    return {f"{prefix} {name}".strip(): getattr(sets, name) for name in names}


def predict(build: Callable[[], Any], source: str) -> Results:
    """Sets at each alpha alone and at all of them."""
    return predictions(*calibrated(build, source))


def predictions(predictor: Any, test: ModelOutputs) -> Results:
    results: Results = {}
    for alpha in (*ALPHAS, list(ALPHAS)):
        results |= results_of(predictor.predict_set(test, alpha), f"alpha {alpha}")
    return results


def p_values(build: Callable[[], Any], source: str) -> Results:
    predictor, test = calibrated(build, source)
    return {"values": predictor.predict_p(test, GRID)}


def queries(build: Callable[[], Any], source: str) -> Results:
    """P-values on a grid, and sets of the calibration samples, each left out."""
    predictor, _ = calibrated(build, source)
    return p_values(build, source) | results_of(predictor.leave_one_out(list(ALPHAS)))


def limited(build: Callable[[], Any], source: str, size: int) -> Results:
    """Sets of at most so many classes."""
    predictor, test = calibrated(build, source, tuning=samples(source, "more"))
    return results_of(predictor.predict_set(test, 0.1, max_size=size))


def by_sample(build: Callable[[], Any], source: str) -> Results:
    """An alpha for each sample, as a function of its confidence."""
    parts = (samples(source, part) for part in ("calibration", "test"))
    known, new = (0.05 + 0.4 * (1.0 - part.confidence) for part in parts)
    predictor, test = calibrated(build, source, alphas=known)
    return results_of(predictor.predict_set(test, sample_alphas=new))


def updated(build: Callable[[], Any], source: str) -> Results:
    """Sets after more samples were added and some were removed."""
    predictor, test = calibrated(build, source)
    results = {}
    for name, change in (
        ("added", lambda: predictor.update(samples(source, "more"))),
        ("removed", lambda: predictor.forget(np.arange(0, 90, 3))),
    ):
        changed = predictions(change(), test)
        results |= {f"{name} {key}": values for key, values in changed.items()}
    return results


def adapted(build: Callable[[], Any], source: str, shift: str) -> Results:
    predictor, test = calibrated(build, source)
    other = predictor.adapt(samples(source, "more"), shift=shift)
    return results_of(other.predict_set(test, list(ALPHAS)))


def make_cases() -> dict[str, Callable[[], Results]]:
    cases = {name: partial(predict, *build) for name, build in (BUILDS | BASELINES).items()}
    for name in (
        *(f"standard aps-{name}" for name in ("raw", "raw tied", "random-raw")),
        *(f"mondrian {name}" for name in ("site logits", "class tied", "bins-quantile logits")),
        *(f"conditional {name}" for name in ("quadratic", "quadratic tied", "ranks", "groups")),
        *(f"conditional {name} logits" for name in ("quadratic randomized", "auto")),
    ):
        cases[f"queries: {name}"] = partial(queries, *BUILDS[name])
    for name in ("clustered 2", "conditional classes", "conditional per-class logits"):
        cases[f"p-values: {name}"] = partial(p_values, *BUILDS[name])
    bases = ("intercept", "line", "quadratic", "ranks", "penalised-ranks", "groups", "auto logits")
    for name, size in product(bases, (1, 2)):
        cases[f"max_size={size}: {name}"] = partial(limited, *BUILDS[f"conditional {name}"], size)
    for name in ("intercept", "quadratic", "groups", "auto logits"):
        cases[f"sample_alphas: {name}"] = partial(by_sample, *BUILDS[f"conditional {name}"])
    changed = ("standard aps-raw", "mondrian site logits", "mondrian class logits", "clustered 2")
    conditional_ones = (f"conditional {basis}" for basis in ("groups", "auto logits", "classes"))
    for name in (*changed, "conditional quadratic", *conditional_ones):
        cases[f"updated: {name}"] = partial(updated, *BUILDS[name])
    shifted = ("standard aps-raw", "mondrian site logits", "conditional quadratic")
    for name, shift in product(shifted, ("label", "covariate")):
        cases[f"{shift} shift: {name}"] = partial(adapted, *BUILDS[name], shift)
    cases["trust: default"] = trust_values
    cases["trust: paper"] = partial(trust_values, neighbour=2, squared=True)
    cases["trust: not normalised"] = partial(trust_values, normalize=False)
    return cases


CASES = make_cases()


@cache
def recorded() -> Results:
    with np.load(FILE) as file:
        return {name: file[name] for name in file.files}


def run_case(name: str) -> Results:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", trustsets.errors.TrustSetsWarning)
        return CASES[name]()


def by_kind(results: Results) -> Results:
    """All masks, statuses and numbers of a case, each end to end, alphas first."""
    kinds: dict[str, list[np.ndarray]] = {}
    for name, values in results.items():
        flat = np.moveaxis(values, -1, 0).ravel() if values.ndim > 1 else values
        kinds.setdefault(name.split()[-1], []).append(flat)
    return {kind: np.concatenate(parts) for kind, parts in kinds.items()}


def differences(name: str, results: Results) -> list[str]:
    """What differs from the recording, in words; empty if nothing does."""
    lines = []
    for kind, now in by_kind(results).items():
        before = recorded().get(f"case/{name}/{kind}", np.empty(0, np.uint8))
        if kind == "mask":
            before = np.unpackbits(before, count=now.size).astype(bool)
        if before.size != now.size:
            lines.append(f"{kind}: {before.size} were recorded, and there are {now.size} now")
            continue
        at = np.flatnonzero(differ(before, now, same_processor(name)))
        if at.size:
            examples = ", ".join(f"{i}: {before[i]} -> {now[i]}" for i in at[:2])
            lines.append(f"{kind}: {at.size} of {now.size} differ, such as {examples}")
    return lines


def differ(before: np.ndarray, now: np.ndarray, bitwise: bool) -> np.ndarray:
    if now.dtype != np.float64:
        return before != now
    other = before.view(np.int64) != np.ascontiguousarray(now).view(np.int64)
    return other if bitwise else other & ~np.isclose(before, now, 1e-9, 1e-9)


def probe() -> np.ndarray:
    """Numbers whose last bits depend on the processor."""
    grid = np.linspace(-4.0, 3.0, 97)
    table = np.sin(np.arange(96.0)).reshape(12, 8)
    return np.concatenate([np.exp(grid), np.log(grid**2 + 0.1), (table @ table.T).ravel()])


@cache
def same_processor(name: str) -> bool:
    """Whether a case was recorded on such a processor: with all others, or later on its own."""
    return bool(np.array_equal(recorded().get(f"probe/{name}", recorded()["probe"]), probe()))


def record(names: list[str]) -> None:
    """Record the cases of these names; without names, all of them."""
    dropped = tuple(f"case/{name}/" for name in names) or ("case/", "probe/")
    data = {key: values for key, values in recorded().items() if not key.startswith(dropped)}
    data |= {f"probe/{name}": probe() for name in names} or {"probe": probe()}
    for name in names or CASES:
        for kind, values in by_kind(run_case(name)).items():
            data[f"case/{name}/{kind}"] = np.packbits(values) if kind == "mask" else values
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
    predictor, test = calibrated(*BUILDS[name])
    predictor.save(tmp_path / "model.trustsets")
    loaded = trustsets.load(tmp_path / "model.trustsets")
    expected = results_of(predictor.predict_set(test, 0.1))
    for key, values in results_of(loaded.predict_set(test, 0.1)).items():
        assert np.array_equal(values, expected[key]), key


if __name__ == "__main__":
    if sys.argv[1:2] == ["record"]:
        record(sys.argv[2:])
    for case in CASES:
        for line in differences(case, run_case(case)):
            print(f"{case}: {line}")
