"""Write the results page, its figure and the headline from the results file.

    python benchmarks/coverage/coverage_page.py [--results docs/results/coverage.json]

Every number of the page, and its summary, is computed here from the file; a test makes the page
again and compares.
"""

import argparse
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "coverage.json"
METHODS_FILE = "coverage_methods"
README = ROOT / "README.md"
MARKS = ("<!-- headline -->", "<!-- /headline -->")
EXPLANATIONS = Path(__file__).parent / "explanations.json"
DEFAULT, REFERENCE = "default", "split conformal"
SIGNIFICANCE = 0.05
SMALLEST_DIVISOR = 0.2
"""Ratios to fewer points than this say nothing: they are within the noise of the judge."""
TITLES = {
    "ert": "ERT",
    "ert_under": "ERT under",
    "raw_ert": "ERT, second judge",
    "raw_ert_under": "ERT under, second judge",
    "conf_trust_under": "Conf x Trust under",
    "class_under": "class under",
    "worst_slab": "worst slab under",
    "group_under": "group under",
    "worst_group": "worst group under",
    "true_below": "inputs of true coverage below 80%, in %",
    "true_under": "mean true shortfall",
}
"""Measures that are better when lower; others are coverage and sizes."""
RESAMPLES = 10_000
LARGEST_SHOWN = 3.0
"""Times the size of split conformal sets; larger sets are not in the figure."""
TARGETS = {"ert": 0.6, "ert_under": 0.45}
COLORS = {
    "trustsets": "#1b6ca8",
    "MAPIE": "#d1495b",
    "TorchCP": "#edae49",
    "crepes": "#66a182",
    "puncc": "#8d6a9f",
}
Pair = tuple[float, float]


@dataclass(frozen=True)
class Verdict:
    """A paired difference on one data set: lower than, higher than, or not told apart from zero."""

    name: str
    mean: float
    half_width: float
    sign: int

    @property
    def word(self) -> str:
        """Win, tie or loss of the first of the two."""
        return {-1: "win", 0: "tie", 1: "loss"}[self.sign]


@dataclass(frozen=True)
class Results:
    """The results file."""

    content: dict[str, Any]

    @classmethod
    def read(cls, path: Path = RESULTS) -> "Results":
        """The file at a path."""
        return cls(json.loads(path.read_text()))

    def sets(self, seen: bool = False) -> list[str]:
        """Names of the data sets that were, or were not, looked at during development."""
        return [name for name, data in self.content["sets"].items() if data["seen"] == seen]

    def methods(self) -> list[str]:
        """Names of all methods that ran on some data set."""
        names: dict[str, None] = {}
        for data in self.content["sets"].values():
            names |= dict.fromkeys(data["methods"])
        return list(names)

    def pair(self, name: str, method: str, part: str, measure: str) -> Pair | None:
        """Mean and standard deviation over splits; None where it was not measured.

        `part` is "at_alpha", "equal_size" (split conformal sets of the method's size, without a
        deviation), "minus_equal_size" or "default_minus_it" (paired differences).
        """
        row = self.content["sets"][name]["methods"].get(method, {})
        if "mean" not in row:
            return None
        index = self.content["measures"].index(measure)
        mean, equal = row["mean"][index], row["equal_size_mean"][index]
        if mean is None:
            return None
        if part == "at_alpha":
            return mean, row["sd"][index]
        if part == "equal_size":
            return equal, 0.0
        if part == "minus_equal_size":
            return mean - equal, row["minus_equal_size_sd"][index]
        default = self.content["sets"][name]["methods"][DEFAULT]["mean"][index]
        return default - mean, row["default_minus_it_sd"][index]

    def means(self, names: Iterable[str], method: str, part: str, measure: str) -> list[float]:
        """Means on the data sets where there is one."""
        pairs = (self.pair(name, method, part, measure) for name in names)
        return [pair[0] for pair in pairs if pair is not None]

    def ran_on(self, method: str, names: Sequence[str]) -> list[str]:
        """Data sets on which a method ran without an error."""
        return [name for name in names if self.pair(name, method, "at_alpha", "size") is not None]

    def verdicts(self, names: Sequence[str], method: str, part: str, measure: str) -> list[Verdict]:
        """Paired differences by data set, with Holm's correction over the data sets."""
        rows = []
        for name in names:
            pair = self.pair(name, method, part, measure)
            if pair is None:
                continue
            data = self.content["sets"][name]
            splits = data["methods"][method]["splits"]
            share = 1.0 / splits + data["test"] / data["calibration"]
            error, freedom = pair[1] * share**0.5, max(splits - 1, 1)
            if error > 0.0:
                p_value = float(2.0 * student.sf(abs(pair[0]) / error, freedom))
            else:
                p_value = float(pair[0] == 0.0)
            half = float(student.ppf(0.975, freedom)) * error
            rows.append((name, pair[0], half, p_value))
        rejected = holm([row[3] for row in rows])
        return [
            Verdict(name, mean, half, int(np.sign(mean)) if reject else 0)
            for (name, mean, half, _), reject in zip(rows, rejected, strict=True)
        ]


def holm(p_values: Sequence[float]) -> list[bool]:
    """Which hypotheses Holm's method rejects."""
    rejected = [False] * len(p_values)
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for step, i in enumerate(order):
        if p_values[i] > SIGNIFICANCE / (len(p_values) - step):
            break
        rejected[i] = True
    return rejected


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95% interval of a mean, the values being its units; everything if there is one value."""
    if len(values) == 1:
        return -np.inf, np.inf
    half = float(student.ppf(0.975, len(values) - 1)) * np.std(values, ddof=1) / len(values) ** 0.5
    return float(np.mean(values) - half), float(np.mean(values) + half)


def counts(verdicts: Sequence[Verdict]) -> str:
    """Wins, ties and losses, as in 5 / 8 / 1."""
    return " / ".join(
        str(sum(verdict.word == word for verdict in verdicts)) for word in ("win", "tie", "loss")
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> str:
    """A pipe table whose first columns are names."""
    rule = ["---"] * names + ["--:"] * (len(header) - names)
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *rows))


def number(value: float | None, digits: int = 2) -> str:
    """A number, or nothing."""
    return "" if value is None else f"{value:.{digits}f}".replace("-0.00", "0.00")


def mean_of(values: Sequence[float]) -> float | None:
    """The mean, or nothing."""
    return float(np.mean(values)) if values else None


# ---------------------------------------------------------------------------------- sections


def main_ratio(results: Results, measure: str, names: Sequence[str]) -> tuple[float, float, float]:
    """Means over data sets of the default and of split conformal sets of its size; their ratio."""
    ours = float(np.mean(results.means(names, DEFAULT, "at_alpha", measure)))
    other = float(np.mean(results.means(names, DEFAULT, "equal_size", measure)))
    return ours, other, ours / other


def summary(results: Results) -> str:
    """The summary, in words that depend on the numbers."""
    names = results.sets()
    lines = []
    for measure, target in TARGETS.items():
        ours, other, ratio = main_ratio(results, measure, names)
        differences = results.means(names, DEFAULT, "minus_equal_size", measure)
        low, high = interval(differences)
        verdicts = results.verdicts(names, DEFAULT, "minus_equal_size", measure)
        reached = "reached" if ratio <= target else "not reached"
        lines.append(
            f"- **{TITLES[measure]}: {ours:.2f} against {other:.2f} points, {ratio:.2f} times.** "
            f"Mean difference {np.mean(differences):+.2f} (95% interval over data sets "
            f"{low:+.2f} to {high:+.2f}); lower on {sum(d < 0 for d in differences)} of "
            f"{len(differences)} data sets; wins / ties / losses {counts(verdicts)}. The target, "
            f"{target} times, is {reached}."
        )
    own_class, other_class, _ = main_ratio(results, "class_under", names)
    lines.append(
        f"- Class under-coverage: {own_class:.2f} against {other_class:.2f} points. "
        f"Coverage: {np.mean(results.means(names, DEFAULT, 'at_alpha', 'coverage')):.3f} against "
        f"{np.mean(results.means(names, DEFAULT, 'equal_size', 'coverage')):.3f}. Sets are "
        f"{size_ratio(results, DEFAULT, names):.2f} times as large as split conformal sets at "
        f"the same alpha."
    )
    return "\n".join(lines)


def size_ratio(results: Results, method: str, names: Sequence[str]) -> float:
    """Geometric mean over data sets of the size relative to split conformal sets at alpha."""
    ran = results.ran_on(method, names)
    ours = np.array(results.means(ran, method, "at_alpha", "size"))
    other = np.array(results.means(ran, REFERENCE, "at_alpha", "size"))
    return float(np.exp(np.mean(np.log(ours / other))))


def default_table(results: Results, names: Sequence[str]) -> str:
    """The default beside split conformal sets of the same size, by data set."""
    measures = ("ert", "ert_under", "raw_ert", "conf_trust_under", "class_under")
    verdicts = {
        measure: {
            verdict.name: verdict
            for verdict in results.verdicts(names, DEFAULT, "minus_equal_size", measure)
        }
        for measure in measures
    }

    def cell(name: str, measure: str) -> str:
        ours = results.pair(name, DEFAULT, "at_alpha", measure)
        other = results.pair(name, DEFAULT, "equal_size", measure)
        if ours is None or other is None:
            return ""
        mark = {-1: " **+**", 0: "", 1: " **-**"}[verdicts[measure][name].sign]
        return f"{number(ours[0])} / {number(other[0])}{mark}"

    rows = []
    for name in names:
        size = results.pair(name, DEFAULT, "at_alpha", "size")
        alone = results.pair(name, REFERENCE, "at_alpha", "size")
        coverage = [
            results.pair(name, DEFAULT, part, "coverage") for part in ("at_alpha", "equal_size")
        ]
        rows.append(
            [
                name,
                f"{number(size and size[0])} ({number(alone and alone[0])})",
                " / ".join(number(pair and pair[0], 3) for pair in coverage),
                *(cell(name, measure) for measure in measures),
            ]
        )
    means = [
        f"**{main_ratio(results, measure, names)[0]:.2f} / "
        f"{main_ratio(results, measure, names)[1]:.2f}**"
        for measure in measures
    ]
    rows.append(["**mean**", "", "", *means])
    head = ["data set", "size (at alpha)", "coverage", *(TITLES[measure] for measure in measures)]
    return table(head, rows)


def avoidable_ratio(values: Any) -> float:
    """Ratio of what default and split conformal sets have above the floor, in the mean.

    `values` has a row of floor, default and split conformal sets for each data set.
    """
    lowest, ours, other = np.mean(values, axis=0)
    return float((ours - lowest) / (other - lowest))


def floor_rows(results: Results, names: Sequence[str], measure: str = "ert") -> Any:
    """Floor, default and split conformal sets of its size, by data set; shape (S, 3)."""
    floors = [results.content["sets"][name]["floor"][measure][0] for name in names]
    columns = [results.means(names, DEFAULT, part, measure) for part in ("at_alpha", "equal_size")]
    return np.column_stack([floors, *columns])


def has_floors(results: Results) -> bool:
    """Whether the file has them."""
    return all("floor" in data for data in results.content["sets"].values())


def floor_section(results: Results) -> list[str]:
    """What no sets that contain the most likely class can avoid, in words."""
    if not has_floors(results):
        return []
    names = results.sets()
    rows, raw = floor_rows(results, names), floor_rows(results, names, "raw_ert")
    ratio = avoidable_ratio(rows)
    draws = np.random.default_rng(0).integers(len(rows), size=(RESAMPLES, len(rows)))
    low, high = np.quantile([avoidable_ratio(rows[draw]) for draw in draws], (0.025, 0.975))
    lowest, ours, other = rows.mean(axis=0)
    target = TARGETS["ert"] * other
    above = [names[i] for i in np.flatnonzero(rows[:, 0] > TARGETS["ert"] * rows[:, 2])]
    over = ours - np.mean(results.means(names, DEFAULT, "at_alpha", "ert_under"))
    return [
        "## What non-empty sets cannot avoid",
        "A set that contains the most likely class covers an input at least as often as that class "
        "is right. The floor is the over-coverage that follows: that of sets of the most likely "
        "class alone, by the same judge and splits, computed after the run "
        f"(`evidence.py --floors`; [by data set](files/{METHODS_FILE}.txt)). "
        f"It is {lowest:.2f} points, {lowest / ours:.0%} of the default's ERT. Above it the "
        f"default has {ours - lowest:.2f} points and split conformal sets of its size "
        f"{other - lowest:.2f}, **{ratio:.2f} times** "
        f"(95% bootstrap interval over data sets {low:.2f} to {high:.2f}). The target of "
        f"{target:.2f} points lies above the floor, but reaching it would mean "
        f"{(target - lowest) / (other - lowest):.2f} times; on {len(above)} of {len(names)} data "
        f"sets ({', '.join(above)}) the floor alone exceeds the target. On the others it does not "
        f"explain the miss, nor does it explain the under-coverage component, and "
        f"{over - lowest:.2f} points of over-coverage are avoidable. The second judge, which sees "
        f"less of what makes inputs easy, finds a floor of {raw.mean(axis=0)[0]:.2f} and "
        f"{avoidable_ratio(raw):.2f} times.",
    ]


def floor_table(results: Results) -> str:
    """Floor, default and split conformal sets of equal size, by data set."""
    unseen, seen = results.sets(), results.sets(seen=True)
    cells = [
        [name, *map(number, row), number(avoidable_ratio(row[None]))]
        for name, row in zip((*unseen, *seen), floor_rows(results, [*unseen, *seen]), strict=True)
    ]
    rows = floor_rows(results, unseen)
    mean = ["**mean, unseen**", *map(number, rows.mean(axis=0)), number(avoidable_ratio(rows))]
    cells.insert(len(unseen), mean)
    return table(["data set", "floor", "default", "split, equal size", "ratio above"], cells)


def method_table(results: Results, names: Sequence[str]) -> str:
    """All methods, as means over data sets, at alpha and against split conformal of equal size."""
    rows = []
    measures = ("ert", "ert_under", "class_under")
    for method in results.methods():
        ran = results.ran_on(method, names)
        if not ran:
            continue
        ratios = []
        for measure in ("ert", "ert_under"):
            ours = float(np.mean(results.means(ran, method, "at_alpha", measure)))
            other = float(np.mean(results.means(ran, method, "equal_size", measure)))
            ratios.append(number(ours / other if other > SMALLEST_DIVISOR else None))
        values = [
            number(mean_of(results.means(ran, method, "at_alpha", measure))) for measure in measures
        ]
        coverage = number(mean_of(results.means(ran, method, "at_alpha", "coverage")), 3)
        size = number(size_ratio(results, method, ran))
        empty = f"{100 * np.mean(results.means(ran, method, 'at_alpha', 'empty')):.1f}%"
        rows.append([method, str(len(ran)), coverage, size, empty, *values, *ratios])
    head = ["method", "sets", "coverage", "size", "empty", "ERT", "ERT under", "class"]
    return table([*head, "ERT, ratio", "under, ratio"], rows)


def further_measures(results: Results, names: Sequence[str]) -> str:
    """The measures that the table of the page leaves out, and the default against the method."""
    rows = []
    for method in results.methods():
        ran = results.ran_on(method, names)
        if not ran:
            continue
        values = [
            number(mean_of(results.means(ran, method, "at_alpha", measure)))
            for measure in ("raw_ert", "raw_ert_under", "conf_trust_under", "worst_slab")
        ]
        against = [
            ""
            if method == DEFAULT
            else counts(results.verdicts(ran, method, "default_minus_it", measure))
            for measure in ("ert", "ert_under")
        ]
        rows.append([method, *values, *against])
    head = ["method", "ERT, 2nd judge", "ERT under, 2nd judge", "Conf x Trust under"]
    return table([*head, "worst slab under", "default on ERT", "default on ERT under"], rows)


def special_table(results: Results, measures: Sequence[str], digits: int = 2) -> str:
    """Measures that only some data sets have: groups, true label probabilities."""
    names = [
        name
        for name in (*results.sets(), *results.sets(seen=True))
        if results.pair(name, DEFAULT, "at_alpha", measures[0]) is not None
    ]
    head = ["method", *(f"{name}: {TITLES[measure]}" for name in names for measure in measures)]
    rows = []
    for method in results.methods():
        cells = [
            number(pair and pair[0], digits)
            for name in names
            for measure in measures
            for pair in [results.pair(name, method, "at_alpha", measure)]
        ]
        if any(cells):
            rows.append([method, *cells])
    equal = [
        number(pair and pair[0], digits)
        for name in names
        for measure in measures
        for pair in [results.pair(name, DEFAULT, "equal_size", measure)]
    ]
    return table(head, [*rows, ["split conformal of the default's size", *equal]])


def losses(results: Results) -> list[tuple[str, str, float, float, bool]]:
    """Data set, measure, both means, and whether it is significant: default above equal size."""
    rows = []
    for seen in (False, True):
        names = results.sets(seen)
        for measure in TITLES:
            for verdict in results.verdicts(names, DEFAULT, "minus_equal_size", measure):
                ours = results.pair(verdict.name, DEFAULT, "at_alpha", measure)
                other = results.pair(verdict.name, DEFAULT, "equal_size", measure)
                if ours is not None and other is not None and verdict.mean > 0.0:
                    rows.append((verdict.name, measure, ours[0], other[0], verdict.sign > 0))
    return rows


def loss_section(results: Results, explanations: dict[str, str]) -> str:
    """Where the default is worse than split conformal sets of its size, and why."""
    rows = losses(results)
    significant = [row for row in rows if row[4]]
    text = [
        f"Higher than for split conformal sets of the same size in {len(rows)} of "
        f"{_comparisons(results)} pairs of data set and measure; significantly so in "
        f"{len(significant)} of them (marked). Tests allow for the overlap of splits and for the "
        "number of data sets, so ties are common; the sign counts in the summary need no test."
    ]
    by_set: dict[str, list[str]] = {}
    for name, measure, ours, other, is_loss in rows:
        mark = " **(significant)**" if is_loss else ""
        by_set.setdefault(name, []).append(
            f"{TITLES[measure]} {number(ours)} against {number(other)}{mark}"
        )
    for name, items in by_set.items():
        why = explanations.get(name, "")
        text.append(f"- **{name}**: {'; '.join(items)}.{' ' + why if why else ''}")
    return text[0] + "\n\n" + "\n".join(text[1:])


def _comparisons(results: Results) -> int:
    return sum(
        results.pair(name, DEFAULT, "minus_equal_size", measure) is not None
        for name in results.content["sets"]
        for measure in TITLES
    )


def beaten_by(results: Results, names: Sequence[str]) -> str:
    """Methods that are significantly better than the default at alpha, by measure."""
    lines = []
    for measure in ("ert", "ert_under", "raw_ert", "raw_ert_under", "class_under"):
        items = []
        for method in results.methods():
            verdicts = results.verdicts(names, method, "default_minus_it", measure)
            lost = [verdict.name for verdict in verdicts if verdict.word == "loss"]
            if lost and method != DEFAULT:
                items.append(f"{method} ({', '.join(lost)})")
        lines.append(f"- {TITLES[measure]}: {'; '.join(items) if items else 'no method'}.")
    return "\n".join(lines)


def time_table(results: Results) -> str:
    """Seconds and memory, as medians over data sets."""
    rows = []
    for method in results.methods():
        cells = []
        for key in ("calibrate_seconds", "predict_seconds"):
            values = [
                data["methods"][method][key]
                for data in results.content["sets"].values()
                if key in data["methods"].get(method, {})
            ]
            cells += [number(float(np.median(values)), 3), number(max(values), 2)] if values else []
        memory = results.content["memory_mb"].get(method)
        if cells:
            rows.append([method, *cells, "" if memory is None else f"{memory:.0f}"])
    head = ["method", "calibrate, median", "largest", "1,000 predictions, median", "largest"]
    return table([*head, "memory, MB"], rows)


def data_table(results: Results) -> str:
    """What the data sets are."""
    rows = []
    for name, data in results.content["sets"].items():
        source = data["source"] or ("package" if name in ("digits", "demo") else "")
        source = source or ("generated" if data["kind"] == "simulated" else "not public")
        rows.append(
            [
                name + (" (seen)" if data["seen"] else ""),
                data["kind"],
                data["model"],
                f"{data['embedding']} ({data['features']})",
                data["judge"],
                data["note"],
                f"{source}; {data['licence']}; {data['download']}" if data["licence"] else source,
                str(data["classes"]),
                f"{data['calibration']:,} + {data['test']:,}",
                f"{100 * data['accuracy']:.1f}%, {100 * data['confidence']:.1f}%",
                number(data["seconds"], 1),
                f"`{data['checksum']}`",
            ]
        )
    head = ["data set", "kind", "model", "features of the methods", "second judge", "note"]
    head += ["source; licence; download", "K", "calibration + test", "accuracy, confidence"]
    return table([*head, "seconds", "checksum"], rows, names=7)


def page(results: Results, explanations: dict[str, str]) -> str:
    """The page: summary, default by data set, all methods, losses."""
    content = results.content
    unseen = results.sets()
    splits = {data["splits"] for data in content["sets"].values()}
    parts = [
        "---\nhide: [toc]\n---",
        f"# Coverage given the input: every method on {len(unseen)} data sets that nobody tuned on",
        f"Made by `{content['command']}` with the defaults of commit {content['commit']}, seeds 1 "
        f"to {max(splits)}, alpha = {content['alpha']}, by a protocol written before the run "
        "(`benchmarks/coverage/PROTOCOL.md`). ERT is the excess risk of the target coverage, in "
        "percentage points: 0 means that a gradient-boosted judge finds no inputs whose coverage "
        "differs from 90%; its under-coverage component counts inputs below 90% alone. Further "
        "measures, groups, true probabilities, times, data, failures and which method beats the "
        "default where: "
        f"[{METHODS_FILE}.txt](files/{METHODS_FILE}.txt). All numbers: "
        "[coverage.json](coverage.json).",
        "## Summary",
        f"`ConditionalConformal()` against split conformal sets of the same mean size, on "
        f"{len(unseen)} unseen data sets:",
        summary(results),
        "![Mean set size against the under-coverage component of ERT, by data set](coverage.svg)"
        "{ .diagram }",
        "*One point per method; the star is the default. The line is split conformal prediction "
        "at other alphas: points below it are better at equal size. Sets more than "
        f"{LARGEST_SHOWN:g} times as large as at alpha are not shown.*",
        "## By data set",
        "Each cell: default / split conformal sets of the same size. **+** marks a significant "
        "win of the default, **-** a significant loss. In brackets: size of split conformal sets "
        "at alpha. The second judge sees raw inputs, which no method gets in that form but for "
        "group columns.",
        default_table(results, unseen),
        *floor_section(results),
        "## All methods",
        "Means at alpha over the unseen data sets on which a method ran; size is relative to "
        "split conformal sets (geometric mean). Ratios are to split conformal sets of *the "
        "method's* size, left out where those have next to no ERT. Empty sets avoid coverage above "
        "90% of inputs that the classifier gets right, and so lower ERT, though not its "
        "under-coverage component; the default gives none. Variants of the default ran on splits "
        "1 to 5, the one with `per_class=True` on splits 1 and 2.",
        method_table(results, unseen),
        "## Where the default loses",
        loss_section(results, explanations),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def methods_file(results: Results) -> str:
    """What the page leaves to a file: groups, true probabilities, better methods, times, data."""
    content, seen = results.content, results.sets(seen=True)
    versions = ", ".join(f"{name} {value}" for name, value in content["versions"].items())
    parts = [
        "# Coverage given the input: details by method",
        f"Made by `{content['command']}` with the defaults of commit {content['commit']}; measures "
        "and methods are those of the page [coverage](coverage.md).",
        "## The default on the data sets that it was chosen on" if seen else "",
        default_table(results, seen) if seen else "",
        "## The floor of ERT for sets that contain the most likely class"
        if has_floors(results)
        else "",
        "ERT of the default and of split conformal sets of its size, the floor, and the ratio of "
        "what the first two have above it. Class biases can change which class is most likely, and "
        "the floor is that of the classifier as it is: 99.5% or more of the default's sets contain "
        "its most likely class, but 91% to 95% on shuttle, 97% to 98% on cifar100lt and 99% on "
        "ham10000 (splits 1 and 2)."
        if has_floors(results)
        else "",
        floor_table(results) if has_floors(results) else "",
        "## Further measures",
        "Means at alpha over the unseen data sets on which a method ran. The last columns count "
        "wins / ties / losses of the default against the method, on the same splits.",
        further_measures(results, results.sets()),
        "## Groups" if _has(results, "worst_group") else "",
        special_table(results, ("group_under", "worst_group"))
        if _has(results, "worst_group")
        else "",
        "## Known label probabilities" if _has(results, "true_below") else "",
        special_table(results, ("true_below", "true_under")) if _has(results, "true_below") else "",
        "## Methods that are significantly better than the default",
        "At alpha = 0.1, by measure, on unseen data sets. A method with larger sets may win by its "
        "size alone.",
        beaten_by(results, results.sets()),
        "## Time and memory",
        "Processor seconds on one thread, over all data sets; memory is what a method adds to a "
        "process that holds the data, on mnist1d (0 where it fits into what loading took). Trust "
        "scores, which the package's methods other than split conformal prediction need, are "
        f"not included: {_trust_seconds(results)} seconds per 1,000 samples.",
        time_table(results),
        "## Data",
        data_table(results),
        f"Python {content['python']}; {versions}. `{content['command']}` makes its own "
        "environment, fetches the sources, runs everything and writes this file; `SOURCE=DIR` "
        "reads local copies. Failures: " + _failures(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _has(results: Results, measure: str) -> bool:
    return any(
        results.pair(name, DEFAULT, "at_alpha", measure) is not None
        for name in results.content["sets"]
    )


def _trust_seconds(results: Results) -> str:
    values = [data["trust_seconds"] for data in results.content["sets"].values()]
    values = [value for value in values if value > 0.0]
    return f"{min(values):.3f} to {max(values):.2f}" if values else "0"


def _failures(results: Results) -> str:
    items = [
        f"{method} on {name} ({row['splits_failed']} splits: {row['failed']})"
        for name, data in results.content["sets"].items()
        for method, row in data["methods"].items()
        if "failed" in row
    ]
    return "; ".join(items) + "." if items else "none."


def headline(results: Results) -> str:
    """A few lines for the front page, with links from the root of the repository."""
    names = results.sets()
    rows = []
    for title, method, part in (
        ("split conformal", REFERENCE, "at_alpha"),
        ("split conformal, as large as the default's sets", DEFAULT, "equal_size"),
        ("`ConditionalConformal()`", DEFAULT, "at_alpha"),
    ):
        size = size_ratio(results, DEFAULT if part == "equal_size" else method, names)
        values = [
            number(mean_of(results.means(names, method, part, measure)))
            for measure in ("ert", "ert_under", "class_under")
        ]
        coverage = number(mean_of(results.means(names, method, part, "coverage")), 3)
        rows.append([title, number(size), coverage, *values])
    head = ["", "relative size", "coverage", "ERT", "ERT under", "class under"]
    changes = []
    for measure in ("ert", "ert_under"):
        differences = results.means(names, DEFAULT, "minus_equal_size", measure)
        low, high = interval(differences)
        verdicts = results.verdicts(names, DEFAULT, "minus_equal_size", measure)
        changes.append(
            f"{TITLES[measure]} {np.mean(differences):+.2f} (95% interval over data sets "
            f"{low:+.2f} to {high:+.2f}), lower on {sum(value < 0 for value in differences)} of "
            f"{len(names)}, significantly so on {sum(verdict.sign < 0 for verdict in verdicts)}"
        )
    return (
        f"{table(head, rows)}\n\nMeans over {len(names)} data sets that nobody tuned on, ten "
        "splits each, alpha = 0.1.\n\n"
        "- **ERT**, the excess risk of the target coverage: how many percentage points coverage "
        "given the input is away from 90%, as far as a second model can tell. *ERT under* counts "
        "what is missing, *class under* what is missing by class.\n"
        f"- **At equal mean size**: {'; '.join(changes)}.\n"
        f"- **Other packages**: {_best_peer(results, names)} "
        "[All methods, data sets and losses](docs/results/coverage.md).\n"
    )


def _best_peer(results: Results, names: Sequence[str]) -> str:
    """The method of another package with the lowest ERT over all data sets, and what it costs."""
    peers = [
        method
        for method in results.methods()
        if method.startswith(tuple(COLORS)) and results.ran_on(method, names) == list(names)
    ]

    def mean(method: str, measure: str) -> float:
        return float(np.mean(results.means(names, method, "at_alpha", measure)))

    best = min(peers, key=lambda method: mean(method, "ert"))
    return (
        f"the lowest ERT, {mean(best, 'ert'):.2f}, is that of {best}, with sets "
        f"{size_ratio(results, best, names):.2f} times as large as split conformal sets, "
        f"{100 * mean(best, 'empty'):.1f}% of them empty, and an under-coverage component of "
        f"{mean(best, 'ert_under'):.2f}."
    )


def figure(results: Results) -> str:
    """Mean size against the under-coverage component, one panel per data set, as SVG."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "trustsets", "font.size": 8, "svg.fonttype": "none"}
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    names = [*results.sets(), *results.sets(seen=True)]
    columns = 4
    rows = -(-len(names) // columns)
    canvas, axes = plt.subplots(
        rows, columns, figsize=(2.6 * columns, 2.0 * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for name, axis in zip(names, axes.flat, strict=False):
        _panel(results, name, axis)
    handles = [
        Line2D([], [], marker="o", linestyle="", color=color, label=label)
        for label, color in COLORS.items()
    ]
    handles.append(Line2D([], [], color="0.6", label="split conformal at other alphas"))
    canvas.legend(handles=handles, loc="outside upper center", ncols=6, frameon=False)
    canvas.supxlabel("mean set size")
    canvas.supylabel("ERT under (points)")
    text = io.StringIO()
    canvas.savefig(text, format="svg", metadata={"Date": None})
    plt.close(canvas)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _panel(results: Results, name: str, axis: Any) -> None:
    """Methods as points; split conformal sets of their sizes as a line."""
    line = []
    smallest = min(results.means([name], REFERENCE, "at_alpha", "size"))
    for method in results.methods():
        size = results.pair(name, method, "at_alpha", "size")
        under = results.pair(name, method, "at_alpha", "ert_under")
        other = results.pair(name, method, "equal_size", "ert_under")
        if size is None or under is None or other is None or size[0] > LARGEST_SHOWN * smallest:
            continue
        line.append((size[0], other[0]))
        package = next((word for word in COLORS if method.startswith(word)), "trustsets")
        star = method == DEFAULT
        axis.plot(
            size[0],
            under[0],
            marker="*" if star else "o",
            markersize=10 if star else 3.5,
            color=COLORS[package],
            zorder=3 if star else 2,
        )
    axis.plot(*zip(*sorted(line), strict=True), color="0.6", linewidth=1.0, zorder=1)
    axis.set_title(name + (" (seen)" if results.content["sets"][name]["seen"] else ""), fontsize=8)
    axis.set_xscale("log")
    axis.minorticks_off()
    sizes = [size for size, _ in line]
    ticks = sorted({float(f"{value:.2g}") for value in (min(sizes), max(sizes))})
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])


def with_headline(readme: str, text: str) -> str:
    """The front page with this text between its two marks."""
    before, rest = readme.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return f"{before}{MARKS[0]}\n{text}{MARKS[1]}{after}"


OUTPUTS: dict[str, Callable[[Results, dict[str, str]], str]] = {
    "coverage.md": page,
    f"{METHODS_FILE}.md": lambda results, _: methods_file(results),
    "headline.md": lambda results, _: headline(results),
    "coverage.svg": lambda results, _: figure(results),
}
"""What is written beside the results file, by name."""


def main() -> None:
    """Write the page, its file, the headline and the figure beside the results file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    results = Results.read(options.results)
    explanations = json.loads(EXPLANATIONS.read_text())
    for name, make in OUTPUTS.items():
        path = options.results.with_name(name)
        path.write_text(make(results, explanations))
        print(path)
    if options.results == RESULTS:
        README.write_text(with_headline(README.read_text(), headline(results)))


if __name__ == "__main__":
    main()
