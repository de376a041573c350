"""Sums whose numbers do not depend on how many threads there are, on a CPU.

A product that several threads share, or that is stacked with others, may round otherwise. Here every batch is
computed by one thread, for one job. Blocks of batches are summed wherever there is room, and what each gives
is added up in their order. Training is not done so: steps wait for each other, and small ones are stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from consilience.engine.executors.crew import CAN_FORK, side_by_side
from consilience.engine.executors.machine import Blueprint, Machine
from consilience.engine.executors.scheduling import pack
from consilience.engine.executors.workshop import Workshop
from consilience.learning.batches import Plan, entries
from consilience.types import IntArray

Run = Callable[[Machine, Tensor, Tensor, Tensor, IntArray], None]
"""A function that runs a machine on some rows, weights, keys and sizes."""

ROWS = 1000
"""How many rows a block has, at least: it is a piece of work for one thread."""


def summed_apart(
    workshop: Workshop,
    blueprint: Blueprint,
    plan: Plan,
    result: list[Tensor],
    carry: Sequence[Tensor],
    varying: Mapping[str, Tensor],
    shared: Mapping[str, Tensor],
    workers: int,
) -> list[Tensor]:
    """The carries of all jobs after all their steps, of a step that adds up what batches give.

    Args:
        workshop: Where machines are.
        blueprint: That of a machine with one lane.
        plan: The batches of all jobs.
        result: Where the carries go.
        carry: What jobs start from, stacked.
        varying: What a step gets beside that, stacked.
        shared: What it gets that is the same for all jobs.
        workers: How many machines run at the same time.
    """
    size = max(1, ROWS // plan.rows.shape[1])
    blocks = -(-plan.steps // size)
    owner, place = entries(blocks, int(blocks.sum()))
    begins = plan.first[owner] + size * place
    ends = np.minimum(begins + size, (plan.first + plan.steps)[owner])
    blank, sums = (
        [torch.zeros((count, *value.shape[1:]), dtype=value.dtype) for value in carry]
        for count in (len(blocks), len(owner))
    )
    shares = pack(ends - begins, workers)
    machines = workshop.machines([blueprint] * len(shares))
    for machine in machines:
        machine.share(list(shared.values()))
        machine.prepare(plan.sizes)

    def work(run: Run, machine: Machine, share: Sequence[int]) -> None:
        for number in share:
            machine.put([(0, int(owner[number]))], blank, list(varying.values()))
            ticks = slice(begins[number], ends[number])
            rows, sizes = plan.rows[ticks, None], plan.sizes[ticks, None]
            weight = torch.arange(rows.shape[-1]) < torch.from_numpy(sizes)[..., None]
            run(machine, rows, weight.to(workshop.pool.dtype), plan.keys[ticks, None], sizes)
            machine.take([(0, number)], sums)

    if CAN_FORK and len(shares) > 1:
        crew = workshop.crew(machines)
        tasks = [
            partial(work, partial(crew.run, number), machine, share)
            for number, (machine, share) in enumerate(zip(machines, shares, strict=True))
        ]
        side_by_side(tasks, give_up=crew.kill)
    else:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for machine, share in zip(machines, shares, strict=True):
                work(run_here, machine, share)
        finally:
            torch.set_num_threads(threads)
    for total, start, parts in zip(result, carry, sums, strict=True):
        total.copy_(start)
        total.index_add_(0, torch.from_numpy(owner), parts)
    return result


def run_here(machine: Machine, rows: Tensor, weight: Tensor, keys: Tensor, sizes: IntArray) -> None:
    """Run a machine in this process."""
    machine.run(rows, weight, keys, sizes)
