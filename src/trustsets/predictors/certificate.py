"""The fit that decides a threshold, and the certificate that proves it.

The threshold of STANDARD, or of a cell of a partition, is that of a fit of the constant function.
"""

import json
import os
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self, final

import numpy as np

from trustsets._common.arrays import Codes, Floats
from trustsets._common.atomic import atomic_path
from trustsets.engine import (
    QuantileModel,
    ScorePath,
    Sensitivity,
    ThresholdProof,
    fit_quantiles,
    prove_threshold,
)
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.predictors.base import Predictor
from trustsets.predictors.conditional import ConditionalConformal, weight_draws
from trustsets.predictors.mondrian import MondrianConformal
from trustsets.predictors.standard import StandardConformal
from trustsets.status import Status
from trustsets.verify import failing_conditions

__all__ = ["Fit", "FitsOfSample", "ThresholdCertificate", "fits_of_sample", "needs_label"]

_FITS = ("own", "lower", "upper")


@final
@dataclass(frozen=True, eq=False)
class Fit:
    """A fit over calibration samples and, after them, points that stand for penalties."""

    phi: Floats
    scores: Floats
    alpha: float
    row: Floats
    weight: float

    @cached_property
    def model(self) -> QuantileModel:
        """The fit at weight 0, which all samples share."""
        return fit_quantiles(self.phi, self.scores, alpha=self.alpha)

    @cached_property
    def proof(self) -> ThresholdProof:
        """The threshold of the row, with the numbers that prove it."""
        if len(self.phi):
            return prove_threshold(self.model, self.row, self.weight)
        none = np.empty(0, np.int64)
        return ThresholdProof(np.inf, self.weight, none, none, np.empty(0), self.row)

    @cached_property
    def sensitivity(self) -> Sensitivity | None:
        """How the threshold depends on scores; None where it is infinite, whatever they are."""
        if not np.isfinite(self.proof.threshold):
            return None
        return Sensitivity(self.model, self.row, self.proof)

    def path(self, point: int) -> ScorePath:
        """The threshold as a function of the score of one point."""
        if self.sensitivity is None:
            return ScorePath(np.zeros(1), np.array([self.proof.threshold]), (0.0, 0.0))
        path = self.sensitivity.path(point)
        # Thresholds are rounded up, so that a class whose score equals one stays in the set.
        return path.shifted(self.proof.threshold - float(path.at(self.scores[[point]])[0]))


@final
@dataclass(frozen=True, eq=False)
class FitsOfSample:
    """The fits that decide a threshold of one sample.

    Attributes
    ----------
    fits : sequence of Fit
        The sample's own fit and, where thresholds are limited, the lower and the upper one. The
        threshold is the smaller of the first and the last, or that of the lower one if it is more.
    order : (n,) array
        Which calibration sample each point of the fits is; penalties come after them. Where samples
        were read from a file, these are places in the order of their scores.
    """

    fits: tuple[Fit, ...]
    order: Codes

    @cached_property
    def number(self) -> int:
        """Number of the fit whose threshold decides."""
        values = [fit.proof.threshold for fit in self.fits]
        return values.index(float(limited(values)))

    @property
    def status(self) -> Status:
        """Status of the deciding fit's threshold."""
        fit = self.deciding
        if not np.isfinite(fit.proof.threshold) and fit.phi.shape[1] == 1:
            return Status.TOO_FEW_POINTS if len(fit.phi) else Status.UNSEEN_GROUP
        if self.number == len(_FITS) - 1 and np.isfinite(fit.proof.threshold):
            return Status.LIMITED
        return Status(int(fit.model.thresholds(fit.row[None], fit.weight).status[0]))

    @property
    def name(self) -> str:
        """Which fit decides: "own", "lower" or "upper"."""
        return _FITS[self.number]

    @property
    def deciding(self) -> Fit:
        """The fit whose threshold decides."""
        return self.fits[self.number]


def limited(values: list[Any]) -> Any:
    """The threshold that is made of those of one fit or three."""
    if len(values) == 1:
        return values[0]
    own, low, high = values
    return np.maximum(low, np.minimum(own, high))


def fits_of_sample(
    predictor: Predictor, outputs: ModelOutputs, alpha: float, code: int | None
) -> FitsOfSample:
    """The fits of one sample and, where each class has a threshold of its own, one class."""
    if isinstance(predictor, ConditionalConformal):
        return _conditional(predictor, outputs, alpha, code)
    task, learned = predictor._task, predictor._state().learned
    if isinstance(predictor, StandardConformal):
        order = (
            np.arange(len(learned.scores))
            if task is None
            else np.argsort(task.scores, kind="stable")
        )
        return _constant(learned.scores, alpha, order)
    if not isinstance(predictor, MondrianConformal) or predictor.paper_rules:
        raise InputError(
            f"{type(predictor).__name__} has no explanation of its thresholds; use "
            "ConditionalConformal, StandardConformal, or MondrianConformal without paper rules."
        )
    partition = learned.partition
    cell = _needed(code) if partition is None else int(partition.cells(outputs)[0])
    order = np.arange(len(learned.scores))
    if task is not None and partition is not None:
        order = np.lexsort((task.scores, partition.cells(task.calibration)))
    elif task is not None:
        order = np.lexsort((task.scores, task.calibration.require_labels("explain")))
    start, stop = (0, 0) if cell < 0 else learned.start[cell : cell + 2]
    return _constant(learned.scores[start:stop], alpha, order[start:stop])


def needs_label(predictor: Predictor) -> bool:
    """Whether each class has a threshold of its own."""
    basis = predictor._state().learned.conditions_on
    return predictor._method().covers_each_class or (basis is not None and basis.uses_label)


def _needed(code: int | None) -> int:
    if code is None:
        raise InputError(
            "label must name a class, because each class has a threshold of its own; pass label=."
        )
    return code


def _constant(scores: Floats, alpha: float, order: Codes) -> FitsOfSample:
    ones = np.ones((len(scores), 1))
    return FitsOfSample((Fit(ones, scores, alpha, np.ones(1), 1.0 - alpha),), order)


def _conditional(
    predictor: ConditionalConformal, outputs: ModelOutputs, alpha: float, code: int | None
) -> FitsOfSample:
    state, task = predictor._state(), predictor._task
    learned = state.learned
    if learned.basis.uses_label:
        row = learned.basis.design_for(outputs, np.array([_needed(code)]))[0]
    else:
        row = learned.basis.design(outputs)[0]
    order = np.arange(len(learned.phi))
    if task is not None:
        design = learned.basis.design(task.calibration)
        order = np.lexsort((*design.T, learned.used_scores(task)))
    limits = learned._limits
    share = 1.0
    if predictor.randomized:
        limits, share = limits[:1], float(weight_draws(outputs, state.seed)[0])
    fits = []
    for factor, penalty in limits:
        phi, scores = learned._points(penalty)
        fit = Fit(phi, scores, factor * alpha, row, share - factor * alpha)
        vars(fit)["model"] = learned.fit(factor * alpha, penalty)  # it is made already
        fits.append(fit)
    return FitsOfSample(tuple(fits), order)


@final
@dataclass(frozen=True, eq=False)
class ThresholdCertificate:
    """All numbers from which one threshold can be checked without this package.

    ``trustsets verify FILE`` checks a saved certificate, and so does
    ``python verify.py FILE`` with the one file ``trustsets/verify.py``, which needs NumPy alone and
    says why the check is a proof. The certificate speaks of the numbers in it: that `phi` and `row`
    belong to certain samples is not part of it.

    Attributes
    ----------
    alpha, weight : float
        Miscoverage of the fit, and the weight of the sample, which is ``1 - alpha`` less 1e-9 or,
        with ``randomized=True``, a draw.
    threshold : float
        The threshold to be proven. Where thresholds are limited, that of the deciding fit. With
        ``randomized=True`` the sets subtract a draw that breaks ties.
    row : (p,) array
        Basis functions of the sample.
    phi, scores : (n, p) and (n,) arrays
        Basis functions and scores of the calibration samples, and points of penalties after them.
    coefficients : (p,) array
        Of the optimal function or, for an infinite threshold, of a direction without a minimum.
    points, duals : (k,) arrays
        Row numbers of the points on the fit, and the slopes of their losses.
    """

    alpha: float
    weight: float
    threshold: float
    row: Floats
    phi: Floats
    scores: Floats
    coefficients: Floats
    points: Codes
    duals: Floats

    @classmethod
    def of(cls, fit: Fit) -> Self:
        """The certificate of a fit's threshold."""
        own, points, duals = fit.proof, fit.proof.points, fit.proof.duals
        if fit.sensitivity is not None:
            # With basis functions of large condition, a plain product does not tell the side of
            # every point near the fit, so that points on the wrong side are named, too.
            above = fit.scores > fit.phi @ own.coefficients
            unclear = above != (fit.sensitivity.duals > 0.5 - fit.alpha)
            points = np.union1d(points, np.flatnonzero(unclear))
            duals = fit.sensitivity.duals[points]
        return cls(
            alpha=fit.alpha,
            weight=own.weight,
            threshold=own.threshold,
            row=fit.row,
            phi=fit.phi,
            scores=fit.scores,
            coefficients=own.coefficients,
            points=points,
            duals=duals,
        )

    def failing_conditions(self) -> list[str]:
        """What is wrong, in words; nothing if the threshold is proven."""
        return failing_conditions(asdict(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .npz or .json file; atomic, and without pickle."""
        kind = Path(path).suffix.lower()
        if kind not in (".npz", ".json"):
            raise InputError(f"path must end in .npz or .json; got {os.fspath(path)!r}.")
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in asdict(self).items()}
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            if kind == ".npz":
                np.savez_compressed(file, **arrays)
                return
            plain: dict[str, Any] = {name: value.tolist() for name, value in arrays.items()}
            # JSON has no infinity; `float` reads the word.
            plain["threshold"] = plain["threshold"] if np.isfinite(self.threshold) else "inf"
            if self.threshold == -np.inf:
                plain["threshold"] = "-inf"
            file.write(json.dumps(plain, allow_nan=False).encode())
