"""Every metric that `evaluate` knows, one row each; and how their numbers are shown."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Array, Floats
from trustsets._common.validation import check_least, check_open
from trustsets.basis import Bins, Groups, Partition
from trustsets.errors import InputError
from trustsets.metrics.balls import Balls, Neighbourhoods
from trustsets.metrics.binning import Binned, bin_by_class, bin_by_size, bin_samples
from trustsets.metrics.inference import Ints
from trustsets.metrics.label_bins import FrequencyBins, RankBins, label_ranks
from trustsets.metrics.slab import Slab
from trustsets.metrics.summaries import ConditionalSummary, correlate
from trustsets.outputs import ModelOutputs

__all__ = [
    "METRICS",
    "NUMBERS",
    "Case",
    "Metric",
    "Number",
    "number_of",
    "split_name",
    "table_title",
]


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """What is known of one method on the test samples, and how to measure it.

    Attributes
    ----------
    covered, sizes : arrays of shape (n,)
        Whether each set holds its label, and its size.
    outputs : ModelOutputs
        The samples, with labels.
    alpha : float
        Miscoverage that was asked for.
    true_coverage : array of shape (n,), optional
        True conditional coverage of each set, where known.
    bins, class_divisor, below, balls, slab, level, n_bootstrap, seed
        As in `evaluate`.
    """

    covered: NDArray[np.bool_]
    sizes: Ints
    outputs: ModelOutputs
    alpha: float
    true_coverage: Floats | None = None
    bins: Mapping[str, Partition] | None = None
    class_divisor: Literal["all", "present"] = "all"
    below: tuple[float, ...] = (0.5,)
    balls: Balls | Neighbourhoods = Balls()
    slab: Slab = Slab()
    level: float = 0.95
    n_bootstrap: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        self.outputs.require_labels("evaluate")
        check_open(level=self.level)
        check_least(1, n_bootstrap=self.n_bootstrap)
        if self.class_divisor not in {"all", "present"}:
            raise InputError(
                f'class_divisor must be "all" or "present"; got {self.class_divisor!r}.'
            )

        if not all(isinstance(least, int | float) and 0.0 < least <= 1.0 for least in self.below):
            raise InputError(f"below must be shares above 0 and up to 1; got {self.below}.")

    @property
    def features(self) -> Array:
        """Features of the samples."""
        assert self.outputs.features is not None  # checked by `Metric.missing`
        return self.outputs.features

    def bin_by(self, name: str, partition: Partition) -> Binned:
        """Bins of a partition, or of the one that the user gave under this name."""
        chosen = (self.bins or {}).get(name, partition)
        return bin_samples(chosen, self.outputs, f"bins[{name!r}]")

    @property
    def remedies(self) -> dict[str, str]:
        """What metrics may need and this case lacks, and what to do about it."""
        outputs, features = self.outputs, "features; pass features= to ModelOutputs"
        known: dict[str, tuple[Any, str]] = {
            "features": (outputs.features, features),
            "groups": (outputs.groups or None, "group columns; pass groups= to ModelOutputs"),
            "truth": (self.true_coverage, "label probabilities; pass label_probabilities="),
        }
        lacking = {name: remedy for name, (found, remedy) in known.items() if found is None}
        if outputs.trust is None:
            lacking["trust"] = "trust; pass trust= to ModelOutputs"
        return lacking

    def neighbourhoods(self) -> Neighbourhoods:
        """The balls around these samples."""
        if isinstance(self.balls, Balls):
            return self.balls.around(self.features)
        if self.balls.shell.shape[1] != len(self.outputs):
            raise InputError(
                f"balls were drawn around {self.balls.shell.shape[1]} samples, but outputs has "
                f"{len(self.outputs)}; make them with Balls().around(outputs.features)."
            )
        return self.balls


@final
@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes
    ----------
    title : str
        Name for people.
    measure : callable
        A function of a `Case`. A metric by bins returns its bins by the name of their table;
        any other returns the value of its field in `Evaluation`.
    field : str
        The field of `Evaluation` that keeps the result.
    needs : tuple of str
        Keys of `Case.remedies`.
    fewest : int
        Least number of samples.
    is_goal : bool
        Whether a method can have coverage 1 - alpha in every bin. It cannot in bins of Rank,
        which need the label, or of set size, which is the method's own choice.
    replaceable : bool
        Whether users may give other bins under its name.
    about : str
        One or two sentences for readers of a report.
    """

    title: str
    measure: Callable[[Case], Any]
    field: str = "tables"
    needs: tuple[str, ...] = ()
    fewest: int = 1
    is_goal: bool = True
    replaceable: bool = False
    about: str = ""

    def missing(self, case: Case) -> str:
        """What a case lacks for this metric, with the remedy; empty if nothing."""
        n, lacking = len(case.outputs), case.remedies
        too_few = "" if n >= self.fewest else f"at least {self.fewest} samples; there are {n}"
        return next((lacking[need] for need in self.needs if need in lacking), too_few)


def _grid(name: str, partition: Partition) -> Callable[[Case], dict[str, Binned]]:
    return lambda case: {name: case.bin_by(name, partition)}


METRICS = {
    "conf_trust": Metric(
        "Conf x Trust", _grid("conf_trust", Bins()), needs=("trust",), replaceable=True
    ),
    "conf_rank": Metric(
        "Conf x Rank", _grid("conf_rank", RankBins()), is_goal=False, replaceable=True
    ),
    "conf_frequency": Metric(
        "Conf x Class frequency",
        _grid("conf_frequency", FrequencyBins()),
        replaceable=True,
        about="Class frequency is the share of the true class, in percent, among the samples that "
        "the axis names. Ranges of frequency grow by the same factor, so the lowest row has the "
        "rare classes.",
    ),
    "class": Metric("Class", lambda case: {"class": bin_by_class(case.outputs)}),
    "groups": Metric(
        "Groups",
        lambda case: {
            f"group:{name}": bin_samples(Groups(name), case.outputs) for name in case.outputs.groups
        },
        needs=("groups",),
    ),
    "size_strata": Metric(
        "Set size",
        lambda case: {"size_strata": bin_by_size(case.sizes, case.outputs.n_classes)},
        is_goal=False,
    ),
    "trust_rank": Metric(
        "Trust and Rank",
        lambda case: correlate(case.outputs.require_trust("trust_rank"), label_ranks(case.outputs)),
        field="correlation",
        needs=("trust",),
        about="Correlation over the test samples. Negative values mean that samples with lower "
        "Trust tend to have a larger Rank.",
    ),
    "balls": Metric(
        "Balls",
        lambda case: case.neighbourhoods().curve(case.covered, case.alpha),
        field="balls",
        needs=("features",),
        fewest=2,
        about="Test samples within a radius of a random test sample, in feature space.",
    ),
    "slab": Metric(
        "Worst slab",
        lambda case: case.slab.worst(case.features, case.covered, case.alpha, case.level),
        field="slab",
        needs=("features",),
        fewest=4,
        about="Region between two parallel planes in feature space. The one of lowest coverage is "
        "searched for on one half of the test samples, and its coverage is measured on the other.",
    ),
    "conditional": Metric(
        "True conditional",
        lambda case: ConditionalSummary.of(np.asarray(case.true_coverage), case.alpha, case.level),
        field="conditional",
        needs=("truth",),
        about="True conditional coverage is the probability that the set of a sample contains the "
        "true class, computed from the known label probabilities. Its CovGap is the mean distance "
        "from the target over samples.",
    ),
}


@final
@dataclass(frozen=True)
class Number:
    """How one number of ``Evaluation.metrics`` is shown and compared.

    `short` is a title for narrow tables. A form is a share between 0 and 1, one that is often
    near 0, percentage points, any number, or a number that is mostly whole. `best` says which
    end is better, if any. A title may have a place for the number that ends a name.
    """

    title: str
    form: Literal["share", "rare", "points", "plain", "whole"] = "plain"
    best: Literal["low", "high"] | None = None
    short: str = ""


# A name that starts with a dot is a part of a table of bins, or of a metric with several numbers.
NUMBERS = {
    "coverage": Number("Coverage", "share"),
    "size": Number("Mean set size", short="Size"),
    "size_median": Number("Median set size", "whole", short="Median size"),
    "empty": Number("Empty sets", "rare"),
    "full": Number("Full sets", "rare"),
    "slab": Number("Worst-slab coverage", "share"),
    "pearson": Number("Pearson of Trust and Rank"),
    "spearman": Number("Spearman of Trust and Rank"),
    ".gap": Number("CovGap", "points", "low"),
    ".shortfall": Number("shortfall", "points", "low"),
    ".excess": Number("excess", "points", "low"),
    ".worst": Number("worst coverage", "share", "high"),
    ".macro": Number("macro coverage", "share"),
    ".below_": Number("share below {}", "share", "low"),
    ".mean": Number("coverage", "share"),
    ".below": Number("coverage below target", "share"),
    ".total": Number("in all", "points", "low"),
    ".under": Number("shortfall", "points", "low"),
    ".over": Number("excess", "points", "low"),
    ".flagged": Number("share predicted under-covered", "share"),
    ".flagged_coverage": Number("coverage of these", "share"),
}


def split_name(name: str) -> tuple[str, str, str]:
    """Table (empty if none), part, and the number that ends the name (empty if none).

    Examples
    --------
    >>> split_name("class.below_0.5"), split_name("size"), split_name("group:v1.2.gap")
    (('class', 'below_', '0.5'), ('', 'size', ''), ('group:v1.2', 'gap', ''))
    """
    found = re.fullmatch(r"(?:(.*)\.)?([a-z_]+)([0-9.e-]*)", name, flags=re.DOTALL)
    return ("", name, "") if found is None else (found[1] or "", found[2], found[3])


def number_of(name: str) -> Number:
    """The row of a number, by its name in ``Evaluation.metrics``.

    Examples
    --------
    >>> number_of("conf_trust.gap").form, number_of("class.below_0.5").best
    ('points', 'low')
    """
    table, part, _ = split_name(name)
    return NUMBERS.get(f".{part}" if table else part, Number(part))


def table_title(name: str) -> str:
    """Name of a table of bins for people; groups and bins of the user have their own.

    Examples
    --------
    >>> table_title("conf_trust"), table_title("group:sex")
    ('Conf x Trust', 'sex')
    """
    if name == "excess_risk":
        return "Excess risk"
    return METRICS[name].title if name in METRICS else name.removeprefix("group:")
