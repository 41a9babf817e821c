"""``trustsets paper``: the paper's experiments, which `trustsets_paper` has."""

from typing import Any

import typer
from typer.core import TyperGroup

__all__ = ["paper"]


class _PaperCommands(TyperGroup):
    """The commands of `trustsets_paper`, imported when one of them is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands."""
        names: list[str] = self._group().list_commands(ctx)
        return names

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One of the commands."""
        return self._group().get_command(ctx, cmd_name)

    def _group(self) -> Any:
        from trustsets_paper.cli import paper as commands

        return typer.main.get_group(commands)


paper = typer.Typer(
    name="paper",
    cls=_PaperCommands,
    no_args_is_help=True,
    help="The paper's experiments, from images to tables.",
)
