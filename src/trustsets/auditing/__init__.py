"""Audits: coverage without a test set, and where it fails without naming the bins beforehand.

`audit` evaluates exact leave-one-out sets of the calibration samples. `find_regions` looks for
under-covered regions that a person can read and tests each on samples that took no part in the
search. `excess_risk` measures how well a classifier can predict which sets miss the true class.
Both take sets of test samples, or exact leave-one-out sets of the calibration samples.

The folder is not called ``audit``, because importing it would hide the function in the package.
"""

from trustsets.auditing.leave_one_out import audit
from trustsets.auditing.regions import Condition, Region, Regions, find_regions
from trustsets.metrics import ExcessRisk, excess_risk

__all__ = [
    "Condition",
    "ExcessRisk",
    "Region",
    "Regions",
    "audit",
    "excess_risk",
    "find_regions",
]
