"""Local coverage: CovGap over Euclidean balls in feature space. Imports inference and below.

The paper's appendix B.4. Distances go from a sample of centres to all points, in blocks:
memory and time grow with n, never with n squared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from trustsets.arrays import Array
from trustsets.blocks import row_blocks
from trustsets.errors import InputError
from trustsets.metrics.coverage import PERCENT, Floats, Ints
from trustsets.metrics.inference import mean_absolute_deviation

__all__ = ["BallCurve", "Balls", "Neighbourhoods"]

# Centres whose distances are held at once: enough for matrix multiplication to run at full
# speed, and 25 MB against 25,000 points.
_CENTRES_AT_ONCE = 256


@final
@dataclass(frozen=True)
class Balls:
    """How to draw balls.

    Parameters
    ----------
    n_radii : int
        Radii are evenly spaced between the smallest and the `largest` quantile of the
        distances of `n_pairs` random pairs.
    n_centres, n_trials : int
        Balls per trial, and trials per radius.
    min_neighbours : int
        Points a ball must hold besides its centre.
    n_pool : int
        Number of sampled points that serve as centres. Every trial at every radius draws
        its centres from those of the pool that have enough neighbours (with replacement
        where they are fewer than `n_centres`); a pool of n is the paper's procedure.
    largest : float
        Quantile of the pair distances that is the largest radius.
    n_pairs : int
        Number of random pairs.
    radii : tuple of float, optional
        Radii to use instead, increasing; `typical_radii` of a whole dataset makes its
        splits comparable.
    seed : int
        The same seed and features give the same balls, so that methods are compared on
        the same ones.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> features, covered = rng.normal(size=(500, 2)), rng.random(500) < 0.9
    >>> curve = Balls(n_radii=3).around(features).curve(covered, alpha=0.1)
    >>> curve.radii.size  # no ball of the smallest radius holds eleven points
    2
    >>> bool((np.diff(curve.count) > 0).all())
    True
    """

    n_radii: int = 10
    n_centres: int = 100
    n_trials: int = 100
    min_neighbours: int = 10
    n_pool: int = 1000
    largest: float = 0.9
    n_pairs: int = 10_000
    radii: tuple[float, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n_radii", "n_centres", "n_trials", "min_neighbours", "n_pool", "n_pairs"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more; got {getattr(self, name)}.")
        if not 0.0 < self.largest <= 1.0:
            raise InputError(f"largest must lie in (0, 1]; got {self.largest}.")
        if self.radii is not None and not (self.radii and np.all(np.diff(self.radii) > 0.0)):
            raise InputError(f"radii must be one or more increasing numbers; got {self.radii}.")

    def around(self, features: Array) -> "Neighbourhoods":
        """Draw centres and radii, and find which ball sizes hold which points.

        Parameters
        ----------
        features : array of shape (n, d)
            Distances are computed in float32 for half and single precision features (after
            centring, so that little cancels), and in float64 for doubles.
        """
        n = features.shape[0]
        if n < 2:
            raise InputError("balls need at least two samples.")
        rng = np.random.default_rng(self.seed)
        drawn = self._radii(features, rng)
        radii = drawn if self.radii is None else np.array(self.radii, dtype=np.float64)
        centres = rng.choice(n, size=min(self.n_pool, n), replace=False)
        shell = np.zeros((centres.size, n), dtype=np.uint16)

        def keep(rows: slice, squared: Array) -> None:
            # Counting the radii that a point exceeds beats a binary search tenfold.
            for limit in (radii**2).astype(squared.dtype):
                shell[rows] += squared > limit
            shell[np.arange(rows.start, rows.stop), centres[rows]] = 0

        _squared_distances(features, centres, keep)
        return Neighbourhoods(self, radii, centres, shell)

    def typical_radii(self, features: Array) -> tuple[float, ...]:
        """Radii that `around` uses on these features, to be given to other samples too."""
        if features.shape[0] < 2:
            raise InputError("balls need at least two samples.")
        return tuple(self._radii(features, np.random.default_rng(self.seed)).tolist())

    def _radii(self, features: Array, rng: np.random.Generator) -> Floats:
        n = features.shape[0]
        first = rng.integers(n, size=self.n_pairs)
        second = (first + rng.integers(1, n, size=self.n_pairs)) % n
        distances = np.empty(self.n_pairs)
        for rows in row_blocks(self.n_pairs, features.shape[1]):
            left = features[first[rows]].astype(np.float64)
            distances[rows] = np.linalg.norm(left - features[second[rows]], axis=1)
        return np.linspace(distances.min(), np.quantile(distances, self.largest), self.n_radii)


@final
@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """Balls of every radius around every centre of the pool.

    Attributes
    ----------
    plan : Balls
        How they were drawn.
    radii : array of shape (R,)
        Increasing.
    centres : int array of shape (C,)
        Samples that are centres.
    shell : int array of shape (C, n)
        Smallest radius whose ball around the centre holds the point; R for none.
    """

    plan: Balls
    radii: Floats
    centres: Ints
    shell: NDArray[np.uint16]

    def curve(self, covered: NDArray[np.bool_], alpha: float) -> "BallCurve":
        """CovGap against radius of one method."""
        return self.curves([covered], alpha)[0]

    def curves(self, covered: Sequence[NDArray[np.bool_]], alpha: float) -> "list[BallCurve]":
        """CovGap against radius of several methods, on the same centres in the same trials."""
        sizes = self._totals(None)
        # The centre lies in its own ball and is no neighbour of itself.
        fit = sizes > self.plan.min_neighbours
        trials = self._trials(fit)
        return [self._curve(sizes, fit, self._totals(hits), trials, alpha) for hits in covered]

    def _totals(self, hits: NDArray[np.bool_] | None) -> Ints:
        """Points (or covered points) of each ball, shape (C, R)."""
        n_radii = self.radii.size
        shell = self.shell if hits is None else self.shell[:, hits]
        totals = np.empty((self.centres.size, n_radii), dtype=np.int64)
        for i, row in enumerate(shell):
            totals[i] = np.cumsum(np.bincount(row, minlength=n_radii + 1)[:n_radii])
        return totals

    def _trials(self, fit: NDArray[np.bool_]) -> list[Ints]:
        """Balls of each trial, one (n_trials, n_centres) array per radius; empty if none fit."""
        plan, trials = self.plan, []
        for radius in range(self.radii.size):
            rng = np.random.default_rng([plan.seed, radius])
            own = np.flatnonzero(fit[:, radius])
            shape = (plan.n_trials, plan.n_centres)
            if own.size >= plan.n_centres:
                order = rng.permuted(np.tile(own, (plan.n_trials, 1)), axis=1)
                trials.append(order[:, : plan.n_centres])
            else:
                trials.append(rng.choice(own, size=shape) if own.size else np.empty((0, 0), int))
        return trials

    def _curve(
        self, sizes: Ints, fit: NDArray[np.bool_], hits: Ints, trials: list[Ints], alpha: float
    ) -> "BallCurve":
        share = hits / sizes
        gap = PERCENT * np.abs(share - (1.0 - alpha))
        floor = PERCENT * mean_absolute_deviation(sizes, 1.0 - alpha)
        at = np.flatnonzero(fit.any(axis=0))
        means = np.array([gap[trials[radius], radius].mean(axis=1) for radius in at])
        means = means.reshape(at.size, self.plan.n_trials)
        spread = means.std(axis=1, ddof=1) if self.plan.n_trials > 1 else np.full(at.size, np.nan)
        return BallCurve(
            radii=self.radii[at],
            gap=means.mean(axis=1),
            standard_error=spread / np.sqrt(self.plan.n_trials),
            trial_spread=spread,
            floor=np.array([floor[fit[:, radius], radius].mean() for radius in at]),
            eligible=np.count_nonzero(fit[:, at], axis=0),
            count=np.array([sizes[fit[:, radius], radius].mean() for radius in at]),
        )


@final
@dataclass(frozen=True, eq=False)
class BallCurve:
    """CovGap over balls against their radius; radii without eligible balls are left out.

    Attributes
    ----------
    radii : array of shape (R,)
        Radius of the balls.
    gap, standard_error : arrays of shape (R,)
        Mean CovGap (percent) over the trials, and its standard error (the spread of the
        trials over the root of their number). It speaks of the drawing of balls, on these
        test samples.
    trial_spread : array of shape (R,)
        Standard deviation over trials: the error of one trial of the paper's size.
    floor : array of shape (R,)
        Exact expected CovGap of a perfect method over the eligible balls.
    eligible : int array of shape (R,)
        Centres of the pool with enough neighbours.
    count : array of shape (R,)
        Mean number of points in an eligible ball.
    """

    radii: Floats
    gap: Floats
    standard_error: Floats
    trial_spread: Floats
    floor: Floats
    eligible: Ints
    count: Floats


def _squared_distances(features: Array, centres: Ints, use: Callable[[slice, Array], None]) -> None:
    """Hand out squared distances from centres to all points, a block of centres at a time.

    ``|a - b|^2 = |a|^2 + |b|^2 - 2 a'b`` lets matrix multiplication do the work.
    """
    dtype = np.float64 if features.dtype == np.float64 else np.float32
    points: Array = features.astype(dtype)
    points -= points.mean(axis=0, dtype=np.float64).astype(dtype)
    norms: Array = np.einsum("ij,ij->i", points, points)
    for start in range(0, centres.size, _CENTRES_AT_ONCE):
        rows = slice(start, min(start + _CENTRES_AT_ONCE, centres.size))
        own = centres[rows]
        squared: Array = points[own] @ points.T
        squared *= -2.0
        squared += norms
        squared += norms[own, None]
        use(rows, squared)
