"""Kill ``trustsets predict`` at random moments. Run as a script, in a process of its own.

Children are forked from one process that has run the command before, so that a kill falls into
the work itself and not into imports. Usage: killing.py KILLS EXPECTED ARGUMENT...
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


def start(arguments: list[str]) -> int:
    """Begin the command in a child."""
    child = os.fork()
    if child == 0:
        os._exit(run_here(arguments))
    return child


def run(arguments: list[str]) -> float:
    """Let the command come to its end; return the seconds it took."""
    begun = time.monotonic()
    _, status = os.waitpid(start(arguments), 0)
    assert status == 0, f"predict ended with status {status}"
    return time.monotonic() - begun


def kill_at_random(arguments: list[str], seconds: float) -> bool:
    """Kill the command after a random time; return whether it was still at work."""
    child = start(arguments)
    time.sleep(random.uniform(0.0, seconds))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def main_loop(kills: int, expected: Path, arguments: list[str]) -> None:
    """Kill it often; whenever there is a result, it must be whole."""
    output = Path(arguments[arguments.index("-o") + 1])
    random.seed(0)
    assert run_here(arguments) == 0
    seconds = run(arguments)
    found, unfinished = 0, 0
    while found < kills:
        if output.exists():
            assert output.read_bytes() == expected.read_bytes(), "a partial file has the name"
            output.unlink()
        found += kill_at_random(arguments, seconds)
        unfinished += any(Path().glob(".*.parts/part-*"))
    run(arguments)
    assert output.read_bytes() == expected.read_bytes()
    assert not list(Path().glob(".*")), "something is left over"
    print(f"{found} kills, {unfinished} of them with finished parts left")
    assert unfinished > 0


if __name__ == "__main__":
    main_loop(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
