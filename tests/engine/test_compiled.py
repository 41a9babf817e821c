"""First use: all kernels are compiled by `warm_up`, and one line says so."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from problems import COMPILED

from trustsets.engine import compiled

LIST_KERNELS = """
import importlib, pkgutil
import trustsets.engine as engine
from numba.core.registry import CPUDispatcher
engine.warm_up()
model = engine.fit_quantiles([[1.0]] * 20, range(20))
model.thresholds([[1.0]] * 3, weight=[0.1, 0.2, 0.3])
for part in pkgutil.iter_modules(engine.__path__):
    module = importlib.import_module(f"trustsets.engine.{part.name}")
    for name, value in vars(module).items():
        if isinstance(value, CPUDispatcher) and value.py_func.__module__ == module.__name__:
            if not value.targetoptions.get("no_cpython_wrapper"):
                print(name, len(value.signatures))
"""


@pytest.mark.skipif(not COMPILED, reason="there is nothing to compile")
def test_warming_up_leaves_no_kernel_to_compile_and_none_twice() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST_KERNELS], capture_output=True, text=True, check=True
    )
    kernels = dict(line.split() for line in done.stdout.splitlines())
    assert len(kernels) > 10
    assert {name: count for name, count in kernels.items() if count != "1"} == {}


def test_the_notice_comes_once_and_only_for_kernels_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped: list[bool] = []
    monkeypatch.setattr(compiled, "stop_announcing", lambda: stopped.append(True))
    announcer = compiled._Announcer()
    for module in ("other.package", "trustsets.engine.path"):
        function = SimpleNamespace(__module__=module)
        event = SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=function)})
        announcer.on_start(event)
    assert capsys.readouterr().err.count("compiling") == 1
    assert stopped == [True]
