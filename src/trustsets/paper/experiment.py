"""The experiment of one dataset, stage by stage.

The stages are trust, temperature, sets, metrics, balls and correlation. A cell is one (seed, score,
method, degree). Which of its sets contain the label and how large they are is stored, and the
metrics follow from that.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from trustsets._common.arrays import Floats
from trustsets._common.resuming import digest
from trustsets.errors import TrustSetsWarning
from trustsets.metrics.balls import BallCurve, Balls
from trustsets.metrics.evaluation import evaluate
from trustsets.metrics.inference import Ints
from trustsets.metrics.label_bins import RankBins, label_ranks, rank_edges_apart
from trustsets.metrics.plain import from_plain, to_plain
from trustsets.metrics.result import Evaluation
from trustsets.metrics.summaries import Correlation, correlate
from trustsets.paper.layout import POOL
from trustsets.paper.methods import (
    ATYPICALITY,
    CLUSTERED,
    DEFAULT,
    ORACLE,
    PCA,
    Method,
    SharedBasis,
    choose_methods,
    describe,
)
from trustsets.paper.options import SCORES, Options
from trustsets.paper.sources import Source
from trustsets.paper.splits import PartValues, Split
from trustsets.paper.stages import StageCache, Tally
from trustsets.predictors.base import thresholds_from
from trustsets.predictors.clustered import ClusteredConformal
from trustsets.predictors.oracle import oracle_sets
from trustsets.predictors.related import atypicality_groups
from trustsets.recalibration import TemperatureScaling
from trustsets.statistics import Atypicality
from trustsets.trust import TrustScore

__all__ = ["RANK_SHOWN", "Cell", "Experiment", "Run"]

RANK_SHOWN = "conf_rank_shown"
"""Table by Conf and Rank for the figures: rank 1 apart, the same edges for all seeds."""
# Resamples behind the intervals that stand in for standard errors where the split is fixed.
_BOOTSTRAP = 200
# The paper draws balls with this score only.
_BALL_SCORE = "APS"


@final
@dataclass(frozen=True)
class Cell:
    """Name of a result over all seeds; only CONDITIONAL and PLUG-IN have a degree."""

    score: str
    method: str
    degree: int | None = None


@final
@dataclass
class Run:
    """Everything an experiment found.

    Attributes
    ----------
    seeds : tuple of int
        Seeds run: one where the split is fixed.
    evaluations : dict of Cell to list of Evaluation
        One for each seed, with the curve of balls where it was drawn.
    correlations : list of Correlation
        Correlations of Trust and Rank on the test samples, by seed; empty without trust.
    temperatures : list of float
        By seed.
    trust : array, optional
        Trust scores of the part that test samples come from.
    left_out : list of str
        What the data did not allow, in words.
    """

    source: Source
    options: Options
    seeds: tuple[int, ...]
    evaluations: dict[Cell, list[Evaluation]] = field(default_factory=dict)
    correlations: list[Correlation] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    trust: Floats | None = None
    left_out: list[str] = field(default_factory=list)


@final
class Experiment:
    """All methods, scores and seeds on one dataset; without a cache, nothing is kept."""

    def __init__(self, source: Source, options: Options, cache: StageCache | None = None) -> None:
        self.source, self.options = source, options
        self.cache = cache or StageCache(None)
        self.seeds = options.seeds[:1] if source.fixed_split else options.seeds
        self.methods, self._left_out = choose_methods(source, options)
        self._paper_trust: PartValues | None = None
        self._default_trust: PartValues | None = None

    def run(
        self,
        advance: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> Run:
        """Run what is not in the cache.

        Parameters
        ----------
        advance : callable
            Called after every cell; there are `n_cells`.
        say : callable
            Told in a line what was done, seed by seed.
        """
        run = Run(self.source, self.options, self.seeds, left_out=list(self._left_out))
        with self.cache.timed("content of the inputs"):
            _ = self.source.train_digest, self.source.outputs_digest, self.source.features_digest
        tallies = self.cache.tallies
        if self.source.has_trust:
            wanted = self.options
            paper = TrustScore(
                neighbour=wanted.neighbour, squared=wanted.squared, normalize=wanted.normalize
            )
            self._paper_trust = self._trust(paper)
            self._default_trust = self._trust(TrustScore())
            run.trust = self._paper_trust[self.source.halves[1]]
            done = tallies["trust"]
            say(f"Trust scores: {done.made} made in {done.seconds:.1f} s, {done.reused} reused.")
        for seed in self.seeds:
            before = tallies.get("sets", Tally())
            self._run_seed(seed, run, advance)
            done = tallies["sets"]
            made, reused = done.made - before.made, done.reused - before.reused
            seconds = done.seconds - before.seconds
            say(f"Seed {seed}: {made} methods run in {seconds:.1f} s, {reused} reused.")
        return run

    @property
    def n_cells(self) -> int:
        """Number of cells that `run` goes through."""
        return len(self.seeds) * len(self.options.scores) * len(self.methods)

    def _run_seed(self, seed: int, run: Run, advance: Callable[[], None]) -> None:
        split = Split(self.source, seed, self._paper_trust)
        split.temperature = self._temperature(split)
        run.temperatures.append(split.temperature)
        if self._paper_trust is not None:
            run.correlations.append(self._correlation(split))
        for score in self.options.scores:
            for method in self.methods:
                covered, sizes = self._sets(split, score, method)
                found = self._metrics(split, covered, sizes)
                in_figures = method.degree in (None, self.options.degree)
                if score == _BALL_SCORE and in_figures:
                    found = replace(found, balls=self._balls(split, covered))
                cell = Cell(score, method.name, method.degree)
                run.evaluations.setdefault(cell, []).append(found)
                advance()

    def _trust(self, score: TrustScore) -> PartValues:
        """Trust scores of all parts; they do not depend on the device."""
        source, used = self.source, ("normalize", "neighbour", "squared")
        inputs = {
            "train": source.train_digest,
            "features": source.features_digest,
            "predicted": digest(*(part.predicted for part in source.parts.values())),
            "options": {name: getattr(score, name) for name in used},
        }

        def make() -> dict[str, Any]:
            assert source.train is not None  # checked by `has_trust`
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TrustSetsWarning)  # small classes of a long tail
                fitted = score.set_params(device=self.options.device).fit(*source.train)
            return {
                part: fitted.score(np.asarray(own.features), own.predicted)
                for part, own in source.parts.items()
            }

        return self.cache.get("trust", inputs, make)

    def _temperature(self, split: Split) -> float:
        def make() -> dict[str, Any]:
            return {"temperature": TemperatureScaling().fit(split.calibration).temperature_}

        return float(self.cache.get("temperature", split.key, make)["temperature"])

    def _correlation(self, split: Split) -> Correlation:
        def make() -> dict[str, Any]:
            found = correlate(
                split.outputs[1].require_trust("Trust against Rank"), label_ranks(split.test)
            )
            return {"correlation": vars(found)}

        inputs = split.key | {"trust": _digest(self._paper_trust)}
        return Correlation(**self.cache.get("correlation", inputs, make)["correlation"])

    def _sets(self, split: Split, score: str, method: Method) -> tuple[NDArray[np.bool_], Ints]:
        """Which sets of one cell contain the label, and their sizes."""

        def make() -> dict[str, Any]:
            with warnings.catch_warnings():
                # Reusing calibration samples and small groups are part of the experiment.
                warnings.simplefilter("ignore", TrustSetsWarning)
                run = self._shared_sets if method.as_paper else self._own_sets
                covered, sizes = run(split, score, method)
            return {"covered": covered, "sizes": sizes.astype(np.int32)}

        inputs = self._set_inputs(split, score, method)
        found = self.cache.get("sets", inputs, make, label=method.title)
        return found["covered"], found["sizes"].astype(np.int64)

    def _set_inputs(self, split: Split, score: str, method: Method) -> dict[str, Any]:
        """All that the sets of one cell depend on."""
        source, default = self.source, method.name == DEFAULT
        inputs = split.key | {"alpha": self.options.alpha}
        if method.as_paper or default:
            inputs["method"] = describe(method.predictor(SCORES[score]))
        else:
            inputs["method"] = f"{method.name} {SCORES[score]!r} temperature={split.temperature!r}"
        if method.as_paper:
            inputs["temperature"] = split.temperature
        if method.uses_trust:
            inputs["trust"] = _digest(self._default_trust if default else self._paper_trust)
        if method.uses_features:
            inputs["features"] = source.features_digest
        if method.name == ATYPICALITY:
            inputs["train"] = source.train_digest
        if method.name == ORACLE:
            inputs["truth"] = digest(source.label_probabilities)
        if method.group is not None:
            inputs["group"] = source.groups_digest(method.group)
        if default:  # it conditions on whatever groups there are
            inputs["groups"] = [source.groups_digest(name) for name in source.groups]
        return inputs

    def _shared_sets(self, split: Split, score: str, method: Method) -> tuple[Any, Any]:
        """A method of the paper, from the scores and statistics that all of them share."""
        basis = SharedBasis(split.components(method)) if method.name == PCA else None
        task, ranked = split.scored(score)
        predictor = method.predictor(SCORES[score], basis)
        found = thresholds_from(predictor, task, split.outputs[1], (self.options.alpha,))
        sizes, covered = ranked.outcomes(found.values[:, 0])
        return covered, sizes

    def _own_sets(self, split: Split, score: str, method: Method) -> tuple[Any, Any]:
        """A method that is run as the package has it; most set tuning samples aside."""
        if method.name == ORACLE:
            truth = split.of_halves({POOL: np.asarray(self.source.label_probabilities)})[1]
            sets = oracle_sets(truth, self.options.alpha, split.test.classes)
            return sets.covers(split.test.labels), sets.sizes
        chosen, first, second = SCORES[score], None, None
        words: dict[str, Any] = {"temperature": split.temperature, "allow_empty": True}
        if method.name == DEFAULT:
            predictor = method.predictor(chosen)
            first, second = split.of_halves(self._default_trust)
        elif method.name == CLUSTERED:
            predictor = ClusteredConformal(score=chosen, **words)
        else:
            predictor = atypicality_groups(self._atypicality, score=chosen, **words)
        predictor.calibrate(split.calibration, trust=first)
        sets = predictor.predict_set(split.test, self.options.alpha, trust=second)
        return sets.covers(split.test.labels), sets.sizes

    @cached_property
    def _atypicality(self) -> Atypicality:
        assert self.source.train is not None  # the method is run with training samples only
        return Atypicality.from_training(*self.source.train)

    def _metrics(self, split: Split, covered: NDArray[np.bool_], sizes: Ints) -> Evaluation:
        bins = self.options.partitions(self.source.name)
        if not self.source.has_trust:
            del bins["conf_trust"]
        metrics = [*bins, "class"] + (["groups"] if self.source.groups else [])
        bins[RANK_SHOWN] = self._shown_ranks
        inputs = split.key | {
            "alpha": self.options.alpha,
            "covered": digest(covered),
            "sizes": digest(sizes),
            "bins": {name: repr(item) for name, item in bins.items()},
            "trust": _digest(self._paper_trust),
            "groups": {name: self.source.groups_digest(name) for name in self.source.groups},
            "n_bootstrap": _BOOTSTRAP,
        }

        def make() -> dict[str, Any]:
            result = evaluate(
                covered,
                split.outputs[1],
                sizes=sizes,
                alpha=self.options.alpha,
                metrics=metrics,
                bins=bins,
                n_bootstrap=_BOOTSTRAP,
            )
            return {"json": result.to_json()}

        return Evaluation.from_json(self.cache.get("metrics", inputs, make, version=2)["json"])

    @cached_property
    def _shown_ranks(self) -> RankBins:
        """Bins of the heatmaps: edges by hand, or from all samples that are ever tested."""
        by_hand = self.options.edges_by_hand(self.source.name)
        return RankBins(edges=by_hand or rank_edges_apart(label_ranks(self.source.tested)))

    @cached_property
    def _ball_plan(self) -> Balls | None:
        """Balls whose radii are typical of the whole dataset; None without features."""
        features = self.source.tested.features
        if features is None or len(features) < 2:
            return None
        with self.cache.timed("radii of the balls"):
            return Balls(self.options.balls, radii=Balls().typical_radii(features))

    def _balls(self, split: Split, covered: NDArray[np.bool_]) -> BallCurve | None:
        plan = self._ball_plan
        if plan is None:
            return None
        inputs = split.key | {
            "alpha": self.options.alpha,
            "features": self.source.features_digest,
            "covered": digest(covered),
            "plan": repr(plan),
        }

        def make() -> dict[str, Any]:
            found = split.neighbourhoods(plan).curve(covered, self.options.alpha)
            return {"curve": to_plain(found)}

        curve: BallCurve = from_plain(BallCurve, self.cache.get("balls", inputs, make)["curve"])
        return curve


def _digest(values: PartValues | None) -> str:
    return "none" if values is None else digest(*values.values())
