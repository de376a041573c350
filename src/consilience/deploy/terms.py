"""What the members of a federation have agreed on before its first round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from consilience import tree, wire
from consilience.algorithm import Algorithm, Phase
from consilience.deploy.refused import RefusedError as RefusedError  # noqa: PLC0414  # found here, too
from consilience.exchange import screen
from consilience.exchange.address import Address
from consilience.exchange.cohort import LocalWork
from consilience.exchange.schemas import Exchanged, dry_run, idle_client, schemas_of
from consilience.graphs.base import Adjacency
from consilience.learning.solvers import Solver
from consilience.learning.task import Task
from consilience.types import Params, State

MEMBERS = 10**6
"""How many members a federation may have."""


@dataclass(frozen=True)
class Terms:
    """What the members of a federation have agreed on: who knows them can take part, as a hub or a client."""

    task: Task
    algorithm: Algorithm
    """The method, which knows what the data and the model look like."""
    solver: Solver
    work: LocalWork
    seed: int
    """What everybody may know: it draws cohorts, graphs and initial weights, and no client's own numbers."""
    rounds: int
    population: int
    """How many clients or nodes there are."""
    participation: int
    """How many of them take part in a round, at most."""
    digest: str
    """Tells these terms from all others."""
    sums: Params
    """Sums over no rows, in the form of those from which scores follow."""
    adjacency: Adjacency | None = None
    """[nodes, nodes] who hears whom; None where there is a server."""

    @property
    def run(self) -> str:
        """What messages call the run."""
        return self.digest[: wire.RUN_DIGITS]

    @property
    def graph(self) -> bool:
        """Whether members are peers on a graph."""
        return self.adjacency is not None

    def addresses(self, round_number: int) -> list[Address]:
        """The exchanges of a round; before the first there are those of the setup."""
        setup = [Address(0, index, setup=True) for index in range(len(self.algorithm.setup()))]
        own = [Address(round_number, i) for i in range(len(self.algorithm.at(round_number).phases()))]
        return (setup if round_number == 0 else []) + own

    def phase(self, address: Address) -> Phase:
        """The exchange at an address."""
        return address.phase(self.algorithm)

    def number(self, address: Address) -> int:
        """The number of an exchange since the run began, by which older messages are told from newer ones."""
        if address.setup:
            return address.index
        while len(self._begun) <= address.round:
            before = len(self._begun) - 1
            self._begun.append(self._begun[before] + len(self.algorithm.at(before).phases()))
        return self._begun[address.round] + address.index

    @cached_property
    def _begun(self) -> list[int]:
        """The number of the first exchange of each round, as far as anybody has asked."""
        return [len(self.algorithm.setup())]

    def forms(self, address: Address, model: State) -> Exchanged:
        """What the messages of an exchange look like, for models of the form of this one.

        Where forms change in the course of a run (`Algorithm.reshapes`), ask `form_after` instead.
        """
        algorithm = self.algorithm if address.setup else self.algorithm.at(address.round)
        known = self._forms.get((algorithm, address.setup))
        if known is None:
            known = schemas_of(
                algorithm, self.task, self.solver, self.work, model, peer=self.graph, setup=address.setup
            )
            self._forms[algorithm, address.setup] = known
        return known[address.index]

    def form_after(self, address: Address, down: State, memory: State) -> tuple[Exchanged, State]:
        """What messages look like that answer one, and a client's memory afterwards, by a dry run."""
        device = next(iter(tree.flatten(down).values())).device
        client = idle_client(self.task, self.solver, self.work, device, peer=self.graph)
        form, _, after = dry_run(self.phase(address), client, down, memory)
        return form, after

    @cached_property
    def _forms(self) -> dict[tuple[Algorithm, bool], tuple[Exchanged, ...]]:
        return {}


def check_header(header: wire.Header, terms: Terms, kind: wire.Kind, address: Address, sender: int) -> None:
    """Refuse a message that is of another run, exchange or kind, or by somebody else, than expected."""
    if header.run != terms.run:
        raise RefusedError(f"it belongs to another run ({header.run!r} instead of {terms.run!r})")
    if header.kind != kind:
        raise RefusedError(f"it is about {header.kind!r} instead of {kind!r}")
    if header.sender != sender:
        raise RefusedError(f"it calls itself {header.sender}")
    found, expected = (header.round, header.exchange), (address.round, place_of(address))
    if found != expected:
        shown = "round {}, exchange {}".format
        raise RefusedError(f"it is of {shown(*found)} instead of {shown(*expected)}")


def place_of(address: Address) -> int:
    """What a header calls an exchange: its number, negative for those of the setup."""
    return -1 - address.index if address.setup else address.index


def address_of(header: wire.Header) -> Address:
    """The exchange that a header names."""
    setup = header.exchange < 0
    return Address(header.round, -1 - header.exchange if setup else header.exchange, setup)


def read(data: bytes, expected: int | None = None) -> tuple[State, wire.Header]:
    """A message, whose size is known beforehand where `expected` says so; anything else is refused."""
    if expected is not None and len(data) != expected:
        raise RefusedError(f"it has {len(data):,} bytes instead of {expected:,}")
    try:
        return wire.decode(data)
    except wire.WireError as error:
        raise RefusedError(str(error)[:200]) from None


def check_form(message: State, form: tree.Schema) -> None:
    """Refuse a message of another form than is expected, names in another order among it, or with NaN."""
    reason = screen.fault(message, form)
    if reason:
        raise RefusedError(reason)
    if tuple(tree.flatten(message)) != form.paths:
        raise RefusedError("its names are in another order")
