"""How many threads a process uses."""

import os

import pytest

from trustsets._common.blocks import available_cores


@pytest.mark.parametrize(("value", "expected"), [("3", 3), ("2,4", 2), (" 1 ", 1)])
def test_the_variable_of_numeric_libraries_counts(monkeypatch, value, expected):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert available_cores() == expected


@pytest.mark.parametrize("value", ["", "0", "-1", "many"])
def test_otherwise_there_is_one_for_each_core(monkeypatch, value):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    cores = available_cores()
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert cores == available_cores() >= 1
    if hasattr(os, "sched_getaffinity"):
        assert cores == len(os.sched_getaffinity(0))
