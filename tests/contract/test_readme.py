"""The numbers of the README are those of committed results."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_caption_has_the_numbers_of_the_picture() -> None:
    table = (ROOT / "docs" / "results" / "before_after.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| 1 to 1\.1 \|.*\| ([\d.]+) \([\d,]+\) \|$", table, re.MULTILINE)
    shown = re.search(r"cover (\d+)%,\s.*?(\d+)%, ours (\d+)%", README, re.DOTALL)
    assert shown is not None and len(cells) == 3
    assert [f"{100 * float(cell):.0f}" for cell in cells] == list(shown.groups())


def test_the_table_has_the_numbers_of_the_benchmarks() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    row = "\n".join(
        line for line in README.splitlines() if line.startswith("| ") and "`bench" in line
    )
    for number in ("0.71", "5.6", "3.3", "48", "1,256", "1,067", "0.94 s"):
        assert number in row and f"| {number} |" in page, number
    for own, peer in ("25.4 us", "162 ms"), ("19.2 us", "79 ms"):
        assert own in page and peer in page
    assert "19 to 25 us" in row and "79 to 162 ms" in row and "2.7 x" in page


def test_it_fits_two_screens() -> None:
    assert len(README.splitlines()) <= 90
