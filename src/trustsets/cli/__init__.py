"""The command line ``trustsets``: one file a command, parsing only."""

from trustsets.cli.main import main

__all__ = ["main"]
