"""Every metric that `evaluate` knows, one row each; how their numbers are named and shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final

from trustsets.basis import Bins, Groups, Partition
from trustsets.metrics.binning import (
    Binned,
    FrequencyBins,
    RankBins,
    bin_by_class,
    bin_by_size,
    bin_samples,
)
from trustsets.metrics.inference import Ints
from trustsets.outputs import ModelOutputs
from trustsets.statistics import Confidence, Trust

PAPER_BINS = Bins(Confidence(), Trust(), counts=(10, 4), spacing=("uniform", "quantile"))
"""The paper's grid: ten bins of Conf of equal width, each divided at its quartiles of Trust."""


@final
@dataclass(frozen=True)
class Metric:
    """One metric: its title, and its bins.

    Attributes
    ----------
    partition : Partition, optional
        Its bins, which users may replace by others under the same name.
    divide : callable, optional
        Instead: a function of outputs and set sizes that returns bins by the names of their tables.
    needs : str
        What the outputs must have: ``"trust"`` or ``"groups"``.
    is_goal : bool
        Whether a predictor can cover 1 - alpha in every bin; not where bins need the label, or
        are of set sizes, which are its own choice.
    """

    title: str
    partition: Partition | None = None
    divide: Callable[[ModelOutputs, Ints], dict[str, Binned]] | None = None
    needs: str = ""
    is_goal: bool = True


METRICS = {
    "conf_trust": Metric("Conf x Trust", PAPER_BINS, needs="trust"),
    "conf_rank": Metric("Conf x Rank", RankBins(), is_goal=False),
    "conf_frequency": Metric("Conf x Class frequency", FrequencyBins()),
    "class": Metric("Class", divide=lambda outputs, sizes: {"class": bin_by_class(outputs)}),
    "groups": Metric(
        "Groups",
        divide=lambda outputs, sizes: {
            f"group:{name}": bin_samples(Groups(name), outputs) for name in outputs.groups
        },
        needs="groups",
    ),
    "size_strata": Metric(
        "Set size",
        divide=lambda outputs, sizes: {"size_strata": bin_by_size(sizes, outputs.n_classes)},
        is_goal=False,
    ),
    "trust_rank": Metric("Trust and Rank", needs="trust"),
}


@final
@dataclass(frozen=True)
class Number:
    """How one number of ``Evaluation.metrics`` is shown and compared.

    `short` is a title for narrow tables. `best` says which end is better, if any.
    """

    title: str
    form: Literal["share", "rare", "points", "plain", "whole"] = "plain"
    best: Literal["low", "high"] | None = None
    short: str = ""


# A name that starts with a dot is a part of a table of bins, or of a metric with several numbers.
NUMBERS = {
    "alpha": Number("Alpha", "share"),
    "coverage": Number("Coverage", "share"),
    "size": Number("Mean set size", short="Size"),
    "size_median": Number("Median set size", "whole", short="Median size"),
    "empty": Number("Empty sets", "rare"),
    "full": Number("Full sets", "rare"),
    "pearson": Number("Pearson of Trust and Rank"),
    "spearman": Number("Spearman of Trust and Rank"),
    ".gap": Number("CovGap", "points", "low"),
    ".shortfall": Number("shortfall", "points", "low"),
    ".excess": Number("excess", "points", "low"),
    ".rms": Number("RMS gap without noise", "points", "low", short="RMS gap"),
    ".worst": Number("worst coverage", "share", "high"),
    ".macro": Number("macro coverage", "share"),
    ".total": Number("in all", "points", "low"),
    ".under": Number("shortfall", "points", "low"),
    ".over": Number("excess", "points", "low"),
}


def split_name(name: str) -> tuple[str, str]:
    """Table (empty if none) and part of a name in ``Evaluation.metrics``."""
    table, _, part = name.rpartition(".")
    return table, part


def number_of(name: str) -> Number:
    """The row of a number, by its name in ``Evaluation.metrics``."""
    table, part = split_name(name)
    return NUMBERS.get(f".{part}" if table else part, Number(part))


def table_title(name: str) -> str:
    """Name of a table of bins for people; groups and bins of the user have their own."""
    if name == "excess_risk":
        return "Excess risk"
    return METRICS[name].title if name in METRICS else name.removeprefix("group:")


def title(metric: str) -> str:
    """Short name of a number of ``Evaluation.metrics`` for people."""
    number, (table, _) = number_of(metric), split_name(metric)
    text = number.short or number.title
    return f"{table_title(table)} {text}" if table else text


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], n_names: int = 1) -> str:
    """Pipe table; the first `n_names` columns are left-aligned, numbers right-aligned."""
    cells = [[text.replace("|", "\\|") for text in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(header))]
    rule = [
        "-" * width if i < n_names else "-" * (width - 1) + ":" for i, width in enumerate(widths)
    ]

    def line(row: Sequence[str]) -> str:
        padded = (
            text.ljust(width) if i < n_names else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    return "\n".join([line(cells[0]), line(rule), *(line(row) for row in cells[1:])]) + "\n"
