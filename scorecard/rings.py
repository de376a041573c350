"""Federations of real processes on the loopback, over Zenoh and TLS."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consilience.deploy.journal import read_lines, read_status
from consilience.deploy.zenoh.certificates import make
from scorecard.launching import Launcher, Process, launcher, until

NODES, MOST = 4, 8

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
    launcher: Launcher
    ports: list[int] = field(default_factory=lambda: free_ports(MOST))
    nodes: int = NODES
    doors: dict[int, int] = field(default_factory=dict)
    """Through which port a node reaches the next one, where that is not the next one's own."""
    running: dict[int, Process] = field(default_factory=dict)

    def out(self, node: int) -> Path:
        """Where a node keeps its files."""
        return self.folder / str(node)

    def job(self, node: int) -> list[Any]:
        """What the launcher is told to start a node with."""
        listen = [f"tls/127.0.0.1:{self.ports[node]}"]
        others = range(node + 1, self.nodes) if self.complete else [(node + 1) % self.nodes]
        doors = [self.doors.get(node, self.ports[other]) for other in others]
        connect = [f"tls/127.0.0.1:{door}" for door in doors]
        return [str(self.file), node, str(self.keys), listen, connect, str(self.out(node))]

    @property
    def complete(self) -> bool:
        """Whether everybody is everybody's neighbour."""
        return "name: complete" in self.file.read_text()

    def start(self, node: int, *others: Ring) -> None:
        """Start a node, of this federation and then of others."""
        jobs = [ring.job(node) for ring in (self, *others)]
        self.running[node] = self.launcher.start("nodes", jobs, self.log(node))

    def start_all(self, *others: Ring) -> None:
        """Start all nodes, of this federation and then of others."""
        for node in range(self.nodes):
            self.start(node, *others)

    def log(self, node: int) -> Path:
        """What a node has printed."""
        return self.folder / f"{node}.log"

    def send(self, node: int, signal_number: int) -> None:
        """Send a node's process a signal."""
        self.running[node].send(signal_number)

    def kill(self, node: int) -> None:
        """Kill a node, and wait until it is gone."""
        self.send(node, signal.SIGKILL)
        until(lambda: not self.running[node].running)

    def ended(self, node: int) -> int | None:
        """The exit code of a node, once it has ended."""
        return self.running[node].ended()

    def status(self, node: int) -> dict[str, Any]:
        """How things stand at a node."""
        return read_status(self.out(node)) or {}

    def round(self, node: int) -> int:
        """The round in which a node is."""
        return int(self.status(node).get("round", -1))

    def metrics(self, node: int) -> list[dict[str, Any]]:
        """How the rounds of a node went."""
        return read_lines(self.out(node) / "metrics.jsonl")

    def last(self, node: int) -> dict[str, Any]:
        """How the last round of a node went; a file of many rounds is not read for it."""
        found = self.since(node, 0.0, 2_000)
        return found[-1] if found else {"heard": [], "round": 0, "time": 0.0}

    def since(self, node: int, when: float, size: int = 200_000) -> list[dict[str, Any]]:
        """How rounds went that have ended since a time, as far as the end of a file says."""
        try:
            with (self.out(node) / "metrics.jsonl").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - size))
                _, *lines = (b"\n" + file.read()).split(b"\n")[:-1]
        except OSError:
            return []
        whole = [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]
        return [line for line in whole if line["time"] > when]

    def refusals(self, node: int) -> list[dict[str, Any]]:
        """What a node has refused."""
        return read_lines(self.out(node) / "audit.jsonl")

    def stop(self) -> None:
        """End all nodes."""
        for process in self.running.values():
            process.send(signal.SIGKILL)


@contextmanager
def rings(parent: Path, keys: Path) -> Iterator[Callable[..., Ring]]:
    """Makes federations, whose processes end when it is left."""
    made: list[Ring] = []

    def make_ring(
        name: str = "ring", changes: dict[str, str] | None = None, own_keys: Path | None = None
    ) -> Ring:
        folder = parent / name
        folder.mkdir()
        file = folder / "federation.yaml"
        text = FEDERATION
        for old, new in (changes or {}).items():
            assert old in text
            text = text.replace(old, new)
        file.write_text(text)
        nodes = int(text.partition("nodes: ")[2].partition("}")[0])
        made.append(Ring(folder, own_keys or keys, file, launcher(), nodes=nodes))
        return made[-1]

    try:
        yield make_ring
    finally:
        for one in made:
            one.stop()


@contextmanager
def keyed_rings(folder: Path) -> Iterator[tuple[Callable[..., Ring], Path]]:
    """Makes federations in a folder, with certificates for all nodes and one more."""
    keys = folder / "keys"
    make(keys, MOST + 1)
    with rings(folder, keys) as made:
        yield made, keys
