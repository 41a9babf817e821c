"""A Ray cluster of two nodes on this machine, as real as two machines: processes and sockets."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

import trustsets

T = TypeVar("T")

# Short waits: a dead node should be noticed in seconds, not in half a minute.
SETTINGS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # it listens to this machine alone
    "PYTHONPATH": os.pathsep.join(
        [str(Path(trustsets.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    ),
}
# Loopback addresses, one for each node. Ray replaces 127.0.0.1 by an address of the network.
ADDRESSES = ("127.0.0.2", "127.0.0.3")


class Cluster:
    """Two nodes with one core each; `kill_node` takes the second one away."""

    def __init__(self, folder: str) -> None:
        self._port = _free_port()
        self.address = f"{ADDRESSES[0]}:{self._port}"
        self._nodes: list[subprocess.Popen] = []
        self._log = Path(folder, "log").open("w+b")
        self._start("--head", f"--port={self._port}", f"--temp-dir={folder}",
                    "--include-dashboard=false", "--disable-usage-stats")  # fmt: skip

    def add_node(self) -> None:
        """Start the second node unless it is there."""
        if len(self._nodes) < 2:
            self._start(f"--address={self.address}")

    def wait(self) -> None:
        """Wait until the first node answers."""
        self.wait_until(lambda: self._nodes[0].poll() is not None or _answers(self._port))
        if self._nodes[0].poll() is not None:
            self._log.seek(0)
            pytest.fail(f"Ray did not start: {self._log.read().decode()[-2000:]}")

    def kill_node(self) -> None:
        """Kill every process of the second node at once, as a power cut would."""
        _kill_tree(self._nodes.pop())

    def working(self, name: str) -> list[int]:
        """Processes that are at work on a task or are an actor of this name."""
        found = [process for node in self._nodes for process in _tree(node.pid)]
        return [pid for pid in found if _title(pid).startswith(f"ray::{name}")]

    def wait_until(self, condition: Callable[[], T], seconds: float = 60.0) -> T:
        """Wait for something to become true, and return it."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.02)
        return found

    def stop(self) -> None:
        """End what was started here, and nothing else."""
        while self._nodes:
            _kill_tree(self._nodes.pop())
        self._log.close()

    def _start(self, *options: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        common = [
            f"--node-ip-address={ADDRESSES[len(self._nodes)]}", "--num-cpus=1",
            "--object-store-memory=100000000",
        ]  # fmt: skip
        self._nodes.append(
            subprocess.Popen(
                [*command, *common, *options],
                env=_environment(),
                stdout=self._log,
                stderr=self._log,
                stdin=subprocess.DEVNULL,
            )
        )


def _environment() -> dict[str, str]:
    """Without a number of threads: Ray sets one for each task."""
    return {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((ADDRESSES[0], 0))
        return free.getsockname()[1]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((ADDRESSES[0], port)) == 0


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except OSError:
        return ""


def _tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def _kill_tree(node: subprocess.Popen) -> None:
    for pid in _tree(node.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.wait()


@pytest.fixture(scope="module")
def running_cluster():
    """The cluster, with this process connected to it."""
    ray = pytest.importorskip("ray")
    if not sys.platform.startswith("linux"):
        pytest.skip("two nodes need two loopback addresses, and killing them /proc")
    # Paths of sockets may not be longer than about 100 characters: pytest's own are too long.
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    before = dict(os.environ)
    os.environ.update(SETTINGS)
    cluster = Cluster(folder)
    try:
        cluster.wait()
        ray.init(
            cluster.address,
            log_to_driver=False,
            logging_level="error",
            _node_ip_address=ADDRESSES[0],
        )
        yield cluster
    finally:
        ray.shutdown()
        cluster.stop()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(running_cluster):
    """The cluster with both its nodes."""
    import ray

    running_cluster.add_node()
    running_cluster.wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == 2)
    return running_cluster


@pytest.fixture
def one_thread():
    """Small networks: threads would only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
