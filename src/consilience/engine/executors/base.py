"""How work on many clients is carried out. Executors differ in speed, never in what is computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from consilience import tree
from consilience.client import Fold, Rows
from consilience.exchange.address import Address
from consilience.exchange.cohort import Cohort
from consilience.learning.batches import Pool
from consilience.types import State

T = TypeVar("T")

UNLIMITED = 2**62

Work = Callable[[Fold, Sequence[State]], tuple[State, State]]
"""A function that gives one client's upload and new memory, from its fold and its rows of some states."""


Order = Address | Rows
"""Clients' work in a form that can travel: the exchange that it belongs to, or the rows that models are
scored on."""


@dataclass(frozen=True)
class Errand:
    """What the clients of a cohort are sent to do."""

    work: Work
    example: Work | None = None
    """Work whose results have the same form and which is quick, for where only that matters.

    By default it is the work itself, over no batches.
    """
    key: Hashable = None
    """What tells the work from other work, as for `Executor.map`."""
    order: Order | None = None
    """How another process that has the same world is told of it."""
    alike: frozenset[int] = frozenset()
    """Which of the states that jobs start from are alike for all jobs of a replica."""
    remembered: int | None = None
    """Which of them clients remember: after the work it is the outcome's memory where the upload is sound."""
    operations: Callable[[], int] | None = None
    """Gives how many multiplications and additions a row of the test set takes, where it is scored."""
    marks: tuple[int, ...] = ()
    """What others may know these memories by, one a job, if somebody is to: see `Outcome.marks`."""


@dataclass(frozen=True)
class Outcome:
    """What a cohort did. Every tensor is [jobs, ...]."""

    uploads: State
    memories: State
    arrived: Tensor
    """[jobs] bool: whether the upload is well-formed, and it and the memory are finite."""
    tally: dict[str, Tensor]
    """[jobs] sums that training logged: `loss` and `rows`."""
    marks: tuple[int, ...] = ()
    """What somebody else who keeps the memories knows them by, one a job; 0: nobody does."""


def joined(parts: Sequence[Outcome]) -> Outcome:
    """The outcome of several parts of a cohort, one after the other."""
    return Outcome(
        tree.concatenate([part.uploads for part in parts]),
        tree.concatenate([part.memories for part in parts]),
        torch.cat([part.arrived for part in parts]),
        {name: torch.cat([part.tally[name] for part in parts]) for name in parts[0].tally},
    )


def one_by_one(function: Callable[..., State], dims: Sequence[int | None], *states: State) -> State:
    """What `Executor.map` gives, by calling the function for one row after the other, as ordinary code."""
    pairs = list(zip(dims, states, strict=True))
    mapped = (value for dim, state in pairs if dim == 0 for value in tree.flatten(state).values())
    rows = range(len(next(mapped)))
    return tree.stack(
        [function(*(s if dim is None else tree.index(s, row) for dim, s in pairs)) for row in rows]
    )


class Executor(ABC):
    """What carries out work on clients, hubs and models."""

    name: ClassVar[str]

    def __init__(self, pool: Pool, copied: int = 2**28, chunk: int = UNLIMITED) -> None:
        self.pool, self.copied = pool, copied
        """States of at most so many bytes may be copied so that nobody has to wait."""
        self.chunk = chunk
        """How many jobs are computed at a time: what they hold fits into memory."""

    @abstractmethod
    def map(
        self,
        function: Callable[..., State],
        dims: Sequence[int | None],
        *states: State,
        key: Hashable = None,
    ) -> State:
        """What `function` gives for every row of the states with dim 0; those with dim None are shared.

        What the function does must follow from the key and the states' form, so that it need not be looked at
        again where both are known; with None for a key it is.
        """

    @abstractmethod
    def clients(
        self,
        cohort: Cohort,
        errand: Errand,
        states: Sequence[State],
        *,
        shared: Sequence[State] = (),
    ) -> Outcome:
        """The outcome of every job's work; a job is one client's in one replica.

        Args:
            cohort: The jobs.
            errand: What each of them does.
            states: What each of them starts from, one row a job.
            shared: More states, which all of them see whole.
        """

    def with_room(self, work: Callable[[], T]) -> T:
        """What some other work gives; where memory runs out, it is done again after some was given back."""
        return work()

    def close(self) -> None:  # noqa: B027
        """Give back what the executor holds beside memory, e.g. processes."""
