"""Which recipe keeps coverage even with the smallest sets: the study behind the defaults.

    python studies/recipes.py --bench DIR --output docs/results

Every cell (task, recipe, seed) is one calibration and one prediction on a half/half split of
the pool, stratified by class; it is written to a JSON-lines file as soon as it is done, so that
a study that was stopped continues. ``--stage screen`` tries many candidates on seeds 1 to 3,
``--stage ablation`` (the default) takes the default and its ingredients to seeds 1 to 10, and
``--only-tables`` prints the tables of what is there. CovGaps are given above their noise floor
where the table says so. Without --bench the tasks of the demo are used alone.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from recipe_bases import RANKS, Agreement, Splines
from recipe_solvers import Falling, GaussianKernel, SolvedConformal, Solver
from recipe_tables import write_tables

from trustsets import (
    APS,
    RAPS,
    Atypicality,
    ClassFrequency,
    ConditionalConformal,
    Confidence,
    Custom,
    Entropy,
    Groups,
    Margin,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    PredictionSets,
    PrincipalComponents,
    Softmax,
    StandardConformal,
    Status,
    TrustScore,
    TrustSetsWarning,
    evaluate,
)
from trustsets.basis import Basis
from trustsets.basis.auto import GROUP_PENALTY
from trustsets.demo import TASKS
from trustsets.metrics.balls import Balls, Neighbourhoods
from trustsets.predictors import Predictor

HERE = Path(__file__).resolve().parents[1]
ALPHA = 0.1
GROUP_COLUMNS = ("sex", "age_band", "site")
PAPER_WORDS: dict[str, Any] = {
    "temperature": "tuning",
    "tuning_fraction": 0.0,
    "allow_empty": True,
}
PENALTY = 10.0
STANDARD_BASIS = Polynomial(5, RANKS, penalty=PENALTY)
# Every recipe is also counted as the paper counts, from the same thresholds.
EMPTY = ", empty sets allowed"


class Remembered:
    """A trust score that measures every sample once: splits of one pool share the answers."""

    def __init__(self, trust: TrustScore, outputs: ModelOutputs) -> None:
        features = np.ascontiguousarray(outputs.features)
        values = trust.score(features, outputs.predicted)
        keys = [row.tobytes() for row in features]
        self.known = dict(zip(keys, values.tolist(), strict=True))

    def score(self, features: Any, predicted: Any) -> NDArray[np.float64]:
        """Look the samples up; `predicted` is a function of them."""
        return np.array([self.known[row.tobytes()] for row in np.ascontiguousarray(features)])


@dataclass(frozen=True, eq=False)
class Task:
    """A pool of outputs, the training samples, and trust scores that remember."""

    name: str
    pool: ModelOutputs
    features: Any
    codes: NDArray[np.int64]
    trust: Remembered
    paper_trust: Remembered
    truth: Any = None

    @property
    def counts(self) -> tuple[int, ...]:
        """Training samples of each class."""
        return tuple(np.bincount(self.codes, minlength=self.pool.n_classes).tolist())


def load(bench: Path, name: str) -> tuple[Any, ModelOutputs]:
    """Training points, and the pool as model outputs."""
    with np.load(bench / f"{name}_pool.npz") as pool:
        groups = {key: pool[key] for key in GROUP_COLUMNS if key in pool.files}
        outputs = ModelOutputs(
            logits=pool["logits"],
            features=pool["features"],
            labels=pool["labels"].astype(np.int64),
            groups=groups or None,
        )
    return np.load(bench / f"{name}_train.npz"), outputs


def make_task(name: str, bench: Path | None) -> Task:
    """Read outputs from the benchmark folder, or train a network of the demo."""
    if name in TASKS:
        demo = TASKS[name]()
        pool, truth = demo.pool, demo.label_probabilities
        features, labels = np.asarray(demo.train.features), np.asarray(demo.train.labels)
        codes = np.asarray(demo.train.codes)
    else:
        assert bench is not None
        train, pool = load(bench, name)
        features, truth = train["features"], None
        labels = codes = train["labels"].astype(np.int64)
    settings = (TrustScore(), TrustScore(neighbour=2, squared=True))
    own, paper = (Remembered(trust.fit(features, labels), pool) for trust in settings)
    return Task(name, pool, features, codes, own, paper, truth)


Make = Callable[[Task], Predictor]


def conditional(basis: Any = "auto", **words: Any) -> Make:
    """Return a maker of the conditional method with changes to its defaults."""
    return lambda task: ConditionalConformal(
        basis=basis(task) if callable(basis) else basis, trust=task.trust, **words
    )


def with_groups(basis: Basis, penalty: float = GROUP_PENALTY) -> Callable[[Task], Basis]:
    """Add the groups that ``basis="auto"`` would add."""
    return lambda task: basis + Groups(penalty=penalty) if task.pool.groups else basis


def fixed(basis: Basis, penalty: float = GROUP_PENALTY, **words: Any) -> Make:
    """The default with a given smooth part, and groups that have a penalty."""
    return conditional(with_groups(basis, penalty), class_bias="tuning", **words)


# In the screen, groups have no penalty: all solvers support that.
tried = partial(fixed, penalty=0.0)


def also(part: Callable[[Task], Basis]) -> Make:
    """The default's smooth part, joined by another function class."""
    return lambda task: tried(STANDARD_BASIS + part(task))(task)


def cubic(*statistics: Any) -> Basis:
    """Cubic polynomials of further statistics."""
    return Polynomial(3, statistics, penalty=PENALTY)


def predicted(outputs: ModelOutputs) -> NDArray[np.float64]:
    """Indicators of the predicted class."""
    return np.asarray(np.eye(outputs.n_classes)[outputs.predicted_codes])


def groupwise(column: str) -> Make:
    """GROUPWISE for one column, with the finite-sample quantile that the authors leave out."""
    return lambda task: MondrianConformal(Groups(column), **PAPER_WORDS)


def solved(solver: Solver) -> Make:
    """The default's scores and statistics with the thresholds of another solver."""
    return lambda task: SolvedConformal(
        solver, with_groups(solver.smooth, 0.0)(task), task.trust, alpha=ALPHA
    )


ABLATION: dict[str, Make] = {
    "default": conditional(),
    "- choice: degree 5, penalty 10": fixed(STANDARD_BASIS),
    "- penalty": fixed(Polynomial(5, RANKS)),
    "- rank transforms": fixed(Polynomial(5, penalty=PENALTY)),
    "- class biases": conditional(class_bias=None),
    "- groups": conditional(STANDARD_BASIS, class_bias="tuning"),
    "- restraint of groups": fixed(STANDARD_BASIS, penalty=0.0),
    "- Trust": fixed(Polynomial(5, RANKS[:1], penalty=PENALTY)),
    "- tail scale": conditional(score=APS()),
    "- tuning share: 0.2": conditional(tuning_fraction=0.2),
    "score: RAPS, tail": conditional(score=RAPS(scale="tail")),
    "score: softmax, tail": conditional(score=Softmax(scale="tail")),
    "the paper's way": lambda task: ConditionalConformal.paper(task.paper_trust),
    "STANDARD": lambda task: StandardConformal(APS(), **PAPER_WORDS),
    "STANDARD, softmax": lambda task: StandardConformal(Softmax(), **PAPER_WORDS),
}
GROUPWISE: dict[str, Make] = {
    f"GROUPWISE by {column}": groupwise(column) for column in GROUP_COLUMNS
}
OF_GROUPS = {"- groups", "- restraint of groups", *GROUPWISE}
SCREEN: dict[str, Make] = {
    "default's basis": tried(STANDARD_BASIS),
    "temperature": tried(STANDARD_BASIS, temperature="tuning"),
    "degree 3": tried(Polynomial(3, RANKS, penalty=PENALTY)),
    "degree 7": tried(Polynomial(7, RANKS, penalty=PENALTY)),
    "penalty 2": tried(Polynomial(5, RANKS, penalty=2.0)),
    "penalty 40": tried(Polynomial(5, RANKS, penalty=40.0)),
    "log Trust": tried(
        Polynomial(5, (Confidence(), type(RANKS[1])(transform="log")), penalty=PENALTY)
    ),
    "splines, added": tried(Splines()),
    "splines, tensor": tried(Splines(knots=4, tensor=True)),
    "+ entropy": also(lambda task: cubic(Entropy(transform="rank"))),
    "+ margin": also(lambda task: cubic(Margin(transform="rank"))),
    "+ neighbours' agreement": also(
        lambda task: cubic(Agreement(transform="rank", features=task.features, codes=task.codes))
    ),
    "+ atypicality": also(
        lambda task: cubic(Atypicality.from_training(task.features, task.codes, transform="rank"))
    ),
    "+ class frequency": also(lambda task: cubic(ClassFrequency(counts=task.counts))),
    "+ 10 principal components": also(lambda task: PrincipalComponents(10)),
    "+ predicted class": also(lambda task: Custom(predicted)),
    "score: APS with own mass": tried(STANDARD_BASIS, score=APS(scale="tail", own_mass="include")),
    "score: APS, random": tried(STANDARD_BASIS, score=APS(scale="tail", own_mass="random")),
}
SCREEN |= {
    f"RKHS: width {width}, lambda {penalty}": solved(GaussianKernel(width, penalty))
    for width in (0.2, 0.5)
    for penalty in (0.1, 1.0, 10.0)
}
SCREEN |= {
    "never rising with Trust": solved(Falling(axis=1)),
    "never rising with Conf": solved(Falling(axis=0)),
}


def measure(task: Task, make: Make, seed: int) -> dict[str, dict[str, Any]]:
    """One recipe on one split, as it is and with empty sets allowed, by suffix of its name."""
    calibration, test = task.pool.split(0.5, seed=seed, stratify=True)
    start = time.perf_counter()
    predictor = make(task).calibrate(calibration)
    sets = predictor.predict_set(test, alpha=ALPHA)
    seconds = time.perf_counter() - start
    choice = predictor.choice_ if isinstance(predictor, ConditionalConformal) else None
    chosen = None if choice is None else choice.candidates[choice.chosen]
    said = {"seconds": seconds, "choice": chosen}
    balls = Balls(n_trials=20).around(np.asarray(test.features))
    found = {"": numbers(task, sets, test, balls) | said}
    plain = not predictor.score.randomized and not predictor.allow_empty
    if isinstance(predictor, ConditionalConformal) and plain:
        found[EMPTY] = numbers(task, textbook(predictor, sets, test), test, balls) | said
    return found


def textbook(
    predictor: ConditionalConformal, sets: PredictionSets, test: ModelOutputs
) -> PredictionSets:
    """The sets of the same thresholds, without the class that is always kept."""
    scoring = predictor.state_.scoring(predictor.score)
    mask = predictor.score.sets(
        scoring.corrected(test), sets.thresholds, temperature=scoring.temperature
    )
    return replace(sets, mask=mask)


def numbers(
    task: Task, sets: PredictionSets, test: ModelOutputs, balls: Neighbourhoods
) -> dict[str, Any]:
    """Every metric of some sets, with its noise floor."""
    names = ["conf_trust", "conf_rank", "class", "balls"]
    names += ["groups"] if test.groups else []
    names += ["conditional"] if task.truth is not None else []
    truth = None if task.truth is None else task.truth[test.rows]
    words: dict[str, Any] = {"n_bootstrap": 2, "label_probabilities": truth}
    result = evaluate(sets, test, task.trust, metrics=names, balls=balls, **words)
    paper = evaluate(sets, test, task.paper_trust, metrics=["conf_trust"], n_bootstrap=2)
    said = sets.mask.all(axis=1) & (sets.status > Status.FALLBACK)
    cell: dict[str, Any] = {"full_said": float(said.mean())}
    found = result.metrics | {"conf_trust_paper.gap": paper.metrics["conf_trust.gap"]}
    for name, item in found.items():
        cell[name] = item.value
        if np.isfinite(item.floor):
            cell[f"{name}.floor"] = item.floor
    assert result.balls is not None
    cell["balls.gap"] = float(np.nanmean(result.balls.gap))
    return cell


def cells(options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """What the stage asks for, in the order it is done."""
    makes = recipes(options.stage)
    for seed in range(1, options.seeds + 1):
        for name in options.names:
            for recipe in makes:
                if recipe in OF_GROUPS and name != "ham10000":
                    continue  # the other tasks have no groups
                if not options.only or recipe in options.only:
                    yield name, recipe, seed


def recipes(stage: str) -> dict[str, Make]:
    """Recipes of a stage by name."""
    return SCREEN if stage == "screen" else ABLATION | GROUPWISE


def study(options: argparse.Namespace, path: Path) -> None:
    """Do the cells that the file does not hold yet."""
    done = {(row["task"], row["recipe"], row["seed"]) for row in read(path)}
    tasks: dict[str, Task] = {}
    makes = recipes(options.stage)
    for name, recipe, seed in cells(options):
        if (name, recipe, seed) in done:
            continue
        if name not in tasks:
            tasks[name] = make_task(name, options.bench)
        found = measure(tasks[name], makes[recipe], seed)
        key = {"task": name, "seed": seed}
        lines = [
            json.dumps({**key, "recipe": recipe + suffix, **cell}) + "\n"
            for suffix, cell in found.items()
        ]
        with path.open("a") as file:
            file.writelines(reversed(lines))  # the recipe itself last: it marks the cell as done
        print(f"{name} {recipe} seed {seed}: {found['']['seconds']:.1f} s", flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """Cells done so far; a line cut short by a kill is done again."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def main() -> None:
    """Run the study and print its tables."""
    bench = os.environ.get("TRUSTSETS_BENCH", str(HERE.parent / "shared" / "bench"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", type=Path, default=Path(bench))
    parser.add_argument("--cells", type=Path, default=Path("recipes.jsonl"))
    parser.add_argument("--stage", choices=("screen", "ablation"), default="ablation")
    parser.add_argument("--names", nargs="+", default=None)
    parser.add_argument("--only", nargs="+", default=None, help="recipes by name")
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--only-tables", action="store_true")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    real = ["cifar100", "cifar100lt", "ham10000"] if options.bench.is_dir() else []
    options.names = options.names or [*real, *TASKS]
    options.seeds = options.seeds or (3 if options.stage == "screen" else 10)
    # The paper's presets reuse calibration data on purpose; small groups are part of the story.
    warnings.simplefilter("ignore", TrustSetsWarning)
    if not options.only_tables:
        study(options, options.cells)
    order = [name + suffix for name in recipes(options.stage) for suffix in ("", EMPTY)]
    write_tables(read(options.cells), options.stage, order, options.output)


if __name__ == "__main__":
    main()
