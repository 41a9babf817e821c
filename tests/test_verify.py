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
from trustsets.explain import ThresholdCertificate
from trustsets.predictors import QuantileFit
from trustsets.verify import failing_conditions, read_certificate

FILE = Path(str(module.__file__))


def proven(make_outputs, alpha, penalty=0.0):
    basis = Polynomial(2, (Confidence(),), penalty=penalty)
    calibration, tuning, test = (make_outputs(n, 6, n) for n in (80, 50, 1))
    predictor = ConditionalConformal(basis=basis).calibrate(calibration, tuning=tuning)
    return predictor.certificate(test, alpha=alpha)


@pytest.fixture(scope="module", params=[0.0, 1e12])
def certificate(request, make_outputs):
    """A certificate, also with a score far above the fit, which widens no bound."""
    made = proven(make_outputs, 0.2, penalty=0.5)
    farthest = np.arange(len(made.scores)) == np.argmax(made.scores - made.phi @ made.coefficients)
    return replace(made, scores=made.scores + request.param * farthest)


@pytest.fixture(scope="module")
def far(make_outputs):
    """A certificate of an infinite threshold."""
    return proven(make_outputs, 0.002)


def test_the_checker_is_one_short_file_that_needs_numpy_alone():
    text = FILE.read_text()
    assert len(text.splitlines()) < 115
    nodes = [node for node in ast.walk(ast.parse(text)) if hasattr(node, "names")]
    names = [getattr(node, "module", item.name) for node in nodes for item in node.names]
    imported = {name.split(".")[0] for name in names}
    assert imported == {"fractions", "json", "math", "sys", "typing", "numpy"}


def test_valid_certificates_are_valid(certificate, far):
    assert np.isfinite(certificate.threshold) and certificate.failing_conditions() == []
    assert far.threshold == np.inf and far.failing_conditions() == []


def altered(certificate, name, place, by):
    own = np.array(getattr(certificate, name), dtype=float)
    own[place] += by
    return asdict(certificate) | {name: own}


@pytest.mark.parametrize("by", [1e-6, -1e-3, 0.7])
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
    changes = [{"coefficients": factor * far.coefficients} for factor in (-1.0, 0.0)]
    changes += [{"threshold": -np.inf}, {"threshold": 1.0}, {"alpha": 0.3, "weight": 0.7}]
    assert all(failing_conditions(asdict(far) | change) for change in changes)
    # With a negative weight it proves that the threshold is infinitely small, and no other.
    small = {"alpha": 0.1, "weight": -0.05, "row": np.ones(1), "phi": np.full((3, 1), 0.01)}
    small |= {"scores": np.ones(3), "coefficients": -np.ones(1), "points": [], "duals": []}
    found = [not failing_conditions(small | {"threshold": end}) for end in (-np.inf, np.inf)]
    assert found == [True, False]
    # A sum that is zero by rounding alone: each point adds 1, and not 0.
    small |= {"row": np.array([0.0, -5.0, 0.0]), "phi": np.full((3, 3), [1e17, 1.0, -1e17])}
    assert failing_conditions(small | {"coefficients": np.ones(3), "threshold": -np.inf})
    # A ray of twice the length proves the same.
    assert not failing_conditions(asdict(far) | {"coefficients": 2.0 * far.coefficients})


@pytest.mark.parametrize("large", [1.0, 1e6, 1e12, 1e17])
@pytest.mark.parametrize("weight", [0.9 - 1e-9, 0.35, -0.05])
@pytest.mark.parametrize("n", range(9, 30))
def test_no_other_threshold_can_be_proven(n, weight, large):
    """The slope that balances a fit through another score is too high, or too low.

    Two large rows above every fit, whose slopes cancel, do not hide that.
    """
    scores = np.append(np.arange(float(n)), [n * large, n * large])
    phi = np.append(np.ones(n), [large, -large])[:, None]
    numbers = {"alpha": 0.1, "weight": weight, "row": np.ones(1), "phi": phi, "scores": scores}
    valid = []
    for point in range(n):
        dual = np.clip(0.1 * point - 0.9 * (n - 1 - point) - weight, -0.1, 0.9)
        forged = {"threshold": scores[point], "coefficients": scores[[point]]}
        forged |= {"points": np.array([point]), "duals": np.array([dual])}
        valid += [] if failing_conditions(numbers | forged) else [scores[point]]
    thresholds = fit_quantiles(phi[:n], scores[:n], 0.1).thresholds([[1.0]], weight)
    assert valid == thresholds.values.tolist()


@pytest.mark.parametrize("large", [1e6, 1e12, 1e17])
def test_a_slope_may_not_leave_its_interval_however_large_its_row(large):
    numbers = {"alpha": 0.1, "weight": 0.5, "threshold": 0.0, "row": np.ones(1)}
    numbers |= {"phi": np.array([[-large], [1.0], [large]]), "scores": np.array([-large, 1.0, 0.0])}
    numbers |= {"coefficients": np.zeros(1), "points": np.array([2])}
    # The others balance but for the second: only a slope of -alpha - 1.4 / large would do.
    for dual in (-0.1, -0.1 - 1.4 / large):
        assert failing_conditions(numbers | {"duals": np.array([dual])})
    # One row balances those of others in its direction, and leaves the fit undetermined.
    numbers |= {"row": np.array([1.0, 0.0]), "coefficients": np.array([5.0, -5.0])}
    numbers |= {"threshold": 5.0, "phi": np.array([[large, large], [1.0, 0.0], [1.0, 1.0]])}
    numbers |= {"points": np.array([0]), "scores": np.array([0.0, 1.0, 1.0])}
    assert failing_conditions(numbers | {"duals": np.array([-1.1 / large])})
    # At the largest weight one point balances any fit above it.
    numbers |= {"alpha": 0.5, "row": np.ones(1), "phi": np.ones((1, 1)), "scores": np.zeros(1)}
    numbers |= {"threshold": 7.0, "coefficients": np.full(1, 7.0), "points": np.zeros(0, int)}
    assert failing_conditions(numbers | {"duals": np.zeros(0)})


@pytest.mark.parametrize("seed", [*range(320, 520), 1324])
def test_certificates_of_numbers_of_any_size_are_valid_and_of_no_other_threshold(seed):
    rng = np.random.default_rng(seed)
    n, p = rng.integers(8, 200), int(rng.integers(2, 9))
    phi = [
        rng.normal(size=(n, p)) * 10.0 ** rng.uniform(-8, 8, p),
        np.vander(0.9 + 0.1 * rng.random(n), p),
        np.vander(rng.choice([0.1, 0.4, 0.8], n), p),
        np.column_stack([np.ones(n), np.eye(p)[rng.integers(0, p, n)]]),
    ][seed % 4]
    normal = rng.normal(size=n)
    scores = [normal, np.maximum(normal - 1.0, 0.0), 10.0 ** rng.uniform(-15, 0, n), np.ones(n)]
    scores = [*scores, 1e6 + phi[:, :2] @ rng.normal(size=2)][seed % 5]
    scores = scores * rng.choice([1.0, 1e15, 1e-15])
    penalty = np.eye(phi.shape[1])[1:] * np.exp(rng.normal(size=(phi.shape[1] - 1, 1)))
    phi[0] = phi[0] if seed % 5 != 3 else np.eye(phi.shape[1])[0]  # where the fit is nearly zero
    rows = np.vstack([phi[1:], *[penalty, -penalty][: rng.choice([0, 2])]])
    padded = np.append(scores[1:], np.zeros(len(rows) - n + 1))
    made = ThresholdCertificate.of(QuantileFit(rows, padded, 0.2, phi[0], 0.8))
    assert made.failing_conditions() == []
    size = max(np.abs(made.row) @ np.abs(made.coefficients), 1e-9 * np.abs(padded).max())
    changed = replace(made, threshold=made.threshold + 1e-6 * size)
    assert changed.failing_conditions() or np.isinf(made.threshold) or seed % 5 == 3


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
    changes = [
        ("phi", [[1.0]]), ("phi", "text"), ("row", good["row"][:-1]), ("duals", good["duals"][1:]),
        ("alpha", [0.1]), ("alpha", None), ("threshold", "nan"),
        *(("scores", [*good["scores"][1:], score]) for score in ("nan", "inf", 1e305)),
        *(("points", [point, *good["points"][1:]]) for point in (0.5, 10**6, good["points"][-1])),
    ]  # fmt: skip
    for content in ({}, [], *(good | {name: value} for name, value in changes)):
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
    # Objects in archives are not unpickled.
    np.savez(tmp_path / "c.npz", alpha=np.array([object()], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="is no certificate"):
        read_certificate(str(tmp_path / "c.npz"))


@pytest.mark.parametrize(("alpha", "weight"), [(0.1, 0.91), (0.1, -0.1), (0.0, 0.5), (1.0, 0.0)])
def test_a_weight_that_no_threshold_has_is_refused(alpha, weight):
    """With more weight than 1 - alpha, any threshold could be proven."""
    numbers = {"alpha": alpha, "weight": weight, "threshold": 0.0, "row": np.ones(1)}
    numbers |= {"phi": np.ones((1, 1)), "coefficients": np.zeros(1), "scores": np.zeros(1)}
    reasons = failing_conditions(numbers | {"points": np.zeros(1, int), "duals": np.zeros(1)})
    assert reasons == ["alpha must be in (0, 1), and weight above -alpha and at most 1 - alpha"]
