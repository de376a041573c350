"""Nodes are killed, hang and come back, and the others go on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

Until = Callable[[Callable[[], object]], None]


def test_who_is_killed_or_hangs_is_left_out_and_comes_back(
    ring: Callable[..., Any], wait_until: Until
) -> None:
    one = ring(changes={"rounds: 2": "rounds: 100000", "fedavg": "cfa-ge"})
    one.start_all()
    wait_until(lambda: all(one.round(node) >= 3 for node in range(4)))

    one.send(2, signal.SIGKILL)  # in the middle of whatever it does
    _goes_on_without(one, 2, wait_until)
    one.start(2)
    _is_heard_again(one, 2, wait_until)

    one.send(2, signal.SIGSTOP)
    _goes_on_without(one, 2, wait_until)
    one.send(2, signal.SIGCONT)
    _is_heard_again(one, 2, wait_until)

    one.send(1, signal.SIGTERM)
    assert one.ended(1) == 130
    assert "the same command goes on" in one.log(1).read_text()


def _goes_on_without(one: Any, gone: int, wait_until: Until) -> None:
    """The others notice, and go on: long before the deadline of an exchange, so that none waits for it."""
    others = [node for node in range(4) if node != gone]
    beside = [(gone - 1) % 4, (gone + 1) % 4]
    wait_until(lambda: not any(one.status(node)["neighbours"][str(gone)]["alive"] for node in beside))
    begun = {node: one.round(node) for node in others}
    wait_until(lambda: all(one.round(node) > begun[node] + 3 for node in others))
    assert all(gone not in one.metrics(node)[-1]["heard"] for node in beside)


def _is_heard_again(one: Any, back: int, wait_until: Until) -> None:
    """It joins the round of the others, and both sides hear each other."""
    beside = [(back - 1) % 4, (back + 1) % 4]
    wait_until(lambda: all(back in one.metrics(node)[-1]["heard"] for node in beside))
    wait_until(lambda: set(beside) <= set(one.metrics(back)[-1]["heard"]))
    now = one.metrics(beside[0])[-1]["round"]
    wait_until(lambda: one.metrics(back)[-1]["round"] >= now)


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
