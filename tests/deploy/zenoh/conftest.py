"""Federations of real processes on the loopback; skipped where Zenoh is not installed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zenoh", reason='needs pip install "consilience[zenoh]"')
pytest.importorskip("cryptography", reason='needs pip install "consilience[zenoh]"')

from consilience.deploy.journal import read_lines, read_status
from consilience.deploy.zenoh.certificates import make

NODES, MOST = 4, 8
PATIENCE = 90.0
"""Seconds after which something that should happen is not waited for any longer."""

FEDERATION = """
method: fedavg
data: mnist-sample
model: {name: mlp, hidden: [4]}
topology: {name: ring, nodes: 4}
partition: {name: iid}
rounds: 2
local: {steps: 2, batch_size: 8}
solver: {name: sgd, lr: 0.1}
dtype: float64
evaluate: {every: 1000}
deploy: {secret: seed, deadline: 60}
"""


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make(folder, MOST + 1)
    return folder


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@dataclass
class Ring:
    """Nodes on a ring, each of which connects to the next one; or on a complete graph, to all after it."""

    folder: Path
    keys: Path
    file: Path
    launcher: subprocess.Popen[str]
    ports: list[int] = field(default_factory=lambda: free_ports(MOST))
    nodes: int = NODES
    doors: dict[int, int] = field(default_factory=dict)
    """Through which port a node reaches the next one, where that is not the next one's own."""
    running: dict[int, int] = field(default_factory=dict)
    """The numbers of processes."""

    def out(self, node: int) -> Path:
        return self.folder / str(node)

    def job(self, node: int) -> list[Any]:
        listen = [f"tls/127.0.0.1:{self.ports[node]}"]
        others = range(node + 1, self.nodes) if self.complete else [(node + 1) % self.nodes]
        doors = [self.doors.get(node, self.ports[other]) for other in others]
        connect = [f"tls/127.0.0.1:{door}" for door in doors]
        return [str(self.file), node, str(self.keys), listen, connect, str(self.out(node))]

    @property
    def complete(self) -> bool:
        return "name: complete" in self.file.read_text()

    def start(self, node: int, *others: Ring) -> None:
        """Start a node, of this federation and then of others."""
        self._code(node).unlink(missing_ok=True)
        jobs = [ring.job(node) for ring in (self, *others)]
        assert self.launcher.stdin is not None
        assert self.launcher.stdout is not None
        self.launcher.stdin.write(json.dumps({"log": str(self.log(node)), "jobs": jobs}) + "\n")
        self.launcher.stdin.flush()
        self.running[node] = int(self.launcher.stdout.readline())

    def start_all(self, *others: Ring) -> None:
        for node in range(self.nodes):
            self.start(node, *others)

    def log(self, node: int) -> Path:
        return self.folder / f"{node}.log"

    def _code(self, node: int) -> Path:
        return self.folder / f"{node}.code"

    def send(self, node: int, signal_number: int) -> None:
        os.kill(self.running[node], signal_number)

    def ended(self, node: int) -> int:
        """The exit code of a node, once it has ended."""
        until(lambda: self._code(node).exists() and self._code(node).read_text())
        return int(self._code(node).read_text())

    def status(self, node: int) -> dict[str, Any]:
        return read_status(self.out(node)) or {}

    def round(self, node: int) -> int:
        return int(self.status(node).get("round", -1))

    def metrics(self, node: int) -> list[dict[str, Any]]:
        return read_lines(self.out(node) / "metrics.jsonl")

    def refusals(self, node: int) -> list[dict[str, Any]]:
        return read_lines(self.out(node) / "audit.jsonl")

    def stop(self) -> None:
        for number in self.running.values():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


@pytest.fixture(scope="session")
def launcher() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("launcher.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with process:
        yield process
        process.kill()


def until(happened: Callable[[], object]) -> None:
    """Wait until something has happened."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.02)


@pytest.fixture
def ring(tmp_path: Path, keys: Path, launcher: subprocess.Popen[str]) -> Iterator[Callable[..., Ring]]:
    """Makes federations, whose processes end with the test."""
    made: list[Ring] = []

    def make_ring(
        name: str = "ring", changes: dict[str, str] | None = None, own_keys: Path | None = None
    ) -> Ring:
        folder = tmp_path / name
        folder.mkdir()
        file = folder / "federation.yaml"
        text = FEDERATION
        for old, new in (changes or {}).items():
            assert old in text
            text = text.replace(old, new)
        file.write_text(text)
        nodes = int(text.partition("nodes: ")[2].partition("}")[0])
        made.append(Ring(folder, own_keys or keys, file, launcher, nodes=nodes))
        return made[-1]

    yield make_ring
    for one in made:
        one.stop()


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object]], None]:
    return until
