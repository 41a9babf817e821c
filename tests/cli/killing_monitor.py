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


def run_here(arguments: list[str]) -> int:
    """Run the command in this process; return its exit code."""
    try:
        main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 1


def arguments(prefix: str, batch: str) -> list[str]:
    """The command of one batch."""
    state = f"{prefix}state.trustsets"
    return [
        *("monitor", "model.trustsets", batch, "--reference", "calibration.npz", "-q"),
        *("--state", state),
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
    """Kill every command often, then let it end; the state must be that of an undisturbed run."""
    random.seed(0)
    killed = 0
    calm, disturbed = Path("calm_state.trustsets"), Path("killed_state.trustsets")
    run_here(arguments("warm_", batches[0]))
    for batch in batches:
        begun = time.monotonic()
        assert run_here(arguments("calm_", batch)) in (0, 3)
        seconds = time.monotonic() - begun
        words = arguments("killed_", batch)
        for _ in range(kills):
            killed += kill_at_random(words, seconds)
            # What is there is whole at every moment.
            assert not disturbed.exists() or disturbed.stat().st_size > 0
        assert run_here(words) in (0, 3)
        assert disturbed.read_bytes() == calm.read_bytes()
    print(f"{killed} kills")
    assert killed > 0


if __name__ == "__main__":
    main_loop(int(sys.argv[1]), sys.argv[2:])
