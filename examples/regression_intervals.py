"""For people with a scikit-learn regressor: intervals that are wide only where they have to be.

The engine knows scores, not classes. Scores of both signs, ``y - f(x)`` and ``f(x) - y``, give an
upper and a lower end, each missed with probability alpha / 2. Coverage is kept in every bin of a
statistic of the input, here the spread of the trees of a forest.
"""

import numpy as np
from sklearn.ensemble import RandomForestRegressor

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


def functions(x):
    """What coverage is conditioned on: the bins of the spread, and the spread itself."""
    own = spread(x)
    bins = np.eye(BINS)[np.searchsorted(edges, own)]
    return np.column_stack([bins, own])


forest = RandomForestRegressor(100, min_samples_leaf=5, random_state=0).fit(*draw(2000))
edges = np.quantile(spread(draw(1000)[0]), np.linspace(0, 1, BINS + 1)[1:-1])
(x_calibration, y_calibration), (x, y) = draw(2000), draw(4000)

residuals = y_calibration - forest.predict(x_calibration)
phi = functions(x_calibration)
upper = fit_quantiles(phi, residuals, alpha=ALPHA / 2).thresholds(functions(x)).values
lower = fit_quantiles(phi, -residuals, alpha=ALPHA / 2).thresholds(functions(x)).values

# For comparison: one width for all, the usual split conformal interval.
k = int(np.ceil((len(residuals) + 1) * (1 - ALPHA)))
constant = np.full(len(x), np.sort(np.abs(residuals))[k - 1])

center, part = forest.predict(x), np.searchsorted(edges, spread(x))
print(f"{'spread of the trees':<22}{'samples':>8}{'one width':>20}{'engine':>20}")
for name, rows in [("all", part >= 0)] + [(f"bin {b + 1}", part == b) for b in range(BINS)]:
    cells = []
    for below, above in ((constant, constant), (lower, upper)):
        hit = (center - below <= y) & (y <= center + above)
        cells.append(f"{hit[rows].mean():.3f} (width {(below + above)[rows].mean():.2f})")
    print(f"{name:<22}{rows.sum():>8}{cells[0]:>20}{cells[1]:>20}")
