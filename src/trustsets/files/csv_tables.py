"""Columns of a `.csv` file, parsed by the standard library in pieces of rows."""

import csv
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import final

import numpy as np

from trustsets._common.arrays import MISSING, Array
from trustsets.errors import InputError
from trustsets.files.columns import Column, SequentialColumn

__all__ = ["csv_columns", "csv_matrix"]

_DELIMITERS = ",;\t|"
# Cells that are texts at a time; each takes some 60 bytes until it is a number.
_PIECE_CELLS = 1 << 18
# Integers as Python writes them; "007" is a name. Missing values make other tools add a ".0".
_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_ROUND = re.compile(r"-?(?:0|[1-9]\d{0,17})(?:\.0+)?")


def csv_columns(path: Path) -> dict[str, Column]:
    """Columns by name; those without a name, such as an index, are left out."""
    table = CsvTable(path)
    return {name: CsvColumn(table, place) for place, name in enumerate(table.names) if name}


def csv_matrix(name: str, columns: Sequence[Column]) -> Column:
    """Several columns of one table as a matrix."""
    own = [column for column in columns if isinstance(column, CsvColumn)]
    return _CsvMatrix(name, own)


@final
class CsvTable:
    """The header of a file, and what a first pass over its rows shows of each column.

    Lists over the columns: `whole` says whether all cells that are not empty are integers,
    `rounded` whether they are integers or end in ``.0``; `empty` is the first row with an empty
    cell, or None; `longest` counts the characters of the longest cell.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.delimiter = _delimiter(path)
        self.names = self._header()
        width = len(self.names)
        self.n_rows = 0
        self.piece_rows = max(1, _PIECE_CELLS // width)
        self.whole, self.rounded = [True] * width, [True] * width
        self.empty: list[int | None] = [None] * width
        self.longest = [1] * width
        stream = self._records()
        while piece := list(islice(stream, self.piece_rows)):
            self._see(piece)
        if not self.n_rows:
            raise InputError(f"{path}: it has the names of columns, but no rows.")

    def _header(self) -> list[str]:
        names = [name.strip() for name in next(self._parsed(), [])]
        if not any(names):
            raise InputError(f"{self.path}: it is empty; its first line must name the columns.")
        twice = next((name for name in names if name and names.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"{self.path}: two columns are called {twice!r}; rename one of them.")
        return names

    def _see(self, piece: list[list[str]]) -> None:
        """Note what the cells of some rows show of their columns."""
        for place, cells in enumerate(zip(*piece, strict=True)):
            self.longest[place] = max(self.longest[place], max(map(len, cells)))
            if self.empty[place] is None and "" in cells:
                self.empty[place] = self.n_rows + cells.index("")
            for flags, form in ((self.whole, _WHOLE), (self.rounded, _ROUND)):
                flags[place] = flags[place] and all(
                    not cell or form.fullmatch(cell) for cell in cells
                )
        self.n_rows += len(piece)

    def pieces(self, start: int) -> Iterator[list[list[str]]]:
        """Rows from `start` on, some at a time."""
        if self.n_rows <= self.piece_rows:
            yield self._small[start:]
            return
        stream = islice(self._records(), start, None)
        while piece := list(islice(stream, self.piece_rows)):
            yield piece

    @cached_property
    def _small(self) -> list[list[str]]:
        """All rows of a small file, which its columns share."""
        return list(self._records())

    def _records(self) -> Iterator[list[str]]:
        """Rows below the header, all of one length."""
        width = len(self.names)
        for number, row in enumerate(islice(self._parsed(), 1, None)):
            if len(row) != width:
                raise InputError(
                    f"{self.path}: row {number} has {len(row)} cells, and the first line names "
                    f"{width} columns. Repair it, or put texts that hold {self.delimiter!r} into "
                    "quotes."
                )
            yield row

    def _parsed(self) -> Iterator[list[str]]:
        """Lines as lists of cells, blank ones left out."""
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(
                    file, delimiter=self.delimiter, skipinitialspace=True, strict=True
                )
                yield from (row for row in reader if row)
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(
                f"{self.path}: not a readable CSV file ({error}). Save it again, as UTF-8."
            ) from error


def _delimiter(path: Path) -> str:
    """What separates the names in the first line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = next((line for line in file if line.strip()), "")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text in UTF-8 ({error}). Save it as UTF-8.") from error
    return max(_DELIMITERS, key=first.count)


@final
class CsvColumn(SequentialColumn):
    """One column: integers where all cells are, and else texts."""

    of_table = True

    def __init__(self, table: CsvTable, place: int) -> None:
        whole = table.whole[place] and table.empty[place] is None
        dtype = np.dtype(np.int64) if whole else np.dtype(f"U{table.longest[place]}")
        super().__init__(table.path, table.names[place], (table.n_rows,), dtype)
        self.table, self.place = table, place
        self.first_missing = table.empty[place]

    def _chunks_from(self, start: int) -> Iterator[Array]:
        for piece in self.table.pieces(start):
            cells = [row[self.place] for row in piece]
            if self.dtype.kind == "i":
                yield np.array(list(map(int, cells)), dtype=np.int64)
            else:
                found = np.empty(len(cells), dtype=object)
                found[:] = list(map(self._group, cells)) if self.missing_allowed else cells
                yield found

    def _group(self, cell: str) -> str:
        """A text by which groups are told apart, equal to that of a number in a frame."""
        if not cell:
            return MISSING
        return cell.partition(".")[0] if self.table.rounded[self.place] else cell


@final
class _CsvMatrix(SequentialColumn):
    """Numbers of several columns."""

    def __init__(self, name: str, columns: Sequence[CsvColumn]) -> None:
        table = columns[0].table
        shape = (table.n_rows, len(columns))
        super().__init__(table.path, name, shape, np.dtype(np.float64))
        self._table, self._places = table, [column.place for column in columns]

    def _chunks_from(self, start: int) -> Iterator[Array]:
        for piece in self._table.pieces(start):
            try:
                numbers = [[float(row[place]) for place in self._places] for row in piece]
            except ValueError:
                raise self._not_a_number(start, piece) from None
            yield np.array(numbers).reshape(len(piece), len(self._places))
            start += len(piece)

    def _not_a_number(self, start: int, piece: list[list[str]]) -> InputError:
        for number, row in enumerate(piece, start):
            for place in self._places:
                try:
                    float(row[place])
                except ValueError:
                    cell, hint = row[place], "Fill or drop such rows first."
                    if "," in cell:
                        hint = "Write numbers with a decimal point."
                    return InputError(
                        f"{self.path}: column {self._table.names[place]!r} must hold numbers; row "
                        f"{number} {f'holds {cell!r}' if cell else 'is empty'}. {hint}"
                    )
        raise AssertionError("all cells are numbers")
