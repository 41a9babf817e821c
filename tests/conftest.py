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


@pytest.fixture
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
        return ModelOutputs(**(fields | changes))

    return make


# Folders and files whose tests `make quick` leaves out, besides those with the mark of their own:
# they start processes, run networks or a browser, or simulate for seconds.
SLOW = (
    "cli",
    "demo",
    "extras",
    "paper",
    "statistical",
    "report/test_report_in_browser.py",
)
HERE = Path(__file__).parent


def _is_slow(path: Path) -> bool:
    return any(path.is_relative_to(HERE / name) for name in SLOW)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import slow tests, which may need torch or ray, where none is wanted."""
    wanted = config.getoption("markexpr", "")
    return True if "not slow" in wanted and _is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_slow(item.path):
            item.add_marker(pytest.mark.slow)
