"""What the commands print: results on stdout, everything else on stderr.

Output on a terminal has colour; piped output is plain text in whole lines. Names come from files,
so control characters in them are written out and never reach the terminal.
"""

import contextlib
import errno
import json
import os
import shutil
import sys
import textwrap
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trustsets._common.progress import Advance, progress_bar

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "conclude",
    "is_input_error",
    "plain_warnings",
    "print_error",
    "print_json",
    "print_lines",
    "print_table",
    "print_text",
    "progress",
    "reset",
    "say",
    "settings",
    "visible",
]

# Longer lines are hard to read, however wide the terminal is.
_WIDEST = 80
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
    return "".join(_written_out(char) if _is_hidden(char) else char for char in text)


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN_KINDS or char in _TURNING


def _written_out(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def say(*lines: str) -> None:
    """Tell the person what happened, on stderr; nothing with --quiet."""
    if settings.quiet:
        return
    width = _width(sys.stderr)
    for line in map(visible, lines):
        text = line if width is None else textwrap.fill(line, width, break_on_hyphens=False)
        _rich(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


def _width(stream: Any) -> int | None:
    """Characters in a line: as COLUMNS says, those of a terminal, or None for any number."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return max(20, int(columns))
    return shutil.get_terminal_size().columns if _is_terminal(stream) else None


def conclude(result: dict[str, Any], *lines: str) -> None:
    """End a command: print its result with --json, and say what happened otherwise."""
    if settings.json:
        print_json(result)
    else:
        say(*lines)


def print_lines(lines: Sequence[str]) -> None:
    """Print lines of a result."""
    for line in lines:
        _print(visible(line))


def _print(text: str) -> None:
    """Print to stdout; an error of one line if it is closed or its reader has gone."""
    from trustsets.errors import InputError

    if sys.stdout is None:
        raise InputError("standard output is closed, so the result cannot be printed there.")
    try:
        print(text)
    except BrokenPipeError as error:
        _drop_stdout()
        raise InputError("standard output was closed before all was printed.") from error


def flush() -> None:
    """Flush stdout while an error can still be reported."""
    if sys.stdout is not None and not sys.stdout.closed:
        try:
            sys.stdout.flush()
        except OSError:
            _drop_stdout()
            raise


def _drop_stdout() -> None:
    """Keep Python from trying again, at its exit, to write what could not be written."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_terminal(stream: Any) -> bool:
    return stream is not None and bool(stream.isatty())


def print_text(text: str, style: str = "") -> None:
    """Print a paragraph of a result, broken into lines; an empty one for no text.

    Parameters
    ----------
    text : str
        As it is; no markup.
    style : str
        Rich style on a terminal, such as ``"bold"``.
    """
    console = _rich()
    width = min(_width(sys.stdout) or _WIDEST, _WIDEST)
    for line in textwrap.wrap(visible(text), width) or [""]:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a result for machines: one JSON object."""
    _print(json.dumps(value, indent=2, allow_nan=False))


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str | None = None,
    n_names: int = 1,
) -> None:
    """Print a table; names are on the left, numbers on the right.

    Parameters
    ----------
    header : sequence of str
        Column heads.
    rows : sequence of rows of str
        Cells; on a terminal they may carry rich markup.
    title : str, optional
        Shown above, on a terminal only.
    n_names : int
        How many of the first columns hold names.
    """
    rows = [[visible(cell) for cell in row] for row in rows]
    width = _width(sys.stdout)
    if not _is_terminal(sys.stdout):
        lines = _aligned([header, *rows], n_names)
        if width is not None and max(map(len, lines)) > width:
            lines = _one_by_one(header, rows, n_names, width)
        print_lines(lines)
        return
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", header_style="bold")
    for place, name in enumerate(header):
        table.add_column(name, justify="left" if place < n_names else "right")
    for row in rows:
        table.add_row(*row)
    _rich().print(table)


def _aligned(rows: Sequence[Sequence[str]], n_names: int) -> list[str]:
    """Columns of plain text, two spaces apart."""
    from rich.text import Text

    plain = [[Text.from_markup(cell).plain for cell in row] for row in rows]
    widths = [max(len(row[place]) for row in plain) for place in range(len(plain[0]))]
    return [
        "  ".join(
            cell.ljust(width) if place < n_names else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in plain
    ]


def _one_by_one(
    header: Sequence[str], rows: Sequence[Sequence[str]], n_names: int, width: int
) -> list[str]:
    """The rows of a table that is too wide: its names in a line, and a line for each number."""
    from rich.text import Text

    lines = []
    for row in rows:
        plain = [Text.from_markup(cell).plain for cell in row]
        lines += textwrap.wrap(", ".join(plain[:n_names]), width)
        for name, cell in zip(header[n_names:], plain[n_names:], strict=True):
            lines += textwrap.wrap(f"  {name}: {cell}", width, subsequent_indent="    ")
    return lines


def progress(title: str, total: int | None) -> AbstractContextManager[Advance]:
    """A bar on a terminal, unless --quiet; gives a function to call with the steps done."""
    return progress_bar(title, total, wanted=False if settings.quiet else None, transient=True)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print warnings of this package as one line each, and others with --debug only."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        usual = warnings.showwarning

        def show(message: Any, category: type[Warning], *rest: Any, **named: Any) -> None:
            if category.__module__ == "trustsets.errors":
                if not settings.quiet:
                    _print_to_stderr("Warning", "yellow", _one_line(str(message)))
            elif settings.debug:
                usual(message, category, *rest, **named)

        warnings.showwarning = show
        yield


def is_input_error(error: Exception) -> bool:
    """Whether the person can repair it: the package's own errors, and those of files."""
    if isinstance(error, OSError | MemoryError | UnicodeEncodeError):
        return True
    from trustsets.errors import TrustSetsError

    return isinstance(error, TrustSetsError)


def print_error(error: Exception) -> None:
    """Print an error as one line on stderr."""
    text = str(error)
    if isinstance(error, OSError):
        text = _file_error(error)
    elif isinstance(error, UnicodeEncodeError):
        text = f"{error.object!r} holds bytes that are no text in UTF-8. Rename it."
    elif isinstance(error, MemoryError):
        text = f"there is not enough memory ({text or 'none is left'}). Use fewer samples at once."
    _print_to_stderr("Error", "bold red", _one_line(text))


def _file_error(error: OSError) -> str:
    """Which file, what is wrong, what to do."""
    where = (
        f"{os.fspath(error.filename)}: " if isinstance(error.filename, str | os.PathLike) else ""
    )
    text = f"{where}{error.strerror or error}."
    if error.errno in _FULL_DISK:
        text += (
            " The disk is full; an earlier output is as it was. Free some space and run the "
            "same command again."
        )
    return text


def _print_to_stderr(word: str, style: str, text: str) -> None:
    from rich.text import Text

    line = Text.assemble((f"{word}: ", style), text)
    _rich(stderr=True).print(line, soft_wrap=True, highlight=False)


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))


def _rich(stderr: bool = False) -> "Console":
    from rich.console import Console

    return Console(stderr=stderr)
