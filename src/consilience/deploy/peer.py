"""A node of a federation without a server: it works, tells its neighbours, hears them, and combines.

Whoever carries messages calls `speak` and `hear` in turns, once for every exchange. Both ends of a link count
exchanges alike, so that a message of another one is known for what it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from consilience import tree, wire
from consilience.algorithm import Phase
from consilience.client import Client
from consilience.deploy import kept
from consilience.deploy.site import Own, tally_of
from consilience.deploy.terms import RefusedError, Terms, check_form, check_header, place_of, read
from consilience.exchange import screen
from consilience.exchange.address import Address
from consilience.exchange.device import device_client
from consilience.exchange.inbox import Arrival, make_inbox, screened
from consilience.exchange.traffic import Traffic, times
from consilience.graphs.base import degrees_of, mixing_of
from consilience.types import Params, State


@dataclass(frozen=True)
class Heard:
    """How an exchange went at a node."""

    address: Address
    heard: tuple[int, ...]
    """The nodes whose messages were combined, itself among them."""
    refused: dict[int, str]
    """Why others were not, by sender."""


@dataclass
class _Progress:
    """Where a node stands."""

    round: int = 0
    place: int = 0
    """The number of the exchange among those of the round, the setup's included."""
    samples: dict[int, int] = field(default_factory=dict)
    """How many rows others have said that they have."""
    degrees: dict[int, int] = field(default_factory=dict)
    """How many of their neighbours have data, as neighbours have said."""
    traffic: Traffic = field(default_factory=Traffic)


class Peer:
    """A node that speaks and hears.

    Args:
        terms: What was agreed on; there is a graph.
        number: Which of the nodes it is.
        own: Its data.
        model: Its initial model.
        secret: What keys its own draws; None: the seed, as in a simulation.
        file: Where it keeps what it must not forget; None: nowhere.
        staleness: By how many rounds messages may be older than the node's round (they may be newer, too);
            None: they are of the same one.
    """

    def __init__(
        self,
        terms: Terms,
        number: int,
        own: Own,
        model: State,
        *,
        secret: int | None = None,
        file: Path | None = None,
        staleness: int | None = None,
    ) -> None:
        self.terms, self.number, self.own, self.model = terms, number, own, model
        self.secret, self.file, self.staleness = secret, file, staleness
        self.hub = terms.algorithm.init_hub(model)
        self.memory = terms.algorithm.init_memory(model)
        self.links: dict[int, State] = {}
        """What the node remembers of those whom it answers."""
        self._now = _Progress()
        self._last: dict[str, State] = {}  # "place sender": what the next message of theirs may leave out
        self._upload: State | None = None  # what the node said in the exchange that runs
        self._heard: dict[int, State] = {}  # the messages of the exchange before, for replies
        self._restore()

    @property
    def round(self) -> int:
        """The round that runs, counted from 0."""
        return self._now.round

    @property
    def done(self) -> bool:
        """Whether all rounds are over."""
        return self._now.round >= self.terms.rounds

    @property
    def traffic(self) -> Traffic:
        """The bytes of all messages so far, by group."""
        return self._now.traffic

    @property
    def address(self) -> Address:
        """The exchange that runs."""
        return self.terms.addresses(self._now.round)[self._now.place]

    @property
    def neighbours(self) -> list[int]:
        """Who hears this node, and whom it hears."""
        assert self.terms.adjacency is not None
        return [int(node) for node in np.flatnonzero(self.terms.adjacency[self.number])]

    def partners(self) -> list[int]:
        """The nodes whose messages may come now: neighbours, or all where messages are passed on."""
        if not self.terms.phase(self.address).flooded:
            return self.neighbours
        return [node for node in range(self.terms.population) if node != self.number]

    @property
    def exchange(self) -> int:
        """The number of the exchange that runs, since the run began."""
        return self.terms.number(self.address)

    def expected(self) -> dict[int, int]:
        """The bytes of a message, in the exchange that runs and in the next, by the exchange's number."""
        places = self.terms.addresses(self._now.round)[self._now.place :]
        following = [*places, *self.terms.addresses(self._now.round + 1)][:2]
        return {self.terms.number(one): wire.size_of(self._travelling(one)) for one in following}

    def _travelling(self, address: Address) -> tree.Schema:
        """What a message of an exchange looks like on its way."""
        phase = self.terms.phase(address)
        return self.terms.forms(address, self.model).upload.without(
            phase.kept | phase.rebuilt | phase.private
        )

    @property
    def met(self) -> bool:
        """Whether all neighbours have said how many rows they have."""
        return all(node in self._now.samples for node in self.neighbours)

    @property
    def degree(self) -> int:
        """How many neighbours have data, as far as they have said; the others are taken to have some."""
        return sum(node not in self._silent for node in self.neighbours)

    def meet(self, node: int, samples: int, degree: int | None = None) -> None:
        """Take note of what a neighbour says of itself; RefusedError where it has said otherwise.

        Args:
            node: Who it is.
            samples: How many rows it has.
            degree: How many of its neighbours have data; None where it does not know yet.
        """
        known = self._now.samples.setdefault(node, samples)
        if samples != known:
            raise RefusedError(f"it claims {samples} samples, and had {known}")
        if degree is not None:
            self._now.degrees[node] = degree

    def join(self, round_number: int) -> None:
        """Go on with a round that others are in, after an absence; the model stays as it was."""
        if round_number > self._now.round:
            self._now.round, self._now.place, self._heard = round_number, 0, {}
            self._save()

    # One exchange.

    def speak(self) -> dict[int, bytes]:
        """Do the work of the exchange that runs, and return what to tell whom."""
        phase = self.terms.phase(self.address)
        self._upload = None
        if not self.own.samples:
            return {}  # it has nothing to say, and follows those whom it hears
        if phase.replies:
            return self._reply(phase)
        upload, memory = phase.local(self._client(), phase.broadcast(self.hub), self.memory)
        if not screen.sound(upload, memory):
            return {}
        self._upload, self.memory = upload, memory
        data = wire.encode(phase.travelling(upload), self._header(wire.HUB), empty=True)
        said = dict.fromkeys(self.partners(), data)
        self._count(phase, upload, sent=len(said))
        return said

    def _reply(self, phase: Phase) -> dict[int, bytes]:
        """An answer for each of those who were heard in the exchange before."""
        said = {}
        for host, message in sorted(self._heard.items()):
            link = self.links.get(host) or self.terms.algorithm.init_link(self.model)
            upload, after = phase.local(self._client(host), message, link)
            if screen.sound(upload, after):
                self.links[host] = after
                said[host] = wire.encode(phase.travelling(upload), self._header(host), empty=True)
                self._count(phase, upload, sent=1)
        return said

    def hear(self, arrived: Mapping[int, bytes]) -> Heard:
        """Combine what came in the exchange that runs, and turn to the next one.

        Args:
            arrived: Messages, by who the connection says has sent them.
        """
        address, phase = self.address, self.terms.phase(self.address)
        form = self.terms.forms(address, self.model)
        travelling = self._travelling(address)
        schema = form.message(phase)
        arrivals: list[Arrival] = []
        refused: dict[int, str] = {}
        for sender, data in sorted(arrived.items()):
            try:
                arrivals.append(self._arrival(sender, data, phase, travelling, schema))
            except RefusedError as error:
                refused[sender] = str(error)
        self._now.traffic.add(
            Traffic(down=times(len(arrivals), wire.message_bytes(travelling.zeros("meta"))))
        )
        others, unfit = screened(arrivals, schema)
        refused |= unfit
        heard = self._combine(phase, others, form.upload)
        self._heard = {} if phase.replies else {one.sender: one.message for one in others}
        self._upload = None
        self._go_on()
        self._save()
        return Heard(address, heard, refused)

    def _combine(self, phase: Phase, others: tuple[Arrival, ...], form: tree.Schema) -> tuple[int, ...]:
        """Let the method combine what was heard; return by whom."""
        if phase.replies:
            if others:
                self.hub = phase.combine(self.hub, make_inbox(others, population=self.terms.population))
            return tuple(one.sender for one in others)
        everything = list(others)
        if self._upload is not None:
            mine = Arrival(self.number, self.own.samples, tree.without(self._upload, phase.private))
            everything = sorted([*others, mine], key=lambda one: one.sender)
        if everything:
            inbox = make_inbox(
                everything,
                population=self.terms.population,
                itself=self.number,
                own=form.zeros() if self._upload is None else self._upload,
                mixing=self._mixing([one.sender for one in everything], flooded=phase.flooded),
            )
            self.hub = phase.combine(self.hub, inbox)
        return tuple(one.sender for one in everything)

    def _mixing(self, senders: list[int], *, flooded: bool) -> Tensor:
        """[senders] the node's Metropolis-Hastings weights."""
        assert self.terms.adjacency is not None
        links, nodes = self.terms.adjacency, self.terms.population
        if flooded:
            links = ~np.eye(nodes, dtype=np.bool_)
        heard = np.zeros((nodes, nodes), dtype=np.bool_)
        heard[self.number, senders] = True
        speaks = np.array([node not in self._silent for node in range(nodes)])
        degrees = degrees_of(links, speaks)
        if not flooded:  # who has data two hops away, only the neighbours between know
            for node, degree in self._now.degrees.items():
                degrees[node] = degree
        return torch.from_numpy(mixing_of(heard, degrees)[self.number, senders].copy())

    @property
    def _silent(self) -> frozenset[int]:
        """The nodes that have said that they have no data."""
        return frozenset(node for node, samples in self._now.samples.items() if not samples)

    def _arrival(
        self, sender: int, data: bytes, phase: Phase, travelling: tree.Schema, schema: tree.Schema
    ) -> Arrival:
        """A message, whole; RefusedError says why it cannot be used."""
        if sender not in self.partners():
            raise RefusedError("it is no neighbour")
        message, header = read(data, wire.size_of(travelling))
        check_header(header, self.terms, "work", self._addressed(header), sender)
        if header.receiver != (self.number if phase.replies else wire.HUB):
            raise RefusedError(f"it is for {header.receiver}")
        self.meet(sender, header.samples)
        check_form(message, travelling)
        place = f"{place_of(self.address)} {sender}"
        whole = phase.received(message, self._last.get(place) or schema.zeros())
        if self._refers_back:
            self._last[place] = whole
        return Arrival(sender, header.samples, whole)

    def _addressed(self, header: wire.Header) -> Address:
        """The exchange of which a message may be that says what its header says."""
        now = self.address
        if self.staleness is None or not now.round - self.staleness <= header.round < self.terms.rounds:
            return now
        return Address(header.round, now.index)

    @property
    def _refers_back(self) -> bool:
        """Whether messages may leave out what the ones before have said."""
        rounds = (self._now.round, self._now.round + 1)
        phases = [phase for number in rounds for phase in self.terms.algorithm.at(number).phases()]
        return any(phase.kept or phase.rebuilt for phase in phases)

    def _go_on(self) -> None:
        self._now.place += 1
        if self._now.place == len(self.terms.addresses(self._now.round)):
            self._now.round, self._now.place, self._heard = self._now.round + 1, 0, {}

    def _count(self, phase: Phase, upload: State, *, sent: int) -> None:
        size = wire.message_bytes(phase.travelling(upload))
        self._now.traffic.add(Traffic(up=times(sent, size), messages=sent if size else 0))

    # What others ask of it.

    def evaluated_model(self) -> State:
        """The model that is evaluated."""
        return self.terms.algorithm.at(max(0, self.round - 1)).model(self.hub, self.memory)

    def scores(self) -> dict[str, dict[str, float]]:
        """What the node's model scores on its own rows, by kind of rows."""
        every = np.arange(len(self.own.pool.targets), dtype=np.int64)
        rows = {"train": np.setdiff1d(every, self.own.holdout), "own": self.own.holdout}
        return {
            kind: _numbers(self.terms, tally_of(self.terms, self.own.pool, self.evaluated_model(), chosen))
            for kind, chosen in rows.items()
            if len(chosen)
        }

    def _client(self, host: int | None = None) -> Client:
        terms = self.terms
        return device_client(
            terms.task,
            terms.solver,
            self.own.pool,
            terms.work,
            seed=terms.seed,
            round_number=self.address.round,
            number=self.number,
            holdout=self.own.holdout,
            peer=True,
            host=host,
            secret=self.secret,
        )

    def _header(self, receiver: int) -> wire.Header:
        return wire.Header(
            round=self.address.round,
            sender=self.number,
            samples=self.own.samples,
            exchange=place_of(self.address),
            receiver=receiver,
            run=self.terms.run,
        )

    def _save(self) -> None:
        if self.file is None:
            return
        parts = {
            "hub": self.hub,
            "memory": self.memory,
            **{f"link {host}": state for host, state in self.links.items()},
            **{f"last {place}": state for place, state in self._last.items()},
            **{f"heard {sender}": state for sender, state in self._heard.items()},
        }
        progress = {**vars(self._now), "traffic": self.traffic.written()}
        kept.save(self.file, self.terms.run, parts, {"progress": json.dumps(progress)})

    def _restore(self) -> None:
        found = None if self.file is None else kept.load(self.file, self.terms.run)
        if found is None or self.file is None:
            return
        with kept.understood(self.file):
            self._take_up(*found)

    def _take_up(self, parts: Mapping[str, State], fields: Mapping[str, str]) -> None:
        """Go on from what a file says."""
        self.hub, self.memory = parts["hub"], parts["memory"]
        named = {
            kind: {
                name.removeprefix(f"{kind} "): v for name, v in parts.items() if name.startswith(f"{kind} ")
            }
            for kind in ("link", "last", "heard")
        }
        self.links = {int(host): state for host, state in named["link"].items()}
        self._last = named["last"]
        self._heard = {int(sender): state for sender, state in named["heard"].items()}
        values = json.loads(fields["progress"])
        for counts in ("samples", "degrees"):
            values[counts] = {int(node): count for node, count in values[counts].items()}
        self._now = _Progress(**values | {"traffic": Traffic.of(values["traffic"])})


def _numbers(terms: Terms, sums: Params) -> dict[str, float]:
    return {name: float(value) for name, value in terms.task.scores(sums).items()}
