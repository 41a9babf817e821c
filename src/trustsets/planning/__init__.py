"""How many samples to calibrate on and to test on.

`law` has the exact laws and sizes, `simulation` calibrates on parts of the user's own samples,
`planner` puts both together, and `result` says them in words, a table and a plot.
"""

from trustsets.planning.planner import plan
from trustsets.planning.result import Plan, PlanRow
from trustsets.planning.simulation import Curve, simulate

__all__ = ["Curve", "Plan", "PlanRow", "plan", "simulate"]
