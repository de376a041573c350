"""Nodes that do not wait for each other; those who are killed, hang and come back are checks 9 to 11."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

Until = Callable[[Callable[[], object]], None]


def test_nodes_that_do_not_wait_use_messages_that_are_not_too_old(
    ring: Callable[..., Any], wait_until: Until
) -> None:
    one = ring(changes={"rounds: 2": "rounds: 100000", "secret: seed": "secret: seed, staleness: 3"})
    one.start_all()
    wait_until(lambda: all(one.round(node) >= 10 for node in range(4)))
    one.send(2, signal.SIGSTOP)
    stopped = max(one.round(node) for node in range(4))
    wait_until(lambda: all(one.round(node) > stopped + 8 for node in (0, 1, 3)))
    assert 2 not in one.metrics(1)[-1]["heard"]
    one.send(2, signal.SIGCONT)
    wait_until(lambda: one.round(2) > stopped + 8)
    ages = [age for node in range(4) for line in one.metrics(node) for age in line["ages"].values()]
    assert max(ages) == 3
