"""Local coverage: CovGap over Euclidean balls in feature space (the paper's appendix B.4).

The paper asks for balls of radius r around 100 random test samples, with at least 10 neighbours.
The authors' code grows a ball from r by factors of 1.1 until it holds 10 others.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets.metrics import expected_gap
from trustsets_paper import Array, Bools, Floats, Ints

__all__ = ["BallCurve", "Balls", "Neighbourhoods"]

# Centres whose distances are in memory at once: 25 MB for 25,000 samples.
_CENTRES_AT_ONCE = 256
# Random pairs behind the radii, and the quantile of their distances that is the largest radius.
_PAIRS, _LARGEST = 10_000, 0.9
_GROWTH = 1.1
# More steps than between any two distances in double precision; a radius of 0 never grows.
_MOST_GROWTHS = 16_000


@final
@dataclass(frozen=True)
class Balls:
    """How to draw balls; the same seed and features give the same balls for all methods.

    Examples
    --------
    >>> line = np.array([[0.0], [1.0], [2.0], [4.0]])
    >>> balls = Balls(radii=(1.0,), min_neighbours=2, n_centres=4, n_trials=1)
    >>> covered = np.array([True, False, True, True])
    >>> curve = balls.around(line).curve(covered, alpha=0.1)
    >>> curve.gap.round(2)  # around 0: {1, 2}; 1: {0, 2}; 2: {0, 1, 4}; 4: {1, 2}
    array([28.33])
    """

    n_radii: int = 10
    n_centres: int = 100  # balls per trial
    n_trials: int = 100
    redraw: bool = False  # new centres for every radius, as the authors do
    min_neighbours: int = 10  # samples that a ball must hold besides its centre
    radii: tuple[float, ...] | None = None  # increasing; `typical_radii` by default
    seed: int = 0

    def typical_radii(self, features: Array) -> tuple[float, ...]:
        """Radii from the smallest distance of random pairs to the 90th percentile.

        Those of a whole dataset make its splits comparable.
        """
        n, rng = features.shape[0], np.random.default_rng(self.seed)
        first = rng.integers(n, size=_PAIRS)
        second = (first + rng.integers(1, n, size=_PAIRS)) % n
        gaps = features[first].astype(np.float64) - features[second]
        distances = np.linalg.norm(gaps, axis=1)
        ends = distances.min(), np.quantile(distances, _LARGEST)
        return tuple(np.linspace(*ends, self.n_radii).tolist())

    def around(self, features: Array) -> "Neighbourhoods":
        """Draw centres and radii, grow the balls, and find which balls hold which samples.

        Distances are ``|a|^2 + |b|^2 - 2 a'b`` of centred features, in float64 for doubles and in
        float32 otherwise.
        """
        radii = np.array(self.radii or self.typical_radii(features))
        n, rng = features.shape[0], np.random.default_rng([self.seed, self.n_trials])
        width = min(self.n_centres, n)
        shape = (radii.size if self.redraw else 1, self.n_trials, width)
        draws = [rng.choice(n, width, replace=False) for _ in range(shape[0] * shape[1])]
        centres, drawn = np.unique(draws, return_inverse=True)
        shell = np.zeros((centres.size, n), dtype=np.uint8 if radii.size < 256 else np.uint16)
        reach = np.empty((centres.size, radii.size))
        precision = np.float64 if features.dtype == np.float64 else np.float32
        points: Array = features.astype(precision)
        points -= points.mean(axis=0, dtype=np.float64).astype(precision)
        norms: Array = np.einsum("ij,ij->i", points, points)
        for start in range(0, centres.size, _CENTRES_AT_ONCE):
            rows = slice(start, start + _CENTRES_AT_ONCE)
            chosen = centres[rows]
            squared: Array = points[chosen] @ points.T
            squared *= -2.0
            squared += norms
            squared += norms[chosen, None]
            squared[np.arange(len(squared)), chosen] = np.inf  # the centre is left out
            reach[rows] = grown = _grow(radii**2, squared, self.min_neighbours)
            # Counting the radii that a distance exceeds is faster than a binary search.
            for radius in grown.T:
                shell[rows] += squared > radius[:, None]
        return Neighbourhoods(radii, shell, reach, drawn.reshape(shape))


def _grow(squared_radii: Floats, squared: Array, least: int) -> Array:
    """Squared radii around each centre after growing, shape (C, R); +inf where it cannot hold."""
    needed = np.full(len(squared), np.inf, dtype=squared.dtype)
    if squared.shape[1] > least:
        needed = np.partition(squared, least - 1, axis=1)[:, least - 1]
    grown = np.tile(squared_radii, (len(squared), 1))
    for _ in range(_MOST_GROWTHS):
        short = (grown.astype(squared.dtype) < needed[:, None]) & (grown > 0.0)
        short &= np.isfinite(needed)[:, None]
        if not short.any():
            break
        grown[short] *= _GROWTH**2
    reached = grown.astype(squared.dtype)
    return np.where(reached < needed[:, None], np.inf, reached).astype(squared.dtype)


@final
@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """Balls of every radius around every centre; C centres, R radii, n samples."""

    radii: Floats  # (R,), increasing
    shell: NDArray[np.unsignedinteger[Any]]  # (C, n), balls of the centre without the sample
    reach: Floats  # (C, R), squared radii after growing; +inf if a ball never holds enough
    drawn: Ints  # (R or 1, n_trials, n_centres), centres of each trial

    def curve(self, covered: Bools, alpha: float) -> "BallCurve":
        """CovGap against radius; all methods have the same centres in the same trials."""
        hits, sizes = self._totals(covered), self._sizes
        gap = 100.0 * np.abs(hits / np.maximum(sizes, 1) - (1.0 - alpha))
        at = np.flatnonzero(np.isfinite(self.reach).all(axis=0))
        _, n_trials, width = self.drawn.shape
        drawn = np.broadcast_to(self.drawn, (self.radii.size, n_trials, width))
        means = np.array([gap[drawn[radius], radius].mean(axis=1) for radius in at])
        means = means.reshape(at.size, n_trials)
        spread = means.std(axis=1)  # the authors' errors divide by all trials
        return BallCurve(
            radii=self.radii[at],
            gap=means.mean(axis=1),
            standard_error=spread / np.sqrt(n_trials),
            floor=np.array([expected_gap(sizes[:, radius], alpha) for radius in at]),
            count=sizes[:, at].mean(axis=0),
        )

    @cached_property
    def _sizes(self) -> Ints:
        return self._totals(None)

    def _totals(self, hits: Bools | None) -> Ints:
        """Samples (or covered samples) of each ball, shape (C, R)."""
        n_radii = self.radii.size
        inside = slice(None) if hits is None else np.flatnonzero(hits)
        totals = np.empty((len(self.shell), n_radii), dtype=np.int64)
        for i, row in enumerate(self.shell):
            totals[i] = np.cumsum(np.bincount(row[inside], minlength=n_radii + 1)[:n_radii])
        # A ball that started larger may end up smaller, so balls are ordered by their reach.
        order = self.reach.argsort(axis=1, kind="stable").argsort(axis=1)
        return np.take_along_axis(totals, order, axis=1)


@final
@dataclass(frozen=True, eq=False)
class BallCurve:
    """CovGap over balls against their radius; radii at which balls cannot grow are left out.

    The standard error measures the drawing of balls, not that of test samples.
    """

    radii: Floats  # (R,), before the balls grow
    gap: Floats  # mean CovGap over the trials, in percent
    standard_error: Floats  # standard deviation over trials over the root of their number
    floor: Floats  # expected CovGap of a perfect method over the balls, exact
    count: Floats  # mean number of samples in a ball
