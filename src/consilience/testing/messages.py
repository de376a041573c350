"""Messages over a wire: what is combined is what came out of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from consilience import tree, wire
from consilience.graphs import Star
from consilience.learning.task import Task
from consilience.testing.federation import (
    SIZES,
    Layout,
    Subject,
    assert_same,
    simulation_of,
    state_of,
)
from consilience.testing.watching import Place, Watch, Watched
from consilience.types import State

Result = TypeVar("Result")


def messages_survive_the_wire(subject: Subject) -> None:
    """Hubs that combine messages from their bytes alone end at the same bits, and just those are counted."""
    with torch.random.fork_rng(devices=[]):
        module = subject.module()
    # A server's first message, from a hub that no simulation has stacked.
    model = Task(module).weights_of(module)
    _arrived(subject.algorithm.phases()[0].broadcast(subject.algorithm.init_hub(model)))
    for topology in subject.topologies:
        everybody = len(SIZES) - 1
        star = isinstance(topology, Star)
        listeners = {"star": 1, "ring": 2, "complete": everybody}[topology.name]
        watch = _Wire(listeners, flooded=listeners if star else everybody, star=star)
        sent = simulation_of(subject, Layout(topology), (Watched(subject.algorithm, watch), subject.solver))
        for _ in range(3):
            record = sent.step(evaluate=False)[0]
            up, down = sum(record.bytes_up.values()), sum(record.bytes_down.values())
            received = watch.down if star else watch.up
            counts = f"{up} bytes up and {down} down were counted, {watch.up} and {received} were sent"
            assert (up, down) == (watch.up, received), f"{counts} ({topology.name})."
            watch.up = watch.down = 0
        unsent = simulation_of(subject, Layout(topology))
        for _ in range(3):
            unsent.step(evaluate=False)
        assert_same(state_of(unsent), state_of(sent), f"when messages are bytes ({topology.name})")


class _Wire(Watch):
    """A watch that sends all messages, counts the bytes of all copies, and hands on what receivers get."""

    def __init__(self, listeners: int, flooded: int, *, star: bool) -> None:
        self.listeners, self.flooded, self.star = listeners, flooded, star
        self.up = self.down = 0
        self.last: dict[tuple[str, int], State] = {}
        self.senders: dict[str, int] = {}
        """How many clients have spoken, by exchange."""

    def call(self, place: Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        if place.role == "combine":
            self.senders[place.exchange] = 0
        result = function(*given)
        if place.role != "local":
            return result
        (_, down, _), (upload, memory) = given, cast(tuple[State, State], result)
        phase, number = place.phase, self.senders.get(place.exchange, 0)
        self.senders[place.exchange] = number + 1
        _, size = _arrived(tree.without(down, phase.known))
        self.down += size
        message, size = _arrived(phase.travelling(upload))
        self.up += size * (1 if phase.replies else self.flooded if phase.flooded else self.listeners)
        private = {group: params for group, params in upload.items() if group in phase.private}
        whole = tree.without(upload, phase.private)
        blank = tree.map_leaves(torch.zeros_like, whole)
        before = self.last.get((place.exchange, number), blank)
        if self.star:
            before = {**down, **{group: before[group] for group in phase.kept if group in before}}
        arrived = tree.Schema.of(whole).ordered(phase.received(message, before))
        self.last[place.exchange, number] = arrived
        assert_same(whole, arrived, f"in what is received in {place.exchange}")
        return cast(Result, ({**arrived, **private}, memory))


def _arrived(message: State) -> tuple[State, int]:
    """A message as it comes out of the wire format, and its length there."""
    data = wire.encode(message, wire.Header(round=1, sender=2, samples=3))
    if not data:  # an empty message is not sent at all
        return message, 0
    arrived, _ = wire.decode(data)
    device = next(iter(tree.flatten(message).values())).device
    return tree.map_leaves(lambda value: value.to(device), arrived), len(data)
