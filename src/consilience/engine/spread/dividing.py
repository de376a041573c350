"""Snapshots of a simulation in parts, each with some of its replicas, and put together again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from consilience.engine.rounds.memory_files import LINKS
from consilience.engine.rounds.store import MEMORY
from consilience.types import State

Group = Sequence[int]
"""The numbers of some replicas, in ascending order."""

CLOCK = "clock"
STORES = ("", LINKS)
"""What stands before the names of a store's groups: clients' memories, and what nodes remember of others."""


def united(parts: Sequence[State], groups: Sequence[Group], population: int) -> State:
    """The snapshot of all replicas, from those of groups of them, as one process would have taken it.

    Args:
        parts: The snapshots of the groups.
        groups: Which replicas each has.
        population: How many clients a replica has.
    """
    order = torch.argsort(torch.tensor([replica for group in groups for replica in group]))
    whole: State = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        if name == CLOCK:
            whole[name] = parts[0][name]
        elif _store_of(name) is None:
            stacked = [part[name] for part in parts]
            whole[name] = {key: torch.cat([one[key] for one in stacked])[order] for key in stacked[0]}
    for store in STORES:
        whole |= _united_rows(parts, groups, store, _rows_of(population, store))
    # Groups stand in the order in which one process lists them, so that files are the same.
    return {name: whole[name] for name in dict.fromkeys(name for part in parts for name in part)}


def of_group(whole: State, group: Group, population: int) -> State:
    """The snapshot of some replicas, from that of all."""
    chosen = torch.tensor(group)
    part: State = {}
    for name, params in whole.items():
        store = _store_of(name)
        if name == CLOCK:
            part[name] = params
        elif store is None:
            part[name] = {key: value[chosen] for key, value in params.items()}
        else:
            size = _rows_of(population, store)
            numbers = whole[f"{store}rows"]["number"]
            own = torch.isin(numbers // size, chosen)
            part[name] = {key: value[own] for key, value in params.items()}
            if name == f"{store}rows":
                kept = part[name]["number"]
                part[name]["number"] = torch.searchsorted(chosen, kept // size) * size + kept % size
    return part


def _united_rows(parts: Sequence[State], groups: Sequence[Group], store: str, size: int) -> State:
    """The rows of one store; a group in which nobody remembers anything has no memories."""
    numbers = []
    for part, group in zip(parts, groups, strict=True):
        own = part[f"{store}rows"]["number"]
        numbers.append(torch.tensor(group)[own // size] * size + own % size)
    every = torch.cat(numbers)
    order = torch.argsort(every)
    found: State = {f"{store}rows": {"number": every[order]}}
    for name in dict.fromkeys(name for part in parts for name in part):
        if _store_of(name) == store and name not in found:
            have = [part[name] for part in parts if name in part]
            found[name] = {key: torch.cat([one[key] for one in have])[order] for key in have[0]}
    return found


def _store_of(name: str) -> str | None:
    """The store that a group of a snapshot belongs to; None where it has a row a replica."""
    store = LINKS if name.startswith(LINKS) else ""
    rest = name.removeprefix(LINKS)
    return store if rest == "rows" or rest.startswith(MEMORY) else None


def _rows_of(population: int, store: str) -> int:
    """How many rows of a store belong to one replica."""
    return population**2 if store == LINKS else population
