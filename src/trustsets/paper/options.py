"""The options of an experiment, and the parsing of those that are lists."""

import re
from dataclasses import dataclass
from typing import Literal, final

from trustsets._common.validation import check_least, check_open
from trustsets.basis import Bins, Partition
from trustsets.errors import InputError
from trustsets.metrics.label_bins import RankBins
from trustsets.paper.printed import DATASETS
from trustsets.scores import APS, RAPS, Score, Softmax

__all__ = ["PAPER_DEGREE", "SCORES", "Options", "choose_bins", "parse_edges", "parse_numbers"]

SCORES: dict[str, Score] = {"softmax": Softmax(), "APS": APS(), "RAPS": RAPS()}
"""Scores by their names in table 5."""
PAPER_DEGREE = 5
"""Degree of all tables of the paper."""
_LARGEST = 10_000

# The authors' edges of Rank on ImageNet, three quarters of whose samples have rank 1.
_RANK_EDGES = {"imagenet": (0.0, 1.0, 2.0, 4.0, 1000.0)}


@final
@dataclass(frozen=True)
class Options:
    """Options of an experiment.

    Attributes
    ----------
    alpha : float
        Allowed miscoverage.
    seeds : tuple of int
        Splits of the pool; a fixed split is run once.
    scores : tuple of str
        Among ``softmax``, ``APS`` and ``RAPS``.
    degrees : tuple of int
        Degrees of CONDITIONAL.
    degree : int
        The one in the tables.
    bins : {"text", "code"}
        Trust and Rank divided within each confidence bin, as the paper's text says, or by
        the same quantiles everywhere, as the authors' code does.
    rank_edges : tuple of float, optional
        Edges of the Rank bins by hand, each bin holding its upper edge. The authors gave
        ``(0, 1, 2, 4, 1000)`` for ImageNet, which is the default there.
    balls : {"growing", "fixed"}
        Balls of the authors' code, or those of the package; see `Balls`.
    normalize, neighbour, squared
        Parameters of the trust score. The authors divided features by their norm and used the
        second neighbour and squared distances; the paper's text says False, 1 and False.
    related : bool
        Also run the methods that the paper's related work names.
    device : str
        Where trust scores are computed; results do not depend on it.
    """

    alpha: float = 0.1
    seeds: tuple[int, ...] = tuple(range(1, 11))
    scores: tuple[str, ...] = tuple(SCORES)
    degrees: tuple[int, ...] = tuple(range(1, 9))
    degree: int = PAPER_DEGREE
    bins: Literal["text", "code"] = "text"
    rank_edges: tuple[float, ...] | None = None
    balls: Literal["growing", "fixed"] = "growing"
    normalize: bool = True
    neighbour: int = 2
    squared: bool = True
    related: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_open(alpha=self.alpha)
        if not self.seeds or not self.scores:
            raise InputError("an experiment needs at least one seed and one score.")
        for name in self.scores:
            if name not in SCORES:
                raise InputError(f"scores holds {name!r}, which is none of {', '.join(SCORES)}.")
        check_least(1, degrees=min(self.all_degrees))
        for name, choice in (("bins", ("text", "code")), ("balls", ("growing", "fixed"))):
            if getattr(self, name) not in choice:
                raise InputError(f"{name} must be one of {choice}; got {getattr(self, name)!r}.")
        if self.rank_edges is not None:
            RankBins(edges=self.rank_edges)  # says what is wrong with them

    @property
    def all_degrees(self) -> tuple[int, ...]:
        """Degrees to run: those of the curve and the one of the tables."""
        return tuple(sorted({*self.degrees, self.degree}))

    def edges_by_hand(self, dataset: str) -> tuple[float, ...] | None:
        """Edges of Rank: as asked for, those of the authors, or None for quantiles."""
        return self.rank_edges or _RANK_EDGES.get(dataset)

    def partitions(self, dataset: str) -> dict[str, Partition]:
        """Evaluation bins.

        Examples
        --------
        >>> Options(bins="code").partitions("places365")["conf_rank"].ties
        'quantiles'
        """
        nested = self.bins == "text"
        return {
            "conf_trust": Bins(nested=nested),
            "conf_rank": RankBins(
                nested=nested,
                ties="split" if nested else "quantiles",
                edges=self.edges_by_hand(dataset),
            ),
        }


def choose_bins(asked: Literal["auto", "text", "code"], dataset: str) -> Literal["text", "code"]:
    """Return the bins that "auto" stands for: those behind the printed numbers, if there are any.

    Examples
    --------
    >>> choose_bins("auto", "imagenet"), choose_bins("auto", "mine"), choose_bins("text", "mine")
    ('code', 'text', 'text')
    """
    if asked != "auto":
        return asked
    return "code" if dataset in DATASETS else "text"


def parse_numbers(text: str, name: str) -> tuple[int, ...]:
    """Whole numbers of 1 or more from a list of numbers and ranges, each once, in order.

    Examples
    --------
    >>> parse_numbers("1-3,8", "--degrees")
    (1, 2, 3, 8)
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= _LARGEST:
            raise InputError(
                f"{name} must be a list such as 1-5,8 of whole numbers, 1 to {_LARGEST}; "
                f"got {text!r}."
            )
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def parse_edges(text: str | None, name: str) -> tuple[float, ...] | None:
    """Edges of bins from a list of numbers; None for no text.

    Examples
    --------
    >>> parse_edges("0,1,2,4,1000", "--rank-edges")
    (0.0, 1.0, 2.0, 4.0, 1000.0)
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"{name} must be a list of numbers such as 0,1,2,4,1000; got {text!r}."
        ) from None
