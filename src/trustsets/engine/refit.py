"""Fits of data that changed a little, started from the fit before.

The points through which a fit passes seldom change when points are added or removed. An optimal
vertex whose dual values all lie strictly inside their box is the only one (see `process`), so a fit
that starts there has the basic points of one that starts from nothing.

Any invertible map whitens well enough as long as ``Q'Q`` stays near ``n I``: function class, basic
points and thresholds do not depend on it, rounding apart. So changed data keep the map, and all
rows that were whitened before.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from trustsets.engine.compiled import FloatArray, IntArray
from trustsets.engine.copies import distinct_points
from trustsets.engine.fit import INDEPENDENT_TOL, refit_vertex
from trustsets.engine.model import RESOLUTIONS, QuantileModel, fit_problem, make_model
from trustsets.engine.problem import (
    Problem,
    WhitenedRows,
    assemble_problem,
    build_problem,
    scan_keys,
)
from trustsets.engine.process import is_unique
from trustsets.engine.reading import read_matrix

__all__ = ["EarlierFit"]

NEAR_FACTOR = 3
"""Points near the fit that are tried besides the basic ones, in units of the rank."""
MOST_DRIFT = 0.25
"""A whitening is kept while the eigenvalues of ``Q'Q / n`` are no further from 1."""


@dataclass(frozen=True, eq=False)
class EarlierFit:
    """A fit, and what became of its points since.

    Attributes
    ----------
    model : QuantileModel
        With one alpha for all points.
    origin : (n_rows,) array
        Row number, in the data of the model, of each row of the present data; -1 for new rows.

    Examples
    --------
    >>> from trustsets.engine import fit_quantiles
    >>> phi, scores = np.ones((101, 1)), np.arange(101.0)
    >>> earlier = EarlierFit.of(fit_quantiles(phi[:99], scores[:99], alpha=0.1))
    >>> later = earlier.changed(np.append(np.arange(99), [-1, -1]))
    >>> later.refit(phi, scores).thresholds(phi[:1]).values
    array([91.])
    """

    model: QuantileModel
    origin: IntArray

    @classmethod
    def of(cls, model: QuantileModel) -> Self:
        """A fit of the present data, without what it keeps to compute thresholds fast."""
        bare = make_model(model._problem, model._vertex, model._resolution)
        return cls(bare, np.arange(len(model._problem.point)))

    def changed(self, origin: IntArray) -> Self:
        """The same after another change; `origin` refers to the rows before it."""
        known = np.append(self.origin, -1)
        return type(self)(self.model, known[origin])

    @property
    def _n_changed(self) -> int:
        there = int(np.count_nonzero(self.origin >= 0))
        return len(self.origin) + len(self.model._problem.point) - 2 * there

    def refit(self, phi: ArrayLike, scores: ArrayLike) -> QuantileModel:
        """Fit the present data as `fit_quantiles` does, with its thresholds up to rounding."""
        matrix, values = np.asarray(phi, np.float64), np.asarray(scores, np.float64)
        problem = self._changed_problem(matrix, values)
        is_kept = problem is not None
        if problem is None:
            problem = build_problem(matrix, values, self.model.alpha)
        basic = self._basic_points(problem, is_kept)
        if len(basic) == problem.whitening.rank:
            model = make_model(problem, refit_vertex(problem, basic, self._n_changed))
            if model.certificate.holds and is_unique(model._vertex, problem):
                return model
        # Which of several optimal vertices is found may depend on the whitening.
        return fit_problem(build_problem(matrix, values, self.model.alpha) if is_kept else problem)

    def _changed_problem(self, phi: FloatArray, scores: FloatArray) -> Problem | None:
        """The problem with the whitening of the model, or None where that is not good enough."""
        old, model = self.model._problem, self.model
        if model._resolution > RESOLUTIONS[0] or not model.certificate.holds:
            return None
        if not old.whitening.fits(read_matrix(phi[self.origin < 0], "phi_calib")):
            return None
        ids = self._point_ids(phi, scores)
        points = first, _, _ = _numbered(ids)
        known = ids[first]
        is_new = known >= len(old.rows)
        # New points have the row of another at first.
        rows = old.rows.take(np.where(is_new, 0, known), axis=0)
        rows[is_new] = old.whitening.apply(read_matrix(phi[first[is_new]], "phi_calib"))
        drift = _drift(old, rows, known)
        if drift > MOST_DRIFT:
            return None
        # What reproduces the constant 1 on the old points does so on those of them that are left.
        constant = old.constant
        if not old.has_constants:
            constant = np.asarray(np.linalg.lstsq(rows, np.ones(len(rows)))[0], np.float64)
        norms = old.norms.take(np.where(is_new, 0, known))
        norms[is_new] = np.sqrt(np.einsum("ij,ij->i", rows[is_new], rows[is_new]))
        whitened = WhitenedRows(old.whitening, rows, norms, constant, drift)
        return assemble_problem(whitened, points, scores, np.array(old.alpha))

    def _point_ids(self, phi: FloatArray, scores: FloatArray) -> IntArray:
        """Number of each row's point in the problem of the model; larger ones are new points."""
        old = self.model._problem
        ids = np.append(old.point, -1)[self.origin]
        new = np.flatnonzero(ids < 0)
        some = np.flatnonzero(np.isin(scores, scores[new]))
        for column in phi.T:
            # Each column leaves fewer rows that may be equal to new ones.
            if some.size > new.size:
                some = some[np.isin(column[some], column[new])]
        if new.size:
            copies, _, group = distinct_points(phi[some], scores[some])
            own, number = ids[some], np.full(len(copies), -1)
            number[group[own >= 0]] = own[own >= 0]
            is_new = number < 0
            number[is_new] = len(old.rows) + np.arange(int(is_new.sum()))
            ids[some] = number[group]
        return ids

    def _basic_points(self, problem: Problem, is_kept: bool) -> IntArray:
        """Points to start from: the basic ones of the model, or independent ones near its fit."""
        place: IntArray = np.full(len(self.model._problem.point), -1, np.int64)
        there = np.flatnonzero(self.origin >= 0)
        place[self.origin[there]] = there
        basic = place[self.model.basic_points]
        if is_kept and basic.min(initial=0) >= 0:
            return np.asarray(problem.point[basic], np.int64)
        near = place[_near_points(self.model)]
        return _independent(problem.rows, problem.point[near[near >= 0]])


def _drift(old: Problem, rows: FloatArray, known: IntArray) -> float:
    """Bound on the distance of the eigenvalues of ``Q'Q / n`` from 1.

    Points that came or went move an eigenvalue of ``Q'Q`` by no more than their squared lengths.
    """
    n_old, n, is_new = len(old.rows), len(rows), known >= len(old.rows)
    is_there = np.zeros(n_old, np.bool_)
    is_there[known[~is_new]] = True
    gone = float(np.sum(old.norms[~is_there] ** 2))
    high = ((1.0 + old.drift) * n_old + float(np.sum(rows[is_new] ** 2))) / n
    low = ((1.0 - old.drift) * n_old - gone) / n
    if max(high - 1.0, 1.0 - low) <= MOST_DRIFT:
        return max(high - 1.0, 1.0 - low)
    return float(np.abs(np.linalg.eigvalsh(rows.T @ rows) / n - 1.0).max(initial=0.0))


def _numbered(ids: IntArray) -> tuple[IntArray, FloatArray, IntArray]:
    """First row, copies, and number of each row's point, in the order of `distinct_points`."""
    number = np.arange(len(ids))
    if np.bincount(ids).max() == 1:
        return number, np.ones(len(ids)), number
    place = np.empty(int(ids.max()) + 1, np.int64)
    # Of several values for one place the last is stored: here that of the first row.
    place[ids[::-1]] = number[::-1]
    first = np.flatnonzero(place[ids] == number)
    place[ids[first]] = np.arange(len(first))
    point = place[ids]
    return first, np.bincount(point).astype(np.float64), point


def _near_points(model: QuantileModel) -> IntArray:
    """Row numbers of the basic points of a fit, and then of those nearest to it."""
    problem, vertex = model._problem, model._vertex
    key = scan_keys(vertex.residuals, problem.norms)
    key[vertex.basic_points] = -1.0
    count = min((1 + NEAR_FACTOR) * model.rank, len(key))
    nearest = np.argpartition(key, count - 1)[:count] if count else np.empty(0, np.int64)
    return problem.first[nearest[np.argsort(key[nearest], kind="stable")]]


def _independent(rows: FloatArray, candidates: IntArray) -> IntArray:
    """The first candidates whose rows are independent of those before, by Gram and Schmidt."""
    chosen: list[int] = []
    units = np.zeros((rows.shape[1], rows.shape[1]))
    for number in candidates.tolist():
        if len(chosen) == len(units):
            break
        known = units[: len(chosen)]
        rest = rows[number] - known.T @ (known @ rows[number])
        # The second time removes what rounding left.
        rest -= known.T @ (known @ rest)
        length = float(np.linalg.norm(rest))
        if length > np.sqrt(INDEPENDENT_TOL) * float(np.linalg.norm(rows[number])):
            units[len(chosen)] = rest / length
            chosen.append(number)
    return np.array(chosen, dtype=np.int64)
