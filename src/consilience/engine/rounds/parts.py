"""Exchanges of a server with cohorts too large to be held at once.

Clients are computed some at a time, with their memories. What hubs ask for in sums is added up as messages
come, one after the other in the order of clients and in float64, so that it does not matter which of them
came together. Messages that a hub has to see all at once, as for a median, are kept until the last has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from consilience import tree
from consilience.aggregate import Way
from consilience.engine.executors.base import Outcome, joined
from consilience.engine.rounds.cast import Cast
from consilience.engine.rounds.exchange import Exchange, Report, arranged, columns, rows_of
from consilience.engine.rounds.store import Store
from consilience.engine.rounds.told import Told
from consilience.exchange.summing import Answering, Asked, answer, ask, is_sum
from consilience.exchange.traffic import Traffic, row_bytes, times
from consilience.torch_internals import add_all, copy_all, scale_all
from consilience.transfer import to_device
from consilience.types import Booleans, Floats, IntArray, Params, State


def comes_in_parts(one: Exchange, cast: Cast) -> bool:
    """Whether an exchange has more jobs than are computed at a time, at servers.

    Memories that change their shapes are renewed together: those of some would take the place of the others.
    """
    few = one.world.graph or one.algorithm.reshapes()
    return not few and len(one.jobs(cast)) > one.world.executor.chunk


def run_in_parts(one: Exchange, cast: Cast, hub: State, store: Store) -> Report:
    """Carry out an exchange at servers, some clients at a time, and return what it left behind.

    Args:
        one: The exchange.
        cast: Who takes part.
        hub: [replicas, ...].
        store: The clients' memories; those whose upload is sound are renewed.
    """
    world, jobs = one.world, one.jobs(cast)
    down = one.broadcast(hub)
    down_bytes = row_bytes(tree.without(down, one.form.known))
    cohort, (replicas, clients) = world.cohort(jobs, one.round), columns(jobs)
    listed = Told(jobs, cast.failed, None)
    delivered = [listed.delivered(replica) for replica in range(len(world.replicas))]
    rows, step = replicas * world.population + clients, world.executor.chunk
    parts: list[Outcome] = []
    sums: Sums | None = None
    form: State | None = None
    """What messages look like, once one is sound: only then can be found out whether sums of them will do."""
    up_bytes: dict[str, int] = {}
    for begin in range(0, len(jobs), step):
        some = slice(begin, begin + step)
        given = rows_of(down, world.device, replicas[some])
        outcome = one.work(cohort.part(some), given, store, rows[some])
        if begin == 0:
            up_bytes = row_bytes(one.form.travelling(outcome.uploads))
        if form is None and bool(outcome.arrived.any()):
            form = tree.map_leaves(_without_rows, outcome.uploads)
            sums = Sums(one, hub, listed, delivered) if _are_sums(one, hub, outcome) else None
        if sums:
            sums.add(begin, outcome)
        kept = {} if sums or form is None else outcome.uploads
        parts.append(Outcome(kept, {}, outcome.arrived, outcome.tally))
        del outcome
    if form is not None and not sums:
        parts = [_filled(part, form) for part in parts]
    whole = joined(parts)
    told = Told(jobs, cast.failed, whole)
    if sums:
        hub = sums.combined(whole.arrived)
    elif form is not None:
        hub = one.combine_apart(hub, whole, told, delivered)
    traffic = tuple(
        Traffic(times(len(came), up_bytes), times(len(sampled), down_bytes), len(came) if up_bytes else 0)
        for came, sampled in zip(delivered, cast.sampled, strict=True)
    )
    return Report(hub, None, None, {}, told, traffic)


def _without_rows(value: Tensor) -> Tensor:
    """A stacked tensor of no rows, in memory of its own: a view would keep all rows."""
    return value.new_empty(0, *value.shape[1:])


def _filled(part: Outcome, form: State) -> Outcome:
    """A part with messages: those that were not kept, since none was sound, are zeros."""
    if part.uploads:
        return part
    rows = len(part.arrived)
    return replace(part, uploads=tree.map_leaves(lambda value: value.new_zeros(rows, *value.shape[1:]), form))


def _are_sums(one: Exchange, hub: State, outcome: Outcome) -> bool:
    """Whether hubs ask for nothing but sums of messages like these."""
    sound = torch.nonzero(outcome.arrived).flatten()
    if one.form.ordinary:
        return False
    message = tree.index(tree.without(outcome.uploads, one.form.private), int(sound[0]))
    combine = one.phase(tree.index(one.world.hub_numbers, 0)).combine
    return is_sum(combine, tree.index(hub, 0), message, one.world.hub_populations[0])


class Sums:
    """What servers ask for in sums, added up while messages come.

    Args:
        one: The exchange.
        hub: [hubs, ...] their states.
        listed: Who works.
        delivered: The rows of the messages that come to each hub, in the order of clients.
    """

    def __init__(self, one: Exchange, hub: State, listed: Told, delivered: Sequence[IntArray]) -> None:
        self._one, self._hub, self._delivered = one, hub, delivered
        samples = np.zeros((len(delivered), max(1, *(len(rows) for rows in delivered))))
        for number, rows in enumerate(delivered):
            samples[number, : len(rows)] = one.world.sizes()[listed.replicas[rows], listed.clients[rows]]
        self._samples = to_device(samples, one.world.device)
        self._form: State = {}
        self._asked: list[tuple[Way, dict[str, torch.dtype]]] = []
        self._weights: list[Tensor] = []
        self._sums: list[Params] = []

    def add(self, begin: int, outcome: Outcome) -> None:
        """Add the messages of the jobs from `begin` on."""
        world, arrived = self._one.world, outcome.arrived.cpu().numpy()
        places: dict[int, IntArray] = {}
        """Which of the messages that come to a hub are here; hubs without any would only take memory."""
        for number, rows in enumerate(self._delivered):
            inside = np.flatnonzero((rows >= begin) & (rows < begin + len(arrived)))
            places |= {number: inside} if len(inside) else {}
        if not places:
            return
        table = np.zeros((len(places), max(map(len, places.values()))), dtype=np.int64)
        for row, (number, own) in enumerate(places.items()):
            table[row, : len(own)] = self._delivered[number][own] - begin
        uploads = tree.without(outcome.uploads, self._one.form.private)
        asked = self._ask(arranged(uploads, table, world.device), list(places))
        if not self._sums:
            hubs = len(self._delivered)
            self._sums = [_nothing(one, way, hubs) for one, (way, _) in zip(asked, self._asked, strict=True)]
            self._weights = [one.weights.new_zeros(self._samples.shape) for one in asked]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # thousands of short operations: threads would wait for each other
        try:
            for one, total, known in zip(asked, self._sums, self._weights, strict=True):
                known[list(places)] = one.weights
                shares = one.weights.double().cpu().numpy()
                for row, (number, own) in enumerate(places.items()):
                    sound = arrived[table[row, : len(own)]]
                    so_far = {name: value[number] for name, value in total.items()}
                    came = {name: value[row] for name, value in one.values.items()}
                    _add(so_far, came, shares[row, own], one.way, sound)
        finally:
            torch.set_num_threads(threads)

    def _ask(self, messages: State, hubs: Sequence[int]) -> list[Asked]:
        """What some hubs ask for; every tensor is [hubs, ...]."""
        one, noted = self._one, list[tuple[Way, dict[str, torch.dtype]]]()

        def asked(swept: State, old: State, given: State, some: State) -> State:
            facts = given["facts"]
            found = ask(one.phase(swept).combine, old, some, facts["samples"], facts["population"])
            noted[:] = [(way, {n: v.dtype for n, v in values.items()}) for values, _, way in found]
            values = {f"values.{number}": item.values for number, item in enumerate(found)}
            return {**values, "weights": {str(number): item.weights for number, item in enumerate(found)}}

        chosen = to_device(np.array(hubs), one.world.device)
        own = [tree.index(state, chosen) for state in (one.world.hub_numbers, self._hub, self._facts())]
        found = one.world.executor.map(asked, (0, 0, 0, 0), *own, messages)
        self._form, self._asked = tree.map_leaves(_without_rows, messages), noted
        return [
            Asked(found[f"values.{number}"], weights, noted[number][0])
            for number, weights in enumerate(found["weights"].values())
        ]

    def _facts(self, **more: Tensor) -> State:
        return {"facts": {"samples": self._samples, "population": self._one.world.hub_populations, **more}}

    def combined(self, arrived: Tensor) -> State:
        """The hubs' new states, once all messages were added; `arrived`: [jobs] which of them are sound."""
        one, world = self._one, self._one.world
        table = np.zeros(self._samples.shape, dtype=np.int64)
        there: Floats = np.zeros(self._samples.shape)
        for number, rows in enumerate(self._delivered):
            table[number, : len(rows)], there[number, : len(rows)] = rows, 1.0
        sound = arrived[to_device(table, world.device)] * to_device(there, world.device)
        dtypes = [kinds for _, kinds in self._asked]

        def combine(swept: State, old: State, given: State, weights: State, sums: State) -> State:
            facts = given["facts"]
            totals = [sums[str(number)] for number in range(len(dtypes))]
            answering = Answering(totals, dtypes, list(weights["all"].values()), facts["sound"])
            phase = one.phase(swept).combine
            new = answer(phase, old, self._form, facts["samples"], facts["population"], answering)
            return tree.where((facts["samples"] * facts["sound"]).sum() > 0, new, old)

        weights = {"all": {str(number): value for number, value in enumerate(self._weights)}}
        sums = {str(number): total for number, total in enumerate(self._sums)}
        given = (world.hub_numbers, self._hub, self._facts(sound=sound), weights, sums)
        return world.executor.map(combine, (0, 0, 0, 0, 0), *given)


def _nothing(asked: Asked, way: Way, hubs: int) -> Params:
    """[hubs, ...] what sums are before the first message."""

    def blank(value: Tensor) -> Tensor:
        shape = (hubs, *value.shape[2:])
        if way == "sum":
            return value.new_zeros(shape, dtype=torch.float64)
        return value.new_full(shape, False if value.dtype == torch.bool else torch.iinfo(value.dtype).min)

    return {name: blank(value) for name, value in asked.values.items()}


def _add(total: Params, values: Params, weights: Floats, way: Way, sound: Booleans) -> None:
    """Add one hub's messages of a part to what came before, one after the other."""
    counts = sound if way == "sum" else sound & (weights > 0)
    so_far = list(total.values())
    came = [
        torch.empty_like(value) for value in so_far
    ]  # the same memory for all: new one is slow to come by
    rows = zip(*(values[name].unbind() for name in total), strict=True)
    for row, weight, counted in zip(rows, weights.tolist(), counts.tolist(), strict=False):  # others only pad
        if not counted:
            continue
        copy_all(came, row)
        if way == "most":
            for most, other in zip(so_far, came, strict=True):
                torch.maximum(most, other, out=most)
        else:  # two operations that each round once: where they begin and end must not matter
            scale_all(came, weight)
            add_all(so_far, came)
