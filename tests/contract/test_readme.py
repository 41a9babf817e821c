"""The README's Python blocks run as they stand."""

import re
from pathlib import Path

import numpy as np
import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def saved_arrays() -> dict[str, object]:
    """What the README calls your saved arrays."""
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=1500)
    features = rng.normal(size=(1500, 8)) + 1.5 * np.eye(8)[labels]
    logits = 3 * features[:, :5]
    train, held_out, new = slice(0, 500), slice(500, 1400), slice(1400, 1500)
    return {
        "train_features": features[train],
        "train_labels": labels[train],
        "features": features[held_out],
        "logits": logits[held_out],
        "labels": labels[held_out],
        "new_features": features[new],
        "new_logits": logits[new],
    }


def test_there_are_examples():
    assert len(BLOCKS) == 2


@pytest.mark.parametrize("block", BLOCKS)
def test_example_runs(block, capsys):
    names = saved_arrays()
    exec(block, names)
    sizes = names["sets"].sizes
    assert 1 <= sizes.min() and sizes.mean() < 4
    assert capsys.readouterr().out.strip()
