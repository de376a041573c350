"""A client of a federation with a server: it holds data and memory, and answers orders.

What a client remembers changes only once the server has said that it heard the message that went with it.
Until then both the old and the new memory are kept, so that an order that comes again, because an answer was
lost or the server was restarted, is answered again in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from consilience import tree, wire
from consilience.algorithm import Phase
from consilience.client import ScoreStep
from consilience.deploy import kept
from consilience.deploy.terms import RefusedError, Terms, address_of, place_of, read
from consilience.exchange import screen
from consilience.exchange.address import Address
from consilience.exchange.device import device_client
from consilience.learning.batches import Pool
from consilience.types import IntArray, State

NEVER = -1
"""The number of an exchange before the first."""
LARGEST = 64
"""How many models' bytes an order has at most; a method broadcasts a few."""


@dataclass(frozen=True)
class Order:
    """What a hub asks of a site: a message to answer, and which of the site's answers it has accepted."""

    data: bytes
    accepted: int = NEVER
    """The number of the newest exchange of which the hub took the site's answer into account."""


@dataclass(frozen=True)
class Own:
    """The data of a site."""

    pool: Pool
    holdout: IntArray
    """The rows that are kept back for evaluation; the others are trained on."""

    @property
    def samples(self) -> int:
        """How many rows are trained on."""
        return len(self.pool.targets) - len(self.holdout)


class Site:
    """A client that answers orders.

    Args:
        terms: What was agreed on.
        number: Which of the clients it is.
        own: Its data.
        secret: What keys its own draws; None: the seed, as in a simulation, so that others can repeat them.
        file: Where it keeps what it must not forget; None: nowhere.
    """

    def __init__(
        self, terms: Terms, number: int, own: Own, *, secret: int | None = None, file: Path | None = None
    ) -> None:
        self.terms, self.number, self.own, self.secret, self.file = terms, number, own, secret, file
        self.model: State | None = None
        """The initial model, known once the site has enrolled."""
        self.memory: State = {}
        self._pending: State | None = None
        self._answered = NEVER  # the newest exchange that was answered; the pending memory belongs to it
        self._down: State = {}  # the last broadcast, of which the next one may leave groups out
        self._restore()

    def answer(self, order: Order) -> bytes:
        """The answer to an order; RefusedError says why there is none."""
        self._check_size(order.data)
        message, header = read(order.data)
        if header.run != self.terms.run:
            raise RefusedError(f"the order is of another run ({header.run!r} instead of {self.terms.run!r})")
        if header.sender != wire.HUB or header.receiver not in (wire.HUB, self.number):
            raise RefusedError(f"the order is for {header.receiver} by {header.sender}")
        if header.kind == "enrol":
            return self._enrol(message)
        if self.model is None:
            raise RefusedError("the site has not enrolled yet")
        if header.kind == "score":
            return self._score(message, header, order.accepted)
        return self._work(message, header, order.accepted)

    @property
    def answered(self) -> int:
        """The number of the newest exchange that was answered."""
        return self._answered

    @property
    def largest(self) -> int:
        """How many bytes an order has at most."""
        return LARGEST * tree.nbytes(self.terms.task.weights_of(self.terms.task.skeleton)) + 2**20

    def _check_size(self, data: bytes) -> None:
        """Refuse what is larger than any order, before it is looked at."""
        if len(data) > self.largest:
            raise RefusedError(f"the order has {len(data):,} bytes, more than any should have")

    def _enrol(self, message: State) -> bytes:
        """Take the initial model, and say how much data there is."""
        form = tree.Schema.of(self.terms.task.weights_of(self.terms.task.skeleton))
        reason = screen.fault(message, form)
        if reason:
            raise RefusedError(f"the initial model does not fit: {reason}")
        if self.model is not None and not _equal(self.model, form.ordered(message)):
            raise RefusedError("the site has enrolled with another initial model")
        if self.model is None:
            self.model = form.ordered(message)
            self.memory = self.terms.algorithm.init_memory(self.model)
            self._save()
        counts = {"facts": {"holdout": torch.tensor(len(self.own.holdout))}}
        return wire.encode(counts, self._header(Address(0, 0), "enrol"))

    def _work(self, message: State, header: wire.Header, accepted: int) -> bytes:
        """Do what an exchange asks for, and keep what is to be remembered if the answer is accepted."""
        assert self.model is not None
        address = address_of(header)
        phase = self._phase(address)
        number = self.terms.number(address)
        if number < self._answered:
            raise RefusedError(f"order {number} is older than {self._answered}, which was answered")
        self._commit(accepted, repeated=number == self._answered)
        down = {**{group: self._down[group] for group in phase.known if group in self._down}, **message}
        if not self.terms.algorithm.reshapes():
            form = self.terms.forms(address, self.model).download
            reason = screen.fault(down, form)
            if reason:
                raise RefusedError(f"the order does not fit: {reason}")
            down = form.ordered(down)
        client = device_client(
            self.terms.task,
            self.terms.solver,
            self.own.pool,
            self.terms.work,
            seed=self.terms.seed,
            round_number=address.round,
            number=self.number,
            holdout=self.own.holdout,
            secret=self.secret,
        )
        upload, memory = phase.local(client, down, self.memory)
        if not screen.sound(upload, memory):
            raise RefusedError("training gave numbers that are not finite")
        self._down, self._pending, self._answered = down, memory, number
        self._save()
        return wire.encode(phase.travelling(upload), self._header(address, "work"), empty=True)

    def _phase(self, address: Address) -> Phase:
        if not 0 <= address.round < self.terms.rounds:
            raise RefusedError(f"there is no round {address.round}")
        try:
            return self.terms.phase(address)
        except IndexError:
            raise RefusedError(f"round {address.round} has no exchange {address.index}") from None

    def _commit(self, accepted: int, *, repeated: bool) -> None:
        """Make the pending memory the one that counts, if the hub has heard what came with it."""
        if repeated:
            return  # the hub asks again, and has heard nothing
        if self._pending is not None and accepted == self._answered:
            self.memory = self._pending
        elif accepted > self._answered:
            raise RefusedError(
                f"the hub has accepted an answer to {accepted}, of which this site knows nothing: "
                "its file is older than the federation"
            )
        self._pending = None

    def _score(self, message: State, header: wire.Header, accepted: int) -> bytes:
        """What the model, and the site's own one where there is such, score on the site's rows, as sums."""
        algorithm = self.terms.algorithm.at(max(0, header.round - 1))
        heard = self._pending is not None and accepted == self._answered
        memory = self._pending if heard and self._pending is not None else self.memory
        models = {"own": message}
        if algorithm.evaluated() == "client":
            models = {"own": algorithm.model(message, memory)}
        elif algorithm.evaluated() == "both":
            models["personal"] = algorithm.personal_model(message, memory)
        rows = {"train": self._rows(held=False), "holdout": self._rows(held=True)}
        sums = {
            f"{name} {kind}": self._tally(model, chosen)
            for name, model in models.items()
            for kind, chosen in rows.items()
            if len(chosen)
        }
        return wire.encode(sums, self._header(address_of(header), "score"), empty=True)

    def _rows(self, *, held: bool) -> IntArray:
        everything = np.arange(len(self.own.pool.targets), dtype=np.int64)
        return self.own.holdout if held else np.setdiff1d(everything, self.own.holdout)

    def _tally(self, model: State, rows: IntArray) -> dict[str, torch.Tensor]:
        return tally_of(self.terms, self.own.pool, model, rows)

    def _header(self, address: Address, kind: wire.Kind) -> wire.Header:
        return wire.Header(
            round=address.round,
            sender=self.number,
            samples=self.own.samples,
            exchange=place_of(address),
            run=self.terms.run,
            kind=kind,
        )

    def _save(self) -> None:
        if self.file is None or self.model is None:
            return
        pending = {} if self._pending is None else {"pending": self._pending}
        parts = {"model": self.model, "memory": self.memory, "down": self._needed(), **pending}
        kept.save(self.file, self.terms.run, parts, {"answered": str(self._answered)})

    def _needed(self) -> State:
        """What of the last broadcast the next one may leave out."""
        phases = [*self.terms.algorithm.setup(), *self.terms.algorithm.phases()]
        known = frozenset[str]().union(*(phase.known for phase in phases))
        return {group: params for group, params in self._down.items() if group in known}

    def _restore(self) -> None:
        found = None if self.file is None else kept.load(self.file, self.terms.run)
        if found is not None:
            parts, fields = found
            self.model, self.memory, self._down = parts["model"], parts["memory"], parts["down"]
            self._pending, self._answered = parts.get("pending"), int(fields["answered"])


def tally_of(terms: Terms, pool: Pool, model: State, rows: IntArray) -> dict[str, torch.Tensor]:
    """The sums from which a model's scores on some rows follow."""
    first = torch.zeros(1, dtype=torch.int64)
    blank = terms.task.blank_tally(pool.batch(first, torch.ones(1, dtype=pool.dtype), first[0]))
    carry, step = {"sum": blank}, ScoreStep(terms.task)
    with torch.no_grad():
        for some in torch.split(torch.from_numpy(rows), 128):
            weight = torch.ones(len(some), dtype=pool.dtype)
            carry = step(carry, pool.batch(some, weight, first[0]), model)
    return carry["sum"]


def _equal(one: State, other: State) -> bool:
    left, right = tree.flatten(one), tree.flatten(other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
