"""Memory is a budget: machines come and go, lanes become fewer, and results stay."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from consilience.client import Client
from consilience.engine.executors import lanes, workshop
from consilience.engine.executors.captured import Captured
from consilience.engine.executors.lanes import Batched
from consilience.engine.executors.machine import Blueprint, Machine, Plain
from consilience.engine.executors.workshop import Workshop
from consilience.errors import UserError
from consilience.types import State


def train(client: Client, down: State) -> State:
    return client.train(down).model


def gradient(client: Client, down: State) -> State:
    return {"params": client.grad(down).params}


def machines(executor: Batched) -> list[Machine]:
    return list(executor._workshop._machines.values())


def test_machines_that_were_not_used_for_longest_go_first(federation, monkeypatch):
    place = federation()
    executor = place.batched(2, 5)
    expected = [place.run(executor, work).uploads for work in (train, gradient)]
    assert len(machines(executor)) == 2
    monkeypatch.setattr(workshop, "MOST", 1)
    small = place.batched(2, 5)
    for _ in range(2):
        found = []
        for work in (train, gradient):
            found.append(place.run(small, work).uploads)
            (kept,) = machines(small)
            watched = weakref.ref(kept)
            del kept
        assert_close(found, expected, rtol=0, atol=0)
    place.run(small, train)
    gc.collect()
    assert watched() is None  # nobody else holds one that had to go


def test_machines_go_when_they_hold_too_much(federation):
    place = federation()
    held = place.batched(2, 5)
    place.run(held, train)
    (one,) = machines(held)
    for memory, kept in ((10**9, 2), (one.held_bytes, 1)):
        executor = Batched(place.pool, 2, 5, memory=memory)
        place.run(executor, train)
        place.run(executor, gradient)
        assert len(machines(executor)) == kept


class Scarce:
    """Memory in which only so many lanes fit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lanes: int) -> None:
        self.widths: list[int] = []
        run = Plain.run

        def scarcely(machine: Plain, *given: Any) -> None:
            self.widths.append(machine.blueprint.width)
            if machine.blueprint.width > lanes:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            run(machine, *given)

        monkeypatch.setattr(Plain, "run", scarcely)


def test_out_of_memory_the_lanes_are_halved_and_that_is_said_once(federation, monkeypatch, caplog):
    place = federation()
    expected = place.run(place.batched(1, 5), train)
    scarce = Scarce(monkeypatch, 1)
    executor = place.batched(5, 5)
    found = [place.run(executor, train) for _ in range(3)]
    assert scarce.widths[0] > 2
    assert sorted(set(scarce.widths), reverse=True) == list(dict.fromkeys(scarce.widths))
    for one in found:
        assert_close(one.uploads, expected.uploads, rtol=1e-12, atol=1e-12)
        assert_close(one.tally, expected.tally, rtol=1e-12, atol=1e-12)
    warnings = [record.getMessage() for record in caplog.records if "out of memory" in record.getMessage()]
    assert len(warnings) == 1
    assert "clients side by side" in warnings[0]


def test_what_does_not_fit_alone_is_one_line(federation, monkeypatch):
    place = federation()
    Scarce(monkeypatch, 0)
    with pytest.raises(UserError, match=r"one client's step does not fit into the 8 GB .*batch_size"):
        place.run(Batched(place.pool, 5, 5, memory=8 * 10**9), train)


def test_what_does_not_fit_as_a_graph_runs_without_one(federation, monkeypatch):
    place = federation()
    expected = place.run(place.batched(1, 5), train)
    built: list[Captured] = []

    def build(shop: Workshop, blueprint: Blueprint) -> Machine:
        built.append(Captured(shop.pool, blueprint, shop._graphs, compiled=False))
        return built[-1]

    def no_room(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Workshop, "_build", build)
    monkeypatch.setattr(Captured, "_capture", no_room)
    executor = place.batched(1, 5)
    for _ in range(2):
        found = place.run(executor, train)
        assert_close(found.uploads, expected.uploads, rtol=1e-12, atol=1e-12)
        assert_close(found.tally, expected.tally, rtol=1e-12, atol=1e-12)
    assert executor.chunk == 1
    assert built[-1]._graphs is None


def test_where_graphs_hold_too_much_there_are_none_after_a_fold(federation):
    place = federation()
    executor = place.batched(2, 5)
    shop = executor._workshop
    shop.memory = 10_000
    for held, kept in ((5_000, True), (5_001, False)):
        assert shop._graphs is not None
        shop._graphs.held = held
        place.run(executor, train)
        assert (shop._graphs is not None) is kept


def test_out_of_memory_beside_clients_machines_go_and_the_work_is_done_again(federation):
    place = federation()
    executor = place.batched(2, 5)
    place.run(executor, train)
    shop = executor._workshop
    found = []

    def hungry() -> str:
        found.append(len(shop._machines))
        if shop._machines:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return "done"

    assert executor.with_room(hungry) == "done"
    assert found[0] > 0
    assert len(found) == 2
    assert shop._graphs is None


def test_out_of_memory_beside_the_steps_fewer_jobs_are_computed_at_a_time(federation):
    place = federation()
    expected = place.run(place.batched(2, 5), train)
    asked = []

    def hungry(client: Client, down: State) -> State:
        if executor.chunk > 2:
            asked.append(executor.chunk)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return train(client, down)

    executor = place.batched(2, 5)
    assert_close(place.run(executor, hungry).uploads, expected.uploads, rtol=1e-12, atol=1e-12)
    assert asked == [5]
    assert executor.chunk == 2


def test_out_of_memory_for_results_fewer_jobs_are_computed_at_a_time(federation, monkeypatch):
    place = federation()
    expected = place.run(place.batched(2, 5), train)
    blank = lanes._Attempt._blank

    def scarce(attempt: Any, places: Any) -> list[torch.Tensor]:
        if attempt.folding.jobs > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return blank(attempt, places)

    monkeypatch.setattr(lanes._Attempt, "_blank", scarce)
    executor = place.batched(2, 5)
    assert_close(place.run(executor, train).uploads, expected.uploads, rtol=1e-12, atol=1e-12)
    assert executor.chunk == 2


def test_lanes_follow_from_what_one_takes_and_not_from_what_is_free(federation, monkeypatch):
    place = federation()
    monkeypatch.setattr(workshop, "lane_bytes", lambda pool, blueprint: 1000)
    shop = Workshop(place.pool, 10_000)
    (machine,) = machines_of(place)
    blueprint = machine.blueprint
    for is_cuda, wanted, width in ((False, 16, 16), (True, 16, 2), (True, 2, 2), (True, 1, 1)):
        shop.pool = Device(place.pool, is_cuda)
        assert shop.lanes(replace(blueprint, width=wanted)) == width


class Device:
    """A pool that says where it is."""

    def __init__(self, pool: Any, is_cuda: bool) -> None:
        self.targets = type("Targets", (), {"is_cuda": is_cuda})()


def machines_of(place: Any) -> list[Machine]:
    executor = place.batched(2, 5)
    place.run(executor, train)
    return machines(executor)
