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
    logits = rng.normal(size=(400, 5)) * 3
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return {
        "calibration_logits": logits[:300],
        "calibration_labels": labels[:300],
        "new_logits": logits[300:],
    }


def test_there_is_an_example():
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS)
def test_example_runs(block, capsys):
    names = saved_arrays()
    exec(block, names)
    assert 80 <= len(names["sets"]) <= 120
    assert capsys.readouterr().out.startswith("[")
