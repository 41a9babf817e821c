"""Every Python block of the pages and of the README runs as it stands, page by page."""

import re
from pathlib import Path

import numpy as np
import pytest
import typer
from small_runs import write_extracted

from trustsets import scores
from trustsets.cli.app import app

ROOT = Path(__file__).parents[2]
# Results are made by scripts, and have no code.
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "results" not in path.parts),
]
# The experiments of the paper are cut down: one seed, two degrees.
SMALLER = {"degrees=(1, 2, 3, 4, 5)": "seeds=(1,), scores=('APS',), degrees=(1, 2), degree=2"}
# Pages whose blocks need what other tests give them: a cluster, or another library.
ELSEWHERE = {
    "scale.md": ("test_ray.py",),
    "first_tries.md": ("test_first_tries.py", "test_frames.py"),
}


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
    if path.name == "paper.md":
        write_extracted(tmp_path / "extracted" / "imagenet", "imagenet", fixed=False)
    names = saved_arrays()
    for block in blocks(path):
        for text, smaller in SMALLER.items():
            block = block.replace(text, smaller)
        exec(compile(block, path.name, "exec"), names)
    if "sets" in names:
        sizes = names["sets"].sizes
        assert 1 <= sizes.min() and sizes.mean() < 4


def test_the_code_of_the_readme_runs_as_pasted_and_prints_what_it_says(capsys) -> None:
    (code,) = blocks(ROOT / "README.md")
    exec(compile(code, "README.md", "exec"), {})
    comments = re.findall(r"^print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(comments) == 2
    for line, comment in zip(printed, comments, strict=True):
        assert comment.startswith(line)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_blocks_are_run_elsewhere(name) -> None:
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path.name in ELSEWHERE[name]]
    assert len({path.name for path in tests}) == len(ELSEWHERE[name])
    assert all(Path(name).stem in path.read_text(encoding="utf-8") for path in tests)
    for block in blocks(ROOT / "docs" / name):
        compile(block, name, "exec")


def options(command) -> set[str]:
    """Options of a command, or of all commands of a group."""
    own = {name for option in command.params for name in option.opts + option.secondary_opts}
    return own.union(*map(options, getattr(command, "commands", {}).values()))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_of_the_command_line_exist(path) -> None:
    known = options(typer.main.get_command(app)) | {"--help", "--install-completion"}
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= known


def test_the_choice_of_a_score_has_the_numbers_of_the_defaults() -> None:
    choice = (ROOT / "docs" / "start" / "which_method.md").read_text(encoding="utf-8")
    measured = (ROOT / "docs" / "defaults.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)\(\)` \| .* \| (.*) \| (.*) \|$", choice, flags=re.MULTILINE)
    bases = {"Score", "RankScore", "CustomScore"}
    assert {name for name, *_ in rows} == set(scores.__all__) - bases
    for name, standard, default in rows:
        assert f"| `{name}` | {standard} | {default} |" in measured, name
