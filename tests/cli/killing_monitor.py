"""Kill ``trustsets monitor`` at random moments. Run as a script, in a process of its own.

Usage: killing_monitor.py KILLS BATCH... ; the folder has model.trustsets and calibration.npz.
Children are forked from one process that has run the command before, so that a kill falls into
the work itself and not into imports.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from trustsets.cli import main

FILES = ("state.trustsets", "history.parquet", "metrics.prom", "page.html")


def run_here(arguments: list[str]) -> int:
    """Run the command in this process; return its exit code."""
    try:
        main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 1


def arguments(prefix: str, batch: str, number: int) -> list[str]:
    """The command of one batch."""
    state, history, metrics, page = (prefix + name for name in FILES)
    own = ["--state", state, "--history", history, "--metrics", metrics, "--page", page]
    return [
        *("monitor", "model.trustsets", batch, "--reference", "calibration.npz", "-q"),
        *(*own, "--time", f"day {number}"),
    ]


def kill_at_random(words: list[str], seconds: float) -> bool:
    """Begin the command and kill it after a random time; return whether it was at work."""
    child = os.fork()
    if child == 0:
        sys.stdout = open(os.devnull, "w")
        os._exit(run_here(words))
    time.sleep(random.uniform(0.0, seconds))
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main_loop(kills: int, batches: list[str]) -> None:
    """Kill every command often, then let it end; all files must be those of an undisturbed run."""
    random.seed(0)
    found = after_state = 0
    run_here(arguments("warm_", batches[0], 0))
    for number, batch in enumerate(batches):
        begun = time.monotonic()
        assert run_here(arguments("calm_", batch, number)) in (0, 3)
        seconds = time.monotonic() - begun
        words = arguments("killed_", batch, number)
        for _ in range(kills):
            found += kill_at_random(words, seconds)
            # What is there is whole at every moment.
            for name in FILES:
                path = Path(f"killed_{name}")
                assert not path.exists() or path.stat().st_size > 0
            states = [Path(f"{prefix}state.trustsets") for prefix in ("killed_", "calm_")]
            counted = states[0].exists() and states[0].read_bytes() == states[1].read_bytes()
            histories = [Path(f"{prefix}history.parquet") for prefix in ("killed_", "calm_")]
            after_state += counted and (
                not histories[0].exists() or histories[0].read_bytes() != histories[1].read_bytes()
            )
        # The last of the commands may not be given again: the next one makes up for it.
        if number == len(batches) - 1 or not counted:
            assert run_here(words) in (0, 3)
        for name in FILES if number == len(batches) - 1 else FILES[:1]:
            assert Path(f"killed_{name}").read_bytes() == Path(f"calm_{name}").read_bytes(), name
    print(f"{found} kills, {after_state} of them between state and history")
    assert found > 0


if __name__ == "__main__":
    main_loop(int(sys.argv[1]), sys.argv[2:])
