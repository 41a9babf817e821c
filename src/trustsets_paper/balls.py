"""Local coverage: CovGap over Euclidean balls in feature space (the paper's appendix B.4).

Distances are computed from a subset of centres to all samples, in blocks, so memory and time
grow in proportion to n.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray

from trustsets.errors import InputError
from trustsets.metrics import expected_gap
from trustsets_paper import Array, Bools, Floats, Ints

__all__ = ["BallCurve", "Balls", "Neighbourhoods"]

# Pairs whose distance is computed at once.
_PAIRS_AT_ONCE = 1000
# Centres whose distances are in memory at once: enough for matrix products to run at full speed,
# and 25 MB for 25,000 samples.
_CENTRES_AT_ONCE = 256
# The authors' factor for the radius of a ball that holds too few samples.
_GROWTH = 1.1
# More steps than between any two distances in double precision; a radius of 0 never grows.
_MOST_GROWTHS = 16_000


@final
@dataclass(frozen=True)
class Balls:
    """How to draw balls.

    The paper asks for balls of radius r around 100 random test samples "such that every ball
    should have at least 10 neighboring points". The two rules are two ways to read this.

    Parameters
    ----------
    rule : {"fixed", "growing"}
        ``"fixed"``, the package's own rule: all balls have the radius r, and only samples
        with enough neighbours are centres, so that every point of the curve describes
        balls of its radius. ``"growing"``, what the authors ran: every sample may be a centre,
        and the radius of its ball grows from r by factors of 1.1 until the ball holds enough
        samples, the centre not counted. Small radii then describe the nearest neighbours,
        however far they are. See `Balls.paper`.
    n_radii : int
        Radii are evenly spaced between the smallest and the `largest` quantile of the
        distances of `n_pairs` random pairs.
    n_centres, n_trials : int
        Balls per trial, and trials per radius.
    min_neighbours : int
        Samples that a ball must hold besides its centre.
    n_pool : int
        Number of samples that may be centres. Every trial at every radius draws its
        centres from those of the pool that have enough neighbours (with replacement if
        there are fewer than `n_centres`). For growing balls all samples may be centres, and
        all radii have the same centres.
    largest : float
        Quantile of the pair distances that is the largest radius.
    n_pairs : int
        Number of random pairs.
    radii : tuple of float, optional
        Radii to use instead, increasing; `typical_radii` of a whole dataset makes its
        splits comparable.
    seed : int
        The same seed and features give the same balls for all methods.

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

    rule: Literal["fixed", "growing"] = "fixed"
    n_radii: int = 10
    n_centres: int = 100
    n_trials: int = 100
    min_neighbours: int = 10
    n_pool: int = 1000
    largest: float = 0.9
    n_pairs: int = 10_000
    radii: tuple[float, ...] | None = None
    seed: int = 0

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Return the balls of the authors' code: 100 trials of 100 growing balls.

        Error bars are the standard deviation over trials (divided by their number, not by
        one less) over the root of their number.

        Examples
        --------
        >>> line = np.array([[0.0], [1.0], [2.0], [4.0]])
        >>> balls = Balls.paper(radii=(1.0,), min_neighbours=2, n_centres=4, n_trials=1)
        >>> covered = np.array([True, False, True, True])
        >>> curve = balls.around(line).curve(covered, alpha=0.1)
        >>> curve.gap.round(2)  # around 0: {1, 2}; 1: {0, 2}; 2: {0, 1, 4}; 4: {1, 2}
        array([28.33])
        """
        return cls(**({"rule": "growing"} | changes))

    def __post_init__(self) -> None:
        if self.rule not in {"fixed", "growing"}:
            raise InputError(f'rule must be "fixed" or "growing"; got {self.rule!r}.')
        for name in ("n_radii", "n_centres", "n_trials", "min_neighbours", "n_pool", "n_pairs"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more; got {getattr(self, name)}.")
        if not 0.0 < self.largest <= 1.0:
            raise InputError(f"largest must lie in (0, 1]; got {self.largest}.")
        if self.radii is not None and not (self.radii and np.all(np.diff(self.radii) > 0.0)):
            raise InputError(f"radii must be one or more increasing numbers; got {self.radii}.")

    def around(self, features: Array) -> "Neighbourhoods":
        """Draw centres and radii, and find which balls hold which samples.

        Parameters
        ----------
        features : array of shape (n, d)
            Distances are computed in float32 for half and single precision features (after
            centring, so that little cancels), and in float64 for doubles.
        """
        n = features.shape[0]
        rng = np.random.default_rng(self.seed)
        drawn = self._radii(features, rng)
        radii = drawn if self.radii is None else np.array(self.radii, dtype=np.float64)
        if self.rule == "growing":
            return self._grown(features, radii)
        centres = rng.choice(n, size=min(self.n_pool, n), replace=False)
        shell = _empty_shell(centres.size, n, radii.size)

        def keep(rows: slice, squared: Array) -> None:
            # Counting the radii that a distance exceeds is ten times faster than a binary search.
            for radius in (radii**2).astype(squared.dtype):
                shell[rows] += squared > radius
            shell[np.arange(rows.start, rows.stop), centres[rows]] = 0

        _squared_distances(features, centres, keep)
        return Neighbourhoods(self, radii, centres, shell)

    def _grown(self, features: Array, radii: Floats) -> "Neighbourhoods":
        """Balls around the samples that any trial draws, each with its own grown radii."""
        n, rng = features.shape[0], np.random.default_rng([self.seed, self.n_trials])
        width = min(self.n_centres, n)
        drawn = np.stack([rng.choice(n, width, replace=False) for _ in range(self.n_trials)])
        centres, trials = np.unique(drawn, return_inverse=True)
        shell = _empty_shell(centres.size, n, radii.size)
        reach = np.empty((centres.size, radii.size))

        def keep(rows: slice, squared: Array) -> None:
            squared[np.arange(len(squared)), centres[rows]] = np.inf  # the centre is left out
            reach[rows] = grown = _grow(radii**2, squared, self.min_neighbours)
            for radius in grown.T:
                shell[rows] += squared > radius[:, None]

        _squared_distances(features, centres, keep)
        return Neighbourhoods(self, radii, centres, shell, reach, trials.reshape(drawn.shape))

    def typical_radii(self, features: Array) -> tuple[float, ...]:
        """Radii that `around` uses on these features, which can be given to other samples too."""
        return tuple(self._radii(features, np.random.default_rng(self.seed)).tolist())

    def _radii(self, features: Array, rng: np.random.Generator) -> Floats:
        n = features.shape[0]
        if n < 2:
            raise InputError("balls need at least two samples.")
        first = rng.integers(n, size=self.n_pairs)
        second = (first + rng.integers(1, n, size=self.n_pairs)) % n
        distances = np.empty(self.n_pairs)
        for start in range(0, self.n_pairs, _PAIRS_AT_ONCE):
            rows = slice(start, start + _PAIRS_AT_ONCE)
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
        Number of balls around each centre that do not hold the sample.
    reach : array of shape (C, R), optional
        Squared radii of growing balls; +inf for those that never hold enough samples.
    drawn : int array of shape (n_trials, n_centres), optional
        Centres of each trial with growing balls.
    """

    plan: Balls
    radii: Floats
    centres: Ints
    shell: NDArray[np.unsignedinteger[Any]]
    reach: Floats | None = None
    drawn: Ints | None = None

    def curve(self, covered: Bools, alpha: float) -> "BallCurve":
        """CovGap against radius; all methods have the same centres in the same trials."""
        hits, sizes, fit = self._totals(covered), self._sizes, self._fit
        gap = 100.0 * np.abs(hits / sizes - (1.0 - alpha))
        at = np.flatnonzero(fit.any(axis=0))
        means = np.array([gap[self._trials[radius], radius].mean(axis=1) for radius in at])
        means = means.reshape(at.size, self.plan.n_trials)
        ddof = 1 if self.plan.rule == "fixed" else 0  # the authors' errors divide by all trials
        spread = np.full(at.size, np.nan)
        if self.plan.n_trials > 1:
            spread = means.std(axis=1, ddof=ddof)
        return BallCurve(
            radii=self.radii[at],
            gap=means.mean(axis=1),
            standard_error=spread / np.sqrt(self.plan.n_trials),
            trial_spread=spread,
            floor=np.array([expected_gap(sizes[fit[:, radius], radius], alpha) for radius in at]),
            eligible=np.count_nonzero(fit[:, at], axis=0),
            count=np.array([sizes[fit[:, radius], radius].mean() for radius in at]),
        )

    @cached_property
    def _sizes(self) -> Ints:
        """Samples of each ball, shape (C, R)."""
        return self._totals(None)

    @cached_property
    def _fit(self) -> Bools:
        """Balls that hold enough samples, shape (C, R)."""
        if self.reach is None:
            # The centre lies in its own ball, but is not its own neighbour.
            return self._sizes > self.plan.min_neighbours
        return np.broadcast_to(np.isfinite(self.reach).all(axis=0), self.reach.shape)

    def _totals(self, hits: Bools | None) -> Ints:
        """Samples (or covered samples) of each ball, shape (C, R)."""
        n_radii = self.radii.size
        inside = slice(None) if hits is None else np.flatnonzero(hits)
        totals = np.empty((self.centres.size, n_radii), dtype=np.int64)
        for i, row in enumerate(self.shell):
            totals[i] = np.cumsum(np.bincount(row[inside], minlength=n_radii + 1)[:n_radii])
        if self.reach is None:
            return totals
        # A ball that started larger may end up smaller, so balls are ordered by their reach.
        place = self.reach.argsort(axis=1, kind="stable").argsort(axis=1)
        return np.take_along_axis(totals, place, axis=1)

    @cached_property
    def _trials(self) -> list[Ints]:
        """Balls of each trial, one (n_trials, n_centres) array per radius; empty if none fit."""
        plan, fit, trials = self.plan, self._fit, []
        if self.drawn is not None:
            return [self.drawn] * self.radii.size
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


@final
@dataclass(frozen=True, eq=False)
class BallCurve:
    """CovGap over balls against their radius; radii without eligible balls are left out.

    Attributes
    ----------
    radii : array of shape (R,)
        Radius of the balls.
    gap, standard_error : arrays of shape (R,)
        Mean CovGap (percent) over the trials, and its standard error (``trial_spread``
        over the root of the number of trials). It measures the drawing of balls, not of test
        samples.
    trial_spread : array of shape (R,)
        Standard deviation over trials.
    floor : array of shape (R,)
        Exact expected CovGap of a perfect method over the eligible balls.
    eligible : int array of shape (R,)
        Centres of the pool with enough neighbours; all that were drawn if balls grow.
    count : array of shape (R,)
        Mean number of samples in an eligible ball.
    """

    radii: Floats
    gap: Floats
    standard_error: Floats
    trial_spread: Floats
    floor: Floats
    eligible: Ints
    count: Floats


def _empty_shell(n_centres: int, n: int, n_radii: int) -> NDArray[np.unsignedinteger[Any]]:
    kind: type[np.unsignedinteger[Any]] = np.uint8 if n_radii < 256 else np.uint16
    return np.zeros((n_centres, n), dtype=kind)


def _grow(squared_radii: Floats, squared: Array, least: int) -> Array:
    """Squared radii around each centre after growing, shape (C, R), in the type of `squared`.

    `squared` has the distances to all samples, +inf for the centre itself. The result is +inf
    where no growth makes the ball hold `least` samples.
    """
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


def _squared_distances(features: Array, centres: Ints, use: Callable[[slice, Array], None]) -> None:
    """Call `use` with squared distances from a block of centres to all samples, for all blocks.

    They are computed as ``|a|^2 + |b|^2 - 2 a'b``, which is a matrix product.
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
