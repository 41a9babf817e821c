"""Check a certificate of a threshold with NumPy alone: ``python verify.py certificate.json``.

Threshold: ``row @ b``, where b minimises ``sum_i loss(scores_i - phi_i @ b) - weight * row @ b``,
``loss(r) = (1 - alpha) max(r, 0) + alpha max(-r, 0)``. The slope of the loss of point i is
``1 - alpha`` above the fit, ``-alpha`` below it, and may be any number in between on it. If slopes
can be chosen so that ``sum_i slope_i phi_i = -weight * row``, no b is better.
The certificate holds b (`coefficients`), the `points` on the fit, and their slopes (`duals`). An
infinite threshold has a direction instead, along which the loss grows more slowly than
``weight * row @ b``. This file uses nothing of the package: copy it wherever you like.
"""

import json
import sys
from typing import Any

import numpy as np

TOL, ROUNDING = 1e-8, 1e-12  # of the size of the numbers compared; of the size of summed terms
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
    if n == 0:
        out["phi"] = np.zeros((0, p))
    right = all(out[name].ndim == ndim for name, ndim in SHAPES.items())
    right = right and out["phi"].shape == (n, p) and out["coefficients"].size == p
    finite = all(np.isfinite(out[name]).all() for name in SHAPES if name != "threshold")
    rows = sorted(set(out["points"].tolist()) & set(range(n)))
    if not (right and finite and out["duals"].size == k == len(rows)) or np.isnan(out["threshold"]):
        raise ValueError(f"{path} is no certificate: arrays of wrong shape, NaN or row numbers.")
    return out | {"points": out["points"].astype(int)}


def failing_conditions(c: dict[str, Any]) -> list[str]:
    """What is wrong, in words; nothing if the threshold is proven."""
    alpha, weight, row, phi, b = c["alpha"], c["weight"], c["row"], c["phi"], c["coefficients"]
    if not (0.0 < alpha < 1.0 and -alpha < weight <= 1.0 - alpha):
        return ["alpha must be in (0, 1), and weight above -alpha and at most 1 - alpha"]
    fitted, value = phi @ b, float(row @ b)
    if np.isinf(c["threshold"]):
        grows = np.maximum(alpha * fitted, (alpha - 1.0) * fitted).sum()
        proven = weight * value > (1.0 + ROUNDING) * grows and c["threshold"] * weight > 0.0
        return [] if proven else ["the threshold is not infinite along the given direction"]
    size, points, duals = np.abs(c["scores"]).max(initial=0.0), c["points"], c["duals"]
    residuals = c["scores"] - fitted
    slopes = np.where(residuals > 0.0, 1.0 - alpha, -alpha)
    slopes[points] = duals
    off = np.abs(residuals[points]) - TOL * size - ROUNDING * (np.abs(phi[points]) @ np.abs(b))
    sums = np.abs(phi.T @ slopes + weight * row) - ROUNDING * np.abs(phi).sum(axis=0)
    sums -= TOL * np.maximum(np.abs(phi).max(axis=0, initial=0.0), np.abs(row))
    missed = abs(value - c["threshold"]) - TOL * size - ROUNDING * (np.abs(row) @ np.abs(b))
    checks = {
        "a point is not on the fit": np.all(off <= 0.0),
        "a dual value is not in [-alpha, 1 - alpha]": np.all(
            (duals >= -alpha - TOL) & (duals <= 1.0 - alpha + TOL)
        ),
        "the slopes do not balance the row": np.all(sums <= 0.0),
        "the threshold is not row @ coefficients": missed <= 0.0,
    }
    return [words for words, holds in checks.items() if not holds]


if __name__ == "__main__":
    reasons = failing_conditions(read_certificate(sys.argv[1]))
    print("not valid: " + "; ".join(reasons) if reasons else "valid")
    sys.exit(1 if reasons else 0)
