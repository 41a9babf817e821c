"""The one progress bar of the package; rich is imported when a bar is shown."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Advance = Callable[[int], None]
"""Told how many steps were done since the last call."""
Progress = Callable[[int], AbstractContextManager[Advance]]
"""Told how many steps there are in all, gives a context around the work."""


def no_progress(total: int) -> AbstractContextManager[Advance]:
    """Show nothing: the default of functions that can report their progress."""
    return nullcontext(lambda done: None)


@contextmanager
def progress_bar(
    title: str,
    total: int | None,
    *,
    done: int = 0,
    unit: str = "",
    wanted: bool | None = None,
    transient: bool = False,
) -> Iterator[Advance]:
    """Show a bar on stderr; gives a function to call with the number of steps just done.

    Of `total` steps (None if unknown) an earlier run did `done`. Where a step has a `unit`, such as
    ``"images"``, the bar shows counts and steps per second. It is shown if `wanted`, by default on
    a terminal only, and a transient one is removed at the end.
    """
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    if not (on_terminal if wanted is None else wanted):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn

    columns = [*Progress.get_default_columns()]
    if unit:
        columns += [MofNCompleteColumn(), TextColumn("{task.fields[speed]}")]
    with Progress(*columns, console=Console(stderr=True), transient=transient) as bar:
        task = bar.add_task(title, total=total, completed=done, speed="")

        def advance(count: int) -> None:
            bar.advance(task, count)
            speed = bar.tasks[0].speed
            if unit and speed is not None:
                bar.update(task, speed=f"{speed:,.0f} {unit}/s")

        yield advance
