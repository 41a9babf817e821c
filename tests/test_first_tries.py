"""The code of docs/first_tries.md runs as it stands there."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "first_tries.md"
# Sections that run in one namespace, in order, and the package that the last of them needs.
TRIES = {
    ("scikit-learn pipelines", "scikit-learn searches and ensembles"): "sklearn",
    ("LightGBM",): "lightgbm",
    ("XGBoost",): "xgboost",
    ("CatBoost",): "catboost",
}


def blocks(title):
    """Python code of a section of the page."""
    sections = re.split(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    own = dict(zip(sections[1::2], sections[2::2], strict=True))[title]
    return re.findall(r"```python\n(.*?)```", own, flags=re.DOTALL)


@pytest.mark.parametrize("titles", TRIES, ids=lambda titles: titles[-1])
def test_the_code_runs(titles, tmp_path, monkeypatch, capsys):
    pytest.importorskip(TRIES[titles], reason=f"{TRIES[titles]} is not installed")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "first_try"}
    for title in titles:
        code = blocks(title)
        assert code
        for block in code:
            exec(compile(block, f"{PAGE.name}: {title}", "exec"), namespace)
    assert capsys.readouterr().out.startswith("[")  # a set
