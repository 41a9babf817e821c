"""The paper's claims on any data, and what the paper does not vary.

A claim is a difference between two methods, seed by seed on the same samples. It holds where the
mean difference is beyond two standard errors on the claimed side, and is contradicted where it is
beyond them on the other side. Three further tables vary what is conditioned on, the training
samples behind the trust score, and the number of calibration samples.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np

from trustsets import (
    ConditionalConformal,
    Evaluation,
    ModelOutputs,
    Polynomial,
    Predictor,
    TemperatureScaling,
    TrustScore,
    evaluate,
)
from trustsets.errors import TrustSetsWarning
from trustsets.metrics import correlate, label_ranks
from trustsets.resuming import digest
from trustsets_paper import Floats
from trustsets_paper.authors import read_json
from trustsets_paper.baselines import AuthorsStandard
from trustsets_paper.protocol import (
    ABLATION,
    CONDITIONAL,
    DEFAULT,
    GROUPWISE,
    MAIN_SCORE,
    MATCHED,
    MATCHED_DEFAULT,
    PACKAGE_POLYNOMIAL,
    PCA,
    RANK_SHOWN,
    SCORES,
    STANDARD,
    Cell,
    Run,
    StageCache,
    sets_of_size,
)
from trustsets_paper.sources import POOL
from trustsets_paper.tables import (
    MAIN_COLUMNS,
    Number,
    PaperTable,
    Row,
    printed_values,
    shared_columns,
    summarise,
)

__all__ = [
    "CLAIMS",
    "Claim",
    "Verdict",
    "ablation_table",
    "claims_rows",
    "judge",
    "size_table",
    "trust_table",
]

_STANDARD_ERRORS = 2.0
# Marginal coverage that is printed as 0.90 with two digits.
_COVERAGE_SLACK = 0.005
CALIBRATION_SIZES = (500, 1000, 2000, 5000, 10_000, 15_000, 20_000)
"""Calibration samples of the table by their number, as far as three quarters of the pool go."""
_LARGEST_SHARE = 0.75
# Intervals count only where there is one seed.
_BOOTSTRAP = 50

# --- claims


@final
@dataclass(frozen=True)
class Claim:
    """One statement of the paper: `row` is better than `against` in a column, or not worse."""

    text: str
    row: str
    against: str
    column: str  # of `Evaluation.metrics`, or one of the words that `_values` knows
    section: str = ""  # of the paper
    score: str = MAIN_SCORE
    higher: bool = False  # higher is better
    comparable: bool = False  # it holds as well where neither is better
    claimed: bool = True  # by the paper; otherwise it is a comparison that the paper lacks


CLAIMS = tuple(Claim(**fields) for fields in read_json("claims.json"))
"""Claims in the order of the paper, and the same against STANDARD of the same mean size."""


@final
@dataclass(frozen=True)
class Verdict:
    """What the seeds of one dataset say of a claim."""

    word: Literal["yes", "no", "undecided"]
    value: float
    against: float
    difference: float
    standard_error: float
    floor: float

    @property
    def text(self) -> str:
        """The verdict, both numbers, and the noise floor where the first does not exceed it."""
        numbers = f"{self.value:.2f} against {self.against:.2f}"
        change = f"{self.difference:+.2f} ({self.standard_error:.2f})"
        below = f"; noise floor {self.floor:.2f}" if self.value <= self.floor else ""
        return f"{self.word}: {numbers}, {change}{below}"


def judge(claim: Claim, run: Run) -> Verdict | None:
    """Judge a claim by paired differences over seeds; None where the run has not what it needs."""
    row = _values(run, claim, claim.row)
    constants = {"coverage": 1.0 - run.options.alpha, "rising pairs": 0.5}
    against = np.full(row.shape, constants.get(claim.column, 0.0))
    if claim.against:
        against = _values(run, claim, claim.against)
    if row.size == 0 or against.size == 0:
        return None
    differences = row - against
    mean, error = float(differences.mean()), 0.0
    if row.size > 1:
        error = float(differences.std(ddof=1) / np.sqrt(row.size))
    estimate = run.evaluations[_cell(run, claim.score, claim.row)][0].metrics.get(claim.column)
    return Verdict(
        word=_word(-mean if claim.higher else mean, error, claim),
        value=float(row.mean()),
        against=float(against.mean()),
        difference=mean,
        standard_error=error,
        floor=estimate.floor if estimate is not None and claim.column.endswith("gap") else np.nan,
    )


def _word(cost: float, error: float, claim: Claim) -> Literal["yes", "no", "undecided"]:
    if claim.column == "coverage":
        return "yes" if abs(cost) <= _COVERAGE_SLACK else "no"
    if cost > _STANDARD_ERRORS * error:
        return "no"
    return "yes" if claim.comparable or cost < -_STANDARD_ERRORS * error else "undecided"


def _cell(run: Run, score: str, method: str) -> Cell:
    return Cell(score, method, run.options.degree if method == CONDITIONAL else None)


def _values(run: Run, claim: Claim, method: str) -> Floats:
    """A number for each seed; empty where there are none."""
    cell, column = _cell(run, claim.score, method), claim.column
    if column.startswith("groups."):
        return _group_values(run, claim.score, method, column.removeprefix("groups."))
    evaluations = run.evaluations.get(cell, [])
    if column in ("smallest balls", "largest balls"):
        end = 0 if column == "smallest balls" else -1
        curves = [curve for curve in run.balls.get(cell, []) if curve.radii.size]
        return np.array([curve.gap[end] for curve in curves])
    if column == "rising pairs":
        return np.array([_rising_pairs(item) for item in evaluations])
    return np.array([item.metrics[column].value for item in evaluations if column in item.metrics])


def _group_values(run: Run, score: str, method: str, part: str) -> Floats:
    """Mean gap over the group columns, or the lowest coverage of any group.

    GROUPWISE is judged by the column that it uses.
    """
    names = run.source.groups
    several = method == GROUPWISE and len(names) > 1
    columns = []
    for name in names:
        cell = _cell(run, score, f"{method} by {name}" if several else method)
        runs = run.evaluations.get(cell, [])
        columns.append([item.metrics[f"group:{name}.{part}"].value for item in runs])
    values: Floats = np.array(columns, dtype=np.float64)
    if not values.size:
        return np.empty(0)
    return np.asarray(values.mean(axis=0) if part == "gap" else values.min(axis=0))


def _rising_pairs(evaluation: Evaluation) -> float:
    """Share of neighbouring Rank bins of one Conf bin in which coverage rises."""
    table = evaluation.tables[RANK_SHOWN]
    coverage = np.full(table.shape, np.nan)
    coverage[tuple(table.index.T)] = table.coverage
    steps = np.diff(coverage, axis=1)
    steps = steps[~np.isnan(steps)]
    return float(np.mean(steps > 0.0)) if steps.size else np.nan


def claims_rows(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of claims: what is printed, and a column for each run."""
    header = ["Claim", "Section", "printed", *(run.source.name for run in runs)]
    rows = []
    for claim in CLAIMS:
        verdicts = [judge(claim, run) for run in runs]
        texts = ["" if verdict is None else verdict.text for verdict in verdicts]
        if any(texts):
            section = claim.section if claim.claimed else "not in the paper"
            rows.append([claim.text, section, _printed_words(claim), *texts])
    return header, rows


def _printed_words(claim: Claim) -> str:
    """How many of the paper's datasets agree by the printed numbers and their errors."""
    number = 4 if claim.against == PCA else 5
    if claim.column.startswith("groups."):
        number = 2
    column = claim.column.replace("groups.", "group:skin_type.")
    printed = printed_values()
    words = []
    for key, item in printed.items():
        table, _, score, method, name = key
        if (table, score, method, name) == (number, claim.score, claim.row, column):
            other = printed.get((*key[:3], claim.against, name))
            if other is not None:
                (mean, error, _), (base, base_error, _) = item.target, other.target
                cost = base - mean if claim.higher else mean - base
                words.append(_word(cost, float(np.hypot(error, base_error)), claim))
    counts = [f"{words.count(word)} {word}" for word in ("yes", "no", "undecided") if word in words]
    return ", ".join(counts)


# --- what the paper does not vary


def ablation_table(runs: Sequence[Run]) -> PaperTable:
    """What is conditioned on: Conf, Trust or both, in the paper's setting and in the default's."""
    names = [STANDARD, *(f"{CONDITIONAL}, {name}" for name in ABLATION if name != "Conf and Trust")]
    names += [CONDITIONAL, MATCHED]
    names += [f"{PACKAGE_POLYNOMIAL}, {name}" for name in ABLATION] + [DEFAULT, MATCHED_DEFAULT]
    columns = shared_columns(runs[0], MAIN_COLUMNS)
    rows = []
    for run in runs:
        for name in names:
            evaluations = run.evaluations.get(_cell(run, MAIN_SCORE, name))
            if evaluations:
                title = f"{name}, Conf and Trust" if name == CONDITIONAL else name
                rows.append(Row((run.source.name,), title, _numbers(evaluations, columns)))
    title = "What is conditioned on"
    return PaperTable(None, "ablation", title, ("Dataset", "Method"), columns, tuple(rows))


def size_table(runs: Sequence[Run], cache: StageCache, seeds: Sequence[int]) -> PaperTable:
    """CONDITIONAL by the number of calibration samples, on the same quarter of test samples."""
    rows = []
    for run in runs:
        pool = run.source.parts[POOL]
        for size in CALIBRATION_SIZES:
            results: dict[str, list[Evaluation]] = {}
            for seed in seeds if size <= _LARGEST_SHARE * len(pool) else ():
                rest, test = pool.split(_LARGEST_SHARE, seed=seed, stratify=True)
                calibration = rest
                if size < len(rest):
                    calibration = rest.split(size / len(rest), seed=seed, stratify=True)[0]
                inputs = {"seed": seed, "size": size}
                for name, item in _evaluated(run, cache, (calibration, test, test), inputs).items():
                    results.setdefault(name, []).append(item)
            rows += [
                Row((run.source.name, f"{size:,}"), name, _numbers(items, MAIN_COLUMNS))
                for name, items in results.items()
            ]
    heads, title = ("Dataset", "n", "Method"), "Number of calibration samples"
    return PaperTable(None, "sizes", title, heads, MAIN_COLUMNS, tuple(rows))


def trust_table(runs: Sequence[Run], cache: StageCache, seeds: Sequence[int]) -> PaperTable:
    """Trust from samples that the network was fitted to, and from samples that it never saw.

    Half of the pool is the held-out reference, a quarter calibrates and a quarter tests. The bins
    are those of the trust score of all training samples for all rows.
    """
    columns, rows = (*MAIN_COLUMNS, "spearman"), []
    for run in runs:
        results: dict[str, list[Evaluation]] = {}
        for seed in seeds:
            reference, rest = run.source.parts[POOL].split(0.5, seed=seed, stratify=True)
            for name, samples in _trust_samples(run, reference, seed).items():
                inputs = {"seed": seed, "trust": name}
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", TrustSetsWarning)  # small classes
                    trust = TrustScore(**run.options.trust_options).fit(*samples)
                values = trust.score(np.asarray(rest.features), rest.predicted)
                parts = rest.with_trust(values).split(0.5, seed=seed, stratify=True)
                judged = rest.split(0.5, seed=seed, stratify=True)[1]
                evaluation = _evaluated(run, cache, (*parts, judged), inputs)[CONDITIONAL]
                correlation = correlate(np.asarray(parts[1].trust), label_ranks(parts[1]))
                item = replace(evaluation, correlation=correlation)
                results.setdefault(name, []).append(item)
        rows += [
            Row((run.source.name,), name, _numbers(items, columns))
            for name, items in results.items()
        ]
    title, heads = "Samples behind the trust score of CONDITIONAL", ("Dataset", "Trust from")
    return PaperTable(None, "trust", title, heads, columns, tuple(rows))


def _trust_samples(run: Run, reference: ModelOutputs, seed: int) -> dict[str, tuple[Any, Any]]:
    """Features and labels behind the trust score, by name."""
    assert run.source.train is not None  # there is a trust score, so there are training samples
    features, labels = run.source.train
    drawn = np.random.default_rng(seed).permutation(len(labels))[: len(reference)]
    return {
        "all training samples": (features, labels),
        f"{drawn.size:,} training samples": (features[drawn], labels[drawn]),
        f"{len(reference):,} held-out samples": (reference.features, reference.labels),
    }


def _evaluated(
    run: Run, cache: StageCache, parts: Sequence[ModelOutputs], inputs: dict[str, Any]
) -> dict[str, Evaluation]:
    """STANDARD, CONDITIONAL, and STANDARD with its mean size, on samples of one's choice.

    `parts` are calibration and test samples, and the test samples with the trust score of the bins.
    """
    calibration, test, judged = parts
    options, score = run.options, SCORES[MAIN_SCORE]

    def make() -> dict[str, Any]:
        temperature = TemperatureScaling().fit(calibration).temperature_
        shared: dict[str, Any] = {"score": score, "temperature": temperature, "allow_empty": True}
        basis = Polynomial(degree=options.degree)
        methods: dict[str, Predictor] = {
            STANDARD: AuthorsStandard(**shared, tuning_fraction=0.0),
            CONDITIONAL: ConditionalConformal.paper(**shared, basis=basis),
        }
        outcomes = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrustSetsWarning)  # calibration samples are reused
            for name, predictor in methods.items():
                sets = predictor.calibrate(calibration).predict_set(test, options.alpha)
                outcomes[name] = sets.covers(test.labels), sets.sizes
        size = float(outcomes[CONDITIONAL][1].mean())
        outcomes[MATCHED] = sets_of_size(score, test, temperature, size)
        return {
            name: evaluate(
                covered,
                judged,
                alpha=options.alpha,
                sizes=sizes,
                metrics=["conf_trust", "conf_rank", "class"],
                bins=options.partitions(run.source.name),
                n_bootstrap=_BOOTSTRAP,
            ).to_json()
            for name, (covered, sizes) in outcomes.items()
        }

    key = inputs | {
        "outputs": run.source.outputs_digest,
        "trust": [digest(np.asarray(part.trust)) for part in parts],
        "options": [options.alpha, options.degree, options.bins, options.rank_edges],
    }
    stored = cache.get("variations", key, make)
    return {name: Evaluation.from_json(text) for name, text in stored.items()}


def _numbers(items: Sequence[Evaluation], columns: Sequence[str]) -> tuple[Number, ...]:
    return tuple(summarise(items, column) for column in columns)
