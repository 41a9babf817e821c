"""Work in blocks equals work on all rows at once; threads of a process and BLAS; progress bars."""

import os
import time
from contextlib import ExitStack

import numpy as np
import pytest

from trustsets import _blocks as blocks
from trustsets._blocks import available_cores, row_blocks, row_results
from trustsets._progress import progress_bar


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


@pytest.mark.parametrize("n", [0, 1, 7, 100])
def test_blocks_cover_every_row_once_and_in_order(monkeypatch, n):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 8 * 3 * 4)  # four rows of three numbers
    sizes = [rows.stop - rows.start for rows in row_blocks(n, 3)]
    assert [i for rows in row_blocks(n, 3) for i in range(rows.start, rows.stop)] == list(range(n))
    assert max(sizes, default=0) <= 4
    # A row wider than a block is a block of its own.
    assert all(rows.stop - rows.start == 1 for rows in row_blocks(n, 1000))


@pytest.mark.parametrize(("dtype", "size"), [(float, 96), (np.int64, 96), (float, 9999)])
def test_numbers_of_rows_do_not_depend_on_the_blocks(monkeypatch, dtype, size):
    table = np.random.default_rng(0).integers(0, 99, size=(50, 3)).astype(np.float32)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", size)
    found = row_results(lambda rows: table[rows].max(axis=1), 50, 3, dtype=dtype)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, table.max(axis=1))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_task_runs_once_and_none_begins_after_an_error(count):
    done = []
    blocks.in_threads(done.append, range(1000), count)
    assert sorted(done) == list(range(1000))
    done.clear()

    def run(task):
        done.append(task)
        time.sleep(1e-3)
        if task == 3:
            raise ValueError("task 3")

    with pytest.raises(ValueError, match="task 3"):
        blocks.in_threads(run, range(1000), count)
    assert len(done) < 500


def test_blas_has_its_threads_back_when_the_last_user_leaves():
    """Also after an error, and if the first one to come leaves first."""
    pools = blocks._blas()

    def numbers():
        return {pool["num_threads"] for pool in pools.info()}

    first, second = ExitStack(), ExitStack()
    with pools.limit(limits=2):
        for user in (first, second):
            user.enter_context(blocks.one_blas_thread)
        first.close()
        assert numbers() == {1}
        second.close()
        assert numbers() == {2}
        with pytest.raises(ZeroDivisionError), blocks.one_blas_thread:
            raise ZeroDivisionError
        assert numbers() == {2}


@pytest.mark.parametrize("wanted", [None, False])
def test_nothing_is_shown_without_a_terminal(wanted, capsys):
    with progress_bar("pool", 10, wanted=wanted) as advance:
        advance(10)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("total", "done"), [(10, "100%"), (20, "50%"), (None, "")])
def test_a_bar_that_is_wanted_counts_what_was_done(total, done, capsys):
    with progress_bar("pool", total, wanted=True) as advance:
        for count in (4, 6):
            advance(count)
    shown = capsys.readouterr().err
    assert "pool" in shown and done in shown
    assert ("100%" in shown) == (total == 10)
