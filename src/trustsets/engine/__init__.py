"""Exact conditional quantile thresholds: arrays in, arrays out.

Knows quantile regression, not classification. Imports NumPy, SciPy, numba, `trustsets.errors`
and `trustsets.status` only.
"""

from trustsets.engine.fit import Certificate
from trustsets.engine.model import QuantileModel, fit_quantiles, warm_up
from trustsets.engine.oracle import solve_oracle
from trustsets.engine.result import Thresholds

__all__ = ["Certificate", "QuantileModel", "Thresholds", "fit_quantiles", "solve_oracle", "warm_up"]
