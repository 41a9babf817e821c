"""The sections of docs/first_tries.md, for the tests that run their code."""

import re
from pathlib import Path

__all__ = ["SECTIONS", "blocks"]

_PAGE = (Path(__file__).parents[2] / "docs" / "first_tries.md").read_text(encoding="utf-8")
_PARTS = re.split(r"^## (.*)$", _PAGE, flags=re.MULTILINE)
SECTIONS = dict(zip(_PARTS[1::2], _PARTS[2::2], strict=True))


def blocks(title):
    """Python code of a section."""
    return re.findall(r"^```python\n(.*?)^```", SECTIONS[title], flags=re.DOTALL | re.MULTILINE)
