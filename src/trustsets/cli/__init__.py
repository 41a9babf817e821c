"""The command line ``trustsets``: one file a command, parsing only."""

from trustsets.cli import console
from trustsets.cli.main import main
from trustsets.cli.options import argument, expanded, option

__all__ = ["argument", "console", "expanded", "main", "option"]
