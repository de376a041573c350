"""Which lane runs which job, and when.

A lane is a place in a stacked computation; it trains one job, i.e. one client of one replica, at a time. Jobs
wait in a queue, longest first; when a lane's job ends, the lane takes the next one. The number of steps of
every job is known beforehand, so the schedule is made on the host, with as many lanes as it takes to be
done when the longest job is.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.learning.batches import Plan, entries
from consilience.types import IntArray

FEW = 8
"""The most lanes for which every number has machines of its own."""


def pack(steps: Sequence[int] | IntArray, lanes: int) -> list[list[int]]:
    """The jobs of each lane, in order: longest first, each to the lane that is free first.

    Lanes come out with the most loaded first; jobs without steps are left out.

    >>> pack([3, 1, 2, 2], 2)
    [[0, 1], [2, 3]]
    """
    counts = np.asarray(steps, dtype=np.int64)
    queue = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist()
    if len(queue) <= lanes:
        return [[job] for job in queue]
    if lanes == 1:
        return [queue]
    free = [(0, lane) for lane in range(lanes)]
    packed: list[list[int]] = [[] for _ in free]
    for job, count in zip(queue, counts[queue].tolist(), strict=True):
        load, lane = heapq.heappop(free)
        packed[lane].append(job)
        heapq.heappush(free, (load + count, lane))
    order = sorted(free, key=lambda entry: (-entry[0], entry[1]))
    return [packed[lane] for _, lane in order]


def lanes_for(steps: Sequence[int] | IntArray, most: int, usual: int) -> int:
    """How many lanes it takes to do all jobs in the time of the longest one, but no more than `most`.

    Every number of lanes has machines of its own, which take time and memory to build. So that cohorts which
    differ from round to round need only a few, larger numbers are rounded up to one of a coarse series, two
    an octave, in which the usual number is. Where lanes take several turns, there are as many as leave the
    fewest idle in the last.

    >>> lanes_for([4, 4, 4], 10, 3), lanes_for([9, 4, 3, 2], 10, 3), lanes_for([1] * 100, 30, 100)
    (3, 2, 25)
    >>> lanes_for([1] * 100, 200, 100), lanes_for([1] * 97, 200, 100), lanes_for([1] * 60, 200, 100)
    (100, 100, 71)
    """
    counts = np.asarray(steps, dtype=np.int64)
    if not counts.any():
        return 1
    needed = -(-int(counts.sum()) // int(counts.max()))
    if needed > FEW:
        above = math.ceil(round(2 * math.log2(needed / usual), 9))
        needed = math.ceil(round(usual * 2 ** (above / 2), 9))
    return in_turns(needed, most)


def in_turns(needed: int, most: int) -> int:
    """How many lanes there are where not all that are needed fit: those of as few turns as it takes."""
    turns = -(-needed // most)
    return -(-needed // turns)


@dataclass(frozen=True)
class Schedule:
    """What every lane does at every tick, at which each takes one step."""

    steps: IntArray
    """[ticks, lanes] the plan's step that a lane runs; -1 where it has finished."""
    starts: dict[int, list[tuple[int, int]]]
    """The (lane, job) pairs that begin before a tick, by tick."""
    ends: dict[int, list[tuple[int, int]]]
    """The (lane, job) pairs that are complete before a tick, by tick."""

    @classmethod
    def of(cls, plan: Plan, jobs: Sequence[int], lanes: int) -> Schedule:
        """The schedule of some of a plan's jobs on some number of lanes."""
        chosen = list(jobs)
        first, counts = (tuple(column[chosen].tolist()) for column in (plan.first, plan.steps))
        return _schedule(tuple(chosen), first, counts, lanes)

    def stretches(self) -> Iterator[tuple[int, int]]:
        """The (first tick, end) of the stretches in which no job begins or ends."""
        return itertools.pairwise(sorted(self.starts.keys() | self.ends.keys()))


@functools.lru_cache(maxsize=8)  # cohorts of clients with as much to do share one
def _schedule(jobs: tuple[int, ...], first: tuple[int, ...], steps: tuple[int, ...], lanes: int) -> Schedule:
    order = [(lane, number) for lane, own in enumerate(pack(steps, lanes)) for number in own]
    lane_of, number_of = np.array(order, dtype=np.int64).reshape(-1, 2).T
    counts = np.array(steps, dtype=np.int64)[number_of]
    ends_at = np.cumsum(counts)
    # A lane's first tick is 0, whatever the lanes before it do.
    ends_at -= (ends_at - counts)[np.searchsorted(lane_of, lane_of)]
    starts_at = ends_at - counts
    starts: dict[int, list[tuple[int, int]]] = {}
    ends: dict[int, list[tuple[int, int]]] = {}
    for (lane, number), start, end in zip(order, starts_at.tolist(), ends_at.tolist(), strict=True):
        starts.setdefault(start, []).append((lane, jobs[number]))
        ends.setdefault(end, []).append((lane, jobs[number]))
    which, place = entries(counts, sum(steps))
    table = np.full((max(ends, default=0), lanes), -1, dtype=np.int64)
    table[starts_at[which] + place, lane_of[which]] = np.array(first)[number_of][which] + place
    return Schedule(table, starts, ends)
