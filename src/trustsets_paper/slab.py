"""Worst-slab coverage (Cauchois, Gupta and Duchi 2021).

A slab is the region between two parallel planes in feature space. The slab of lowest
coverage is searched for on one half of the samples and measured on the other.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from trustsets.errors import InputError
from trustsets.metrics import Estimate, share_estimate
from trustsets_paper import Array, Bools, Floats, Ints

__all__ = ["Slab", "SlabCoverage", "lowest_mean_run"]

# Directions searched at once.
_DIRECTIONS_AT_ONCE = 64
# Dinkelbach's iteration strictly lowers a fraction of integers and ends after a handful of
# rounds; the cap only keeps a bug from hanging.
_MAX_ROUNDS = 100


@final
@dataclass(frozen=True)
class Slab:
    """How to look for the worst slab ``{x : a <= v'x <= b}``.

    Parameters
    ----------
    n_directions : int
        Random directions v, uniform on the sphere.
    mass : float
        Share of the samples that a slab must hold, in (0, 1].
    seed : int
        Random state of halves and directions. They depend on the seed, n and d alone, so
        all methods are compared on the same ones.

    Notes
    -----
    For each direction the search finds exactly the slab of lowest coverage that holds at
    least `mass` of the first half. The worst slab over directions is measured on the second
    half, which took no part in the search. Its coverage there is unbiased, has an exact
    interval, and has the expectation 1 - alpha for a perfect method.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> features = rng.normal(size=(4000, 2))
    >>> covered = rng.random(4000) < np.where(features[:, 0] > 1.0, 0.5, 0.95)
    >>> found = Slab().worst(features, covered, alpha=0.1)
    >>> 0.4 < found.coverage.value < 0.65
    True
    """

    n_directions: int = 1000
    mass: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_directions < 1:
            raise InputError(f"n_directions must be 1 or more; got {self.n_directions}.")
        if not 0.0 < self.mass <= 1.0:
            raise InputError(f"mass must lie in (0, 1]; got {self.mass}.")

    def worst(
        self, features: Array, covered: Bools, alpha: float, level: float = 0.95
    ) -> "SlabCoverage":
        """Search on one half of the samples, measure on the other."""
        n, d = features.shape
        if n < 4:
            raise InputError("worst-slab coverage needs at least four samples.")
        rng = np.random.default_rng(self.seed)
        order = rng.permutation(n)
        search, held_out = order[: n // 2], order[n // 2 :]
        directions = rng.normal(size=(self.n_directions, d))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        precision = np.float64 if features.dtype == np.float64 else np.float32
        points = features[search].astype(precision)
        lows, firsts, lasts = self._search(points, covered[search], directions.astype(precision))
        best = int(np.argmin(lows))
        direction = directions[best].astype(precision)
        # Both halves are projected by the same product, so that rounding is the same.
        along = np.sort(_project(points, direction))
        lower, upper = float(along[firsts[best]]), float(along[lasts[best]])
        places = _project(features[held_out].astype(precision), direction)
        inside = (places >= lower) & (places <= upper)
        count, hits = int(inside.sum()), int(covered[held_out][inside].sum())
        return SlabCoverage(
            coverage=share_estimate(hits, count, level, floor=1.0 - alpha),
            searched=float(lows[best]),
            count=count,
            covered=hits,
            lower=lower,
            upper=upper,
            direction=direction.astype(np.float64),
        )

    def _search(
        self, points: Array, covered: Bools, directions: Array
    ) -> tuple[Floats, Ints, Ints]:
        """Lowest coverage along each direction, and the first and last place of its run."""
        shortest = max(1, int(np.ceil(self.mass * covered.size)))
        lows = np.empty(len(directions))
        firsts, lasts = np.empty((2, len(directions)), dtype=np.int64)
        along = directions @ points.T

        for start in range(0, len(directions), _DIRECTIONS_AT_ONCE):
            rows = slice(start, start + _DIRECTIONS_AT_ONCE)
            hits = covered[np.argsort(along[rows], axis=1, kind="stable")]
            lows[rows], firsts[rows], lasts[rows] = lowest_mean_run(hits, shortest)
        return lows, firsts, lasts


@final
@dataclass(frozen=True, eq=False)
class SlabCoverage:
    """The worst slab and its coverage on samples that did not help to find it."""

    coverage: Estimate
    searched: float
    count: int
    covered: int
    lower: float
    upper: float
    direction: Floats


def lowest_mean_run(hits: Bools, shortest: int) -> tuple[Floats, Ints, Ints]:
    """Lowest mean of `shortest` or more neighbouring entries of each row; exact.

    Dinkelbach's method for a ratio: given a guess q of the mean, the run that minimises
    ``sum(hits - q)`` comes from running maxima of the prefix sums; its mean is the next guess.
    Guesses fall strictly until the minimum is zero, which proves the last one optimal.

    Examples
    --------
    >>> mean, first, last = lowest_mean_run(np.array([[1, 0, 1, 0, 0, 1]], dtype=bool), 3)
    >>> mean.round(3).tolist(), first.tolist(), last.tolist()
    ([0.25], [1], [4])
    """
    n_rows, n = hits.shape
    sums = np.zeros((n_rows, n + 1), dtype=np.int64)
    np.cumsum(hits, axis=1, out=sums[:, 1:])
    # The best run of exactly the least length is a guess that few runs can beat.
    shorts = sums[:, shortest:] - sums[:, :-shortest]
    first = np.argmin(shorts, axis=1)
    total, length = shorts[np.arange(n_rows), first], np.full(n_rows, shortest)
    open_rows = np.arange(n_rows)
    for _ in range(_MAX_ROUNDS):
        # Scaled by the length of the current run, everything is an integer: no rounding.
        own = sums[open_rows] * length[open_rows, None] - np.arange(n + 1) * total[open_rows, None]
        start, stop, low = _lowest_run(own, shortest)
        if not (low < 0).any():
            break
        open_rows, start, stop = open_rows[low < 0], start[low < 0], stop[low < 0]
        first[open_rows], length[open_rows] = start, stop - start
        total[open_rows] = sums[open_rows, stop] - sums[open_rows, start]
    return total / length, first, first + length - 1


def _lowest_run(prefix: Ints, shortest: int) -> tuple[Ints, Ints, Ints]:
    """Minimise ``prefix[stop] - prefix[start]`` with ``stop - start >= shortest`` in each row."""
    rows = np.arange(len(prefix))
    highest = np.maximum.accumulate(prefix[:, :-shortest], axis=1)
    drop = prefix[:, shortest:] - highest
    end = np.argmin(drop, axis=1)
    # The run starts where the running maximum first takes its final value.
    start = np.argmax(highest >= highest[rows, end, None], axis=1)
    return start, end + shortest, drop[rows, end]


def _project(points: Array, direction: Array) -> Array:
    along: Array = np.einsum("ij,j->i", points, direction)
    return along
