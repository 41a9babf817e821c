"""`plan`: check what is asked for, and find the sizes."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from trustsets._common.progress import Progress, no_progress
from trustsets._common.quantiles import check_alpha
from trustsets._common.validation import check_not_negative, check_open
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.planning.law import CoverageLaw, needed_to_see, samples_for
from trustsets.planning.result import SIGNIFICANCE, Plan, PlanRow
from trustsets.planning.simulation import class_parts, group_parts, simulate
from trustsets.predictors import Predictor

__all__ = ["plan"]

Shares = Mapping[Any, float] | Sequence[float]
_ALL = "all samples"
# How far shares may exceed 1 together by rounding.
_ROUNDING = 1e-6


def plan(
    alpha: float = 0.1,
    within: float = 0.02,
    probability: float = 0.95,
    *,
    n: int | None = None,
    groups: Shares | None = None,
    classes: Shares | None = None,
    functions: int = 1,
    penalty: float = 0.0,
    gap: float | None = None,
    outputs: ModelOutputs | None = None,
    predictor: Predictor | None = None,
    repeats: int = 20,
    progress: Progress = no_progress,
) -> Plan:
    """How many samples to calibrate on, and to test on.

    The coverage of one calibrated predictor is not exactly 1 - alpha: it depends on the
    calibration samples that happened to be drawn. Its law is known exactly. `plan` gives the size
    from which on, at every larger size too, coverage is within the tolerance with the probability.
    The law is that of scores without ties. Ties and ``allow_empty=False`` can only add coverage.

    Parameters
    ----------
    alpha : float
        Allowed miscoverage.
    within : float
        Tolerance: coverage should be at most so far from 1 - alpha, up or down.
    probability : float
        How likely it should be within the tolerance; also how likely an evaluation should see a
        gap.
    n : int, optional
        Calibration samples there are; by default those of `outputs`.
    groups, classes : mapping of names to shares, or sequence of shares, optional
        Groups or classes that should each be within the tolerance, and their shares of the samples;
        by default those of `outputs`. The sizes hold where each has a threshold of its own
        (`MondrianConformal`) or an indicator among the basis functions.
    functions : int
        Number of basis functions of `ConditionalConformal`. The sizes then come from its bounds,
        which need more samples than most data do.
    penalty : float
        Penalty of `Groups` or `Classes` among them.
    gap : float, optional
        Lack of coverage that an evaluation should see; by default `within`.
    outputs : ModelOutputs, optional
        Labelled samples, which give shares and sizes.
    predictor : Predictor, optional
        With `outputs`, copies of it are calibrated on random parts of these samples, and their
        coverage is counted on the rest.
    repeats : int
        Calibrations of each size.
    progress : callable, optional
        Told the number of calibrations; gives a context around them.

    Returns
    -------
    Plan
        ``print`` shows it in sentences; `to_frame`, `plot` and `to_dict` give the numbers.

    Examples
    --------
    >>> found = plan(alpha=0.1, within=0.02, probability=0.95, n=500)
    >>> found.needed, round(found.rows[0].probability, 3)
    (854, 0.867)
    >>> plan(classes={"common": 0.9, "rare": 0.1}).rows[2].in_all
    8567
    """
    alpha = check_alpha(alpha)
    gap = within if gap is None else gap
    check_open(within=within, probability=probability, gap=gap)
    if gap >= 1.0 - alpha:
        raise InputError(f"gap must be smaller than the coverage, {1.0 - alpha:g}; got {gap}.")
    _check_counts(n, functions, penalty)
    parts = _parts(groups, classes, outputs)
    total = n if n is not None or outputs is None else len(outputs)
    curve = None
    if predictor is not None:
        if outputs is None:
            raise InputError("predictor needs outputs, labelled samples to be calibrated on.")
        curve = simulate(predictor, outputs, alpha, within, repeats=repeats, progress=progress)
    sizes = _Sizes(alpha, within, probability, gap)
    whole = sizes.row(_ALL, 1.0, total, CoverageLaw(alpha, functions))
    law = CoverageLaw(alpha, functions, penalty)
    rows = [sizes.row(name, share, _present(total, share), law) for name, share in parts.items()]
    return Plan(alpha, within, probability, gap, functions, penalty, (whole, *rows), curve)


class _Sizes:
    """Finds the sizes of rows that ask for the same; what several rows share is found once."""

    def __init__(self, alpha: float, within: float, probability: float, gap: float) -> None:
        self._asked = within, probability
        self._test = needed_to_see(alpha, gap, SIGNIFICANCE, probability)
        self._needed = cache(lambda law: law.needed(*self._asked))
        self._in_all = cache(
            lambda law, share: law.needed_in_all(*self._asked, share, self._needed(law))
        )
        self._test_in_all = cache(
            lambda share: samples_for(self._test, share, probability) if share < 1.0 else self._test
        )

    def row(self, part: str, share: float, present: int | None, law: CoverageLaw) -> PlanRow:
        """Sizes for one part of the samples."""
        within, probability = self._asked
        reached, ends = float("nan"), (float("nan"), float("nan"))
        if present is not None:
            reached = float(law.probability(np.array([present]), within)[0])
            ends = law.interval(present, probability)
        return PlanRow(
            part=part,
            share=share,
            needed=self._needed(law),
            in_all=self._in_all(law, share),
            present=present,
            probability=reached,
            lower=ends[0],
            upper=ends[1],
            test=self._test,
            test_in_all=self._test_in_all(share),
        )


def _parts(
    groups: Shares | None, classes: Shares | None, outputs: ModelOutputs | None
) -> dict[str, float]:
    """Shares of groups and classes, as given or as in the outputs, by name."""
    found: dict[str, float] = {}
    if groups is not None:
        found |= _shares(groups, "groups", "group")
    elif outputs is not None:
        found |= {name: float(own.mean()) for name, own in group_parts(outputs).items()}
    if classes is not None:
        found |= _shares(classes, "classes", "class")
    elif outputs is not None:
        found |= {name: float(own.mean()) for name, own in class_parts(outputs).items()}
    return found


def _shares(given: Shares, name: str, word: str) -> dict[str, float]:
    named = given if isinstance(given, Mapping) else dict(enumerate(given))
    shares = {f"{word} {own}": float(share) for own, share in named.items()}
    fits = all(0.0 < share <= 1.0 for share in shares.values())
    if not fits or sum(shares.values()) > 1.0 + _ROUNDING:
        raise InputError(f"{name} must be shares in (0, 1] that add up to 1 at most; got {given}.")
    return shares


def _present(total: int | None, share: float) -> int | None:
    return None if total is None else round(total * share)


def _check_counts(n: int | None, functions: int, penalty: float) -> None:
    if n is not None and (n < 1 or n != int(n)):
        raise InputError(f"n must be a whole number, 1 or more; got {n}.")
    if functions < 1 or functions != int(functions):
        raise InputError(f"functions must be a whole number, 1 or more; got {functions}.")
    check_not_negative(penalty=penalty)
