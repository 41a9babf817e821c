"""What one call passes through: files, functions, changes of file.

    python studies/trace.py             # the three numbers for `predict_set` and `calibrate`
    python studies/trace.py --calls     # every call of a package function too, indented by depth

Only Python functions of the package count, and comprehensions are functions where the interpreter
makes them so (3.11). The call to `predict_set` is for one sample and warm: an earlier one made the
fit at this alpha.
"""

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import trustsets
from trustsets import ConditionalConformal, ModelOutputs, TrustScore

PACKAGE = str(Path(trustsets.__file__).parent)


def main(with_calls: bool) -> None:
    """Print one line for each call."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(3000, 16))
    labels = rng.integers(10, size=3000)
    features[np.arange(3000), labels] += 2.0
    logits = features[:, :10] + rng.normal(size=(3000, 10))
    trust = TrustScore().fit(features[:1000], labels[:1000])
    outputs = ModelOutputs(logits=logits, features=features, labels=labels)
    calibration, sample = outputs.take(slice(1000, 2500)), outputs[2500]
    predictor = ConditionalConformal(trust=trust)
    print(f"{'':<16}{'files':>8}{'functions':>12}{'calls':>8}{'changes of file':>18}")
    for name, call in (
        ("calibrate", lambda: predictor.calibrate(calibration)),
        ("predict_set", lambda: predictor.predict_set(sample, alpha=0.1)),
    ):
        call()
        vars(sample).pop("predicted_codes", None)  # as in a new request
        vars(sample).pop("confidence", None)
        calls = trace(call)
        files = [file for _, file, _ in calls]
        functions = {(file, function) for _, file, function in calls}
        changes = sum(first != second for first, second in pairwise(files))
        print(f"{name:<16}{len(set(files)):>8}{len(functions):>12}{len(calls):>8}{changes:>18}")
        if with_calls:
            for depth, file, function in calls:
                print(f"  {'  ' * depth}{file}: {function}")


def trace(call: Callable[[], Any]) -> list[tuple[int, str, str]]:
    """Depth, file and name of every package function that a call enters, in their order."""
    calls: list[tuple[int, str, str]] = []
    depth = 0

    def follow(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        if event == "call":
            file = str(Path(code.co_filename).relative_to(PACKAGE))
            calls.append((depth, file, code.co_qualname))
        depth += {"call": 1, "return": -1}.get(event, 0)

    sys.setprofile(follow)
    try:
        call()
    finally:
        sys.setprofile(None)
    return calls


if __name__ == "__main__":
    main("--calls" in sys.argv)
