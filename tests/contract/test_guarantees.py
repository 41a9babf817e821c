"""Every statement of docs/guarantees.md names a test, and the test is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
STATEMENTS = [text for text in re.split(r"\n(?=- |\n|#)", PAGE) if text.startswith("- ")]


def test_the_page_makes_statements():
    assert len(STATEMENTS) == PAGE.count("\n- ") >= 30


@pytest.mark.parametrize("statement", STATEMENTS)
def test_its_test_exists(statement):
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", statement)
    assert named, "the statement names no test"
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text())
        assert name in {item.name for item in tree.body if isinstance(item, ast.FunctionDef)}
