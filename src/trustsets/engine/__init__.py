"""Exact conditional quantile thresholds: arrays in, arrays out.

The engine knows quantile regression and nothing of classification. docs/engine.md explains the
mathematics. In reading order, `problem` is the data as solvers see it, `fit` the base fit, `path`
the thresholds of test points, `extreme` those that paths leave over, `model` what callers hold,
`process` many models, and `proof` what a threshold rests on. All use `kernels` of `lanes`,
`compiled` and `linear_program`.
"""

from trustsets.engine.fit import Certificate
from trustsets.engine.linear_program import solve_linear_program
from trustsets.engine.model import QuantileModel, fit_quantiles, warm_up
from trustsets.engine.process import QuantileProcess, default_alphas, fit_quantile_process
from trustsets.engine.proof import ScorePath, Sensitivity, ThresholdProof, prove_threshold
from trustsets.status import Thresholds

__all__ = [
    "Certificate",
    "QuantileModel",
    "QuantileProcess",
    "ScorePath",
    "Sensitivity",
    "ThresholdProof",
    "Thresholds",
    "default_alphas",
    "fit_quantile_process",
    "fit_quantiles",
    "prove_threshold",
    "solve_linear_program",
    "warm_up",
]
