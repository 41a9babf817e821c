"""Pages that the site makes when it is built: the gallery, the command line, the rooms.

A page of `docs/howto` that has the name of a script shows it where it says ``{{ example }}``.
Other scripts get a page of their own, whose words are the docstring.
"""

import re
from pathlib import Path
from typing import Any

from blocks import headline
from command_reference import command_line_page
from gallery import Example, run_examples
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pictures import PICTURES
from rooms import building_blocks_page, rooms_picture
from social import social_image
from statuses import status_page

ROOT = Path(__file__).parents[2]
# Tables that are files, not pages: by the name of the file on the site, where they are.
RESULT_FILES = {
    "equal_size.txt": "docs/results/equal_size.md",
    "coverage_methods.txt": "docs/results/coverage_methods.md",
    "default_choices.txt": "docs/results/default_choices.md",
    "rare_classes.txt": "docs/results/rare_classes.md",
    "paper_tables.txt": "docs/results/overview/README.md",
    "paper_elements.txt": "docs/results/paper_elements.md",
    "paper_images.txt": "docs/results/paper_images.md",
    "benchmarks.txt": "benchmarks/README.md",
    "studies.txt": "studies/README.md",
}
PLACEHOLDER, HEADLINE = "{{ example }}", "{{ headline }}"
_SECTIONS: dict[str, str] = {}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those of the folder."""
    files.append(File.generated(config, "reference/command_line.md", content=command_line_page()))
    files.append(File.generated(config, "reference/statuses.md", content=status_page()))
    files.append(File.generated(config, "figures/social.png", content=social_image()))
    blocks = building_blocks_page(ROOT / "docs" / "reference")
    files.append(File.generated(config, "reference/building_blocks.md", content=blocks))
    files.append(File.generated(config, "figures/rooms.svg", content=rooms_picture()))
    for name, source in RESULT_FILES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, f"results/files/{name}", content=text))
    for name, draw in PICTURES.items():
        files.append(File.generated(config, f"figures/{name}.svg", content=draw()))
    titles = _titles(config.nav)
    for example in run_examples(ROOT / "examples", ROOT / "build" / "examples"):
        _add_example(example, titles, files, config)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the scripts into the pages that are written around them."""
    section = _SECTIONS.get(page.file.src_uri)
    markdown = markdown.replace(HEADLINE, headline(for_readme=False))
    if page.file.src_uri == "guarantees.md":
        markdown = _with_marks(markdown)
    if PLACEHOLDER not in markdown:
        return markdown
    if section is None:
        raise ValueError(f"{page.file.src_uri}: no script of examples/ has the name of this page")
    return markdown.replace(PLACEHOLDER, section)


def _with_marks(markdown: str) -> str:
    """Names of tests as small marks, which show the name when pointed at."""
    return re.sub(
        r"\((`tests/[^)]*)\)",
        lambda found: f'<small title="{found[1].replace("`", "")}">(tested)</small>',
        markdown,
    )


def _add_example(
    example: Example, titles: dict[str, str], files: Files, config: MkDocsConfig
) -> None:
    address = f"howto/{example.name}.md"
    _SECTIONS[address] = example.section()
    if files.get_file_from_path(address) is None:
        title = titles.get(address, example.name.replace("_", " ").capitalize())
        files.append(File.generated(config, address, content=example.page(title)))
    for figure in example.figures:
        files.append(
            File.generated(
                config, f"howto/{example.name}_{figure.name}", content=figure.read_bytes()
            )
        )


def _titles(nav: Any) -> dict[str, str]:
    """Titles by address, from the tree of the navigation."""
    if isinstance(nav, list):
        return {address: title for item in nav for address, title in _titles(item).items()}
    if isinstance(nav, dict):
        pairs = {value: key for key, value in nav.items() if isinstance(value, str)}
        return pairs | _titles([value for value in nav.values() if isinstance(value, list)])
    return {}
