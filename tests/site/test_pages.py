"""Every Python block of the pages and of the README runs as it stands, and prints what it says."""

import re
from pathlib import Path

import blocks
import pytest
import typer
from small_runs import write_extracted

from trustsets.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Pages whose blocks need what other tests give them: a cluster, another library, a small run.
ELSEWHERE = {
    "scale.md": ("test_ray.py",),
    "tools.md": ("test_tools.py", "test_frames.py"),
    "paper.md": ("test_pages.py",),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", blocks.pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_blocks_run_as_pasted_and_print_what_is_shown(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for block, printed in blocks.outputs(text, path.name):
        shown = block["output"] or ""
        assert blocks.same_output(printed, shown), f"printed:\n{printed}\nshown:\n{shown}"


@pytest.mark.parametrize(
    ("printed", "shown"),
    [("90.1% of 5 sets", "95.1% of 5 sets"), ("cat", "dog"), ("", "1"), ("size 3.10", "size")],
)
def test_another_output_is_noticed(printed: str, shown: str) -> None:
    assert not blocks.same_output(printed, shown)


def test_outputs_are_written_below_their_blocks() -> None:
    page = "```python\nprint(1 + 1)\n```\n\nWords.\n\n```python\nx = 3\n```\n"
    new = blocks.written_anew(page, "page")
    assert new == page.replace("\n\nWords", "\n\n```text\n2\n```\n\nWords", 1)
    assert blocks.written_anew(new, "page") == new


def test_pages_that_show_code_are_run_here_or_elsewhere() -> None:
    coded = {path.name for path in PAGES if "```python" in path.read_text(encoding="utf-8")}
    assert coded == {path.name for path in blocks.pages()} | blocks.ELSEWHERE
    assert blocks.ELSEWHERE == set(ELSEWHERE)
    for name, tests in ELSEWHERE.items():
        paths = [path for path in (ROOT / "tests").rglob("*.py") if path.name in tests]
        assert len(paths) == len(tests)
        assert all(Path(name).stem in path.read_text(encoding="utf-8") for path in paths)


def test_the_readme_has_the_main_result_and_fits_two_screens() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"<!-- headline -->\n{blocks.headline(for_readme=True)}\n<!-- /headline -->" in text
    assert len(text.splitlines()) <= 120


def options(command) -> set[str]:
    """Options of a command, or of all commands of a group."""
    names = {name for option in command.params for name in option.opts + option.secondary_opts}
    return names.union(*map(options, getattr(command, "commands", {}).values()))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_of_the_command_line_exist(path) -> None:
    existing = options(typer.main.get_command(app)) | {
        "--help",
        "--install-completion",
        "--version",
    }
    existing |= {
        "--bench",
        "--floors",
        "--points",
        "--table",
    }  # of scripts in studies/ and benchmarks/
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= existing


SMALLER = {"degrees=(1, 2, 3, 4, 5)": "seeds=(1,), scores=('APS',), degrees=(1, 2), degree=2"}


@pytest.mark.slow
def test_blocks_of_the_page_on_the_paper_run(tmp_path, monkeypatch) -> None:
    """With one seed, one score and two degrees."""
    monkeypatch.chdir(tmp_path)
    write_extracted(tmp_path / "extracted" / "imagenet", "imagenet", fixed=False)
    names: dict[str, object] = {}
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert code
    for block in code:
        for text, smaller in SMALLER.items():
            block = block.replace(text, smaller)
        exec(compile(block, "paper.md", "exec"), names)
