"""Reduce, solve, check: how a large problem is solved over few of its points."""

from abc import ABC, abstractmethod

import numpy as np

from trustsets.engine.compiled import BoolArray, FloatArray, IntArray
from trustsets.engine.descent import CAPPED, OPTIMAL

__all__ = ["ActiveSet", "loss_slopes"]

MAX_ROUNDS = 60
"""Rounds of reduce, solve, check. The active set grows, so all points are active long before."""


class ActiveSet(ABC):
    """The loop that the base fit, extreme test points and the linear program share.

    Points outside the active set are fixed on their side of a centre, so that they enter the
    problem only through the sum of their slopes. The problem is solved over the active points. If
    its solution leaves every fixed point on its side, it is optimal for all points: the dual
    values of active and fixed points together are feasible, and every sign agrees with them.
    Otherwise the active set changes and the problem is solved again (Portnoy and Koenker 1997).
    """

    active: IntArray

    def run(self) -> int:
        """Repeat until the solution is optimal for all points, or cannot be found; the status."""
        for _ in range(MAX_ROUNDS):
            self.active = self.choose()
            status = self.solve_active()
            if status == OPTIMAL:
                wrong = self.wrong_points()
                if len(wrong) == 0:
                    return OPTIMAL
                self.recentre(wrong)
            elif self.is_final(status):
                return status
            else:
                self.enlarge()
        return CAPPED

    @abstractmethod
    def choose(self) -> IntArray:
        """Row numbers of the active points of the next round."""

    @abstractmethod
    def solve_active(self) -> int:
        """Solve over the active points, store what was found and return its status."""

    @abstractmethod
    def wrong_points(self) -> IntArray:
        """Fixed points that the solution puts on the other side."""

    @abstractmethod
    def recentre(self, wrong: IntArray) -> None:
        """Prepare the next round after an optimum with some fixed points on the wrong side."""

    @abstractmethod
    def is_final(self, status: int) -> bool:
        """Whether a status other than `OPTIMAL` holds for the problem of all points, too."""

    @abstractmethod
    def enlarge(self) -> None:
        """Prepare the next round after one without an optimum."""


def loss_slopes(copies: FloatArray, is_above: BoolArray, alpha: float) -> FloatArray:
    """Dual values of points off the fit: ``1 - alpha`` above it and ``-alpha`` below, per copy."""
    return np.asarray(copies * np.where(is_above, 1.0 - alpha, -alpha))
