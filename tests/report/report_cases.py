"""What the tests of the report share."""

import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np

from trustsets import PredictionSets, write_report

# Names that would break a page which does not escape, or a spreadsheet.
CLASSES = ["cat", "</script><script>alert(1)</script>", '"a" & b', "=1+1", "dog", "<b>ox</b>"]
FAST = {"n_bootstrap": 50}


GRID = '.heatmap[data-table="{table}"][data-method="{method}"]'


def cell(method, bin_number, table="conf_trust"):
    """Selector of a cell of a heatmap."""
    return GRID.format(table=table, method=method) + f' td[data-bin="{bin_number}"]'


def rounded(value, digits):
    """Halves away from zero, as in school and in JavaScript."""
    units = int(Decimal(float(value)) * 10**digits + Decimal("0.5"))
    return f"{Decimal(units).scaleb(-digits):f}"


def sets_that_cover(hits, outputs, seed=0, alpha=0.1):
    """Sets that hold the label exactly where `hits` says, and up to two other classes."""
    rng = np.random.default_rng(seed)
    order = rng.random((len(outputs), outputs.n_classes)).argsort(axis=1)
    mask = order < rng.integers(0, 3, size=(len(outputs), 1))
    mask[np.arange(len(outputs)), outputs.codes] = hits
    n = len(outputs)
    return PredictionSets(mask, np.zeros(n), np.zeros(n, dtype=np.int8), alpha, outputs.classes)


def render_report(evaluations, **options):
    """The page as text."""
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(Path(folder) / "report.html", evaluations, **options)
        return page.read_text(encoding="utf-8")
