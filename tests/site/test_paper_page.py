"""The Python blocks of docs/paper.md run, with one seed, one score and two degrees."""

import re
from pathlib import Path

import pytest
from small_runs import write_extracted

PAGE = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
SMALLER = {"degrees=(1, 2, 3, 4, 5)": "seeds=(1,), scores=('APS',), degrees=(1, 2), degree=2"}
pytestmark = pytest.mark.slow


def test_blocks_run_in_their_order(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_extracted(tmp_path / "extracted" / "imagenet", "imagenet", fixed=False)
    names: dict[str, object] = {}
    code = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert code
    for block in code:
        for text, smaller in SMALLER.items():
            block = block.replace(text, smaller)
        exec(compile(block, "paper.md", "exec"), names)
