"""The one progress bar of the package; rich is imported when a bar is shown."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]
"""Told how many steps were done since the last call."""


@contextmanager
def progress_bar(
    title: str, total: int | None, *, wanted: bool | None = None, transient: bool = False
) -> Iterator[Advance]:
    """Show a bar on stderr; gives a function to call with the number of steps just done.

    There are `total` steps, None if nobody can tell. The bar is shown if `wanted`, by default on a
    terminal only, and a transient one is removed at the end.
    """
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not (on_terminal if wanted is None else wanted):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=transient) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)
