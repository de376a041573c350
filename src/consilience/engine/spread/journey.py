"""Replicas that are whole at workers: who has which, how far they are, and what came back.

Nothing here waits for a clock or remembers who did what: a leg that was lost with its worker begins again, at
another one, from the last snapshot that came back.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from consilience.engine.determinism import Precision
from consilience.engine.executors.scheduling import pack
from consilience.engine.rounds.pace import Pace
from consilience.engine.rounds.pending import Record
from consilience.engine.rounds.simulation import ClientResult
from consilience.engine.spread.dividing import of_group, united
from consilience.engine.spread.leg import Leg, Make, Ran, replica_of
from consilience.engine.spread.worker import Arrays, packed, unpacked
from consilience.types import IntArray, State

LOG = logging.getLogger("consilience")

CPU = torch.device("cpu")
NUMBERS = itertools.count()
"""Tells the courses of this process apart."""
IN_FLIGHT = 2
"""How many legs a worker has been told of: one that it runs, and one so that it need not wait."""


class Hands(Protocol):
    """Workers that run legs, and how they are reached."""

    def there(self) -> list[Any]:
        """Those that are at work now; at least one."""

    def expected(self) -> int:
        """How many there are, or will be in a moment."""

    def hand_out(self, make: Make, precision: Precision) -> Any:
        """What stands for what makes simulations, in `ask`."""

    def ask(self, worker: Any, leg: Leg, made: Any, start: Arrays | None) -> Any:
        """Let a worker run a leg; what is returned tells its answer from others."""

    def answers(self, *, wait: bool) -> list[tuple[Any, Ran | None]]:
        """The answers that have come; None for one that was lost with its worker. Waits for at least one."""

    def forget(self, worker: Any, course: int) -> None:
        """Let a worker drop the simulation of a course."""

    def close(self) -> None:
        """Let the workers go."""


@dataclass(eq=False)
class Course:
    """Some replicas on their way. Rounds are counted from the beginning."""

    replicas: tuple[int, ...]
    pace: Pace
    made: Any
    start: Arrays | None
    """The newest snapshot; None before the first."""
    known: int
    """How many rounds were told."""
    watched: bool
    """Whether somebody looks at every round before the next one may begin."""
    number: int = field(default_factory=NUMBERS.__next__)
    worker: Any = None
    stands: bool = False
    """Whether the worker has been told where to begin."""
    urgent: bool = False
    """Whether somebody waits for it now."""
    asked: int = 0
    """How many rounds were asked for."""
    wanted: int = 0
    """How many may be asked for now."""
    wish: bool = False
    """Whether a snapshot of where it stands is wanted, and no further round."""
    flying: deque[Any] = field(default_factory=deque)
    """What tells the answers that are missing, in order."""
    told: deque[list[Record]] = field(default_factory=deque)
    """The records of rounds that nobody has looked at yet."""
    snapshots: dict[int, Arrays] = field(default_factory=dict)
    """Those that nobody has put together yet, by round."""
    clients: list[ClientResult] | None = None

    def __post_init__(self) -> None:
        self.asked = self.known

    @property
    def over(self) -> bool:
        """Whether no round is left to be asked for."""
        return self.asked == self.pace.rounds

    @property
    def idle(self) -> bool:
        """Whether something may be asked for that has not been."""
        if self.wish:
            return not self.flying
        most = 1 if self.watched else IN_FLIGHT
        return len(self.flying) < most and self.asked < min(self.wanted, self.pace.rounds)

    def leg(self) -> Leg:
        """What to ask for now: the next round, or a snapshot."""
        until = self.asked + (not self.wish)
        kept = self.wish or self.pace.keeps(until)
        return Leg(self.number, self.replicas, self.asked, until, self.pace, kept)

    def take(self, ran: Ran) -> None:
        """Take the answer to the first leg of those that were asked for."""
        self.flying.popleft()
        self.told += ran.rounds
        self.known += len(ran.rounds)
        self.clients = ran.clients or self.clients
        if ran.snapshot is not None:
            self.start, self.wish = ran.snapshot, False
            self.snapshots[self.known] = ran.snapshot

    def leave(self) -> None:
        """Be without a worker; what was asked for is not answered."""
        self.worker, self.stands, self.asked = None, False, self.known
        self.flying.clear()


class Dispatch:
    """Who runs which course. Courses that are not at a worker get one in the order in which they came."""

    def __init__(self, hands: Hands) -> None:
        self.hands = hands
        self.courses: list[Course] = []
        self._answers: dict[Any, Ran] = {}

    def idle(self) -> int:
        """How many workers have nothing more to do, when all courses have got one."""
        return self.hands.expected() - sum(not course.over for course in self.courses)

    def pump(self, *, wait: bool) -> None:
        """Ask for what may be asked for, and take the answers that have come."""
        self._place()
        for course in self.courses:
            while course.worker is not None and course.idle:
                self._ask(course)
        if not any(course.flying for course in self.courses):
            return
        for ticket, ran in self.hands.answers(wait=wait):
            for course in self.courses:
                if ticket in course.flying:  # else nobody waits for it any more
                    self._take(course, ticket, ran)

    def _take(self, course: Course, ticket: Any, ran: Ran | None) -> None:
        if ran is None:
            course.leave()
            return
        self._answers[ticket] = ran
        while course.flying and course.flying[0] in self._answers:  # they may overtake each other
            came = self._answers.pop(course.flying[0])
            course.take(came)
            for line in came.said:
                LOG.warning("%s", line)

    def _place(self) -> None:
        homeless = [course for course in self.courses if course.worker is None and course.idle]
        there = self.hands.there() if homeless else []
        for course in homeless:
            busy = [sum(other.worker == one and not other.over for other in self.courses) for one in there]
            least = min(range(len(there)), key=busy.__getitem__)
            # Others can wait until a worker is free.
            if busy[least] == 0 or course.urgent:
                course.worker = there[least]

    def _ask(self, course: Course) -> None:
        leg = course.leg()
        start = None if course.stands else course.start
        course.flying.append(self.hands.ask(course.worker, leg, course.made, start))
        course.asked, course.stands = leg.until, True

    def leave(self, courses: Sequence[Course]) -> None:
        """Let some courses go."""
        for course in courses:
            if course.worker is not None:
                self.hands.forget(course.worker, course.number)
            course.leave()
        self.courses = [course for course in self.courses if course not in courses]


class Journey:
    """All replicas of an arm on their way.

    Args:
        dispatch: Who runs them.
        make: Makes the simulation of some of them.
        precision: How exact products are on a GPU.
        loads: [replicas] how much there is to do for each.
        population: How many clients a replica has.
        pace: What is due after which round.
        start: The snapshot to begin with; None: at the beginning.
        watched: Whether somebody looks at every round before the next one may begin.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        make: Make,
        precision: Precision,
        loads: IntArray,
        population: int,
        pace: Pace,
        start: State | None = None,
        *,
        watched: bool = False,
    ) -> None:
        self._dispatch, self._population, self.pace = dispatch, population, pace
        self.round = int(start["clock"]["round"]) if start else 0
        """How many rounds somebody has looked at."""
        self._last = pace.rounds
        self._whole = (self.round, start)
        made = dispatch.hands.hand_out(make, precision)
        groups = [tuple(sorted(own)) for own in pack(loads, dispatch.hands.expected())]
        self._courses = [
            Course(
                group,
                pace,
                made,
                packed(of_group(start, group, population)) if start else None,
                self.round,
                watched,
            )
            for group in groups
        ]
        self._allow()
        dispatch.courses += self._courses

    def _allow(self) -> None:
        """Let the courses go on: where nobody watches no further than two snapshots from here."""
        for course in self._courses:
            ahead = 1 if course.watched else 2 * self.pace.keep_every
            course.wanted = min(self.round + ahead, self._last)

    def halt(self) -> int:
        """Let no course go further than the furthest one is, and say which round that is."""
        self._last = max(course.asked for course in self._courses)
        return self._last

    def next(self, *, wait: bool) -> list[Record] | None:
        """The records of the next round, a record a replica; None where it is not over, and nobody waits."""
        if self.round == self.pace.rounds:
            return None
        self._allow()
        self._dispatch.pump(wait=False)
        if wait:
            self._wait(lambda course: bool(course.told))
        if not all(course.told for course in self._courses):
            return None
        records = [record for course in self._courses for record in course.told.popleft()]
        self.round += 1
        seconds = max(record.seconds for record in records)  # a round takes as long as the slowest does
        records = [replace(record, seconds=seconds) for record in records]
        return sorted(records, key=lambda record: record.replica)

    def _wait(self, ready: Callable[[Course], bool]) -> None:
        """Wait until all courses are ready; they come before those that nobody waits for."""
        while not all(map(ready, self._courses)):
            for course in self._dispatch.courses:
                course.urgent = course in self._courses
            self._dispatch.pump(wait=True)

    def snapshot(self) -> State:
        """The state of all replicas after the round that was looked at last.

        Where nobody watches there are those that the pace has, that of the beginning, and that of a halt.
        """
        if self._whole[0] != self.round:
            for course in self._courses:
                assert self.round in course.snapshots or course.known == self.round
                course.wish = self.round not in course.snapshots
            self._wait(lambda course: self.round in course.snapshots)
            parts = [unpacked(course.snapshots[self.round], CPU) for course in self._courses]
            self._whole = (self.round, united(parts, [c.replicas for c in self._courses], self._population))
            for course in self._courses:
                course.snapshots = {at: one for at, one in course.snapshots.items() if at > self.round}
        state = self._whole[1]
        assert state is not None
        return state

    def clients(self) -> list[ClientResult] | None:
        """Every client's result at the end, where workers have told them."""
        found = [course.clients for course in self._courses]
        if self.round < self.pace.rounds or any(one is None for one in found):
            return None
        lines = [line for one in found for line in one or ()]
        return sorted(lines, key=replica_of)

    def close(self) -> None:
        """Let the workers drop what they have of it."""
        self._dispatch.leave(self._courses)
