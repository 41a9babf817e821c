"""Every script of `examples/` runs as a user would run it, in a folder of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted(Path(__file__).parent.with_name("examples").glob("*.py"))
_LONGEST_SECONDS = 180
_VISION = ("huggingface_text",)
# Warnings are errors, except those that other packages mean for their own developers.
_WARNINGS = [
    "error",
    *(f"default::{kind}Warning" for kind in ("Deprecation", "PendingDeprecation")),
]
_WARNINGS += ["default::FutureWarning", "default::ImportWarning", "default::ResourceWarning"]


# A torchvision built for another torch (a CPU torch beside a torchvision for CUDA, say) cannot be
# imported, and timm and transformers not without it. Where that is so, the operators of object
# detection that it describes to torch are declared first; nothing here detects objects.
_WITH_TORCHVISION = """
import runpy, sys
try:
    import torchvision
except ImportError:
    pass
except RuntimeError:
    import torch
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def run_script(script: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    vision = ["-c", _WITH_TORCHVISION] if script.stem in _VISION else []
    command = [sys.executable, *(f"-W{rule}" for rule in _WARNINGS), *vision, str(script)]
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"MPLBACKEND": "Agg", "PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LONGEST_SECONDS,
    )


def check_script(script: Path, folder: Path) -> None:
    """Skip where the last line says what is missing; fail where the script does."""
    ran = run_script(script, folder)
    lines = (ran.stdout + ran.stderr).strip().splitlines() or [""]
    if lines[-1].startswith("needs "):
        pytest.skip(lines[-1])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.strip(), f"{script.name} printed nothing"
    table = len(ran.stdout.strip().splitlines()) >= 3
    assert table or list(folder.glob("*.png")), f"{script.name} shows no table and no picture"


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_the_example_runs(script: Path, tmp_path: Path) -> None:
    check_script(script, tmp_path)


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_the_example_is_short_and_answers_a_question(script: Path) -> None:
    lines = script.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 64
    assert lines[0].startswith('"""') and lines[0].endswith("?")


def test_there_are_few_examples() -> None:
    assert len(EXAMPLES) <= 15
