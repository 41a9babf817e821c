"""``trustsets explore``: a local page that shows coverage live while parameters move."""

from pathlib import Path
from typing import Annotated

import typer

from trustsets.cli import console
from trustsets.cli.demo import TaskName
from trustsets.cli.options import DATA, Classes, Groups, argument, option

__all__ = ["explore"]


def explore(
    context: typer.Context,
    outputs: Annotated[
        Path | None, argument("OUTPUTS", "Labelled held-out outputs. Default: data of the demo.")
    ] = None,
    train: Annotated[
        Path | None,
        option("FILE", "Features and labels of the training data, for Trust.", panel=DATA),
    ] = None,
    images: Annotated[
        Path | None,
        option(
            "FOLDER",
            "Images of the samples. Arrays 'image', 'path', 'file' or 'id' name their files; "
            "else the order of the names counts.",
            panel=DATA,
        ),
    ] = None,
    text: Annotated[
        str | None, option("NAME", "The array of the files that holds texts.", panel=DATA)
    ] = None,
    classes: Classes = None,
    group: Groups = None,
    task: Annotated[TaskName, option("TASK", "Without OUTPUTS: real or digits.")] = TaskName.digits,
    port: Annotated[int, option("N", "Where to listen; 0 takes a free port.", min=0)] = 0,
    browser: Annotated[
        bool, option(None, "Open the page in the browser.", "--browser/--no-browser")
    ] = True,
) -> None:
    """Move parameters on your own data and watch coverage.

    Serves a page on this machine alone. It splits OUTPUTS into calibration
    and test samples and shows what alpha, score, degree, trust, classes and
    groups do, with intervals and noise floors. Ctrl-C ends it.

    Example:

      trustsets explore held_out.npz --train train.npz
    """
    from trustsets_explorer import explore_files, explore_task

    with console.progress("Preparing the explorer", None):
        if outputs is None:
            explorer = explore_task(str(task), port=port, browser=browser)
        else:
            explorer = explore_files(
                outputs,
                train=train,
                classes=classes,
                groups=tuple(group or ()),
                images=images,
                text=text,
                port=port,
                browser=browser,
            )
    try:
        console.print_lines([explorer.url])
        console.flush()
        console.say("The explorer is at this address, for this machine alone. Ctrl-C ends it.")
        explorer.wait()
    except KeyboardInterrupt:
        explorer.stop()
        console.say("The explorer has ended.")
