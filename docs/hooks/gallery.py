"""The gallery: every script of examples/ is run, and shown with its output and its figures."""

import ast
import hashlib
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SECONDS = 300
# With this in the environment scripts are shown but not run: the tests run them elsewhere.
UNRUN = "TRUSTSETS_EXAMPLES_UNRUN"


@dataclass(frozen=True)
class Example:
    """One script with what it printed and drew."""

    path: Path
    output: str
    figures: tuple[Path, ...]

    @property
    def name(self) -> str:
        """File name without its ending."""
        return self.path.stem

    def page(self, title: str) -> str:
        """The page of the script, in Markdown."""
        words = ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or ""
        return f"---\nhide: [toc]\n---\n\n# {title}\n\n{words}\n\n{self.section()}\n"

    def section(self) -> str:
        """Code, output and figures, for a page that has its own words."""
        source = self.path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        code = "\n".join(source.splitlines()[tree.body[0].end_lineno :]).strip()
        parts = [f"```python\n{code}\n```"]
        if self.output:
            parts += ["It prints:", f"```text\n{self.output}\n```"]
        parts += [f"![Figure of {self.name}]({self.name}_{file.name})" for file in self.figures]
        parts += [f"The script is `examples/{self.path.name}`."]
        return "\n\n".join(parts)


def run_examples(folder: Path, cache: Path) -> list[Example]:
    """Run all scripts, two at a time; results are kept until a script or the library changes."""
    scripts = sorted(folder.glob("*.py"))
    if os.environ.get(UNRUN):
        return [Example(script, "", ()) for script in scripts]
    library = _digest(sorted((folder.parent / "src").rglob("*.py")))
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda script: _run(script, cache, library), scripts))


def _run(script: Path, cache: Path, library: str) -> Example:
    kept = cache / f"{script.stem}-{_digest([script])}-{library}"
    if not kept.is_dir():
        for old in cache.glob(f"{script.stem}-*"):
            shutil.rmtree(old)
        made = cache / f"making-{script.stem}"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        printed = _output(script, made)
        (made / "output.txt").write_text(printed, encoding="utf-8")
        made.rename(kept)
    printed = (kept / "output.txt").read_text(encoding="utf-8")
    return Example(script, printed, tuple(sorted(kept.glob("*.png"))))


def _output(script: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env=os.environ | {"MPLBACKEND": "Agg", "COLUMNS": "100", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode and not done.stderr.startswith("needs"):
        raise RuntimeError(f"{script.name} failed:\n{done.stderr}")
    return (done.stdout if not done.returncode else done.stderr).strip("\n").rstrip()


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
