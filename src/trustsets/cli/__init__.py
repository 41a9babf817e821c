"""The command line ``trustsets``, and what other packages need to add commands to it."""

import _thread
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trustsets.cli.app import argument, console, expanded, option

__all__ = ["argument", "console", "expanded", "main", "option"]

# What a shell reports of a program that Ctrl-C has ended.
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; Ctrl-C ends it quietly, while it still imports what it needs, too."""
    hook, sys.unraisablehook = sys.unraisablehook, _interrupt_again
    try:
        from trustsets.cli.app import run

        run(arguments)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    finally:
        sys.unraisablehook = hook


def _interrupt_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python prints and forgets a Ctrl-C that meets a callback: send it again, moments later."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    is_sent = False
    while not is_sent:
        again = threading.Timer(0.05, _thread.interrupt_main)
        again.daemon = True
        try:
            again.start()
            is_sent = True
        except KeyboardInterrupt:
            pass  # it came before this function has ended, and would be forgotten as well


def __getattr__(name: str) -> Any:
    if name in __all__:
        from trustsets.cli import app

        return getattr(app, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
