"""Corrections of the logits that were tried beside the default, and not taken.

    python studies/class_means.py --bench DIR [--seeds 1 2 3] [--samples 3000]
    python studies/class_means.py --tasks CACHE [--seeds 1 2 3] [--sets adult letters]

Each is fitted on tuning samples, as many as the default takes, and then applied to all outputs.
With `--bench`, splits and measures are those of `default.py`; with `--tasks`, those of the
benchmark (`CACHE` as made by `benchmarks/coverage/data_sets.py --cache`), for class means alone.
"Floor" are independent draws with probability 0.9, or the accuracy of the most likely class given
the input where that is higher: what the judge finds in ideal coverage.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from default import (
    ALPHA,
    BOOSTING,
    MOST_TESTED,
    NAMES,
    class_under,
    covered_at_size,
    excess_risk,
    inputs,
    load,
)
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import cross_val_predict

from trustsets import (
    APS,
    ClassBias,
    ConditionalConformal,
    ModelOutputs,
    StandardConformal,
    TrustScore,
)
from trustsets.errors import TrustSetsWarning

Array = np.ndarray
Transform = Callable[[ModelOutputs], ModelOutputs]
RIDGE, FOLDS, NEEDED_ERRORS = 1.0, 3, 2.0
LARGEST_SHARE, FEWEST = 0.2, 500  # of tuning samples, as in the default
COLUMNS = "coverage size ERT under class | split:ERT under class"


def unit(rows: Array) -> Array:
    """Rows divided by their norms."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(norms, 1e-12))


def fit(columns: list[Array], codes: Array) -> tuple[Array, Array]:
    """Slopes of the columns, and class biases with a ridge penalty, of largest likelihood."""
    rows, count = np.arange(len(codes)), len(columns)
    counts = np.bincount(codes, minlength=columns[0].shape[1])

    def loss(theta: Array) -> tuple[float, Array]:
        bias = theta[count:]
        z = sum(slope * column for slope, column in zip(theta, columns, strict=False)) + bias
        total = logsumexp(z, axis=1)
        p = np.exp(z - total[:, None])
        slopes = [(p * column).sum() - column[rows, codes].sum() for column in columns]
        value = (total - z[rows, codes]).sum() + 0.5 * RIDGE * bias @ bias
        return value, np.concatenate([slopes, p.sum(axis=0) - counts + RIDGE * bias])

    start = np.eye(1, count + len(counts))[0]
    bounds = [(0.01, None)] + [(0.0, None)] * (count - 1) + [(None, None)] * len(counts)
    theta = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return theta[:count], theta[count:]


def held_out(columns: list[Array], codes: Array) -> Array:
    """Negative log-likelihood of each sample under the fit without its fold."""
    fold = np.random.default_rng(0).permutation(len(codes)) % FOLDS
    losses = np.empty(len(codes))
    for k in range(FOLDS):
        slopes, bias = fit([column[fold != k] for column in columns], codes[fold != k])
        test = [column[fold == k] for column in columns]
        z = sum(slope * column for slope, column in zip(slopes, test, strict=True)) + bias
        losses[fold == k] = logsumexp(z, axis=1) - z[np.arange(len(z)), codes[fold == k]]
    return losses


def class_means(tuning: ModelOutputs, trust: TrustScore, *, always: bool = False) -> Transform:
    """Subtract a multiple of the squared distance to the class mean, at the same temperature.

    Features are centred and normalised. Unless `always`, nothing happens with few tuning samples,
    or where the held-out likelihood does not rise by two standard errors.
    """
    features = trust.training_features_.astype(np.float64)
    labels = np.repeat(trust.classes_, np.diff(trust.to_state()["starts"]))
    center = features.mean(axis=0)
    means = np.stack([unit(features[labels == c] - center).mean(axis=0) for c in trust.classes_])

    def columns(outputs: ModelOutputs) -> list[Array]:
        near = 2.0 * unit(outputs.features - center) @ means.T - (means**2).sum(axis=1)
        return [outputs.logits.astype(np.float64), near]

    codes, (z, near) = tuning.require_labels("fit"), columns(tuning)
    if not always:
        gains = held_out([z], codes) - held_out([z, near], codes)
        few = len(tuning) < FEWEST
        if few or gains.mean() <= NEEDED_ERRORS * gains.std() / np.sqrt(len(gains)):
            return lambda outputs: outputs
    weights = fit([z, near], codes)[0] / fit([z], codes)[0][0]
    return lambda outputs: outputs.with_logits(
        sum(weight * column for weight, column in zip(weights, columns(outputs), strict=True))
    )


def sample_temperature(tuning: ModelOutputs, _: TrustScore) -> Transform:
    """Divide logits by exp(linear function of the ranks of Conf and Trust)."""
    sorted_conf, sorted_trust = np.sort(tuning.confidence), np.sort(tuning.require_trust("fit"))

    def ranks(outputs: ModelOutputs) -> Array:
        conf = np.searchsorted(sorted_conf, outputs.confidence) / len(tuning)
        trust = np.searchsorted(sorted_trust, outputs.require_trust("ranks")) / len(tuning)
        return np.column_stack([np.ones(len(outputs)), conf - 0.5, trust - 0.5])

    codes, z, columns = tuning.require_labels("fit"), tuning.logits.astype(float), ranks(tuning)

    def loss(theta: Array) -> float:
        scaled = z * np.exp(columns @ theta)[:, None]
        return float((logsumexp(scaled, axis=1) - scaled[np.arange(len(z)), codes]).sum())

    theta = minimize(loss, np.zeros(3)).x
    theta[0] = 0.0  # the temperature itself stays
    return lambda o: o.with_logits(o.logits.astype(float) * np.exp(ranks(o) @ theta)[:, None])


def more_counts(tuning: ModelOutputs, extra: float, prevalence: float = 0.75) -> ClassBias:
    """Class biases with `extra` samples added to the count of each class, instead of one."""
    bias = ClassBias().fit(tuning)
    counts = np.bincount(tuning.require_labels("fit"), minlength=tuning.n_classes) + extra
    bias.bias_ = bias.bias_ + prevalence * np.log(counts.max() / counts)
    return bias


VARIANTS: dict[str, tuple[Any, Any]] = {
    "default": (None, None),
    "class means": (class_means, None),
    "class means, always": (lambda *parts: class_means(*parts, always=True), None),
    "temperature by sample": (sample_temperature, None),
    "counts + 10": (None, lambda tuning: more_counts(tuning, 10.0)),
    "fitted biases alone": (None, lambda tuning: more_counts(tuning, 1.0, 0.0)),
}


def calibrated(
    name: str, calibration: ModelOutputs, trust: TrustScore
) -> tuple[ConditionalConformal, Transform]:
    """The default after a correction, and the correction."""
    n, few = len(calibration), max(200, 20 * calibration.n_classes)
    share = min(LARGEST_SHARE, (5000 if LARGEST_SHARE * n >= FEWEST else few) / n)
    rest, tuning = calibration.split(1.0 - share, seed=0)
    make, bias = VARIANTS[name]
    transform = make(tuning, trust) if make else lambda outputs: outputs
    setting = {"class_bias": bias(tuning)} if bias else {}
    predictor = ConditionalConformal(trust=trust, **setting)
    return predictor.calibrate(transform(rest), tuning=transform(tuning)), transform


def ideal_coverage(table: Array, right: Array, draws: np.random.Generator) -> Array:
    """Independent draws with probability 0.9, or the accuracy given the input if that is higher."""
    model = HistGradientBoostingClassifier(**BOOSTING)
    accuracy = cross_val_predict(model, table, right, cv=5, method="predict_proba")[:, 1]
    return np.asarray(draws.random(len(right)) < np.maximum(1.0 - ALPHA, accuracy))


def development(options: argparse.Namespace) -> Iterator[tuple[str, str, list[float]]]:
    """Name of data and row, and cells, for each split."""
    for name in NAMES:
        pool, trust = load(options.bench, name)
        for seed in options.seeds:
            calibration, test = pool.split(0.5, seed=seed, stratify=True)
            draws = np.random.default_rng(seed)
            calibration = calibration.take(draws.permutation(len(calibration))[: options.samples])
            test = test.take(draws.permutation(len(test))[:MOST_TESTED])
            codes, table = test.require_labels("ERT"), inputs(test, trust)
            split = StandardConformal(score=APS(scale="tail")).calibrate(calibration).scores(test)

            def cells(covered: Array, codes: Array = codes, table: Array = table) -> list[float]:
                return [*excess_risk(table, covered), class_under(covered, codes)]

            for row in VARIANTS:
                predictor, transform = calibrated(row, calibration, trust)
                sets = predictor.predict_set(transform(test), alpha=ALPHA)
                covered, size = sets.covers(test.labels), float(sets.sizes.mean())
                same = covered_at_size(split, size, codes)
                yield name, row, [covered.mean(), size, *cells(covered), *cells(same)]
            ideal = ideal_coverage(table, test.predicted_codes == codes, draws)
            yield name, "floor", [ideal.mean(), np.nan, *cells(ideal), *[np.nan] * 3]


def benchmark(options: argparse.Namespace) -> Iterator[tuple[str, str, list[float]]]:
    """The same by the benchmark's judge; class means on the sets that have enough samples."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "coverage"))
    from data_sets import Library, available
    from measures import Judge
    from splits import Split

    shown = ("ert", "ert_under", "class_under")
    for data in available(options.sets):
        task = data.load(Library(options.tasks))
        trust = task.trust_score
        if data.seen or trust is None:
            continue
        enough = len(task) * LARGEST_SHARE / 2 >= FEWEST
        for seed in options.seeds:
            split = Split.draw(task, seed)
            judge, test = Judge(split), task.outputs(split.test)
            table, draws = judge.columns["ert"], np.random.default_rng(seed)
            ideal = ideal_coverage(table, test.predicted_codes == judge.labels, draws)
            risk = judge._excess_risk("ert", table, ideal)
            yield data.name, "floor", [ideal.mean(), np.nan, *risk.values(), *[np.nan] * 4]
            for row in ("default", "class means") if enough else ():
                calibration = task.outputs(split.calibration)
                predictor, transform = calibrated(row, calibration, trust)
                mask = predictor.predict_set(transform(test), alpha=ALPHA).mask
                of_row, same = judge.measure(mask), judge.measure(judge.of_size(int(mask.sum())))
                cells = [of_row[key] for key in ("coverage", "size", *shown)]
                yield data.name, row, cells + [same[key] for key in shown]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path)
    parser.add_argument("--tasks", type=Path)
    parser.add_argument("--sets", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--samples", type=int, default=10**6)
    options = parser.parse_args()
    warnings.simplefilter("ignore", TrustSetsWarning)
    table: dict[tuple[str, str], list[list[float]]] = {}
    for name, row, cells in (development if options.bench else benchmark)(options):
        table.setdefault((name, row), []).append(cells)
        if len(table[name, row]) == len(options.seeds):
            means = " ".join(f"{value:7.3f}" for value in np.mean(table[name, row], axis=0))
            print(f"{name:20s} {row:22s} {means}", flush=True)


if __name__ == "__main__":
    main()
