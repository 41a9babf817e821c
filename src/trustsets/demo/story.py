"""A comparison in words and rows that hold whatever its numbers are. Imports results."""

from collections.abc import Sequence

from trustsets.demo.results import MethodResult, TaskResult
from trustsets.report.text import fixed, percent

__all__ = ["falls_short", "finding", "introduction", "rows", "setting", "take_away"]

_SIGNIFICANCE = 0.05


def introduction(alpha: float) -> str:
    """What is compared, in the words that the rest uses."""
    return (
        "A prediction set lists the classes that an input may have; it should hold the true "
        f"one for {percent(1.0 - alpha, 0)} of inputs. STANDARD promises this on average over "
        "all inputs only, NAIVE within 16 cells of confidence and trust, CONDITIONAL smoothly "
        "over both. The test is the contradicted inputs: the classifier is at least half "
        "sure of itself, but the most similar training sample is of another class."
    )


def setting(result: TaskResult) -> str:
    """The data, and what the classifier is like."""
    text = (
        f"{result.about} It is {percent(result.confidence, 0)} sure on average, and right on "
        f"{percent(result.accuracy, 0)}."
    )
    if not result.n_contradicted:
        return f"{text} None of {result.n_test:,} test inputs is contradicted."
    return (
        f"{text} {result.n_contradicted:,} of {result.n_test:,} test inputs are contradicted: "
        f"there it is {percent(result.contradicted_confidence, 0)} sure, and right on "
        f"{percent(result.contradicted_accuracy, 0)}."
    )


def rows(result: TaskResult) -> list[tuple[str, ...]]:
    """What was measured: a name, then a cell for each method, with rich markup."""
    own = list(result.methods.values())
    found = [("True class in the set", *(percent(item.coverage) for item in own))]
    if result.n_contradicted:
        found += [
            ("   contradicted inputs", *(_judged(item, result.alpha) for item in own)),
            ("   95% interval of that", *(_interval(item) for item in own)),
        ]
    found.append(("Classes in a set", *(fixed(item.size, 2) for item in own)))
    if result.n_contradicted:
        sizes = (fixed(item.contradicted_size, 2) for item in own)
        found.append(("   contradicted inputs", *sizes))
    promised = percent(1.0 - result.alpha, 0)
    gap = f"Points off {promised} in 16 cells (chance {fixed(own[0].gap_by_chance, 1)})"
    found.append((gap, *(fixed(item.gap, 1) for item in own)))
    low = [item.low_coverage for item in own if item.low_coverage is not None]
    return [*found, ("Inputs with true coverage < 80%", *map(percent, low))] if low else found


def finding(result: TaskResult) -> str:
    """The sentence to take away from one task, its price, and what speaks against it."""
    if not result.n_contradicted:
        return "No input is contradicted here, so this task cannot tell the methods apart."
    return " ".join([_coverage(result), *_price(result), *_truth(result)])


def take_away(results: Sequence[TaskResult]) -> str:
    """One sentence over all tasks."""
    short = [item for item in results if falls_short(item.standard, item.alpha)]
    if not short:
        return (
            "On contradicted inputs STANDARD sets do not fall short by more than chance in "
            f"{_tasks(0, len(results))}."
        )
    better = [item for item in short if _is_better(item)]
    larger = bool(better) and all(item.conditional.size > item.standard.size for item in better)
    return (
        "Sets that keep a promise on average can break it where the classifier is sure and the "
        f"training data disagree: STANDARD sets do in {_tasks(len(short), len(results))}, and "
        f"CONDITIONAL sets cover more there in {_of_these(len(better), len(short))}"
        f"{', at the price of larger sets' if larger else ''}."
    )


def falls_short(method: MethodResult, alpha: float) -> bool:
    """Whether coverage of contradicted inputs is below 1 - alpha by more than chance."""
    return method.contradicted_upper < 1.0 - alpha


def _is_better(result: TaskResult) -> bool:
    """Whether CONDITIONAL covers more contradicted inputs, by more than chance."""
    higher = result.conditional.contradicted_coverage > result.standard.contradicted_coverage
    return higher and result.p_value < _SIGNIFICANCE


def _coverage(result: TaskResult) -> str:
    standard, naive, conditional = (
        percent(result.methods[name].contradicted_coverage, 0)
        for name in ("STANDARD", "NAIVE", "CONDITIONAL")
    )
    short = falls_short(result.standard, result.alpha)
    text = (
        f"With {percent(1.0 - result.alpha, 0)} promised on average, STANDARD sets hold the true "
        f"class for {'only ' if short else ''}{standard} of contradicted inputs, CONDITIONAL "
        f"sets for {conditional} (NAIVE: {naive})"
    )
    if result.p_value >= _SIGNIFICANCE:
        return f"{text}, a difference that may be chance."
    return f"{text}." if _is_better(result) else f"{text}: here CONDITIONAL does worse."


def _price(result: TaskResult) -> list[str]:
    """What it costs, and what the same size would buy without conditioning."""
    sizes = [fixed(item.size, 2) for item in (result.conditional, result.standard)]
    if result.conditional.size <= result.standard.size:
        return [f"It takes {sizes[0]} classes a set, STANDARD {sizes[1]}."]
    grown = percent(result.grown_coverage, 0)
    least = result.grown_coverage >= result.conditional.contradicted_coverage
    return [
        f"The price: {sizes[0]} classes a set instead of {sizes[1]}.",
        f"STANDARD sets enlarged to that size would reach {grown}"
        + (", no less: here size alone does it." if least else "."),
    ]


def _truth(result: TaskResult) -> list[str]:
    """What the true label probabilities say, where they are known."""
    low = {name: item.low_coverage for name, item in result.methods.items()}
    shares = {name: percent(share, 0) for name, share in low.items() if share is not None}
    if not shares:
        return []
    return [
        "As the true probabilities are known here: the chance of holding the true class is "
        f"below 80% for {shares['STANDARD']} of inputs with STANDARD sets, "
        f"{shares['CONDITIONAL']} with CONDITIONAL ones (NAIVE: {shares['NAIVE']})."
    ]


def _judged(item: MethodResult, alpha: float) -> str:
    """Coverage of contradicted inputs, red where it falls short by more than chance."""
    colour = "red" if falls_short(item, alpha) else "green"
    return f"[{colour}]{percent(item.contradicted_coverage)}[/]"


def _interval(item: MethodResult) -> str:
    low, high = (
        fixed(100.0 * end, 0) for end in (item.contradicted_lower, item.contradicted_upper)
    )
    return f"{low}–{high}%"


def _tasks(number: int, total: int) -> str:
    if total == 1:
        return "this task"
    everywhere = "both tasks" if total == 2 else f"all {total} tasks"
    return {0: f"any of the {total} tasks", total: everywhere}.get(
        number, f"{number} of {total} tasks"
    )


def _of_these(number: int, total: int) -> str:
    if total == 1:
        return "it" if number else "none"
    return {0: "none of them", total: "each of them"}.get(number, f"{number} of them")
