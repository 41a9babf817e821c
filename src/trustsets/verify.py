"""Check a certificate of a threshold with NumPy alone: ``python verify.py certificate.json``.

Threshold: ``row @ b``, where b minimises ``sum_i loss(scores_i - phi_i @ b) - weight * row @ b``,
``loss(r) = (1 - alpha) max(r, 0) + alpha max(-r, 0)``. The slope of the loss of point i is
``1 - alpha`` above the fit, ``-alpha`` below it, and may be any number in between on it. If slopes
can be chosen so that ``sum_i slope_i phi_i = -weight * row``, no b is better.
The certificate holds b (`coefficients`), the `points` on the fit, and their slopes (`duals`). An
infinite threshold has a direction instead, along which the loss grows more slowly than
``weight * row @ b``. This file uses nothing of the package: copy it wherever you like.

Numbers are rounded, and what that excuses depends on no other point. A residual of at most
`ROUNDING` of its terms is zero. Sums over points are exact: duals, moved into their interval and by
`TOL` at most, must balance the row up to `TOL` of it. The row is a sum of multiples of rows on the
fit, so that the threshold, `RAISED` by that share of the terms at most, is this sum of scores.
"""

import json
import math
import sys
from fractions import Fraction
from typing import Any

import numpy as np

ROUNDING, TOL, RAISED = 1e-12, 1e-10, 1e-8
DEPENDENT = 1e-11  # Singular values of at most this share of the largest are zero.
TINY = 1e-150  # Sizes below it count as zero. Sums of numbers up to 1 / TINY**2 are finite.
SHAPES = {"alpha": 0, "weight": 0, "threshold": 0, "row": 1, "coefficients": 1, "phi": 2}
SHAPES |= {"scores": 1, "points": 1, "duals": 1}


def read_certificate(path: str) -> dict[str, Any]:
    """Read a .npz or JSON file; ValueError if it is no certificate."""
    try:
        with open(path, "rb") as file:
            npz = file.read(2) == b"PK"
            file.seek(0)
            values = dict(np.load(file, allow_pickle=False)) if npz else json.load(file)
        out = {name: np.asarray(values[name], dtype=float) for name in SHAPES}
    except Exception as error:  # any content that is no archive, no JSON or no numbers
        if isinstance(error, OSError):
            raise
        raise ValueError(f"{path} is no certificate ({type(error).__name__}: {error}).") from error
    p, n, k = out["row"].size, out["scores"].size, out["points"].size
    out["phi"] = out["phi"] if n else np.zeros((0, p))
    right = all(out[name].ndim == ndim for name, ndim in SHAPES.items())
    right = right and out["phi"].shape == (n, p) and out["coefficients"].size == p > 0
    finite = all((np.abs(out[name]) <= TINY**-2).all() for name in SHAPES if name != "threshold")
    rows = sorted(set(out["points"].tolist()) & set(range(n)))
    if not (right and finite and out["duals"].size == k == len(rows)) or np.isnan(out["threshold"]):
        raise ValueError(f"{path} is no certificate: arrays of wrong shape, NaN or row numbers.")
    return out | {"points": out["points"].astype(int)}


def failing_conditions(c: dict[str, Any]) -> list[str]:
    """What is wrong, in words; nothing if the threshold is proven."""
    alpha, weight, threshold = (float(c[name]) for name in ("alpha", "weight", "threshold"))
    row, phi, scores, b, duals = (c[x] for x in ("row", "phi", "scores", "coefficients", "duals"))
    if not (0.0 < alpha < 1.0 and -alpha < weight <= 1.0 - alpha):
        return ["alpha must be in (0, 1), and weight above -alpha and at most 1 - alpha"]
    fitted, sizes, value = phi @ b, np.abs(phi) @ np.abs(b), row @ b
    if np.isinf(threshold):
        grows = np.maximum(alpha * fitted, (alpha - 1.0) * fitted).sum()
        grows += (len(b) + 16) * 2.0**-52 * (sizes.sum() + np.abs(row) @ np.abs(b))
        proven = weight * value > grows and threshold * weight > 0.0
        return [] if proven else ["the threshold is not infinite along the given direction"]
    points, slopes = c["points"], np.where(scores > fitted, 1.0 - alpha, -alpha)
    slopes[points] = duals
    total = [Fraction(weight) * Fraction(number) for number in row.tolist()]
    for slope in np.unique(slopes):
        for j, numbers in enumerate(map(np.ndarray.tolist, phi[slopes == slope].T)):
            while part := math.fsum(numbers):  # and then what rounding has left, until it is zero
                total[j] += Fraction(slope) * Fraction(part)
                numbers.append(-part)
    # Functions of the same span, but independent. A large row must not hide what others depend on.
    every = np.vstack([phi, row])
    every /= np.maximum(np.abs(every).max(axis=1, keepdims=True), TINY)
    scale = np.maximum(np.abs(every).max(axis=0), TINY)
    _, values, axes = np.linalg.svd(every / scale, full_matrices=False)
    used = values > DEPENDENT * values[0]
    functions = axes[used].T / values[used] / scale[:, None]
    rows, goal, left = (x @ functions for x in (phi[points], row, np.array(total, dtype=float)))
    # Functions that were dependent up to rounding are balanced up to that.
    noise = ROUNDING * np.abs(row).max() * values[0] / values[used]
    left -= np.clip(left, -noise, noise)
    moves, free = np.zeros(len(duals)), np.ones(len(duals), dtype=bool)
    for _ in range(4):  # duals that arrive at a bound stay there
        moves[free] += np.linalg.lstsq(rows[free].T, left - moves @ rows, rcond=None)[0]
        bounded = np.clip(moves, duals - (1.0 - alpha), duals + alpha)
        free, moves = free & (bounded == moves), bounded
    off = np.linalg.norm(left - moves @ rows) - ROUNDING * np.linalg.norm(left)
    # Rows of equal length: multiples of long ones that cancel would widen the last bound.
    lengths = np.linalg.norm(rows, axis=1) + TINY
    shares, _, rank, _ = np.linalg.lstsq((rows / lengths[:, None]).T, goal, rcond=DEPENDENT)
    terms = np.abs(shares) / lengths @ (np.abs(scores) + sizes)[points]
    balanced = np.abs(moves).max(initial=0.0) <= TOL and off <= TOL * np.linalg.norm(goal)
    checks = {
        "a point is not on the fit": is_on_fit(phi, scores, b)[points].all(),
        "the slopes do not balance the row": balanced and rank == len(goal),
        "the threshold is not row @ coefficients": abs(value - threshold) <= RAISED * terms,
    }
    return [words for words, holds in checks.items() if not holds]


def is_on_fit(phi: Any, scores: Any, b: Any) -> Any:
    """Which residuals are zero up to the rounding of their terms."""
    return np.abs(scores - phi @ b) <= ROUNDING * (np.abs(scores) + np.abs(phi) @ np.abs(b))


if __name__ == "__main__":
    reasons = failing_conditions(read_certificate(sys.argv[1]))
    print("not valid: " + "; ".join(reasons) if reasons else "valid")
    sys.exit(1 if reasons else 0)
