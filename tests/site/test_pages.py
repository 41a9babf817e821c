"""Every Python block of the pages and of the README runs as it stands, page by page."""

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
# Results are made by scripts, and have no code.
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "results" not in path.parts),
]
# Pages whose blocks need what other tests give them: a cluster, a data set, another library.
ELSEWHERE = {"scale.md", "paper.md", "first_tries.md"}


def blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def saved_arrays() -> dict[str, object]:
    """What the pages call your saved arrays."""
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


def test_there_are_blocks() -> None:
    assert len(blocks(ROOT / "README.md")) >= 1
    assert sum(len(blocks(path)) for path in PAGES) > 12


@pytest.mark.parametrize(
    "path",
    [path for path in PAGES if blocks(path) and path.name not in ELSEWHERE],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_blocks_run_in_their_order(path, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    names = saved_arrays()
    for block in blocks(path):
        exec(compile(block, path.name, "exec"), names)
    if "sets" in names:
        sizes = names["sets"].sizes
        assert 1 <= sizes.min() and sizes.mean() < 4


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_imports_of_other_blocks_run(name) -> None:
    for block in blocks(ROOT / "docs" / name):
        compile(block, name, "exec")
        for line in re.findall(
            r"^(?:from|import) trustsets.* import .*", block, flags=re.MULTILINE
        ):
            exec(line, {})
