"""Python blocks of the pages: run in their order, each with its output in the block below it.

    python docs/hooks/blocks.py                      # write the outputs of all pages anew
    python docs/hooks/blocks.py docs/limitations.md  # of one page

A page is run in an empty folder and starts with no names, as a reader does who pastes it.
"""

import contextlib
import io
import math
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Pages whose blocks need another library, a cluster or much time; tests of these run them.
ELSEWHERE = {"scale.md", "tools.md", "paper.md"}
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?P<gap>\n```text\n(?P<output>.*?)^```\n)?",
    flags=re.DOTALL | re.MULTILINE,
)
_NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?")
_WRAPPER = textwrap.TextWrapper(88, replace_whitespace=False, break_long_words=False)
_HEADLINE = re.compile(r"(<!-- headline -->).*?(<!-- /headline -->)", flags=re.DOTALL)


def headline(for_readme: bool) -> str:
    """The main result in a few lines, which `make evidence` writes; links lead from the root."""
    text = (ROOT / "docs" / "results" / "headline.md").read_text(encoding="utf-8").strip()
    return text if for_readme else text.replace("](docs/", "](")


def pages() -> list[Path]:
    """The README and the pages that have code to run; pages of results have none."""
    written = sorted((ROOT / "docs").rglob("*.md"))
    paths = [path for path in written if "results" not in path.parts]
    return [
        path
        for path in [ROOT / "README.md", *paths]
        if path.name not in ELSEWHERE and "```python" in path.read_text(encoding="utf-8")
    ]


def outputs(text: str, name: str) -> Iterator[tuple["re.Match[str]", str]]:
    """Run the blocks of a page in an empty folder, and give each with what it printed."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block in BLOCK.finditer(text):
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile(block["code"], name, "exec"), namespace)
                yield block, printed.getvalue()
        finally:
            os.chdir(before)


def same_output(printed: str, shown: str) -> bool:
    """Whether the words are equal and the numbers nearly: processors round sums differently."""
    words = [re.sub(r"\s+", " ", _NUMBER.sub("0", text)).strip() for text in (printed, shown)]
    numbers = [
        [float(number.replace(",", "")) for number in _NUMBER.findall(text)]
        for text in (printed, shown)
    ]
    return words[0] == words[1] and all(
        math.isclose(one, other, rel_tol=0.02, abs_tol=0.011)
        for one, other in zip(*numbers, strict=True)
    )


def written_anew(text: str, name: str) -> str:
    """The page with the outputs of its blocks as they are now."""
    parts, end = [], 0
    for block, printed in outputs(text, name):
        parts += [text[end : block.start()], f"```python\n{block['code']}```\n"]
        if printed.strip():
            parts.append(f"\n```text\n{_wrapped(printed)}\n```\n")
        end = block.end()
    text = "".join([*parts, text[end:]])
    return _HEADLINE.sub(lambda found: f"{found[1]}\n{headline(for_readme=True)}\n{found[2]}", text)


def _wrapped(printed: str) -> str:
    """Sentences in lines that a page has room for; rows of tables stay as they are."""
    lines = printed.rstrip().splitlines()
    return "\n".join(
        line if line.startswith("|") else "\n".join(_WRAPPER.wrap(line)) or line for line in lines
    )


if __name__ == "__main__":
    for path in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        text = path.read_text(encoding="utf-8")
        new = written_anew(text, path.name)
        print(path.relative_to(ROOT), "changed" if new != text else "as before")
        path.write_text(new, encoding="utf-8")
