"""``trustsets paper``: the paper's experiments, which `trustsets_paper` has."""

from typing import Any

import typer
from typer.core import TyperGroup

__all__ = ["paper"]


class _PaperCommands(TyperGroup):
    """The commands of `trustsets_paper`, imported when they are asked for."""

    @property
    def commands(self) -> Any:
        """Commands by name."""
        from trustsets_paper.cli import paper as commands

        return typer.main.get_group(commands).commands

    @commands.setter
    def commands(self, value: Any) -> None:
        """Nothing: the group itself has no commands."""


paper = typer.Typer(
    name="paper",
    cls=_PaperCommands,
    no_args_is_help=True,
    help="The paper's experiments, from images to tables.",
)
