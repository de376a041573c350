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
    for node in range(4):
        one.start(node)
    wait_until(lambda: all(one.round(node) >= 3 for node in range(4)))

    one.running[2].kill()  # in the middle of whatever it does
    _goes_on_without(one, 2, wait_until)
    one.start(2)
    _is_heard_again(one, 2, wait_until)

    one.running[2].send_signal(signal.SIGSTOP)
    _goes_on_without(one, 2, wait_until)
    one.running[2].send_signal(signal.SIGCONT)
    _is_heard_again(one, 2, wait_until)

    one.running[1].send_signal(signal.SIGTERM)
    assert one.running[1].wait(30) == 130
    assert "the same command goes on" in (one.folder / "1.log").read_text()


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
    assert abs(one.round(back) - one.round(beside[0])) <= 3
