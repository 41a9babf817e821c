from pathlib import Path

import numpy as np
import pytest

from trustsets import ModelOutputs


def simulated_logits(n: int, n_classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are 1.7 times too large, and labels drawn from the right ones."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(n, n_classes)) * 1.5
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    return 1.7 * true, labels


@pytest.fixture(scope="session")
def make_outputs():
    """Return a function that makes simulated outputs with labels, features and groups."""

    def make(n: int = 200, n_classes: int = 5, seed: int = 0, **changes) -> ModelOutputs:
        logits, labels = simulated_logits(n, n_classes, seed)
        rng = np.random.default_rng(seed + 1)
        fields = {
            "logits": logits,
            "labels": labels,
            "features": rng.normal(size=(n, 3)),
            "groups": {"site": rng.choice(["a", "b", "c"], size=n)},
        }
        if not changes.keys() & {"labels", "logits", "probabilities"}:
            # A few samples may lack a class, and integers alone then do not name the columns.
            fields["classes"] = np.arange(n_classes)
        return ModelOutputs(**(fields | changes))

    return make


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """One headless browser for all tests of pages."""
    from browser import start_browser

    browser = start_browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


# Folders, files and tests (by the beginning of their name) that `make quick` leaves out, besides
# those with a mark of their own: they start processes, run networks or a browser, or take seconds.
SLOW = (
    "auditing",
    "basis/test_learned.py",
    "benchmarks",
    "cli",
    "contract/test_golden.py::test_a_saved_predictor",
    "contract/test_public_names.py::test_nothing_is_loaded",
    "contract/test_queries.py",
    "demo",
    "engine/test_compiled.py",
    "engine/test_exact.py",
    "engine/test_extreme.py",
    "engine/test_fit.py",
    "engine/test_leave_one_out.py",
    "engine/test_own_alphas.py",
    "engine/test_proof.py::test_paths",
    "engine/test_ties.py",
    "explorer",
    "files/test_reading.py",
    "metrics/test_comparison.py",
    "monitor",
    "neighbours/test_neighbours.py::test_equals_the_definition[torch",
    "neighbours/test_neighbours.py::test_torch",
    "paper",
    "predictors/test_candidates.py",
    "predictors/test_loading.py",
    "predictors/test_own_alphas.py",
    "predictors/test_predictors.py::test_sets_are_nested_in_alpha[clusters",
    "predictors/test_updating.py",
    "report",
    "shift",
    "site",
    "statistical",
    "test_explain.py",
    "test_extract.py",
    "test_planning.py",
    "test_ray.py",
    "test_sklearn.py",
    "test_sklearn_boosting.py",
)
HERE = Path(__file__).parent


def _is_slow(path: Path, name: str = "") -> bool:
    if not path.is_relative_to(HERE):
        return False
    place = path.relative_to(HERE).as_posix()
    return any(
        f"{place}::{name}".startswith(slow) if "::" in slow else f"{place}/".startswith(f"{slow}/")
        for slow in SLOW
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import slow tests, which may need torch or ray, where none is wanted."""
    wanted = config.getoption("markexpr", "")
    return True if "not slow" in wanted and _is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_slow(item.path, item.name):
            item.add_marker(pytest.mark.slow)
