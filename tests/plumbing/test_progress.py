"""A bar is shown on a terminal or when asked for, and counts what was done."""

import pytest

from trustsets._progress import progress_bar


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
