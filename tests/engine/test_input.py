"""Bad input gives the documented error and leaves the model usable."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from problems import COMPILED

from trustsets.engine import fit_quantiles
from trustsets.errors import InputError

PHI = np.column_stack([np.ones(30), np.arange(30.0)])
SCORES = np.linspace(0.0, 1.0, 30)


@pytest.mark.parametrize(
    ("phi", "scores", "alpha", "words"),
    [
        (PHI[:, 0], SCORES, 0.1, "phi_calib must be a matrix"),
        (np.where(PHI == 3.0, np.nan, PHI), SCORES, 0.1, r"phi_calib must be finite.*\[3, 1\]"),
        (PHI, np.where(SCORES > 0.9, np.inf, SCORES), 0.1, "scores_calib must be finite"),
        (PHI, SCORES[1:], 0.1, r"scores_calib must be one number per row.*30.*\(29,\)"),
        (PHI[:0], SCORES[:0], 0.1, "at least one row"),
        (PHI, SCORES, 0.0, "alpha must lie strictly between 0 and 1, got 0.0"),
        (PHI, SCORES, 1.0, "alpha"),
        (PHI, SCORES, np.full(29, 0.1), r"one number or one per row of phi_calib \(30\).*\(29,\)"),
        (PHI, SCORES, np.full((30, 1), 0.1), r"one number or one per row.*\(30, 1\)"),
        (PHI, SCORES, np.linspace(0.0, 0.9, 30), "strictly between 0 and 1, got 0.0"),
        (PHI, SCORES, np.full(30, np.nan), "finite, got nan at index"),
    ],
)
def test_fit_says_what_is_wrong(phi: object, scores: object, alpha: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit_quantiles(phi, scores, alpha)  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [[0], [0, 0], [0, 30], [-1, 3], [0, 1, 2], [0, 1, 30]])
def test_a_wrong_start_is_refused(start: list[int]) -> None:
    with pytest.raises(InputError, match="start must hold 2 different row numbers"):
        fit_quantiles(PHI, SCORES, start=start)


def test_thresholds_say_what_is_wrong_and_the_model_lives_on() -> None:
    model = fit_quantiles(PHI, SCORES)
    before = model.thresholds(PHI[:3]).values
    for phi, weight, words in [
        (PHI[:, :1], None, "must have the 2 columns of phi_calib, got 1"),
        (PHI[0], None, "phi_test must be a matrix"),
        (np.full((1, 2), np.inf), None, "phi_test must be finite"),
        (PHI, -0.1, "weight must lie in"),
        (PHI, 0.91, "weight must lie in"),
        (PHI, np.nan, "weight must be finite"),
        (PHI, [0.5, 0.5], "one number or one per test row"),
    ]:
        with pytest.raises(InputError, match=words):
            model.thresholds(phi, weight)
    assert np.array_equal(model.thresholds(PHI[:3]).values, before)
    assert len(model.thresholds(PHI[:0]).values) == 0
    # A test point may have an alpha of its own where the calibration points share one.
    expected = model.thresholds(PHI[:2], weight=0.7).values
    assert np.array_equal(model.thresholds(PHI[:2], alpha=0.3).values, expected)


@pytest.mark.parametrize(
    ("weight", "alpha", "words"),
    [
        (None, None, "alpha must be given with phi_test"),
        (0.5, None, "alpha must be given with phi_test"),
        (None, [0.1, 0.2, 0.3], r"one per test row \(2\), got shape \(3,\)"),
        (0.8, [0.1, 0.3], r"weight must lie in \(-alpha, 1 - alpha\], got"),
    ],
)
def test_own_alphas_need_alphas_of_test_points(weight: object, alpha: object, words: str) -> None:
    model = fit_quantiles(PHI, SCORES, np.linspace(0.1, 0.3, 30))
    with pytest.raises(InputError, match=words):
        model.thresholds(PHI[:2], weight, alpha=alpha)  # type: ignore[arg-type]
    assert np.all(np.isfinite(model.thresholds(PHI[:2], 0.7, alpha=[0.1, 0.3]).values))


def test_a_basis_of_zeros_has_rank_zero() -> None:
    model = fit_quantiles(np.zeros((5, 2)), np.arange(5.0))
    assert model.rank == 0
    assert model.thresholds([[0.0, 0.0], [1.0, 0.0]]).values.tolist() == [0.0, np.inf]


def test_huge_rows_are_infinite_not_nan() -> None:
    model = fit_quantiles(PHI, SCORES)
    with np.errstate(over="ignore", invalid="ignore"):  # of the kernels as plain Python
        values = model.thresholds([[1.0, 1e300], [1e308, 1e308]]).values
    assert values.tolist() == [np.inf, np.inf]


def test_results_and_inputs_are_left_alone() -> None:
    phi, scores = PHI.copy(), SCORES.copy()
    model = fit_quantiles(phi, scores)
    result = model.thresholds(phi)
    scores[:] = 7.0
    assert np.array_equal(model.thresholds(phi).values, result.values)
    with pytest.raises(ValueError, match="read-only"):
        result.values[0] = 1.0


if COMPILED:

    @pytest.mark.slow
    def test_the_laws_hold_without_compilation() -> None:
        """The kernels as plain Python: what coverage measures is what runs."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        subprocess.run(
            [*command, "-m", "not statistical", str(Path(__file__).parent)],
            env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
            check=True,
            stdout=subprocess.DEVNULL,
        )
