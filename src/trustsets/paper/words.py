"""Sentences of a page about its runs: data, options, methods."""

from collections.abc import Sequence

from trustsets.paper.experiment import Run
from trustsets.paper.methods import ATYPICALITY, CLUSTERED, DEFAULT, OWN_GROUPWISE, PLUGIN
from trustsets.paper.printed import DATASETS, printed_source
from trustsets.paper.tables import MARK

__all__ = ["reading", "samples", "setting"]


def samples(run: Run) -> str:
    """Samples of a run in words."""
    source = run.source
    sizes = ", ".join(f"{len(own):,} ({part})" for part, own in source.parts.items())
    train = "none" if source.train is None else f"{len(source.train[0]):,}"
    return (
        f"Samples: {sizes}. Training samples for the trust score: {train}. Classes: "
        f"{source.tested.n_classes}. Accuracy: {100 * source.accuracy:.1f}%."
    )


def setting(run: Run) -> str:
    """Options of a run in words."""
    options = run.options
    scores, degrees = ", ".join(options.scores), ", ".join(map(str, options.degrees))
    return (
        f"{_split(run)}\n\nalpha = {options.alpha:g}; scores {scores}; degrees {degrees}, of which "
        f"{options.degree} is in the tables. {_trust(run)} {_bins(run)} {_balls(run)}"
    )


def _split(run: Run) -> str:
    if run.source.fixed_split:
        return (
            "The split into calibration and test samples is fixed and the temperature is the exact "
            "maximum-likelihood one, so that a second run would give the same numbers. Errors in "
            "parentheses are those of sampling the test samples."
        )
    first, last = run.seeds[0], run.seeds[-1]
    seeds = f"seed {first}" if len(run.seeds) == 1 else f"seeds {first} to {last}"
    return (
        f"Calibration and test samples are halves stratified by class, {seeds}. Standard errors "
        "over seeds are in parentheses (the plain standard deviation, divided by the root of the "
        "number of seeds)."
    )


def _trust(run: Run) -> str:
    options = run.options
    rows = "features divided by their L2 norm" if options.normalize else "features as they are"
    distances = "squared" if options.squared else "plain"
    text = f"Trust: {rows}, neighbour {options.neighbour} of each class, {distances} distances"
    kinds = {(True, 2, True): "the authors' code", (False, 1, False): "the paper's text"}
    known = kinds.get((options.normalize, options.neighbour, options.squared))
    return f"{text} ({known})." if known else f"{text}."


def _bins(run: Run) -> str:
    options = run.options
    text = {
        "text": "divided within each confidence bin (the paper's text)",
        "code": "divided by the same quantiles in all confidence bins (the authors' code)",
    }[options.bins]
    edges = options.edges_by_hand(run.source.name)
    if edges is None:
        return f"Trust and Rank bins are {text}."
    listed = ", ".join(f"{edge:g}" for edge in edges)
    return f"Trust bins are {text}; Rank bins have the edges {listed}."


def _balls(run: Run) -> str:
    return {
        "growing": "Balls grow until they hold 10 other samples (the authors' code).",
        "fixed": "Balls have one radius, around samples with 10 neighbours (the package's own).",
    }[run.options.balls]


def reading(runs: Sequence[Run]) -> str:
    """How to read the tables, and what was run in them."""
    text = (
        "The paper's methods are run as the authors ran them. The temperature is fitted on the "
        "calibration samples, Conf is taken of the unscaled softmax, and sets may be empty. NAIVE "
        "and GROUPWISE use plain quantiles, and give empty sets where there are no calibration "
        "samples. Two choices are this package's: the temperature is the exact maximum-likelihood "
        "one, where the authors took gradient steps, and the components of PCA FEATURES come from "
        "the calibration samples, which the paper does not specify. "
        f"*{DEFAULT}* is `ConditionalConformal` with its default parameters and the score in the "
        "tail scale; it uses the group columns, if there are any. Its sets are never empty, so "
        "that coverage exceeds 1 - alpha where the accuracy of the classifier does."
    )
    if any(run.source.groups for run in runs):
        text += f" *{OWN_GROUPWISE}* is GROUPWISE with the finite-sample quantile of each group."
    if any(run.options.related for run in runs):
        text += (
            f" Of related work, {PLUGIN} differs from CONDITIONAL only in its fit. {CLUSTERED} "
            f"and {ATYPICALITY} are those of this package, at the same temperature."
        )
    text += " Bold: best or within 0.1 of the best. *Perfect* is the noise floor of these bins."
    if any(run.source.name in DATASETS for run in runs):
        text += (
            f" *Printed* are the numbers of {printed_source()}; {MARK} marks ours where the two "
            "differ by more than two standard errors of the difference and the rounding of print."
        )
    return text
