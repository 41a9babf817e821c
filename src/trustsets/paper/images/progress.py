"""A progress bar that shows images per second."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["image_progress"]


@contextmanager
def image_progress(
    title: str, total: int, *, done: int = 0, wanted: bool | None = None
) -> Iterator[Callable[[int], None]]:
    """Give a function to call with the number of images just done.

    Parameters
    ----------
    title : str
        What is being done.
    total, done : int
        Images in all, and those done by an earlier run, which do not count for the speed.
    wanted : bool, optional
        Show the bar; by default on a terminal.
    """
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, completed=done, speed="")

        def advance(count: int) -> None:
            bar.advance(task, count)
            speed = bar.tasks[0].speed
            bar.update(task, speed="" if speed is None else f"{speed:,.0f} images/s")

        yield advance
