"""The paper's protocol on one dataset: options, methods, and the experiment stage by stage.

The stages are trust, temperature, sets and metrics. Results are stored by the content of their
inputs, so that a killed run continues, and a changed option redoes what depends on it.
"""

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from trustsets import (
    APS,
    RAPS,
    Bins,
    ClassBias,
    ConditionalConformal,
    Confidence,
    Groups,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    PrincipalComponents,
    Softmax,
    TemperatureScaling,
    Trust,
    TrustScore,
    evaluate,
)
from trustsets.basis import Partition
from trustsets.errors import InputError, TrustSetsWarning
from trustsets.metrics import Correlation, Evaluation, RankBins, label_ranks, rank_edges_apart
from trustsets.predictors import Predictor
from trustsets.recipes import score_name
from trustsets.scores import Score
from trustsets.storage import digest, read_kept, write
from trustsets_paper import Bools, Ints
from trustsets_paper.balls import BallCurve, Balls, Neighbourhoods
from trustsets_paper.baselines import AuthorsStandard
from trustsets_paper.sources import Source

__all__ = ["Cell", "Experiment", "Options", "Run", "StageCache", "choose_methods"]

# --- options

SCORES: dict[str, Score] = {"softmax": Softmax(), "APS": APS(), "RAPS": RAPS()}
"""Nonconformity scores by their names in table 5."""
MAIN_SCORE = "APS"
"""Score of all tables but one, of the figures, of the degrees and of the ablation."""
RANK_SHOWN = "conf_rank_shown"
"""Table by Conf and Rank for the figures: the same edges for all seeds."""
TRUST_OPTIONS: dict[str, dict[str, Any]] = {
    "code": {"normalize": True, "neighbour": 2, "squared": True},
    "text": {"normalize": False, "neighbour": 1, "squared": False},
}
"""Parameters of the trust score in the authors' code, and in the paper's text."""
_LARGEST = 10_000
# The authors' edges of Rank on ImageNet, three quarters of whose samples have rank 1.
_RANK_EDGES = {"imagenet": (0.0, 1.0, 2.0, 4.0, 1000.0)}
# Resamples behind the intervals that stand in for standard errors where the split is fixed.
_BOOTSTRAP = 200


@final
@dataclass(frozen=True)
class Options:
    """Options of an experiment.

    With ``bins="text"`` Trust and Rank are divided within each confidence bin, as the paper's text
    says; with ``"code"`` by the same quantiles everywhere, as the authors' code does.
    """

    alpha: float = 0.1
    seeds: tuple[int, ...] = tuple(range(1, 11))  # splits of the pool; a fixed split is run once
    splits: Literal["package", "authors"] = "package"  # which halves a seed stands for
    scores: tuple[str, ...] = tuple(SCORES)
    degrees: tuple[int, ...] = tuple(range(1, 6))  # of CONDITIONAL with the main score
    degree: int = 5  # the one in the tables
    bins: Literal["text", "code"] = "text"
    # Each bin holds its upper edge; "quantiles" are those of the ranks, in the figures too.
    rank_edges: tuple[float, ...] | Literal["quantiles"] | None = None
    trust: Literal["code", "text"] = "code"  # one of `TRUST_OPTIONS`
    balls: Literal["package", "authors"] = "package"  # theirs: the first seed, new centres
    ablation: bool = False  # also condition on Conf alone and on Trust alone
    device: str = "cpu"  # where trust scores are computed; results do not depend on it

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha < 1.0:
            raise InputError(f"alpha must lie strictly between 0 and 1; got {self.alpha}.")
        names = {score_name(name): name for name in SCORES}
        for name in self.scores:
            if score_name(name) not in names:
                raise InputError(f"scores holds {name!r}, which is none of {', '.join(SCORES)}.")
        usual = tuple(names[score_name(name)] for name in self.scores)
        object.__setattr__(self, "scores", usual)
        if min(self.all_degrees) < 1:
            raise InputError(f"degrees must be at least 1; got {min(self.all_degrees)}.")
        if isinstance(self.rank_edges, tuple):
            RankBins(edges=self.rank_edges)  # says what is wrong with them

    @property
    def all_degrees(self) -> tuple[int, ...]:
        """Degrees to run: those of the curve and the one of the tables."""
        return tuple(sorted({*self.degrees, self.degree}))

    def edges_by_hand(self, dataset: str) -> tuple[float, ...] | None:
        """Edges of Rank: as asked for, those of the authors, or None for quantiles."""
        if self.rank_edges == "quantiles":
            return None
        return self.rank_edges or _RANK_EDGES.get(dataset)

    def partitions(self, dataset: str) -> dict[str, Partition]:
        """Evaluation bins."""
        nested, edges = self.bins == "text", self.edges_by_hand(dataset)
        ties: Literal["split", "quantiles"] = "split" if nested else "quantiles"
        # Ten bins of Conf of equal width, each divided at quartiles of Trust.
        grid = Bins(
            Confidence(), Trust(), counts=(10, 4), spacing=("uniform", "quantile"), nested=nested
        )
        return {
            "conf_trust": grid,
            "conf_rank": RankBins(nested=nested, ties=ties, edges=edges),
        }

    def shown_ranks(self, dataset: str, ranks: Ints) -> RankBins:
        """Rank bins of the figures: edges by hand, quantiles, or rank 1 apart from the others."""
        edges = self.edges_by_hand(dataset)
        if edges is None and self.rank_edges == "quantiles":
            edges = tuple(np.unique([0.0, *np.quantile(ranks, [0.25, 0.5, 0.75, 1.0])]).tolist())
        return RankBins(edges=edges or rank_edges_apart(ranks))


def parse_numbers(text: str, name: str) -> tuple[int, ...]:
    """Whole numbers of 1 or more from a list of numbers and ranges, each once, in order.

    Examples
    --------
    >>> parse_numbers("1-3,8", "--degrees")
    (1, 2, 3, 8)
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= _LARGEST:
            raise InputError(
                f"{name} must be a list such as 1-5,8 of whole numbers, 1 to {_LARGEST}; "
                f"got {text!r}."
            )
        numbers += range(first, last + 1)
    return tuple(dict.fromkeys(numbers))


def parse_edges(text: str | None, name: str) -> tuple[float, ...] | Literal["quantiles"] | None:
    """Edges of bins from a list of numbers, or the word "quantiles"; None for no text."""
    if text is None or text == "quantiles":
        return None if text is None else "quantiles"
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"{name} must be quantiles, or a list of numbers such as 0,1,2,4,1000; got {text!r}."
        ) from None


# --- methods

STANDARD, NAIVE, CONDITIONAL = "STANDARD", "CONDITIONAL (NAIVE)", "CONDITIONAL"
GROUPWISE, PCA = "GROUPWISE", "PCA FEATURES"
# Rows of the package's own begin in lower case; they do not compete for bold in the tables.
DEFAULT, PACKAGE_GROUPWISE = "package default", "package groupwise"
MATCHED, MATCHED_DEFAULT = "size-matched STANDARD", "size-matched STANDARD (default)"
"""STANDARD at the threshold that gives its sets the mean size of CONDITIONAL, or the default."""
ABLATION = {
    "Conf only": (Confidence,),
    "Trust only": (Trust,),
    "Conf and Trust": (Confidence, Trust),
}
"""What the ablation conditions on, in the paper's setting and in the default's."""
PACKAGE_POLYNOMIAL = "default's polynomial"
_COMPONENTS = 20
# Degree and curvature penalty that the default mostly chooses, and its class biases.
_DEFAULT_DEGREE, _DEFAULT_PENALTY, _DEFAULT_PREVALENCE = 5, 10.0, 0.75
# Its 21 functions need so many calibration samples, of which it sets a fifth aside for tuning.
_DEFAULT_SAMPLES = 28

Maker = Callable[[Score, float], Predictor]


@final
@dataclass(frozen=True)
class Method:
    """One row of a table."""

    name: str  # as the paper prints it
    make: Maker | None = None  # a predictor for a score, at a temperature that was fitted before
    degree: int | None = None  # of the polynomials of CONDITIONAL
    n_functions: int = 1  # fewest calibration samples: one for each function
    uses: tuple[str, ...] = ()  # of "trust", "default trust", "features" and "groups"
    size_of: "Method | None" = None  # STANDARD with the mean size of this one
    main_only: bool = False  # run with the main score alone

    @property
    def title(self) -> str:
        """Name with the degree."""
        return self.name if self.degree is None else f"{self.name} of degree {self.degree}"

    def cell(self, score: str) -> "Cell":
        """Name of the results with one score."""
        return Cell(score, self.name, self.degree)


def _papers(kind: Callable[..., Predictor], **options: Any) -> Maker:
    """The paper's methods let sets be empty and learn everything from the calibration samples."""
    shared = {"allow_empty": True, "tuning_fraction": 0.0} | options
    return lambda score, temperature: kind(score=score, temperature=temperature, **shared)


def _packages(**options: Any) -> Maker:
    """The default, which learns its own temperature from tuning samples."""
    return lambda score, _: ConditionalConformal(score=type(score)(scale="tail"), **options)


def choose_methods(source: Source, options: Options) -> tuple[list[Method], list[str]]:
    """Methods that the data allow, in the order of the tables, and in words what they do not."""
    n, features = source.n_calibration, source.tested.features
    methods = [Method(STANDARD, _papers(AuthorsStandard))]
    methods += _groupwise(GROUPWISE, source.groups, MondrianConformal.paper)
    left_out = []
    if source.has_trust:
        naive = _papers(MondrianConformal.paper)
        methods.append(Method(NAIVE, naive, uses=("trust",)))
        polynomials = {degree: _conditional(degree, options) for degree in options.all_degrees}
        methods += polynomials.values()
        methods.append(Method(MATCHED, size_of=polynomials[options.degree]))
    if features is not None:
        n_components = min(_COMPONENTS, n, features.shape[1])
        pca = _papers(ConditionalConformal.paper, basis=PrincipalComponents(n_components))
        methods.append(Method(PCA, pca, n_functions=n_components + 1, uses=("features",)))
    methods += _groupwise(PACKAGE_GROUPWISE, source.groups, MondrianConformal)
    if source.has_trust:
        uses = ("default trust", "features", "groups")
        # One row: the score is part of the default.
        default = Method(DEFAULT, _packages(), None, _DEFAULT_SAMPLES, uses, main_only=True)
        methods.append(default)
        if options.ablation:
            methods += _ablation(options.degree)
            methods.append(Method(MATCHED_DEFAULT, size_of=default, main_only=True))
    else:
        lacking = "training samples" if source.train is None else "features"
        left_out.append(f"Everything that needs trust scores: there are no {lacking}.")
    left_out += [
        f"{method.title}: needs {method.n_functions} calibration samples of {n}."
        for method in methods
        if method.n_functions > n
    ]
    fitting = [method for method in methods if method.n_functions <= n]
    return [item for item in fitting if item.size_of in (None, *fitting)], left_out


def _conditional(degree: int, options: Options) -> Method:
    return Method(
        CONDITIONAL,
        _papers(ConditionalConformal.paper, basis=Polynomial(degree=degree)),
        degree=degree,
        n_functions=(degree + 1) * (degree + 2) // 2,
        uses=("trust",),
        main_only=degree != options.degree,
    )


def _ablation(degree: int) -> list[Method]:
    """Polynomials of Conf, of Trust and of both; CONDITIONAL is the paper's with both."""
    methods = []
    for name, statistics in ABLATION.items():
        basis = Polynomial(degree=degree, of=tuple(kind() for kind in statistics))
        make = _papers(ConditionalConformal.paper, basis=basis)
        if name != "Conf and Trust":
            row = f"{CONDITIONAL}, {name}"
            methods.append(Method(row, make, n_functions=degree + 1, uses=("trust",)))
    for name, statistics in ABLATION.items():
        ranks = tuple(kind(transform="rank") for kind in statistics)
        basis = Polynomial(degree=_DEFAULT_DEGREE, of=ranks, penalty=_DEFAULT_PENALTY)
        bias = ClassBias(prevalence=_DEFAULT_PREVALENCE)
        make, row = _packages(basis=basis, class_bias=bias), f"{PACKAGE_POLYNOMIAL}, {name}"
        methods.append(Method(row, make, None, _DEFAULT_SAMPLES, uses=("default trust",)))
    return [replace(method, main_only=True) for method in methods]


def _groupwise(name: str, columns: Sequence[str], kind: Callable[..., Predictor]) -> list[Method]:
    """One method for each group column; the paper has one column."""
    names = [name] if len(columns) == 1 else [f"{name} by {column}" for column in columns]
    return [
        Method(row, _papers(kind, by=Groups(column)), uses=("groups",))
        for row, column in zip(names, columns, strict=True)
    ]


def _describe(predictor: Predictor) -> str:
    """All options of a predictor as one text; equal texts mean equal methods."""
    options = predictor.get_params(deep=False)
    used = [f"{name}={value!r}" for name, value in sorted(options.items()) if value is not None]
    return f"{type(predictor).__name__}({', '.join(used)})"


# --- stages


@final
class StageCache:
    """Results of stages in a folder, each one checksummed file; without a folder none is kept."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self.made, self.reused = Counter[str](), Counter[str]()

    def get(
        self, stage: str, inputs: dict[str, Any], make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the result for these inputs: the stored one, or what `make` gives."""
        key = digest({"stage": stage, "inputs": inputs})
        path = self._folder and self._folder / stage / f"{key}.safetensors"
        stored = None if path is None else read_kept(path)
        if isinstance(stored, dict):
            self.reused[stage] += 1
            return stored
        result = make()
        self.made[stage] += 1
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, result)
        return result

    def summary(self, stage: str) -> str:
        """How often a stage was worked on and reused."""
        return f"{self.made[stage]} made, {self.reused[stage]} reused"


# --- the experiment


@final
@dataclass(frozen=True)
class Cell:
    """Name of a result over all seeds; only CONDITIONAL has a degree."""

    score: str
    method: str
    degree: int | None = None


@final
@dataclass
class Run:
    """Results of an experiment; lists have one item for each seed."""

    source: Source  # with the paper's trust scores, where there are training samples
    options: Options
    seeds: tuple[int, ...]  # one where the split is fixed
    evaluations: dict[Cell, list[Evaluation]] = field(default_factory=dict)
    balls: dict[Cell, list[BallCurve]] = field(default_factory=dict)
    temperatures: list[float] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # what the data did not allow, in words

    def cell(self, method: str, score: str = MAIN_SCORE) -> Cell:
        """Name of the results of a method, at the degree of the tables."""
        return Cell(score, method, self.options.degree if method == CONDITIONAL else None)

    @property
    def correlations(self) -> list[Correlation]:
        """Correlations of Trust and Rank on the test samples, by seed; empty without trust."""
        evaluations = next(iter(self.evaluations.values()), [])
        return [item.correlation for item in evaluations if item.correlation is not None]


@final
class _Split:
    """Calibration and test samples of one seed, and what the methods share on them."""

    def __init__(self, source: Source, seed: int, rule: str) -> None:
        self.seed, self.rule = seed, rule
        self.calibration, self.test = source.split(seed, rule)
        self.temperature = 1.0
        # Names the samples of both halves by content and seed.
        drawn = None if source.fixed_split else [seed, rule]
        self.key: dict[str, Any] = {"outputs": source.digests["outputs"], "seed": drawn}
        self.neighbourhoods: Neighbourhoods | None = None  # the same balls for all methods


@final
class Experiment:
    """All methods, scores and seeds on one dataset; without a cache, nothing is stored."""

    def __init__(self, source: Source, options: Options, cache: StageCache | None = None) -> None:
        self.source, self.options = source, options
        self.cache = cache or StageCache(None)
        self.seeds = options.seeds[:1] if source.fixed_split else options.seeds
        self.methods, self._left_out = choose_methods(source, options)
        # The same samples with the trust scores of the package's default.
        self._default_source = source
        self._trust_digests = {"trust": "none", "default trust": "none"}

    @property
    def _pairs(self) -> list[tuple[str, Method]]:
        """Scores and methods to run; rows with the size of another one come after it."""
        scores = self.options.scores
        main = MAIN_SCORE if MAIN_SCORE in scores else scores[0]
        methods = sorted(self.methods, key=lambda method: method.size_of is not None)
        return [
            (score, method)
            for score in scores
            for method in methods
            if score == main or not method.main_only
        ]

    @property
    def n_cells(self) -> int:
        """Number of cells that `run` goes through."""
        return len(self.seeds) * len(self._pairs)

    def run(
        self,
        advance: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> Run:
        """Run what is not in the cache."""
        options, source = self.options, self.source
        if source.has_trust:
            source = self._with_trust("trust", TrustScore(**TRUST_OPTIONS[options.trust]))
            self._default_source = self._with_trust("default trust", TrustScore())
            say(f"Trust scores: {self.cache.summary('trust')}.")
        run = Run(source, options, self.seeds, left_out=list(self._left_out))
        for seed in self.seeds:
            split = _Split(source, seed, options.splits)
            split.temperature = self._temperature(split)
            run.temperatures.append(split.temperature)
            for score, method in self._pairs:
                self._run_cell(run, split, score, method)
                advance()
            say(f"Seed {seed} is done; sets so far: {self.cache.summary('sets')}.")
        return run

    def _with_trust(self, name: str, score: TrustScore) -> Source:
        """The samples with trust scores, which do not depend on the device."""
        source = self.source
        inputs = {
            "train": source.digests["train"],
            "features": source.digests["features"],
            "predicted": digest(*(part.predicted for part in source.parts.values())),
            "options": {option: getattr(score, option) for option in TRUST_OPTIONS["code"]},
        }

        def make() -> dict[str, Any]:
            assert source.train is not None  # checked by `has_trust`
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TrustSetsWarning)  # small classes of a long tail
                fitted = score.set_params(device=_device(self.options.device)).fit(*source.train)
            return {
                part: fitted.score(np.asarray(outputs.features), outputs.predicted)
                for part, outputs in source.parts.items()
            }

        trust = self.cache.get("trust", inputs, make)
        self._trust_digests[name] = digest(*trust.values())
        return source.with_trust(trust)

    def _temperature(self, split: _Split) -> float:
        def make() -> dict[str, Any]:
            return {"temperature": TemperatureScaling().fit(split.calibration).temperature_}

        return float(self.cache.get("temperature", split.key, make)["temperature"])

    def _run_cell(self, run: Run, split: _Split, score: str, method: Method) -> None:
        if method.size_of is None:
            outcomes = self._outcomes(split, score, method)
        else:
            size = run.evaluations[method.size_of.cell(score)][-1].sizes.mean
            outcomes = self._sized_outcomes(split, score, size)
        shown = method.degree in (None, self.options.degree) and score == MAIN_SCORE
        if self.options.balls == "authors" and split.seed != self.seeds[0]:
            shown = False
        evaluation, curve = self._metrics(split, **outcomes, balls=self._balls if shown else None)
        run.evaluations.setdefault(method.cell(score), []).append(evaluation)
        if curve is not None:
            run.balls.setdefault(method.cell(score), []).append(curve)

    def _outcomes(self, split: _Split, score: str, method: Method) -> dict[str, Any]:
        """Which sets of one cell contain the label, and their sizes."""
        assert method.make is not None  # rows with the size of another one have no predictor
        predictor = method.make(SCORES[score], split.temperature)
        inputs = split.key | {"alpha": self.options.alpha, "method": _describe(predictor)}
        digests = self.source.digests | self._trust_digests
        inputs |= {name: digests[name] for name in method.uses}

        def make() -> dict[str, Any]:
            parts = split.calibration, split.test
            if "default trust" in method.uses:
                parts = self._default_source.split(split.seed, split.rule)
            with warnings.catch_warnings():
                # Reusing calibration samples and small groups are part of the experiment.
                warnings.simplefilter("ignore", TrustSetsWarning)
                sets = predictor.calibrate(parts[0]).predict_set(parts[1], self.options.alpha)
            return {"covered": sets.covers(split.test.labels), "sizes": sets.sizes}

        return self.cache.get("sets", inputs, make)

    def _sized_outcomes(self, split: _Split, score: str, size: float) -> dict[str, Any]:
        """Sets of one threshold for all, with the mean size of another method's sets."""
        inputs = split.key | {"size": size, "score": repr(SCORES[score])}
        inputs["temperature"] = split.temperature

        def make() -> dict[str, Any]:
            covered, sizes = sets_of_size(SCORES[score], split.test, split.temperature, size)
            return {"covered": covered, "sizes": sizes}

        return self.cache.get("sets", inputs, make)

    def _metrics(
        self, split: _Split, covered: Bools, sizes: Ints, balls: Balls | None
    ) -> tuple[Evaluation, BallCurve | None]:
        bins = self.options.partitions(self.source.name)
        if not self.source.has_trust:
            del bins["conf_trust"]
        metrics = [*bins, "class"] + (["groups"] if self.source.groups else [])
        metrics += ["trust_rank"] if self.source.has_trust else []
        bins[RANK_SHOWN] = self._shown_ranks
        inputs = split.key | {
            "alpha": self.options.alpha,
            "covered": digest(covered),
            "sizes": digest(sizes),
            "bins": {name: repr(item) for name, item in bins.items()},
            "trust": self._trust_digests["trust"],
            "groups": self.source.digests["groups"],
            "n_bootstrap": _BOOTSTRAP,
            "balls": [repr(balls), self.source.digests["features"]],
        }

        def make() -> dict[str, Any]:
            evaluation = evaluate(
                covered,
                split.test,
                alpha=self.options.alpha,
                sizes=sizes,
                metrics=metrics,
                bins=bins,
                n_bootstrap=_BOOTSTRAP,
            )
            result = {"evaluation": evaluation.to_json()}
            if balls is None:
                return result
            if split.neighbourhoods is None:
                split.neighbourhoods = balls.around(np.asarray(split.test.features))
            curve = split.neighbourhoods.curve(covered, self.options.alpha)
            return result | {"balls": asdict(curve)}

        result = self.cache.get("metrics", inputs, make)
        curve = BallCurve(**result["balls"]) if "balls" in result else None
        return Evaluation.from_json(result["evaluation"]), curve

    @cached_property
    def _shown_ranks(self) -> RankBins:
        """Bins of the heatmaps, from all samples that are ever tested."""
        return self.options.shown_ranks(self.source.name, label_ranks(self.source.tested))

    @cached_property
    def _balls(self) -> Balls | None:
        """Balls whose radii are typical of the whole dataset; None without features."""
        features = self.source.tested.features
        if features is None or len(features) < 2:
            return None
        redraw = self.options.balls == "authors"
        return Balls(radii=Balls().typical_radii(features), redraw=redraw)


def sets_of_size(
    score: Score, test: ModelOutputs, temperature: float, size: float
) -> tuple[Bools, Ints]:
    """Which sets contain the label and their sizes, at the threshold that gives a mean size.

    The threshold is the score of the n-th class that enters any set, n the sum of the sizes.
    """
    scores = score.matrix(test, temperature=temperature)
    total = min(max(round(size * len(test)), 1), scores.size)
    threshold = np.partition(scores, total - 1, axis=None)[total - 1]
    covered = score.of_labels(test, temperature=temperature) <= threshold
    return covered, np.count_nonzero(scores <= threshold, axis=1)


def _device(name: str) -> str:
    """A GPU for "auto" where torch finds one."""
    if name != "auto":
        return name
    try:
        import torch
    except ModuleNotFoundError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"
