"""For people with a scikit-learn regressor: intervals that are wide only where they have to be.

The engine knows scores, not classes. Scores of both signs, ``y - f(x)`` and ``f(x) - y``, give an
upper and a lower end, each missed with probability alpha / 2. Coverage is kept in every bin of a
statistic of the input, here the spread of the trees. In the figure missed samples are orange.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import RandomForestRegressor

from trustsets import plots
from trustsets.engine import fit_quantiles

ALPHA, BINS = 0.1, 4
rng = np.random.default_rng(0)


def draw(n):
    """Simulated samples."""
    x = rng.uniform(-1.0, 1.0, size=(n, 3))
    noise = 0.1 + 1.5 * np.maximum(x[:, 0], 0.0) ** 2  # large in one part of the inputs only
    skewed = rng.gamma(2.0, size=n) - 2.0  # long above, short below
    return x, np.sin(3.0 * x[:, 0]) + x[:, 1] + noise * skewed


def spread(x):
    """How much the trees disagree."""
    return np.std([tree.predict(x) for tree in forest.estimators_], axis=0)


def functions(own):
    """What coverage is conditioned on: the bins of the spread, and the spread itself."""
    return np.column_stack([np.eye(BINS)[np.searchsorted(edges, own)], own])


forest = RandomForestRegressor(100, min_samples_leaf=5, random_state=0).fit(*draw(2000))
edges = np.quantile(spread(draw(1000)[0]), np.linspace(0, 1, BINS + 1)[1:-1])
(x_calibration, y_calibration), (x, y) = draw(2000), draw(4000)

residuals = y_calibration - forest.predict(x_calibration)
phi, phi_new = functions(spread(x_calibration)), functions(spread(x))
upper = fit_quantiles(phi, residuals, alpha=ALPHA / 2).thresholds(phi_new).values
lower = fit_quantiles(phi, -residuals, alpha=ALPHA / 2).thresholds(phi_new).values
rank = int(np.ceil((len(residuals) + 1) * (1 - ALPHA)))  # the usual split conformal interval
constant = np.full(len(x), np.sort(np.abs(residuals))[rank - 1])
error, part = y - forest.predict(x), phi_new[:, :BINS].argmax(axis=1)
with plots.style(medium="page"):
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
    ends = {"one width": (constant, constant), "engine": (lower, upper)}
    for ax, (name, (below, above)) in zip(panels, ends.items(), strict=True):
        hit, width = (-below <= error) & (error <= above), below + above
        print(f"{name}: {hit.mean():.3f} covered, mean width {width.mean():.2f}")
        for b in range(BINS):
            own = part == b
            print(f"  spread, bin {b + 1}: {hit[own].mean():.3f}, width {width[own].mean():.2f}")
        ax.vlines(x[:400, 0], -below[:400], above[:400], color="0.8", lw=1)
        ax.scatter(x[:400, 0], error[:400], s=5, c=np.where(hit, "C0", "C1")[:400], zorder=2)
        ax.set(title=name, xlabel="first input", ylabel="y minus its prediction")
    figure.savefig("intervals.png")
