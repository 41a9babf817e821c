"""Response times of the explorer over random moves of its parameters, and the memory it holds.

Run with ``python benchmarks/explorer.py [--moves 200] [--n 20000] [--classes 100]``. Half of the
samples are for calibration, half are tested. Where the numbers take long, the page shows those of
the first test samples before those of all: both are timed from the move on, up to the JSON text,
which the server adds a millisecond or two to. The words of the verdict come after. Wall time
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
from trustsets_explorer.session import SLIDER, Session, answer, first_answer
from trustsets_explorer.state import Setting, State

START = State((Setting(basis="polynomial", degree=5),))
DIMENSION = 24
# The page prepares the nearest alphas when nothing has moved for some seconds.
RESTED = "alpha, after a rest"
FIRST = "first numbers of any move"


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


def moves_of(draw: random.Random) -> dict[str, Callable[[State], State]]:
    """The parameters, by name, as functions of a state."""
    two, one = ("confidence", "trust"), ("confidence",)
    return {
        "alpha": lambda state: replace(state, alpha=draw.choice(SLIDER[:60])),
        RESTED: lambda state: replace(state, alpha=draw.choice(near(state.alpha))),
        "degree": change(draw, degree=[2, 3, 4, 5, 6]),
        "penalty": change(draw, penalty=[0.0, 2.0, 10.0, 40.0]),
        "statistics": change(draw, statistics=[two, one, ("entropy", "trust")]),
        "score": change(draw, score=["aps", "raps", "softmax"]),
        "temperature": change(draw, temperature=[None, 0.7, 1.5]),
        "method": change(draw, method=["standard", "class", "bins", "clustered", "conditional"]),
        "split seed": lambda state: replace(state, seed=draw.randrange(1000)),
    }


def near(alpha: float) -> list[float]:
    """Alphas of the slider within eight steps."""
    return [other for other in SLIDER if 0.0 < abs(other - alpha) < 0.0401]


def timed(session: Session, state: State) -> Any:
    """Wall and processor milliseconds until the first numbers, and until those of all samples."""
    wall, processor = time.perf_counter(), time.process_time()
    times = []
    for ask in (first_answer, answer):
        ask(session, state)
        passed = time.perf_counter() - wall, time.process_time() - processor
        times.append((1e3 * passed[0], 1e3 * passed[1]))
    return times


def memory() -> float:
    """Largest memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(session: Session, count: int) -> tuple[dict[str, list[tuple[float, float]]], Any]:
    """Times of random moves by kind, and the memory before, halfway and after them."""
    draw = random.Random(0)
    moves, state = moves_of(draw), START
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in [*moves, FIRST]}
    timed(session, state)
    held = [memory()]
    # Each kind as often, in a random order; a method that lacks a parameter goes back first.
    order = [name for name in moves for _ in range(max(count // len(moves), 1))]
    draw.shuffle(order)
    for number, name in enumerate(order):
        if state.settings[0].method != "conditional":
            state = replace(state, settings=START.settings)
            answer(session, state)
        if name == RESTED:
            for coming in session.prepare_alphas(state):
                answer(session, coming)
        state = moves[name](state)
        first, whole = timed(session, state)
        measured[FIRST].append(first)
        measured[name].append(whole)
        if number in (len(order) // 2, len(order) - 1):
            held.append(memory())
    return measured, held


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("moves", 200), ("n", 20000), ("train", 10000), ("classes", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    warm_up()
    outputs, trust = simulated(options.n, options.train, options.classes)
    measured, held = measure(Session(outputs, trust), options.moves)
    title = f"{options.n:,} samples, {options.classes} classes: milliseconds an answer"
    table = Table(
        "move", "count", "wall, median", "wall, 95%", "cpu, median", "cpu, 95%", title=title
    )
    everything = [pair for name, times in measured.items() if name != FIRST for pair in times]
    for name, times in [*measured.items(), ("all", everything)]:
        wall, cpu = np.array(times).T
        ends = [np.quantile(column, share) for column in (wall, cpu) for share in (0.5, 0.95)]
        table.add_row(name, str(len(times)), *(f"{end:.0f}" for end in ends))
    console = Console()
    console.print(table)
    console.print(
        f"Largest memory: {', '.join(f'{size:.0f}' for size in held)} MiB before, halfway, after."
    )


if __name__ == "__main__":
    main()
