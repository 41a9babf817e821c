"""The checker of certificates: it knows NumPy alone, and sees every planted error."""

import ast
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from trustsets import ConditionalConformal, Confidence, Polynomial
from trustsets import verify as module
from trustsets.engine import fit_quantiles
from trustsets.errors import InputError
from trustsets.verify import failing_conditions, read_certificate

FILE = Path(str(module.__file__))


def proven(make_outputs, alpha, penalty=0.0):
    basis = Polynomial(2, (Confidence(),), penalty=penalty)
    calibration, tuning, test = (make_outputs(n, 6, n) for n in (80, 50, 1))
    predictor = ConditionalConformal(basis=basis).calibrate(calibration, tuning=tuning)
    return predictor.certificate(test, alpha=alpha)


@pytest.fixture(scope="module")
def certificate(make_outputs):
    return proven(make_outputs, 0.2, penalty=0.5)


@pytest.fixture(scope="module")
def far(make_outputs):
    """A certificate of an infinite threshold."""
    return proven(make_outputs, 0.002)


def test_the_checker_is_one_page_that_needs_numpy_alone():
    text = FILE.read_text()
    assert len(text.splitlines()) < 80
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            imported |= {item.name.split(".")[0] for item in node.names}
    assert imported == {"json", "sys", "typing", "numpy"}


def test_valid_certificates_are_valid(certificate, far):
    assert np.isfinite(certificate.threshold) and certificate.failing_conditions() == []
    assert far.threshold == np.inf and far.failing_conditions() == []


def altered(certificate, name, place, by):
    own = np.array(getattr(certificate, name), dtype=float)
    own[place] += by
    return asdict(certificate) | {name: own}


@pytest.mark.parametrize("by", [1e-3, -1e-3, 0.7])
@pytest.mark.parametrize(
    "name", ["alpha", "weight", "threshold", "row", "coefficients", "duals", "phi"]
)
def test_every_number_that_is_altered_is_noticed(certificate, name, by):
    for place in np.ndindex(np.shape(getattr(certificate, name))):
        found = failing_conditions(altered(certificate, name, place, by))
        assert found, (name, place)


def test_points_that_are_altered_are_noticed(certificate):
    others = np.setdiff1d(np.arange(len(certificate.scores)), certificate.points)
    for place in range(len(certificate.points)):
        for other in others:
            wrong = certificate.points.copy()
            wrong[place] = other
            assert replace(certificate, points=wrong).failing_conditions()


def test_scores_that_are_altered_are_noticed_unless_the_threshold_stays(certificate):
    """Deterministic: fails if an altered score that moves the threshold is accepted."""
    harmless = 0
    for place in range(len(certificate.scores)):
        for by in (-0.3, 0.3):
            changed = altered(certificate, "scores", place, by)
            again = fit_quantiles(changed["phi"], changed["scores"], changed["alpha"])
            threshold = again.thresholds(certificate.row[None]).values[0]
            if failing_conditions(changed):
                continue
            harmless += 1
            assert threshold == pytest.approx(certificate.threshold, abs=1e-9)
    assert 0 < harmless < 2 * len(certificate.scores)  # points that stay on their side of the fit


def test_a_ray_that_is_altered_is_noticed(far):
    assert failing_conditions(asdict(far) | {"coefficients": -far.coefficients})
    assert failing_conditions(asdict(far) | {"coefficients": 0.0 * far.coefficients})
    assert failing_conditions(asdict(far) | {"threshold": -np.inf})
    assert failing_conditions(asdict(far) | {"threshold": 1.0})
    assert failing_conditions(asdict(far) | {"alpha": 0.3, "weight": 0.7})
    # With a negative weight it proves that the threshold is infinitely small, and no other.
    small = {"alpha": 0.1, "weight": -0.05, "row": np.ones(1), "phi": np.full((3, 1), 0.01)}
    small |= {"scores": np.ones(3), "coefficients": -np.ones(1), "points": [], "duals": []}
    found = [not failing_conditions(small | {"threshold": end}) for end in (-np.inf, np.inf)]
    assert found == [True, False]
    # A ray of twice the length proves the same.
    assert not failing_conditions(asdict(far) | {"coefficients": 2.0 * far.coefficients})


@pytest.mark.parametrize("weight", [0.9, 0.35, -0.05])
@pytest.mark.parametrize("n", [*range(10, 19), *range(20, 29)])
def test_no_other_threshold_can_be_proven(n, weight):
    """The slope that balances a fit through another score is too high, or too low."""
    scores, phi = np.arange(float(n)), np.ones((n, 1))
    numbers = {"alpha": 0.1, "weight": weight, "row": np.ones(1), "phi": phi, "scores": scores}
    valid = []
    for point in range(n):
        dual = 0.1 * point - 0.9 * (n - 1 - point) - weight
        forged = {"threshold": scores[point], "coefficients": scores[[point]]}
        forged |= {"points": np.array([point]), "duals": np.array([dual])}
        valid += [] if failing_conditions(numbers | forged) else [scores[point]]
    assert valid == fit_quantiles(phi, scores, 0.1).thresholds([[1.0]], weight).values.tolist()


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_files_hold_the_same_numbers(certificate, far, tmp_path, suffix):
    for own in (certificate, far):
        path = tmp_path / f"certificate{suffix}"
        own.save(path)
        found = read_certificate(str(path))
        for name, value in asdict(own).items():
            assert np.array_equal(found[name], value)
        done = subprocess.run(
            [sys.executable, FILE, path], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert (done.returncode, done.stdout.strip()) == (0, "valid")


def test_what_is_no_certificate_is_refused(certificate, tmp_path):
    path = tmp_path / "certificate.json"
    certificate.save(path)
    good = json.loads(path.read_text())
    bad = [
        {},
        [],
        good | {"phi": [[1.0]]},
        good | {"phi": "text"},
        good | {"row": good["row"][:-1]},
        good | {"duals": good["duals"][1:]},
        good | {"alpha": [0.1]},
        good | {"alpha": None},
        good | {"scores": [*good["scores"][1:], "nan"]},
        good | {"points": [0.5, *good["points"][1:]]},
        good | {"points": [10**6, *good["points"][1:]]},
        good | {"points": [good["points"][-1], *good["points"][1:]]},
        good | {"threshold": "nan"},
    ]
    for content in bad:
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match="is no certificate"):
            read_certificate(str(path))
    for content in (b"", b"PK", b"PK\x03\x04 not an archive", b"\xff\xfe\x00", b"{" * 2000):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is no certificate"):
            read_certificate(str(path))
    with pytest.raises(FileNotFoundError):
        read_certificate(str(tmp_path / "missing.json"))
    with pytest.raises(InputError, match=r"path must end in \.npz or \.json"):
        certificate.save(tmp_path / "certificate.txt")
    assert list(tmp_path.iterdir()) == [path]


def test_objects_in_archives_are_not_unpickled(tmp_path):
    path = tmp_path / "certificate.npz"
    np.savez(path, alpha=np.array([object()], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="is no certificate"):
        read_certificate(str(path))


@pytest.mark.parametrize(("alpha", "weight"), [(0.1, 0.91), (0.1, -0.1), (0.0, 0.5), (1.0, 0.0)])
def test_a_weight_that_no_threshold_has_is_refused(alpha, weight):
    """With more weight than 1 - alpha, any threshold could be proven."""
    numbers = {"alpha": alpha, "weight": weight, "threshold": 0.0, "row": np.ones(1)}
    numbers |= {"phi": np.ones((1, 1)), "coefficients": np.zeros(1), "scores": np.zeros(1)}
    reasons = failing_conditions(numbers | {"points": np.zeros(1, int), "duals": np.zeros(1)})
    assert reasons == ["alpha must be in (0, 1), and weight above -alpha and at most 1 - alpha"]
