"""The guarantee of learned functions and components, simulated where P(Y | X) is known.

    python studies/default_laws.py [--repeats 200] [--sizes 300 2000]

"learner": the function class is a learned function that overfits badly (trees down to single
samples). Coverage weighted by non-negative functions of that class, the constant and the learned
function itself, may not be less than 1 - alpha on average over data sets. "noise": the features are
pure noise; the sets of the default with them are compared with its sets without features. Coverage
is computed from the true probabilities of new samples, so that only calibration samples vary.
"""

import argparse
import warnings

import numpy as np
from sklearn.tree import DecisionTreeRegressor

from trustsets import ConditionalConformal, Intercept, Learned, ModelOutputs
from trustsets.errors import TrustSetsWarning

ALPHA = 0.1
N_CLASSES, N_FEATURES, N_NEW = 4, 20, 500


def simulate(n: int, rng: np.random.Generator) -> tuple[ModelOutputs, np.ndarray]:
    """Outputs of a classifier that is overconfident by half, and the true probabilities."""
    logits = 3.0 * rng.normal(size=(n, N_CLASSES))
    true = np.exp(0.5 * logits)
    true /= true.sum(axis=1, keepdims=True)
    labels = (true.cumsum(axis=1) > rng.uniform(size=(n, 1))).argmax(axis=1)
    features = rng.normal(size=(n, N_FEATURES))
    return ModelOutputs(logits=logits, labels=labels, features=features), true


def learner_gaps(n: int, repeats: int) -> np.ndarray:
    """Weighted coverage minus 1 - alpha of each data set, by weights 1 and learned function."""
    gaps = []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        samples, (new, true) = simulate(n, rng)[0], simulate(N_NEW, rng)
        overfitted = Learned(regressor=DecisionTreeRegressor(random_state=0), n_components=5)
        predictor = ConditionalConformal(basis=Intercept() + overfitted, tuning_fraction=0.3)
        sets = predictor.calibrate(samples).predict_set(new, alpha=ALPHA)
        coverage = (sets.mask * true).sum(axis=1)
        learned = predictor.conditions_on.design(new)[:, -1]
        weights = np.column_stack([np.ones(N_NEW), learned - learned.min()])
        gaps.append(
            (weights * (coverage - (1.0 - ALPHA))[:, None]).mean(axis=0) / weights.mean(axis=0)
        )
    return np.array(gaps)


def noise_sizes(n: int, repeats: int) -> np.ndarray:
    """Mean sizes with components of pure noise, and without features."""
    sizes = []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        parts = [simulate(n, rng)[0], simulate(N_NEW, rng)[0]]
        bare = [part.replace(features=None) for part in parts]
        sizes.append(
            [
                ConditionalConformal().calibrate(first).predict_set(second, ALPHA).sizes.mean()
                for first, second in (parts, bare)
            ]
        )
    return np.array(sizes)


def main() -> None:
    """Print one line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 2000])
    options = parser.parse_args()
    warnings.simplefilter("ignore", TrustSetsWarning)
    for n in options.sizes:
        gaps = 100.0 * learner_gaps(n, options.repeats)
        errors = gaps.std(axis=0) / np.sqrt(len(gaps))
        for name, gap, error in zip(
            ("constant", "learned"), gaps.mean(axis=0), errors, strict=True
        ):
            print(f"n={n} learner, weight {name}: {gap:+.2f} points (standard error {error:.2f})")
        sizes = noise_sizes(n, options.repeats)
        growth = sizes[:, 0].mean() / sizes[:, 1].mean() - 1.0
        print(f"n={n} noise: mean size {sizes.mean(axis=0).round(3)}, {growth:+.1%}", flush=True)


if __name__ == "__main__":
    main()
