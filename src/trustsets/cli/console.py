"""What the commands print: results on stdout, everything else on stderr.

Output on a terminal has colour; piped output is plain text in whole lines. Names come from files,
so control characters in them are written out and never reach the terminal.
"""

import errno
import json
import os
import re
import shutil
import sys
import textwrap
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trustsets._progress import Advance, progress_bar
from trustsets.errors import InputError, TrustSetsError

if TYPE_CHECKING:
    from rich.console import Console

# Longer lines are hard to read, however wide the terminal is.
_WIDEST = 80
# A table has lines of any length where nothing says how long a line may be.
_ANY_WIDTH = 1000
# Control characters, halves of code points (how Python holds bytes that are no text), and breaks.
_HIDDEN_KINDS = {"Cc", "Cs", "Zl", "Zp"}
# What turns the direction of the text around it.
_TURNING = {*"\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}
_FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass
class Settings:
    """What the options --json, --quiet and --debug say."""

    json: bool = False
    quiet: bool = False
    debug: bool = False


settings = Settings()


def reset() -> None:
    """Forget the options of an earlier command in the same process."""
    settings.json = settings.quiet = settings.debug = False


def visible(text: str) -> str:
    r"""The text with control characters written out, so that they do nothing.

    Examples
    --------
    >>> print(visible("red: \x1b[31m, two\nlines"))
    red: \x1b[31m, two\nlines
    """
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if unicodedata.category(char) in _HIDDEN_KINDS or char in _TURNING
        else char
        for char in text
    )


def _width(stream: Any) -> int | None:
    """Characters in a line: as COLUMNS says, those of a terminal, or None for any number."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return max(20, int(columns))
    return shutil.get_terminal_size().columns if _is_terminal(stream) else None


def _is_terminal(stream: Any) -> bool:
    return stream is not None and bool(stream.isatty())


def say(*lines: str) -> None:
    """Tell the person what happened, on stderr; nothing with --quiet."""
    if settings.quiet:
        return
    width = _width(sys.stderr)
    for line in map(visible, lines):
        text = line if width is None else textwrap.fill(line, width, break_on_hyphens=False)
        _rich(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


def conclude(result: dict[str, Any], *lines: str) -> None:
    """End a command: print its result with --json, and say what happened otherwise."""
    if settings.json:
        print_json(result)
    else:
        say(*lines)


def print_json(value: Any) -> None:
    """Print a result for machines: one JSON object."""
    _print(json.dumps(value, indent=2, allow_nan=False))


def print_lines(lines: Sequence[str]) -> None:
    """Print lines of a result as they are."""
    for line in lines:
        _print(visible(line))


def print_text(text: str, style: str = "") -> None:
    """Print a paragraph of a result, broken into lines, in a rich style such as ``"bold"``."""
    width = min(_width(sys.stdout) or _WIDEST, _WIDEST)
    for line in textwrap.wrap(visible(text), width) or [""]:
        _rich().print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str | None = None,
    n_names: int = 1,
) -> None:
    """Print a table; the first `n_names` columns are on the left, numbers on the right.

    The title is shown on a terminal only.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    plain = not _is_terminal(sys.stdout)
    table = Table(
        title=None if plain else title,
        box=None if plain else box.SIMPLE_HEAD,
        title_justify="left",
        header_style="bold",
        padding=(0, 2, 0, 0) if plain else (0, 1),
    )
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number < n_names else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    console = _rich(width=_width(sys.stdout) or _ANY_WIDTH)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        _print(line.rstrip())


def _print(text: str) -> None:
    if sys.stdout is None:
        raise InputError("standard output is closed, so the result cannot be printed there.")
    try:
        print(text, flush=True)
    except OSError as error:
        # Python would try again, at its exit, to write what could not be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise InputError(f"standard output cannot be written: {error.strerror}.") from error


def progress(title: str, total: int | None) -> AbstractContextManager[Advance]:
    """A bar on a terminal, unless --quiet; gives a function to call with the steps done."""
    return progress_bar(title, total, wanted=False if settings.quiet else None, transient=True)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings of this package as one line each, and others with --debug only.

    Blocks of a file warn of the same with other numbers; it is said once.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        usual, said = warnings.showwarning, set[str]()

        def show(message: Any, category: type[Warning], *rest: Any, **named: Any) -> None:
            if category.__module__ == "trustsets.errors":
                words = re.sub(r"\d[\d.,]*", "", str(message))
                if not settings.quiet and words not in said:
                    said.add(words)
                    _print_to_stderr("Warning", "yellow", str(message))
            elif settings.debug:
                usual(message, category, *rest, **named)

        warnings.showwarning = show
        yield


def is_input_error(error: Exception) -> bool:
    """Whether the person can repair it: the package's own errors, files, and missing packages."""
    if isinstance(error, ModuleNotFoundError):
        return not (error.name or "").startswith("trustsets")
    return isinstance(error, OSError | MemoryError | UnicodeEncodeError | TrustSetsError)


def print_error(error: Exception) -> None:
    """Print an error as one line on stderr: which file, what is wrong, what to do."""
    text = str(error)
    if isinstance(error, OSError):
        path = error.filename
        where = f"{os.fspath(path)}: " if isinstance(path, str | os.PathLike) else ""
        text = f"{where}{error.strerror or error}."
        if error.errno in _FULL_DISK:
            text += " The disk is full; an earlier output is as it was. Free some space."
    elif isinstance(error, UnicodeEncodeError):
        text = f"{error.object!r} holds bytes that are no text in UTF-8. Rename it."
    elif isinstance(error, ModuleNotFoundError):
        text = f'this needs {error.name}; install it with: pip install "trustsets[all]"'
    elif isinstance(error, MemoryError):
        text = f"there is not enough memory ({text or 'none is left'}). Use fewer samples at once."
    _print_to_stderr("Error", "bold red", text)


def _print_to_stderr(word: str, style: str, text: str) -> None:
    from rich.text import Text

    line = Text.assemble((f"{word}: ", style), visible(" ".join(text.split())))
    _rich(stderr=True).print(line, soft_wrap=True, highlight=False)


def _rich(stderr: bool = False, width: int | None = None) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr, width=width)
