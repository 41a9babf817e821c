"""A comparison in words and rows that are true whatever its numbers are."""

from collections.abc import Sequence

from trustsets.demo.results import MethodResult, TaskResult
from trustsets.report import fixed, percent, range_of

__all__ = [
    "falls_short",
    "finding",
    "headline",
    "introduction",
    "opening",
    "rows",
    "setting",
    "take_away",
]

_SIGNIFICANCE = 0.05


def introduction(alpha: float) -> str:
    """What is compared, in the words that the rest uses."""
    return (
        "A prediction set lists the classes that a sample may have. It should contain the true "
        f"class for {percent(1.0 - alpha, 0)} of samples. STANDARD sets do so on average over all "
        "samples, NAIVE sets within each of 16 cells of confidence and trust, and CONDITIONAL "
        "sets smoothly over both. The methods are compared on contradicted samples: the "
        "classifier is at least 50% confident, but the most similar training sample is of "
        "another class."
    )


def opening(alpha: float) -> str:
    """What is compared, in a question."""
    return (
        f"Do prediction sets contain the true class for {percent(1.0 - alpha, 0)} of samples, even "
        "where the classifier is sure but the most similar training sample is of another class "
        "(contradicted samples)? Of these:"
    )


def headline(result: TaskResult) -> tuple[str, str]:
    """One task in a sentence, and what NAIVE and larger STANDARD sets would do there."""
    if not result.n_contradicted:
        return f"{result.title}: no sample is contradicted.", ""
    own = {name: item.contradicted_coverage for name, item in result.methods.items()}
    shares = {name: percent(share, 0) for name, share in own.items()}
    first = (
        f"{result.title}: STANDARD covers {shares['STANDARD']}, CONDITIONAL {shares['CONDITIONAL']}"
    )
    if result.p_value >= _SIGNIFICANCE:
        first += " (may be noise)"
    as_well = ", which is no less" if own["NAIVE"] >= own["CONDITIONAL"] else ""
    sizes = [fixed(item.size, 2) for item in (result.conditional, result.standard)]
    text = f"NAIVE covers {shares['NAIVE']}{as_well}. CONDITIONAL has {sizes[0]} classes a set, "
    text += f"STANDARD {sizes[1]}"
    if result.conditional.size <= result.standard.size:
        return f"{first}.", f"{text}."
    enough = ", which is no less" if result.grown_coverage >= own["CONDITIONAL"] else ""
    grown = f"enlarged to that size, it covers {percent(result.grown_coverage, 0)}{enough}"
    return f"{first}.", f"{text}; {grown}."


def setting(result: TaskResult) -> str:
    """The data, and what the classifier is like."""
    text = (
        f"{result.about} Its confidence is {percent(result.confidence, 0)} on average, and its "
        f"accuracy {percent(result.accuracy, 0)}."
    )
    if not result.n_contradicted:
        return f"{text} None of {result.n_test:,} test samples is contradicted."
    return (
        f"{text} {result.n_contradicted:,} of {result.n_test:,} test samples are contradicted. "
        f"There its confidence is {percent(result.contradicted_confidence, 0)}, and its accuracy "
        f"{percent(result.contradicted_accuracy, 0)}."
    )


def rows(result: TaskResult) -> list[tuple[str, ...]]:
    """What was measured: a name, then a cell for each method, with rich markup."""
    own = list(result.methods.values())
    coverage = [("Coverage", *(percent(item.coverage) for item in own))]
    sizes = [("Mean set size", *(fixed(item.size, 2) for item in own))]
    if result.n_contradicted:
        ends = (range_of(item.contradicted_lower, item.contradicted_upper, 0) for item in own)
        coverage += [
            ("   contradicted samples", *(_judged(item, result.alpha) for item in own)),
            ("   95% interval of that", *(f"{text}%" for text in ends)),
        ]
        there = (fixed(item.contradicted_size, 2) for item in own)
        sizes.append(("   contradicted samples", *there))
    target, floor = percent(1.0 - result.alpha, 0), fixed(own[0].noise_floor, 1)
    gap = f"Gap to {target} in 16 cells (noise floor {floor})"
    gaps = [(gap, *(fixed(item.gap, 1) for item in own))]
    low = [item.low_coverage for item in own if item.low_coverage is not None]
    truth = [("Samples with true coverage < 80%", *map(percent, low))] if low else []
    return coverage + sizes + gaps + truth


def finding(result: TaskResult) -> str:
    """What one task shows: coverage, sizes of the sets, and what larger sets alone would do."""
    if not result.n_contradicted:
        return "No sample is contradicted here, so this task cannot tell the methods apart."
    return " ".join([_coverage(result), *_sizes(result), *_truth(result)])


def take_away(results: Sequence[TaskResult]) -> str:
    """What all tasks together show."""
    short = [item for item in results if falls_short(item.standard, item.alpha)]
    if not short:
        return (
            "On contradicted samples the coverage of STANDARD sets is not significantly too low "
            f"in {_tasks(0, len(results))}."
        )
    better = [item for item in short if _is_better(item)]
    larger = bool(better) and all(item.conditional.size > item.standard.size for item in better)
    return (
        "Sets with the right coverage on average can have too little where the classifier is "
        "confident and the training data disagree: STANDARD sets have too little in "
        f"{_tasks(len(short), len(results))}. CONDITIONAL sets "
        f"{_in_how_many(len(better), len(short))}{', but are larger' if larger else ''}."
    )


def falls_short(method: MethodResult, alpha: float) -> bool:
    """Whether coverage of contradicted samples is significantly below 1 - alpha."""
    return method.contradicted_upper < 1.0 - alpha


def _is_better(result: TaskResult) -> bool:
    """Whether CONDITIONAL covers significantly more contradicted samples."""
    higher = result.conditional.contradicted_coverage > result.standard.contradicted_coverage
    return higher and result.p_value < _SIGNIFICANCE


def _coverage(result: TaskResult) -> str:
    standard, naive, conditional = (
        percent(result.methods[name].contradicted_coverage, 0)
        for name in ("STANDARD", "NAIVE", "CONDITIONAL")
    )
    only = "only " if falls_short(result.standard, result.alpha) else ""
    text = (
        f"With {percent(1.0 - result.alpha, 0)} promised on average, STANDARD sets contain the "
        f"true class for {only}{standard} of contradicted samples, CONDITIONAL sets for "
        f"{conditional} (NAIVE: {naive})"
    )
    if result.p_value >= _SIGNIFICANCE:
        return f"{text}, a difference that noise alone can explain."
    return f"{text}." if _is_better(result) else f"{text}: here CONDITIONAL does worse."


def _sizes(result: TaskResult) -> list[str]:
    """The sizes of the sets, and what STANDARD sets of the same size would cover."""
    sizes = [fixed(item.size, 2) for item in (result.conditional, result.standard)]
    if result.conditional.size <= result.standard.size:
        return [f"CONDITIONAL sets have {sizes[0]} classes on average, STANDARD sets {sizes[1]}."]
    enough = result.grown_coverage >= result.conditional.contradicted_coverage
    return [
        f"CONDITIONAL sets are larger: {sizes[0]} classes on average instead of {sizes[1]}.",
        f"STANDARD sets enlarged to that size would reach {percent(result.grown_coverage, 0)}"
        + (", no less: here size alone is enough." if enough else "."),
    ]


def _truth(result: TaskResult) -> list[str]:
    """What the true label probabilities say, where they are known."""
    low = {name: item.low_coverage for name, item in result.methods.items()}
    shares = {name: percent(share, 0) for name, share in low.items() if share is not None}
    if not shares:
        return []
    return [
        "The true probabilities are known here. The probability that the set contains the true "
        f"class is below 80% for {shares['STANDARD']} of samples with STANDARD sets and for "
        f"{shares['CONDITIONAL']} with CONDITIONAL sets (NAIVE: {shares['NAIVE']})."
    ]


def _judged(item: MethodResult, alpha: float) -> str:
    """Coverage of contradicted samples, red where it is significantly too low."""
    colour = "red" if falls_short(item, alpha) else "green"
    return f"[{colour}]{percent(item.contradicted_coverage)}[/]"


def _tasks(number: int, total: int) -> str:
    if total == 1:
        return "this task"
    everywhere = "both tasks" if total == 2 else f"all {total} tasks"
    return {0: f"any of the {total} tasks", total: everywhere}.get(
        number, f"{number} of {total} tasks"
    )


def _in_how_many(number: int, total: int) -> str:
    """In how many of the tasks where STANDARD falls short CONDITIONAL covers more."""
    if total == 1:
        return "cover significantly more there" if number else "do not cover significantly more"
    count = {0: "none", total: "each"}.get(number, str(number))
    return f"cover significantly more there in {count} of them"
