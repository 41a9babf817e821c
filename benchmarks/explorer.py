"""Response times of the explorer over random moves of its parameters, and the memory it holds.

Run with ``python benchmarks/explorer.py [--basis auto] [--moves 200] [--n 20000] [--classes 100]``.
``auto`` is the page's default predictor; ``polynomial`` has moves of its degree and penalty, too.
Half of the samples are for calibration, half are tested. Where the numbers take long, the page
shows those of the first test samples before those of all: both are timed from the move on, up to
the JSON text, which the server adds a millisecond or two to. The verdict comes after. Wall time
depends on what else the machine does; processor time, summed over threads, does not.
"""

import argparse
import random
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from trustsets import ModelOutputs, TrustScore
from trustsets.engine import warm_up
from trustsets_explorer.session import SLIDER, Session, answer, first_answer, nearest_alphas
from trustsets_explorer.state import Setting, State

DIMENSION = 24
# The page prepares the nearest alphas while nobody asks.
RESTED = "alpha, prepared"


def simulated(n: int, n_train: int, n_classes: int) -> tuple[ModelOutputs, Any]:
    """Overconfident outputs of a classifier, and the trust of the samples."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(n_classes, DIMENSION))

    def draw(count: int) -> tuple[Any, Any]:
        codes = rng.integers(n_classes, size=count)
        return centres[codes] + 1.1 * rng.normal(size=(count, DIMENSION)), codes

    (features, codes), (train, train_codes) = draw(n), draw(n_train)
    fit = features @ centres.T - 0.5 * (centres**2).sum(axis=1)
    outputs = ModelOutputs(logits=1.5 * fit, features=features, labels=codes)
    trust = TrustScore().fit(train, train_codes)
    return outputs, trust.score(features, outputs.predicted)


def change(draw: random.Random, **choices: list[Any]) -> Callable[[State], State]:
    """A move of one parameter of the method to another value."""

    def move(state: State) -> State:
        setting = state.settings[0]
        others = {
            name: draw.choice([value for value in values if value != getattr(setting, name)])
            for name, values in choices.items()
        }
        return replace(state, settings=(replace(setting, **others),))

    return move


def moves_of(draw: random.Random, basis: str) -> dict[str, Callable[[State], State]]:
    """The parameters, by name, as functions of a state."""
    two, one = ("confidence", "trust"), ("confidence",)
    functions = {
        "degree": change(draw, degree=[2, 3, 4, 5, 6]),
        "penalty": change(draw, penalty=[0.0, 2.0, 10.0, 40.0]),
        "statistics": change(draw, statistics=[two, one, ("entropy", "trust")]),
    }
    return {
        "alpha": lambda state: replace(state, alpha=draw.choice(SLIDER[:60])),
        RESTED: lambda state: replace(state, alpha=draw.choice(near(state.alpha))),
        **(functions if basis == "polynomial" else {}),
        "score": change(draw, score=["aps", "raps", "softmax"]),
        "temperature": change(draw, temperature=[None, 0.7, 1.5]),
        "method": change(draw, method=["standard", "class", "bins", "clustered", "conditional"]),
        "split seed": lambda state: replace(state, seed=draw.randrange(1000)),
    }


def near(alpha: float) -> list[float]:
    """Alphas of the slider within eight steps."""
    return [other for other in SLIDER if 0.0 < abs(other - alpha) < 0.0401]


def timed(session: Session, state: State) -> tuple[float, float, float]:
    """Milliseconds until the first numbers, until those of all samples, and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    first_answer(session, state)
    first = time.perf_counter() - wall
    answer(session, state)
    passed = time.perf_counter() - wall, time.process_time() - processor
    return 1e3 * first, 1e3 * passed[0], 1e3 * passed[1]


def memory() -> float:
    """Largest memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(
    session: Session, start: State, count: int
) -> tuple[dict[str, list[tuple[float, float, float]]], list[float]]:
    """Times of random moves by kind, and the memory before, halfway and after them."""
    draw = random.Random(0)
    moves, state = moves_of(draw, start.settings[0].basis), start
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name in moves}
    timed(session, state)
    held = [memory()]
    # Each kind as often, in a random order; a method that lacks a parameter goes back first.
    order = [name for name in moves for _ in range(max(count // len(moves), 1))]
    draw.shuffle(order)
    for number, name in enumerate(order):
        if state.settings[0].method != "conditional":
            state = replace(state, settings=start.settings)
            answer(session, state)
        following = moves[name](state)
        if name == RESTED and following in nearest_alphas(state):
            answer(session, following)
        state = following
        measured[name].append(timed(session, state))
        if number in (len(order) // 2, len(order) - 1):
            held.append(memory())
    return measured, held


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--basis", choices=("auto", "polynomial"), default="auto")
    for name, default in (("moves", 200), ("n", 20000), ("train", 10000), ("classes", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    warm_up()
    outputs, trust = simulated(options.n, options.train, options.classes)
    start = State((Setting(basis=options.basis),))
    measured, held = measure(Session(outputs, trust), start, options.moves)
    size = f"{options.n:,} samples, {options.classes} classes, basis {options.basis}"
    columns = [f"{kind} {share}" for kind in ("first", "all", "cpu") for share in ("50%", "95%")]
    table = Table("move", "count", *columns, title=f"{size}: milliseconds an answer")
    everything = [times for moved in measured.values() for times in moved]
    for name, moved in [*measured.items(), ("any", everything)]:
        ends = np.quantile(moved, (0.5, 0.95), axis=0).T.ravel()
        table.add_row(name, str(len(moved)), *(f"{end:.0f}" for end in ends))
    console = Console()
    console.print(table)
    console.print(
        f"Largest memory: {', '.join(f'{size:.0f}' for size in held)} MiB before, halfway, after."
    )


if __name__ == "__main__":
    main()
