"""Pages that the site makes when it is built: the gallery, the command line, the rooms."""

from pathlib import Path
from typing import Any

from command_line import command_line_page
from gallery import Example, run_examples
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from rooms import building_blocks_page, rooms_picture
from social import social_image
from statuses import status_page

ROOT = Path(__file__).parents[2]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those of the folder."""
    files.append(File.generated(config, "reference/command_line.md", content=command_line_page()))
    files.append(File.generated(config, "reference/statuses.md", content=status_page()))
    files.append(File.generated(config, "figures/social.png", content=social_image()))
    blocks = building_blocks_page(ROOT / "docs" / "reference")
    files.append(File.generated(config, "reference/building_blocks.md", content=blocks))
    files.append(File.generated(config, "figures/rooms.svg", content=rooms_picture()))
    titles = _titles(config.nav)
    for example in run_examples(ROOT / "examples", ROOT / "build" / "examples"):
        _add_example(example, titles, files, config)
    return files


def _add_example(
    example: Example, titles: dict[str, str], files: Files, config: MkDocsConfig
) -> None:
    address = f"howto/{example.name}.md"
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
