"""A bar is shown on a terminal or when asked for, and counts what was done."""

import time

import pytest

from trustsets._progress import no_progress, progress_bar


@pytest.mark.parametrize("wanted", [None, False])
def test_nothing_is_shown_without_a_terminal(wanted, capsys):
    with progress_bar("pool", 10, wanted=wanted) as advance:
        advance(10)
    with no_progress(10) as advance:
        advance(10)
    assert capsys.readouterr().err == ""


def test_a_bar_with_a_unit_shows_counts_and_speed(capsys):
    with progress_bar("pool", 10, done=4, unit="images", wanted=True) as advance:
        for count in (2, 2, 2):
            advance(count)
            time.sleep(0.01)
    shown = capsys.readouterr().err
    assert "pool" in shown
    assert "10/10" in shown
    assert "images/s" in shown


def test_the_number_of_steps_may_be_unknown(capsys):
    with progress_bar("loading", None, wanted=True) as advance:
        advance(3)
    assert "loading" in capsys.readouterr().err
