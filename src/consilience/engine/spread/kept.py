"""Who of the workers keeps which memories, and who therefore gets which client."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

import numpy as np

from consilience.engine.executors.scheduling import pack
from consilience.types import IntArray

KEPT_BYTES = 2**28
"""How many bytes of memories a worker keeps at most; the first that came go first."""


class Kept:
    """What is known of the memories that workers keep.

    They have made them, so they need not be sent to them. Who is lost loses nothing that is not here as well.
    """

    def __init__(self) -> None:
        self._marks: dict[Hashable, dict[int, int]] = {}
        """The bytes of what each worker has by its mark, the oldest first."""
        self._where: dict[int, Hashable] = {}
        """Who has what."""
        self._dropped: dict[Hashable, list[int]] = {}
        """What workers have not been told yet to drop."""
        self._numbers = itertools.count(1)

    def holder(self, mark: int) -> Hashable:
        """Who has a memory; None: nobody."""
        return self._where.get(mark)

    def renew(self, worker: Hashable, known: Sequence[int], size: int) -> tuple[int, ...]:
        """The marks of new memories that a worker will have, a job each, in place of those known so far.

        Args:
            worker: Who makes them.
            known: The marks of the old ones; 0: there is none.
            size: The bytes of one.
        """
        for mark in filter(None, known):
            self._drop(mark, told=self._where.get(mark) == worker)
        fresh = tuple(itertools.islice(self._numbers, len(known)))
        own = self._marks.setdefault(worker, {})
        own |= dict.fromkeys(fresh, size)
        self._where |= dict.fromkeys(fresh, worker)
        over = sum(own.values()) - KEPT_BYTES
        while over > 0:
            oldest = next(iter(own))
            over -= own[oldest]
            self._drop(oldest, told=False)
        return fresh

    def dropped(self, worker: Hashable) -> tuple[int, ...]:
        """What a worker is to drop now."""
        return tuple(self._dropped.pop(worker, ()))

    def _drop(self, mark: int, *, told: bool) -> None:
        worker = self._where.pop(mark, None)
        if worker is not None:
            del self._marks[worker][mark]
            if not told:
                self._dropped.setdefault(worker, []).append(mark)

    def lose(self, worker: Hashable) -> None:
        """Forget what a worker had: it is gone."""
        for mark in self._marks.pop(worker, {}):
            del self._where[mark]
        self._dropped.pop(worker, None)


def dealt(loads: IntArray, holders: Sequence[int | None], workers: int) -> list[list[int]]:
    """The jobs of each worker: where their memories are, unless all would then be done later.

    >>> dealt(np.array([3, 1, 2, 2]), [1, 1, 0, 0], 2)
    [[2, 3], [0, 1]]
    >>> dealt(np.array([1, 1, 1, 1]), [0, 0, 0, None], 2)
    [[0, 1], [2, 3]]
    """
    lanes = [sorted(lane) for lane in pack(loads, workers)]
    most = max(int(loads[lane].sum()) for lane in lanes)
    busy, own = [0] * workers, [list[int]() for _ in range(workers)]
    for job in np.argsort(-loads, kind="stable").tolist():
        at = holders[job]
        if at is None or busy[at] + loads[job] > most:
            at = min(range(workers), key=busy.__getitem__)
        own[at].append(job)
        busy[at] += int(loads[job])
    lanes += [[] for _ in range(workers - len(lanes))]
    return [sorted(jobs) for jobs in own] if max(busy) <= most else lanes
