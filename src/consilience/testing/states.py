"""What a method's own functions do with states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from consilience import tree
from consilience.algorithm import Inbox
from consilience.testing.federation import (
    DoesNotApplyError,
    Layout,
    Subject,
    assert_same,
    play,
    simulation_of,
)
from consilience.testing.watching import Place, Watch, Watched, watch_rounds
from consilience.types import State

Result = TypeVar("Result")


def states_are_named_tensors(subject: Subject) -> None:
    """Hubs, memories and messages are dicts of dicts of tensors, and their schemas never change."""
    # Of a method that says so the shapes may, and nothing else.
    for topology in subject.topologies[:2]:
        list(watch_rounds(subject, topology, _Schemas(shapes=not subject.algorithm.reshapes())))


class _Schemas(Watch):
    """A watch that compares the schema of every state with that of its first appearance."""

    def __init__(self, *, shapes: bool) -> None:
        self.known: dict[str, object] = {}
        self.shapes = shapes

    def call(self, place: Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        result = function(*given)
        where = f"of {place.exchange} of {place.algorithm}"
        if place.role == "local":
            kind = type(result).__name__
            assert isinstance(result, tuple), f"local gives a {kind}, not an upload and a memory."
            self.see(f"the upload {where}", result[0])
            self.see("the memory of a link" if place.phase.replies else "the memory", result[1])
        else:
            others = {
                "init_memory": "the memory",
                "init_link": "the memory of a link",
                "broadcast": f"the download {where}",
            }
            self.see(others.get(place.role, "the hub"), result)
        return result

    def see(self, what: str, state: object) -> None:
        """Assert that a state is named tensors, with the schema of its first appearance."""
        assert isinstance(state, dict), f"{what} is a {type(state).__name__}, not a dict."
        for group, params in state.items():
            assert isinstance(params, dict), f"{what} has a {type(params).__name__} as group {group!r}."
            for name, value in params.items():
                kind = type(value).__name__
                assert isinstance(value, Tensor), f"{what} has a {kind} at {group}/{name}, not a tensor."
        tensors = {
            path: (tuple(v.shape) if self.shapes else v.ndim, v.dtype)
            for path, v in tree.flatten(state).items()
        }
        # Groups without tensors count too: they are part of what others may rely on.
        schema = f"{sorted(state)}, {tensors}"
        before = self.known.setdefault(what, schema)
        assert schema == before, f"{what} was {before} and is now {schema}."


def inputs_stay_as_they_are(subject: Subject) -> None:
    """No function of a method writes to what it is given."""
    for topology in subject.topologies[:2]:
        list(watch_rounds(subject, topology, _Untouched()))


class _Untouched(Watch):
    """A watch that compares all arguments before and after a call."""

    def call(self, place: Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        before = [tree.map_leaves(torch.clone, state) for state in _states(given)]
        result = function(*given)
        for old, new in zip(before, _states(given), strict=True):
            assert_same(old, new, f"in what {place.role} was given")
        return result


def _states(given: tuple[Any, ...]) -> list[State]:
    """The states among the arguments of a method's function."""
    states: list[State] = []
    for value in given:
        if isinstance(value, Inbox):
            shares = {"weights": value.weights, "peers": value.peers, "population": value.population}
            states += [value.messages, value.own or {}, {"shares": shares}]
        elif isinstance(value, dict):
            states.append(value)
    return states


def nothing_is_kept_elsewhere(subject: Subject) -> None:
    """Results depend on hubs, memories, messages and data alone: no counter, no random numbers of its own."""
    for topology in subject.topologies[:2]:
        first, second = (play(simulation_of(subject, Layout(topology)), rounds=2)[0] for _ in range(2))
        assert_same(first, second, f"in a second run ({topology.name})")


def fleeting_memories_are_written_first(subject: Subject) -> None:
    """What a method says of its memories to pass with the round is not read before it is written there."""
    fleeting = subject.algorithm.fleeting()
    if not fleeting:
        raise DoesNotApplyError("all that clients remember lasts")
    watched = Watched(subject.algorithm, _Otherwise(fleeting))
    for topology in subject.topologies[:2]:
        found = []
        for algorithm in (subject.algorithm, watched):
            simulation = simulation_of(subject, Layout(topology), (algorithm, subject.solver))
            play(simulation, rounds=2)
            models = simulation.models(simulation.evaluated())
            found.append((simulation.hub, models, simulation.personal_models(0)))
        for plain, other in zip(*found, strict=True):
            assert_same(plain, other, f"when fleeting memories begin otherwise ({topology.name})")


class _Otherwise(Watch):
    """A watch that puts other numbers into some groups of the memories with which clients begin."""

    def __init__(self, groups: frozenset[str]) -> None:
        self.groups = groups

    def call(self, place: Place, function: Callable[..., Result], given: tuple[Any, ...]) -> Result:
        result = function(*given)
        if place.role != "init_memory":
            return result
        memory = cast(State, result)
        other = tree.map_leaves(lambda value: value + 7, memory)
        return cast(Result, {**memory, **tree.only(other, self.groups)})
