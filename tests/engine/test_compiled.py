"""Compiled kernels on first use, from a cache that may be damaged or missing, and in workers."""

import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pytest
from problems import COMPILED, random_case

from trustsets.engine import (
    QuantileModel,
    Sensitivity,
    compiled,
    fit_quantile_process,
    fit_quantiles,
    prove_threshold,
)

LIST_KERNELS = """
import importlib, pickle, pkgutil
import numpy as np
import trustsets.engine as engine
import trustsets.engine.path
from numba.core.registry import CPUDispatcher
engine.path.compile_paths()
engine.warm_up()
model = engine.fit_quantiles([[1.0]] * 20, range(20))
model.thresholds([[1.0]] * 3, weight=[0.1, 0.2, 0.3])
# Large arrays of a model are read-only memory maps in workers, and small ones are writable.
phi, scores = np.ones((20, 1)), np.arange(20.0)
phi.flags.writeable = scores.flags.writeable = False
engine.fit_quantiles(phi, scores).leave_one_out()
buffers = []
stored = pickle.dumps(model, protocol=5, buffer_callback=buffers.append)
for kind in (bytes, bytearray):
    copy = pickle.loads(stored, buffers=[kind(buffer) for buffer in buffers])
    copy.thresholds([[1.0]] * 3)
    engine.prove_threshold(copy, [1.0])
for part in pkgutil.iter_modules(engine.__path__):
    module = importlib.import_module(f"trustsets.engine.{part.name}")
    for name, value in vars(module).items():
        if isinstance(value, CPUDispatcher) and value.py_func.__module__ == module.__name__:
            if not value.targetoptions.get("no_cpython_wrapper"):
                print(name, len(value.signatures))
"""
NO_FOLDER = """
import numba.core.caching as caching
caching.CacheImpl._locator_classes = []  # no folder is writable
import numpy as np
from trustsets.engine.kernels import compensated_sum
print(compensated_sum(np.ones((3, 1)), np.ones(3)))
"""
needs_compiler = pytest.mark.skipif(not COMPILED, reason="there is nothing to compile")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


@needs_compiler
def test_warming_up_leaves_no_kernel_to_compile_and_none_twice() -> None:
    kernels = dict(line.split() for line in run(LIST_KERNELS).stdout.splitlines())
    assert len(kernels) > 8
    assert {name: count for name, count in kernels.items() if count != "1"} == {}


def test_the_notice_comes_once_and_only_for_kernels_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped: list[bool] = []
    monkeypatch.setattr(compiled, "stop_announcing", lambda: stopped.append(True))
    monkeypatch.setattr(compiled, "start_helper", lambda: None)
    announcer = compiled._Announcer()
    for module in ("other.package", "trustsets.engine.path"):
        function = SimpleNamespace(__module__=module)
        event = SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=function)})
        announcer.on_start(event)
    assert capsys.readouterr().err.count("compiling") == 1
    assert stopped == [True]


@needs_compiler
def test_without_a_writable_folder_kernels_compile_and_a_line_names_the_variable() -> None:
    done = run(NO_FOLDER)
    assert done.stdout == "[3.]\n"
    assert done.stderr.count("\n") == 1
    assert "set NUMBA_CACHE_DIR to a folder that is" in done.stderr


DAMAGE: dict[str, Callable[[bytes, int], bytes]] = {
    "truncated": lambda content, seed: content[: len(content) * seed // 8],
    "zeros": lambda content, seed: bytes(len(content)),
    "other bytes": lambda content, seed: np.random.default_rng(seed).bytes(len(content)),
}


def write_kernel(folder: Path) -> Callable[[], Any]:
    """Write a file with a kernel; what is returned imports it anew."""
    source = folder / "kernel.py"
    source.write_text(
        "from trustsets.engine.compiled import entry\n"
        "@entry(by_helper=True)\n"
        "def twice(x):\n    total = 0.0\n    for k in range(2):\n        total += x\n"
        "    return total\n"
    )

    def kernel() -> Any:
        specification = importlib.util.spec_from_file_location("kernel", source)
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module.twice

    return kernel


@needs_compiler
@pytest.mark.parametrize("outcome", ["compiles", "fails", "cannot start", "has no core"])
def test_the_kernel_of_the_helper_process_is_loaded_or_compiled_without_it(
    outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = write_kernel(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compiled, "available_cores", lambda: 1 + (outcome != "has no core"))
    statement = "raise SystemExit(1)" if outcome == "fails" else "import kernel; kernel.twice(1.5)"
    monkeypatch.setattr(compiled, "_HELPER", statement)
    if outcome == "cannot start":
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(compiled._announcer, "helper", None)
    compiled.start_helper()
    twice = kernel()
    assert twice(1.5) == 3.0
    assert sum(twice.stats.cache_hits.values()) == (outcome == "compiles")


@needs_compiler
@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_compiled_code_and_that_of_other_sources_is_compiled_again(
    kind: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = write_kernel(tmp_path)
    folder = Path(kernel()._cache.cache_path)
    for seed in range(8):
        assert kernel()(1.5) == 3.0  # writes, or repairs, the cache
        for path in folder.glob(f"*twice*.{suffix}"):
            path.write_bytes(DAMAGE[kind](path.read_bytes(), seed))
        assert kernel()(1.5) == 3.0
    again = kernel()
    again(1.5)
    assert sum(again.stats.cache_hits.values()) == 1
    monkeypatch.setattr(compiled, "_SOURCES", "a helper in another file was changed")
    other = kernel()
    other(1.5)
    assert sum(other.stats.cache_hits.values()) == 0


def arrays(value: Any) -> Iterator[np.ndarray]:
    """All arrays of a model's fields, at any depth."""
    if isinstance(value, np.ndarray):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from arrays(getattr(value, field.name))
    elif isinstance(value, tuple):
        for part in value:
            yield from arrays(part)


def answers(model: QuantileModel, tests: np.ndarray) -> list[np.ndarray]:
    """What every query says, extreme rows and the linear program included."""
    results = [model.thresholds(rows, alpha=0.15) for rows in (tests, 30.0 * tests)]
    results += [model.thresholds(tests, weight=0.2, alpha=0.3), model.leave_one_out()]
    alone = [model._solve_alone(row, 0.85)[0] for row in model._problem.whitening.apply(tests)]
    proof = prove_threshold(model, tests[0], alpha=0.15)
    path = Sensitivity(model, tests[0], proof).path(int(proof.basic_points[0]))
    return [
        *(part for result in results for part in (result.values, result.status)),
        model.fitted(tests),
        np.array(alone),
        *(proof.coefficients, proof.duals, path.scores, path.values),
    ]


@pytest.mark.parametrize("kind", ["plain", "alphas", "penalised", "process"])
@pytest.mark.parametrize("features", ["polynomial3", "bins", "duplicated"])
def test_a_model_works_on_read_only_memory_maps(features: str, kind: str, tmp_path: Path) -> None:
    """Every query, on arrays that nobody can write to; and none changes what was learned."""
    case = random_case(1, features, "rounded", n=150 if COMPILED else 60)
    phi, scores, alpha = case.phi, case.scores, np.full(len(case.phi), 0.2)
    if kind == "penalised":
        phi = np.vstack([phi, 3.0 * np.eye(phi.shape[1]), -3.0 * np.eye(phi.shape[1])])
        scores, alpha = np.append(scores, np.zeros(2 * phi.shape[1])), np.full(len(phi), 0.2)
    if kind == "alphas":
        alpha = np.random.default_rng(0).uniform(0.05, 0.4, len(phi))
    model = fit_quantiles(phi, scores, alpha if kind == "alphas" else 0.2)
    if kind == "process":
        model = pickle.loads(pickle.dumps(fit_quantile_process(phi, scores, [0.1, 0.2]))).at(0.2)
    before, size = [array.copy() for array in arrays(model)], len(pickle.dumps(model))
    expected = answers(model, case.tests[:3])
    assert len(pickle.dumps(model)) == size  # what can be made again is not sent to workers
    joblib.dump(model, tmp_path / "model")
    copy = joblib.load(tmp_path / "model", mmap_mode="r")
    assert any(isinstance(array, np.memmap) for array in arrays(copy))
    for there, wanted in zip(answers(copy, case.tests[:3]), expected, strict=True):
        np.testing.assert_array_equal(there, wanted)
    for changed in (model, copy, pickle.loads(pickle.dumps(model))):
        for array, wanted in zip(arrays(changed), before, strict=True):
            np.testing.assert_array_equal(array, wanted)
            assert not array.flags.writeable
