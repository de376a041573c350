"""What takes minutes: a network that falls apart and heals, and nodes that are killed at any instant."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from consilience import tree
from consilience.config import load_config
from consilience.deploy import kept
from consilience.deploy.agreeing import agree
from consilience.engine.build import simulate

pytestmark = pytest.mark.skipif("CONSILIENCE_LONG" not in os.environ, reason="set CONSILIENCE_LONG=1")

Until = Callable[[Callable[[], object]], None]


class Door:
    """A connection between two nodes that can be cut."""

    def __init__(self, port: int) -> None:
        self._target, self._open, self._pairs = port, True, list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                if not self._open:
                    near.close()
                    far.close()
                    continue
                self._pairs += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut the connection, and let no other be made."""
        self._open = False
        for one in self._pairs:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def open(self) -> None:
        self._open = True

    def end(self) -> None:
        self._listener.close()
        self.close()


@pytest.fixture
def doors() -> Iterator[list[Door]]:
    made: list[Door] = []
    yield made
    for one in made:
        one.end()


def test_both_sides_of_a_network_that_falls_apart_go_on_and_find_together(
    ring: Callable[..., Any], wait_until: Until, doors: list[Door]
) -> None:
    one = ring(changes={"rounds: 2": "rounds: 100000"})
    for node in (1, 3):  # 0 and 1 on one side, 2 and 3 on the other
        doors.append(Door(one.ports[(node + 1) % 4]))
        one.doors[node] = doors[-1].port
    one.start_all()
    wait_until(lambda: all(one.round(node) >= 3 for node in range(4)))
    for door in doors:
        door.close()
    wait_until(lambda: all(len(one.metrics(node)[-1]["heard"]) == 2 for node in range(4)))
    apart = [one.round(node) for node in range(4)]
    wait_until(lambda: all(one.round(node) > apart[node] + 10 for node in range(4)))
    for door in doors:
        door.open()
    wait_until(lambda: all(len(one.metrics(node)[-1]["heard"]) == 3 for node in range(4)))
    healed = max(one.round(node) for node in range(4))
    wait_until(lambda: all(one.round(node) > healed + 10 for node in range(4)))
    assert all(len(one.metrics(node)[-1]["heard"]) == 3 for node in range(4))


def test_kills_at_any_instant_change_nothing_where_all_must_be_heard(
    ring: Callable[..., Any], wait_until: Until
) -> None:
    changes = {"rounds: 2": "rounds: 15", "fedavg": "gradient-tracking", "seed,": "seed, quorum: all,"}
    one, draw = ring(changes=changes), random.Random(3)
    agreement = agree(load_config(one.file, []))
    one.start_all()
    for _ in range(5):
        node = draw.randrange(4)
        begun = one.round(node)
        wait_until(lambda node=node, begun=begun: one.round(node) > begun or one.round(node) >= 13)
        one.send(node, signal.SIGKILL)
        wait_until(lambda node=node: not Path(f"/proc/{one.running[node]}").exists())
        one.start(node)
    assert [one.ended(node) for node in range(4)] == [0] * 4
    simulation = simulate(agreement.scene, agreement.arm.variants)
    for _ in range(agreement.terms.rounds):
        simulation.step(evaluate=False)
    hubs = tree.index(simulation.hub, 0)
    for node in range(4):
        found = kept.load(one.out(node) / "peer.safetensors", agreement.terms.run)
        assert found is not None
        expected, got = tree.flatten(tree.index(hubs, node)), tree.flatten(found[0]["hub"])
        assert max(float((expected[name] - got[name]).abs().max()) for name in expected) < 1e-11


def test_nobody_but_neighbours_is_heard(ring: Callable[..., Any]) -> None:
    one = ring(changes={"rounds: 2": "rounds: 100", "nodes: 4": "nodes: 8"})
    one.start_all()
    assert [one.ended(node) for node in range(8)] == [0] * 8
    for node in range(8):
        around = sorted({(node - 1) % 8, node, (node + 1) % 8})
        assert [line["heard"] for line in one.metrics(node)] == [around] * 100
        assert not one.refusals(node)


def test_nodes_do_not_grow(ring: Callable[..., Any], wait_until: Until) -> None:
    one = ring(changes={"rounds: 2": "rounds: 100000", "hidden: [4]": "hidden: [157]"})  # 1 MB a message
    one.start_all()

    def held() -> list[tuple[int, int]]:
        """The memory (kB) and descriptors of every node."""
        found = []
        for number in one.running.values():
            status = Path(f"/proc/{number}/status").read_text()
            descriptors = len(list(Path(f"/proc/{number}/fd").iterdir()))
            found.append((int(status.partition("VmRSS:")[2].split()[0]), descriptors))
        return found

    wait_until(lambda: all(one.round(node) >= 50 for node in range(4)))
    before = held()
    for rounds in range(100, 301, 50):
        wait_until(lambda rounds=rounds: all(one.round(node) >= rounds for node in range(4)))
    for (memory, descriptors), (memory_later, descriptors_later) in zip(before, held(), strict=True):
        assert memory_later <= 1.05 * memory
        assert descriptors_later <= descriptors + 2  # a file that is being written
