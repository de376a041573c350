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
from consilience.learning.task import Task
from consilience.types import IntArray, Params, State

NEVER = -1
"""The number of an exchange before the first."""
LARGEST = 64
"""How many models' bytes an order has at most; a method broadcasts a few."""
SCORED = ("personal", "own", "personal_train", "train")
"""What scores are about: a site's own model or the common one, on rows that it keeps back or trains on."""


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

    @property
    def trained(self) -> IntArray:
        """The rows that are trained on."""
        return np.setdiff1d(np.arange(len(self.pool.targets), dtype=np.int64), self.holdout)


class Site:
    """A client that answers orders.

    Args:
        terms: What was agreed on.
        number: Which of the clients it is.
        own: Its data; it works on the device where they are.
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
        self._down: State = {}  # what of the last broadcast the next one of its round may leave out
        self._restore()

    def answer(self, order: Order) -> bytes:
        """The answer to an order; RefusedError says why there is none."""
        self._check_size(order.data)
        message, header = read(order.data)
        message = self._here(message)
        if header.run != self.terms.run:
            raise RefusedError(
                f"the order is of another run ({header.run!r} instead of {self.terms.run!r}): "
                "the site's file has other terms than the hub's"
            )
        if header.sender != wire.HUB or header.receiver not in (wire.HUB, self.number):
            raise RefusedError(f"the order is for {header.receiver} by {header.sender}")
        if header.kind == "enrol":
            return self._enrol(message)
        if self.model is None:
            raise RefusedError("the site has not enrolled yet")
        if header.kind == "score":
            return self._score(message, header, order.accepted)
        if header.kind == "work":
            return self._work(message, header, order.accepted)
        raise RefusedError(f"the order is about {header.kind!r}")

    @property
    def answered(self) -> int:
        """The number of the newest exchange that was answered."""
        return self._answered

    @property
    def largest(self) -> int:
        """How many bytes an order has at most."""
        return LARGEST * tree.nbytes(self._weights) + 2**20

    @property
    def _weights(self) -> State:
        """Weights of the form of a model's."""
        return self.terms.task.weights_of(self.terms.task.skeleton)

    def _here(self, state: State) -> State:
        """A state on the device where the site's data are."""
        return tree.map_leaves(lambda value: value.to(self.own.pool.targets.device), state)

    def _check_size(self, data: bytes) -> None:
        """Refuse what is larger than any order, before it is looked at."""
        if len(data) > self.largest:
            raise RefusedError(f"the order has {len(data):,} bytes, more than any should have")

    def _enrol(self, message: State) -> bytes:
        """Take the initial model, and say how much data there is."""
        model = _fitting(message, self._weights, "the initial model")
        if self.model is not None and not _equal(self.model, model):
            raise RefusedError("the site has enrolled with another initial model")
        if self.model is None:
            self.model = model
            self.memory = self.terms.algorithm.init_memory(model)
            self._save()
        return wire.encode({}, self._header(Address(0, 0), "enrol"), empty=True)

    def _work(self, message: State, header: wire.Header, accepted: int) -> bytes:
        """Do what an exchange asks for, and keep what is to be remembered if the answer is accepted.

        Nothing that the site knows changes before the order is known to be sound and is carried out.
        """
        address = address_of(header)
        phase = self._phase(address)
        number = self.terms.number(address)
        if number < self._answered:
            raise RefusedError(f"order {number} is older than {self._answered}, which was answered")
        # An order that comes again says that its answer was not heard, so that nothing new was accepted.
        memory = self.memory if number == self._answered else self._heard(accepted)
        down = self._whole(message, address, number)
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
        upload, after = phase.local(client, down, memory)
        if not screen.sound(upload, after):
            raise RefusedError("training gave numbers that are not finite")
        self.memory, self._pending, self._answered = memory, after, number
        self._down = self._needed(down, address)
        self._save()
        return wire.encode(phase.travelling(upload), self._header(address, "work"), empty=True)

    def _phase(self, address: Address) -> Phase:
        if not 0 <= address.round < self.terms.rounds:
            raise RefusedError(f"there is no round {address.round}")
        try:
            return self.terms.phase(address)
        except IndexError:
            raise RefusedError(f"round {address.round} has no exchange {address.index}") from None

    def _whole(self, message: State, address: Address, number: int) -> State:
        """What was broadcast, with what an order leaves out since it came with the exchange before."""
        assert self.model is not None
        known = self.terms.phase(address).known
        if known and self._answered not in (number - 1, number):
            raise RefusedError(f"the order builds on exchange {number - 1}, which this site has not answered")
        down = {**{group: self._down[group] for group in known if group in self._down}, **message}
        if not self.terms.algorithm.reshapes():
            return _fitting(down, self.terms.forms(address, self.model).download, "the order")
        if not screen.sound(down):  # what form it has follows from the rounds before, which the hub knows
            raise RefusedError("the order does not fit: it is not finite")
        return down

    def _heard(self, accepted: int) -> State:
        """The memory that counts: the pending one, if the hub has heard what came with it."""
        if accepted > self._answered:
            raise RefusedError(
                f"the hub has accepted an answer to {accepted}, of which this site knows nothing: "
                "its file is older than the federation"
            )
        return self._pending if self._pending is not None and accepted == self._answered else self.memory

    def _score(self, message: State, header: wire.Header, accepted: int) -> bytes:
        """What the model, and the site's own one where there is such, score on the site's rows, as sums."""
        address = address_of(header)
        if address.setup or address.index or not 0 <= address.round <= self.terms.rounds:
            raise RefusedError(f"there is nothing to score in round {address.round}")
        algorithm, memory = self.terms.algorithm.at(max(0, address.round - 1)), self._heard(accepted)
        alone = algorithm.evaluated() == "client"  # then there is no common model, and nothing is sent
        if not self.terms.algorithm.reshapes():
            message = _fitting(message, {} if alone else self._weights, "the model")
        elif not screen.sound(message):
            raise RefusedError("the model does not fit: it is not finite")
        common = algorithm.model(message, memory) if alone else message
        models = {"own": common, "train": common}
        if algorithm.evaluated() == "both":
            personal = algorithm.personal_model(message, memory)
            models |= {"personal": personal, "personal_train": personal}
        sums = {
            kind: tally_of(self.terms, self.own.pool, model, rows)
            for kind, model in models.items()
            if len(rows := self.own.trained if kind.endswith("train") else self.own.holdout)
        }
        return wire.encode(sums, self._header(address, "score"), empty=True)

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
        parts = {"model": self.model, "memory": self.memory, "down": self._down, **pending}
        kept.save(self.file, self.terms.run, parts, {"answered": str(self._answered)})

    def _needed(self, down: State, address: Address) -> State:
        """What of a broadcast the next one of its round may leave out."""
        algorithm = self.terms.algorithm
        phases = algorithm.setup() if address.setup else algorithm.at(address.round).phases()
        known = frozenset[str]().union(*(phase.known for phase in phases))
        return {group: params for group, params in down.items() if group in known}

    def _restore(self) -> None:
        found = None if self.file is None else kept.load(self.file, self.terms.run)
        if found is None or self.file is None:
            return
        with kept.understood(self.file):
            parts, fields = {name: self._here(state) for name, state in found[0].items()}, found[1]
            self.model, self.memory, self._down = parts["model"], parts["memory"], parts["down"]
            self._pending, self._answered = parts.get("pending"), int(fields["answered"])


def blank_sums(task: Task, pool: Pool) -> Params:
    """The sums of `tally_of` over no rows."""
    first = torch.zeros(1, dtype=torch.int64, device=pool.targets.device)
    return task.blank_tally(pool.batch(first, torch.ones_like(first, dtype=pool.dtype), first[0]))


def tally_of(terms: Terms, pool: Pool, model: State, rows: IntArray) -> Params:
    """The sums from which a model's scores on some rows follow."""
    key = torch.zeros((), dtype=torch.int64, device=pool.targets.device)
    carry, step = {"sum": blank_sums(terms.task, pool)}, ScoreStep(terms.task)
    with torch.no_grad():
        for some in torch.split(torch.from_numpy(rows).to(key.device), 128):
            weight = torch.ones_like(some, dtype=pool.dtype)
            carry = step(carry, pool.batch(some, weight, key), model)
    return carry["sum"]


def _fitting(message: State, form: tree.Schema | State, what: str) -> State:
    """A message in the order of a form that it has; RefusedError says why it has not."""
    schema = form if isinstance(form, tree.Schema) else tree.Schema.of(form)
    reason = screen.fault(message, schema)
    if reason:
        raise RefusedError(f"{what} does not fit: {reason}")
    return schema.ordered(message)


def _equal(one: State, other: State) -> bool:
    left, right = tree.flatten(one), tree.flatten(other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
