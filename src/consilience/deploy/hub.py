"""The server of a federation, without its network: it gives orders, and combines the answers that are sound.

Nothing that arrives is trusted: its size, digest, sender, run, exchange, number of samples and form are
checked before a method sees it. What is refused is told, with its sender and the reason; the round goes on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from consilience import tree, wire
from consilience.algorithm import Phase
from consilience.deploy import kept
from consilience.deploy.site import NEVER, SCORED, Order
from consilience.deploy.terms import RefusedError, Terms, check_form, check_header, place_of, read
from consilience.exchange import screen
from consilience.exchange.address import Address
from consilience.exchange.cohort import sample_clients
from consilience.exchange.inbox import Arrival, make_inbox, screened
from consilience.exchange.schemas import Exchanged
from consilience.exchange.traffic import Traffic, times
from consilience.types import State

Quorum = float | int | Literal["all"]
"""How many of a cohort must be heard: a share, a number, or all, and then an exchange is repeated."""

ENROLLING = Address(0, 0)
"""The exchange that messages name which are of none."""


@dataclass(frozen=True)
class Report:
    """How an exchange went."""

    address: Address
    asked: tuple[int, ...]
    heard: tuple[int, ...]
    """The sites whose answers were combined."""
    refused: dict[int, str]
    """Why others were not, by sender; who did not answer at all is not among them."""
    done: bool
    """Whether the exchange is over; if not, it is to be repeated."""


@dataclass
class _Progress:
    """Where a hub stands; all of it is in its file."""

    round: int = 0
    place: int = 0
    """The number of the exchange among those of the round, the setup's included."""
    samples: dict[int, int] = field(default_factory=dict)
    """How many rows every enrolled site has."""
    accepted: dict[int, int] = field(default_factory=dict)
    """The newest exchange of which each site's answer was combined."""
    cohort: list[int] = field(default_factory=list)
    """Who takes part in the round, as far as they were heard."""
    traffic: Traffic = field(default_factory=Traffic)


class Hub:
    """A server that gives orders and combines answers; whoever carries them calls `orders` and `take`.

    Args:
        terms: What was agreed on.
        model: The initial model.
        quorum: How many of a cohort must be heard. Below it the hub stays as it was, and the round is over;
            with `all` the exchange is repeated until everybody has answered.
        file: Where it keeps what it must not forget; None: nowhere.
    """

    def __init__(self, terms: Terms, model: State, *, quorum: Quorum = 1, file: Path | None = None) -> None:
        self.terms, self.model, self.quorum, self.file = terms, model, quorum, file
        self.state = terms.algorithm.init_hub(model)
        self._said: dict[int, State] = {}  # what is kept of each site's last message
        self._now = _Progress()
        self._blank = terms.algorithm.init_memory(model)  # of a client, where forms change
        self._restore()

    @property
    def round(self) -> int:
        """The round that runs, counted from 0."""
        return self._now.round

    @property
    def between_rounds(self) -> bool:
        """Whether a round is about to begin."""
        return self._now.place == 0

    @property
    def done(self) -> bool:
        """Whether all rounds are over."""
        return self._now.round >= self.terms.rounds

    @property
    def traffic(self) -> Traffic:
        """The bytes of all messages so far, by group."""
        return self._now.traffic

    @property
    def enrolled(self) -> Mapping[int, int]:
        """How many rows every enrolled site has."""
        return self._now.samples

    @property
    def address(self) -> Address:
        """The exchange that is next."""
        return self.terms.addresses(self._now.round)[self._now.place]

    # Who takes part.

    def invitation(self) -> Order:
        """What a site is told before it takes part."""
        return Order(wire.encode(self.model, self._header("enrol", ENROLLING)))

    def enrol(self, site: int, answer: bytes) -> str | None:
        """Take a site in, or say why not. Which site it is, the connection says, and not the answer."""
        try:
            _, header = read(answer, wire.size_of(tree.Schema.of({})))
            check_header(header, self.terms, "enrol", ENROLLING, site)
            if not 0 <= site < self.terms.population:
                raise RefusedError(f"there are sites 0 to {self.terms.population - 1}")
            known = self._now.samples.get(site)
            if known is not None and known != header.samples:
                raise RefusedError(f"it had {known} samples and now has {header.samples}")
        except RefusedError as error:
            return str(error)
        self._now.samples[site] = header.samples
        self._save()
        return None

    # Exchanges.

    def orders(self) -> dict[int, Order]:
        """The orders of the exchange that is next, by site."""
        address, phase = self.address, self.terms.phase(self.address)
        down = tree.without(phase.broadcast(self.state), phase.known)
        data = wire.encode(down, self._header("work", address), empty=True)
        return {site: self._order(site, data) for site in self._cast(address, phase)}

    def take(self, answers: Mapping[int, bytes]) -> Report:
        """Combine the answers to the last orders, and go on to the next exchange.

        Args:
            answers: What came, by site: the sender is who the connection says it is.
        """
        address, now = self.address, self._now
        phase = self.terms.phase(address)
        asked, down = self._cast(address, phase), phase.broadcast(self.state)
        form, after = self._form(address, down)
        arrivals: list[Arrival] = []
        refused: dict[int, str] = {}
        for site, data in sorted(answers.items()):
            try:
                arrivals.append(self._arrival(site, data, asked, down, form))
            except RefusedError as error:
                refused[site] = str(error)
        accepted, unfit = screened(arrivals, form.message(phase))
        refused |= unfit
        now.traffic.add(self._traffic(phase, down, form, len(asked), len(arrivals)))
        state, enough = self.state, len(accepted) >= self.needed(len(asked))
        if enough:
            state = phase.combine(self.state, make_inbox(accepted, population=self._population))
            if not screen.sound(state):  # each is finite, but their sums are not: no site could go on from it
                refused |= {one.sender: "combined with the others it is not finite" for one in accepted}
                accepted, enough = (), False
        heard = tuple(one.sender for one in accepted)
        if not enough and (self.quorum == "all" or address.setup):
            self._save()
            return Report(address, tuple(asked), heard, refused, done=False)
        if enough:
            self.state, self._blank = state, after
            for one in accepted:
                now.accepted[one.sender] = self.terms.number(address)
                self._said[one.sender] = self._remembered(one.message)
        now.cohort = list(heard)
        self._go_on(whole=enough)
        self._save()
        return Report(address, tuple(asked), heard, refused, done=True)

    def _arrival(self, site: int, data: bytes, asked: list[int], down: State, form: Exchanged) -> Arrival:
        """A site's message, whole; RefusedError says why it cannot be used."""
        if site not in asked:
            raise RefusedError("it was not asked")
        phase, now = self.terms.phase(self.address), self._now
        travelling = form.upload.without(phase.kept | phase.rebuilt | phase.private)
        message, header = read(data, wire.size_of(travelling))
        check_header(header, self.terms, "work", self.address, site)
        if header.samples != now.samples[site]:
            raise RefusedError(f"it claims {header.samples} samples, and had {now.samples[site]}")
        check_form(message, travelling)
        said = {group: params for group, params in self._said.get(site, {}).items() if group in phase.kept}
        return Arrival(site, header.samples, phase.received(message, {**down, **said}))

    def _form(self, address: Address, down: State) -> tuple[Exchanged, State]:
        """What messages of an exchange look like, and what a client remembers afterwards."""
        if self.terms.algorithm.reshapes():
            return self.terms.form_after(address, down, self._blank)
        return self.terms.forms(address, self.model), self._blank

    def _remembered(self, message: State) -> State:
        """What of a message is needed to understand the sender's next ones."""
        phases = [p for later in (0, 1) for p in self.terms.algorithm.at(self._now.round + later).phases()]
        kept_groups = frozenset[str]().union(*(phase.kept for phase in phases))
        return {group: params for group, params in message.items() if group in kept_groups}

    @property
    def _population(self) -> int:
        return sum(samples > 0 for samples in self._now.samples.values())

    def _cast(self, address: Address, phase: Phase) -> list[int]:
        """Who is asked: everyone in the setup, else a cohort; later in a round those who were heard."""
        now = self._now
        available = np.array(sorted(s for s, rows in now.samples.items() if rows), dtype=np.int64)
        if address.setup:
            return [int(site) for site in available]
        if address.index and not phase.resampled:
            return list(now.cohort)
        count, drawing = self.terms.participation, address.index if phase.resampled else 0
        drawn = sample_clients(self.terms.seed, address.round, available, count, drawing)
        return [int(site) for site in drawn]

    def needed(self, asked: int) -> int:
        """How many have to be heard, of those who were asked."""
        if self.quorum == "all":
            return max(1, asked)
        share = isinstance(self.quorum, float)
        return max(1, min(asked, math.ceil(self.quorum * asked) if share else int(self.quorum)))

    def _go_on(self, *, whole: bool) -> None:
        """Turn to the next exchange; after one that failed, to the next round."""
        now = self._now
        now.place += 1
        if not whole or now.place == len(self.terms.addresses(now.round)):
            now.round, now.place, now.cohort = now.round + 1, 0, []

    def _traffic(self, phase: Phase, down: State, form: Exchanged, asked: int, came: int) -> Traffic:
        received = wire.message_bytes(tree.without(down, phase.known))
        sent = wire.message_bytes(phase.travelling(form.upload.zeros("meta")))
        return Traffic(times(came, sent), times(asked, received), came if sent else 0)

    # Evaluation.

    def score_orders(self) -> dict[int, Order]:
        """Orders to score the model that the hub has, by site."""
        data = wire.encode(self.evaluated_model(), self._header("score", Address(self.round, 0)), empty=True)
        return {site: self._order(site, data) for site in sorted(self._now.samples)}

    def evaluated_model(self) -> State:
        """The model that is evaluated; empty where every client has one of its own."""
        algorithm = self.terms.algorithm.at(max(0, self.round - 1))
        return {} if algorithm.evaluated() == "client" else algorithm.model(self.state, {})

    def scores(
        self, answers: Mapping[int, bytes]
    ) -> tuple[dict[str, dict[int, dict[str, float]]], dict[int, str]]:
        """What answers to `score_orders` say, by kind of rows and site, and why others do not count."""
        found: dict[str, dict[int, dict[str, float]]] = {}
        refused: dict[int, str] = {}
        for site, data in sorted(answers.items()):
            try:
                for kind, scores in self._scored(site, data).items():
                    found.setdefault(kind, {})[site] = scores
            except RefusedError as error:
                refused[site] = str(error)
        return found, refused

    def _scored(self, site: int, data: bytes) -> dict[str, dict[str, float]]:
        """What a site's sums say, by kind of rows; RefusedError says why they cannot be used."""
        most = wire.size_of(tree.Schema.of(dict.fromkeys(SCORED, self.terms.sums)))
        if len(data) > most:
            raise RefusedError(f"it has {len(data):,} bytes, more than the {most:,} that scores can have")
        sums, header = read(data)
        check_header(header, self.terms, "score", Address(self.round, 0), site)
        check_form(sums, tree.Schema.of({kind: self.terms.sums for kind in sums if kind in SCORED}))
        return {
            kind: {name: float(value) for name, value in self.terms.task.scores(tally).items()}
            for kind, tally in sums.items()
        }

    # Messages and files.

    def _order(self, site: int, data: bytes) -> Order:
        return Order(data, self._now.accepted.get(site, NEVER))

    def _header(self, kind: wire.Kind, address: Address) -> wire.Header:
        return wire.Header(
            round=address.round,
            sender=wire.HUB,
            samples=0,
            exchange=place_of(address),
            run=self.terms.run,
            kind=kind,
        )

    def _save(self) -> None:
        if self.file is None:
            return
        said = {f"said {site}": state for site, state in self._said.items()}
        parts = {"state": self.state, "blank": self._blank, **said}
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
        self.state, self._blank = parts["state"], parts["blank"]
        self._said = {int(name[5:]): state for name, state in parts.items() if name.startswith("said ")}
        values = json.loads(fields["progress"])
        traffic = values.pop("traffic")
        samples, accepted = (
            {int(site): count for site, count in values.pop(name).items()} for name in ("samples", "accepted")
        )
        self._now = _Progress(**values, samples=samples, accepted=accepted, traffic=Traffic.of(traffic))
