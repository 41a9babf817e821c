"""What the paper does not vary: the samples behind the trust score, and the calibration samples.

Run with ``python studies/paper_variations.py cifar100 cifar100lt ham10000 --data DIR``, where DIR
has ``NAME_pool.npz`` and ``NAME_train.npz``. Prints the two tables that `README.md` shows.
"""

import argparse
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trustsets import (
    ConditionalConformal,
    Evaluation,
    ModelOutputs,
    TemperatureScaling,
    TrustScore,
    evaluate,
)
from trustsets.errors import TrustSetsWarning
from trustsets.metrics import correlate, label_ranks
from trustsets_paper.baselines import AuthorsStandard
from trustsets_paper.protocol import (
    CONDITIONAL,
    MAIN_SCORE,
    MATCHED,
    SCORES,
    STANDARD,
    TRUST_OPTIONS,
    Options,
    sets_of_size,
)
from trustsets_paper.sources import POOL, Source, read_source
from trustsets_paper.tables import MAIN_COLUMNS, PaperTable, Row, summarise

SIZES = (500, 1000, 2000, 5000, 10_000, 15_000)
LARGEST_SHARE = 0.75
OPTIONS = Options(bins="code")
Results = dict[str, list[Evaluation]]


def evaluations(
    name: str, calibration: ModelOutputs, test: ModelOutputs, judged: ModelOutputs
) -> dict[str, Evaluation]:
    """STANDARD, CONDITIONAL, and STANDARD of its mean size; `judged` has the trust of the bins."""
    score = SCORES[MAIN_SCORE]
    temperature = TemperatureScaling().fit(calibration).temperature_
    shared: dict[str, Any] = {"score": score, "temperature": temperature, "allow_empty": True}
    methods = {
        STANDARD: AuthorsStandard(**shared, tuning_fraction=0.0),
        CONDITIONAL: ConditionalConformal.paper(**shared),
    }
    outcomes = {}
    for method, predictor in methods.items():
        sets = predictor.calibrate(calibration).predict_set(test, OPTIONS.alpha)
        outcomes[method] = sets.covers(test.labels), sets.sizes
    size = float(outcomes[CONDITIONAL][1].mean())
    outcomes[MATCHED] = sets_of_size(score, test, temperature, size)
    return {
        method: evaluate(
            covered,
            judged,
            alpha=OPTIONS.alpha,
            sizes=sizes,
            metrics=["conf_trust", "conf_rank", "class"],
            bins=OPTIONS.partitions(name),
            n_bootstrap=1,
        )
        for method, (covered, sizes) in outcomes.items()
    }


def by_size(source: Source, seeds: Sequence[int]) -> Iterator[Row]:
    """Methods by the number of calibration samples, on the same quarter of test samples."""
    pool = source.parts[POOL]
    for size in SIZES:
        results: Results = {}
        for seed in seeds if size <= LARGEST_SHARE * len(pool) else ():
            rest, test = pool.split(LARGEST_SHARE, seed=seed, stratify=True)
            if size < len(rest):
                rest = rest.split(size / len(rest), seed=seed, stratify=True)[0]
            for method, item in evaluations(source.name, rest, test, test).items():
                results.setdefault(method, []).append(item)
        yield from rows((source.name, f"{size:,}"), results, MAIN_COLUMNS)


def by_trust(source: Source, seeds: Sequence[int]) -> Iterator[Row]:
    """CONDITIONAL by the samples behind its trust score; bins are those of all training samples.

    Half of the pool is the held-out reference, a quarter calibrates and a quarter tests.
    """
    results: Results = {}
    for seed in seeds:
        reference, rest = source.parts[POOL].split(0.5, seed=seed, stratify=True)
        judged = rest.split(0.5, seed=seed, stratify=True)[1]
        for name, samples in reference_samples(source, reference, seed).items():
            trust = TrustScore(**TRUST_OPTIONS[OPTIONS.trust]).fit(*samples)
            values = trust.score(np.asarray(rest.features), rest.predicted)
            calibration, test = rest.with_trust(values).split(0.5, seed=seed, stratify=True)
            item = evaluations(source.name, calibration, test, judged)[CONDITIONAL]
            correlation = correlate(np.asarray(test.trust), label_ranks(test))
            results.setdefault(name, []).append(replace(item, correlation=correlation))
    yield from rows((source.name,), results, (*MAIN_COLUMNS, "spearman"))


def reference_samples(
    source: Source, reference: ModelOutputs, seed: int
) -> dict[str, tuple[Any, Any]]:
    """Features and labels behind the trust score, by name."""
    assert source.train is not None
    features, labels = source.train
    drawn = np.random.default_rng(seed).permutation(len(labels))[: len(reference)]
    return {
        "all training samples": (features, labels),
        f"{drawn.size:,} training samples": (features[drawn], labels[drawn]),
        f"{len(reference):,} held-out samples": (reference.features, reference.labels),
    }


def rows(block: tuple[str, ...], results: Results, columns: Sequence[str]) -> Iterator[Row]:
    """A row for each method or kind of trust."""
    for name, items in results.items():
        yield Row(block, name, tuple(summarise(items, column) for column in columns))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore", TrustSetsWarning)
    seeds, sources = range(1, options.seeds + 1), []
    for name in options.names:
        source = read_source(name, options.data)
        assert source.train is not None
        trust = TrustScore(**TRUST_OPTIONS[OPTIONS.trust]).fit(*source.train)
        pool = source.parts[POOL]
        values = trust.score(np.asarray(pool.features), pool.predicted)
        sources.append(source.with_trust({POOL: values}))
    tables = {
        ("Dataset", "Trust from"): (by_trust, (*MAIN_COLUMNS, "spearman")),
        ("Dataset", "n", "Method"): (by_size, MAIN_COLUMNS),
    }
    for heads, (make, columns) in tables.items():
        made = tuple(row for source in sources for row in make(source, seeds))
        print(PaperTable(None, "", "", heads, columns, made).to_markdown())


if __name__ == "__main__":
    main()
