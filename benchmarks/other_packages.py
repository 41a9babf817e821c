"""The conditional package of Gibbs, Cherian and Candès, and puncc, beside trustsets in one run.

    python benchmarks/other_packages.py [--points 20]

`conditionalconformal` 0.0.5 needs NumPy before 2.4, and `puncc` 0.9.3 asks for NumPy before 2, so
both need an environment of their own (``pip install conditionalconformal puncc "numpy<2.3"``).
Packages that cannot be imported are left out. Times are processor time of one thread, ours over
5,000 points. Errors are distances from the linear program at the point where both differ most.
"""

import argparse
import time

import numpy as np
from scipy.optimize import linprog

from trustsets import ModelOutputs, Softmax, StandardConformal
from trustsets.engine import fit_quantiles

ALPHA = 0.1
OWN_POINTS = 5_000


def polynomial(x: np.ndarray, degree: int) -> np.ndarray:
    """All products of powers of two columns up to a degree."""
    powers = [(i, j) for i in range(degree + 1) for j in range(degree + 1 - i)]
    return np.column_stack([x[:, 0] ** i * x[:, 1] ** j for i, j in powers])


def compare_thresholds(n: int, degree: int, points: int) -> None:
    """Thresholds over polynomials of two statistics, scores without ties."""
    try:
        from conditionalconformal import CondConf
    except ImportError as error:
        print(f"conditionalconformal is left out: {error}")
        return
    rng = np.random.default_rng(0)
    x = rng.uniform(-1.0, 1.0, size=(n + OWN_POINTS, 2))
    scores = (0.5 + x[:, 0] ** 2 + 0.3 * x[:, 1]) * rng.exponential(size=n + OWN_POINTS)
    phi = polynomial(x, degree)

    start = time.process_time()
    model = fit_quantiles(phi[:n], scores[:n], alpha=ALPHA)
    fitted = time.process_time()
    ours = model.thresholds(phi[n:]).values[:points]
    own_point = (time.process_time() - fitted) / OWN_POINTS

    peer = CondConf(lambda x, y: y, lambda x: polynomial(x, degree))
    peer.setup_problem(x[:n], scores[:n])
    peer.predict(1 - ALPHA, x[n : n + 1], lambda cut, x: cut, exact=True)  # fits once
    cutoffs, begun = [], time.process_time()
    for row in x[n : n + points]:
        result = peer.predict(1 - ALPHA, row[None], lambda cut, x: cut, exact=True)
        cutoffs.append(float(np.ravel(result)[0]))
    peer_point = (time.process_time() - begun) / points
    differences = np.abs(ours - np.array(cutoffs))
    worst = int(differences.argmax())
    exact = by_linear_program(phi[:n], scores[:n], phi[n + worst])
    print(
        f"| {n:,} x {phi.shape[1]} | {fitted - start:.2f} s | {1e6 * own_point:.0f} us "
        f"| {1e3 * peer_point:.0f} ms | {peer_point / own_point:,.0f} "
        f"| {abs(ours[worst] - exact):.0e} | {abs(cutoffs[worst] - exact):.0e} |"
    )


def by_linear_program(phi: np.ndarray, scores: np.ndarray, row: np.ndarray) -> float:
    """The threshold of one point by its definition, with SciPy's HiGHS."""
    bounds = (-ALPHA, 1.0 - ALPHA)
    dual = linprog(-scores, A_eq=phi.T, b_eq=-(1.0 - ALPHA) * row, bounds=bounds, method="highs")
    return float(-row @ dual.eqlin.marginals)


def compare_sets() -> None:
    """LAC sets of puncc."""
    try:
        from deel.puncc.api.prediction import BasePredictor
        from deel.puncc.classification import LAC
    except ImportError as error:
        print(f"puncc is left out: {error}")
        return
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    X, y = load_digits(return_X_y=True)
    network = LogisticRegression(max_iter=2000).fit(X[:900], y[:900])

    class Probabilities(BasePredictor):
        def predict(self, X: np.ndarray, **_: object) -> np.ndarray:
            return np.asarray(self.model.predict_proba(X))

    peer = LAC(Probabilities(network, is_trained=True), train=False)
    peer.fit(X_calib=X[900:1400], y_calib=y[900:1400])
    _, theirs = peer.predict(X[1400:], alpha=0.05)
    ours = (
        StandardConformal(score=Softmax(), allow_empty=True)
        .calibrate(
            ModelOutputs(probabilities=network.predict_proba(X[900:1400]), labels=y[900:1400])
        )
        .predict_set(ModelOutputs(probabilities=network.predict_proba(X[1400:])), alpha=0.05)
    )
    equal = sum(
        set(map(int, a)) == set(map(int, b)) for a, b in zip(theirs, ours.labels(), strict=True)
    )
    print(f"puncc, LAC: {equal} of {len(ours)} sets are equal")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=20)
    points = parser.parse_args().points
    compare_thresholds(500, 1, 2)  # compiles and imports
    print(
        "| n x p | our fit | ours per point | theirs per point | ratio | our error | their error |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|")
    for n, degree in ((2_000, 2), (10_000, 2), (10_000, 5), (25_000, 5)):
        compare_thresholds(n, degree, points)
    compare_sets()
