"""`make results`: remake the pages of results with the shipped default, and stamp each.

A stamp says at which commit, by which command, on which data and with which seeds a page was made,
and with which default: a fingerprint of its parameters and constants, which a test compares with
that of the present code.
"""

import argparse
import dataclasses
import hashlib
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
STAMP = re.compile(
    r"^Made at commit \w+ by `[^`\n]+`; data: .+; seeds: .+; default `(\w+)`\.$", re.MULTILINE
)

# Pages by name: the command that makes one, its data and seeds. {data} is a folder of saved outputs
# (README there); pages that need it are left out without one.
PAGES: dict[str, tuple[str, str, str]] = {
    "equal_size.md": (
        "python studies/equal_size.py",
        "the two tasks of `trustsets demo`, which ship with the package",
        "1 to 5",
    ),
    "rare_classes.md": (
        "python studies/rare_classes.py --bench {data}",
        "ham10000 and cifar100lt, on which the defaults were chosen",
        "1 to 3",
    ),
    "overview/README.md": (
        "trustsets paper overview cifar100 cifar100lt ham10000 --data {data} --bins code "
        "--seeds 1-4 --group ham10000:sex --group ham10000:age_band "
        "--group ham10000:site --output docs/results/overview --cache build/overview",
        "outputs of networks on CIFAR-100, long-tailed CIFAR-100 and HAM10000",
        "1 to 4",
    ),
}

# What else decides about the sets of the default, beside the parameters of its constructor.
_MODULES = ("trustsets.predictors.conditional", "trustsets.basis", "trustsets.learned")


def fingerprint() -> str:
    """Short digest of the parameters and constants of the default."""
    from trustsets import ConditionalConformal

    parameters = ConditionalConformal().get_params()
    parts = {(name, repr(value)) for name, value in parameters.items()}
    for name in _MODULES:
        package = importlib.import_module(name)
        found = pkgutil.iter_modules(getattr(package, "__path__", ()), f"{name}.")
        for module in (package, *(importlib.import_module(item.name) for item in found)):
            parts |= constants(module)
    return hashlib.sha256(repr(sorted(parts)).encode()).hexdigest()[:12]


def constants(module: Any) -> set[tuple[str, str]]:
    """Numbers, function classes and tuples of them that a module names in capitals.

    By name and value, whatever file they are in: a constant may move.
    """

    def is_plain(value: Any) -> bool:
        if isinstance(value, tuple):
            return all(map(is_plain, value))
        return isinstance(value, int | float) or dataclasses.is_dataclass(value)

    return {
        (name, repr(value))
        for name, value in vars(module).items()
        if name.isupper() and is_plain(value)
    }


def stamp(page: Path) -> None:
    """Write the stamp below the title of a page, in place of an earlier one."""
    command, data, seeds = PAGES[page.relative_to(RESULTS).as_posix()]
    asked = ["git", "rev-parse", "--short", "HEAD"]
    answer = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    commit = answer.stdout.strip()
    line = (
        f"Made at commit {commit} by `{command}`; data: {data}; seeds: {seeds}; default "
        f"`{fingerprint()}`."
    )
    title, _, rest = STAMP.sub("", page.read_text()).partition("\n")
    page.write_text(f"{title}\n\n{line}\n\n{rest.lstrip()}")


def main() -> None:
    """Run the commands, and stamp the pages they wrote."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder of saved outputs, for the pages that need one")
    parser.add_argument("--stamp", nargs="*", metavar="PAGE", help="only stamp these pages")
    options = parser.parse_args()
    for name in PAGES if options.stamp is None else options.stamp:
        command = PAGES[name][0]
        if "{data}" in command and options.data is None and options.stamp is None:
            print(f"{name}: left out, as --data is not given")
            continue
        if options.stamp is None:
            print(f"{name}: {command}", flush=True)
            words = shlex.split(command.format(data=options.data))
            program = [sys.executable, *words[1:]] if words[0] == "python" else words
            subprocess.run(program, cwd=ROOT, check=True)
        stamp(RESULTS / name)


if __name__ == "__main__":
    main()
