"""Workers in this process that run whole replicas, and may die."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import pytest

from consilience.engine.determinism import Precision
from consilience.engine.spread.leg import Leg, Make, Ran, Runner
from consilience.engine.spread.worker import Arrays


class HandsHere:
    """Workers of this process; each answer is worked out when somebody asks for it, in turns.

    Args:
        count: How many there are; who dies is replaced.
        deadly: The numbers of the legs in which a worker dies, with all that it had.
    """

    def __init__(self, count: int, deadly: Collection[int] = ()) -> None:
        self.deadly = deadly
        self.workers = [Runner() for _ in range(count)]
        self.asked: deque[tuple[int, Runner, Leg, Any, Arrays | None]] = deque()
        self.legs: list[Leg] = []
        self.sent = 0
        self.most = 0
        """How many were at work at once."""

    def there(self) -> list[Any]:
        return list(self.workers)

    def expected(self) -> int:
        return len(self.workers)

    def hand_out(self, make: Make, precision: Precision) -> Any:
        return make, precision

    def ask(self, worker: Any, leg: Leg, made: Any, start: Arrays | None) -> Any:
        self.sent += 1
        self.asked.append((self.sent, worker, leg, made, start))
        self.most = max(self.most, len({id(one[1]) for one in self.asked if one[1] in self.workers}))
        return self.sent

    def answers(self, *, wait: bool) -> list[tuple[Any, Ran | None]]:
        if not wait:
            return []
        ticket, worker, leg, made, start = self.asked.popleft()
        self.legs.append(leg)
        if worker in self.workers and len(self.legs) in self.deadly:
            self.workers[self.workers.index(worker)] = Runner()
        if worker not in self.workers:
            return [(ticket, None)]
        return [(ticket, worker.run(leg, lambda: made, start))]

    def forget(self, worker: Any, course: int) -> None:
        worker.forget(course)

    def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def hands() -> Callable[..., HandsHere]:
    """Makes such workers."""
    return HandsHere
