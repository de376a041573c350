"""Messages that are not what they should be: numbers, forms, sizes, damage, replays, other rounds."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path

import torch

from consilience import tree, wire
from consilience.algorithms import METHODS
from consilience.deploy import sockets
from consilience.deploy.carrying import InProcess, gossip
from consilience.deploy.carrying import federate as carry
from consilience.deploy.site import Order
from consilience.deploy.terms import RefusedError, read
from consilience.deploy.zenoh.locked import PIECE
from consilience.deploy.zenoh.mailbox import Mailbox
from consilience.deploy.zenoh.parcels import Label, count_of, cut
from consilience.graphs import Ring
from consilience.types import Params, State
from scorecard.federations import federation_of
from scorecard.finding import Finding, Tally, demand
from scorecard.spots import LIAR, Spot, at_hub, at_peer, begun, equal, introduce, rewritten

# 13: what is not finite

SPOILS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN": lambda value: torch.full_like(value, torch.nan),
    "one NaN": lambda value: _with_first(value, torch.nan),
    "inf": lambda value: _with_first(value, torch.inf),
    "-inf": lambda value: _with_first(value, -torch.inf),
}


def _with_first(value: torch.Tensor, number: float) -> torch.Tensor:
    found = value.clone()
    found.view(-1)[0] = number
    return found


def _first_of(group: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[State], State]:
    """Changes the first tensor of a group."""

    def changed(message: State) -> State:
        name, value = next(iter(message[group].items()))
        return {**message, group: {**message[group], name: change(value)}}

    return changed


def not_finite(trials: int, folder: Path) -> Finding:
    """Check 13: NaN and infinity in weights and in curvature, at a hub and at a peer."""
    tally = Tally()
    spots = (at_hub("hwa"), at_peer("dechw"))
    variants = list(product(("params", "importance"), SPOILS))[:trials]
    for group, spoil in variants:
        with tally.trial(f"{spoil} in {group}"):
            for spot in spots:
                lie = rewritten(spot.honest, _first_of(group, SPOILS[spoil]))
                reason, state = spot.hear(lie)
                finite = all(value.isfinite().all() for value in tree.flatten(state).values())
                demand(finite, f"{spot.name}: the model is not finite")
                spot.check(lie)
                demand("not finite" in str(reason), f"{spot.name}: refused because {reason}")
    return tally.finding()


# 14: other forms


def _replace(params: Params, draw: random.Random, change: Callable[[torch.Tensor], torch.Tensor]) -> Params:
    name = draw.choice(list(params))
    return {**params, name: change(params[name])}


def _without(params: Params, draw: random.Random) -> Params:
    gone = draw.choice(list(params))
    return {name: value for name, value in params.items() if name != gone}


def _renamed(params: Params, draw: random.Random) -> list[str]:
    names = list(params)
    place = draw.randrange(len(names))
    names[place] = names[place][:-1] + draw.choice("xyz")  # as long as it was
    return names


def _reordered(params: Params, draw: random.Random) -> list[tuple[str, torch.Tensor]]:
    items = list(params.items())
    while [name for name, _ in items] == list(params):
        draw.shuffle(items)
    return items


FORMS: dict[str, Callable[[Params, random.Random], Params]] = {
    "shape": lambda params, draw: _replace(params, draw, lambda value: value.reshape(1, -1)),
    "rows": lambda params, draw: _replace(params, draw, lambda value: torch.cat([value, value])),
    "type": lambda params, draw: _replace(params, draw, lambda value: value.to(draw.choice(TYPES))),
    "names": lambda params, draw: dict(zip(_renamed(params, draw), params.values(), strict=True)),
    "order": lambda params, draw: dict(_reordered(params, draw)),
    "missing": _without,
    "more": lambda params, draw: {**params, "x": torch.ones(draw.randrange(1, 5))},
}
TYPES = (torch.float32, torch.int64, torch.float16, torch.bool)


def other_forms(trials: int, folder: Path) -> Finding:
    """Check 14: wrong shapes, types, names and orders; half of them at a hub, half at a peer."""
    tally, draw = Tally(), random.Random(14)
    spots = (at_hub(), at_peer())
    for trial in range(trials):
        kind, spot = list(FORMS)[trial % len(FORMS)], spots[trial % 2]
        lie = rewritten(spot.honest, lambda m, k=kind: {**m, "params": FORMS[k](m["params"], draw)})
        with tally.trial(kind):
            spot.check(lie)
    return tally.finding()


# 15: sizes

LIMIT = 16 * 2**20


def oversize(trials: int, folder: Path) -> Finding:
    """Check 15: ten times too much, and headers that announce 2^63 bytes, wherever bytes come in."""
    tally = Tally()
    large = bytes(10 * LIMIT)
    for where, size in list(product(ENTRANCES, (10 * LIMIT, 2**63 - 1, 2**63)))[:trials]:
        announced = large if size == len(large) else size.to_bytes(8, "little") + large[: LIMIT - 8]
        with tally.trial(f"{size:,} bytes at {where}"):
            before = _restart_peak()
            refused = ENTRANCES[where](size, announced)
            share = (_peak() - before) / LIMIT
            tally.most("memory beside what was sent, of the limit", share)
            demand(refused, "it was not refused")
            demand(share <= 1.2, f"it took {share:.2f} times the limit")
    return tally.finding()


def _into_mailbox(size: int, sent: bytes) -> bool:
    """Whether a neighbour's message of that size is refused, at its first piece and at all others."""
    box = Mailbox([LIAR])
    box.turn({0: LIMIT})
    box.appear(LIAR, 1)
    refused = 0
    for index in range(min(count_of(size), len(sent) // PIECE)):
        label = Label(1, 0, index, min(count_of(size), 2**32 - 1), size, bytes(32)).packed()
        try:
            box.take(LIAR, 0, label, sent[:PIECE])
        except RefusedError:
            refused += 1
    return refused == min(count_of(size), len(sent) // PIECE) and not box.arrived(0)


def _into_socket(size: int, sent: bytes) -> bool:
    """Whether a site's socket refuses a frame of that size."""
    near, far = socket.socketpair()

    def flood() -> None:
        with suppress(OSError):
            far.sendall(sockets.HEAD.pack(sockets.ORDER, 0, size))
            far.sendall(sent)

    thread = threading.Thread(target=flood)
    with near, far:
        thread.start()
        try:
            sockets.receive(near, {sockets.ORDER: LIMIT})
            refused = False
        except RefusedError:
            refused = True
        near.shutdown(socket.SHUT_RDWR)
        thread.join()
    return refused


def _into_hub(size: int, sent: bytes) -> bool:
    """Whether bytes that are too many, or whose head announces too many, are refused by who expects less."""
    try:
        read(sent, LIMIT)
    except RefusedError:
        return True
    return False


ENTRANCES: dict[str, Callable[[int, bytes], bool]] = {
    "a peer's mailbox": _into_mailbox,
    "a site's socket": _into_socket,
    "a hub": _into_hub,
}


def _restart_peak() -> int:
    """Begin to look for the most memory that this process takes; what it takes now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition(f"{name}:")[2].split()[0])


# 20: replays


def replays(trials: int, folder: Path) -> Finding:
    """Check 20: old messages and duplicates, at peers, at a hub and at sites, beside the honest ones."""
    tally, half = Tally(), trials // 2
    for name, attack, count in (
        ("peers", _replayed_peers, half),
        ("server", _replayed_server, trials - half),
    ):
        same = attack(count, tally)
        for _ in range(count):
            tally.note(name, None if same else "the final weights are others")
    return tally.finding()


def _replayed_peers(count: int, tally: Tally) -> bool:
    """Whether nodes whose mailboxes get old and doubled pieces end as others do."""
    place = federation_of(METHODS["gradient-tracking"](), Ring(), rounds=4)
    reference = place.peers()
    gossip(reference)
    peers, draw = place.peers(), random.Random(20)
    introduce(peers, place)
    boxes = {number: Mailbox(peer.neighbours) for number, peer in peers.items()}
    for number, box in boxes.items():
        for node in peers[number].neighbours:
            box.appear(node, 1)
    past: list[tuple[int, int, int, tuple[bytes, bytes]]] = []
    exchanges = sum(len(place.terms.addresses(number)) for number in range(place.terms.rounds))
    while not all(peer.done for peer in peers.values()):
        said = {number: peer.speak() for number, peer in peers.items()}
        for number, box in boxes.items():
            box.turn(peers[number].expected())
        for receiver, box in boxes.items():
            exchange = peers[receiver].exchange
            for sender in peers[receiver].neighbours:
                for piece in cut(said[sender][receiver], exchange, 1):
                    box.take(sender, exchange, *piece)
                    past.append((receiver, sender, exchange, piece))
        for _ in range(-(-count // exchanges)):
            receiver, sender, exchange, piece = draw.choice(past)
            try:
                boxes[receiver].take(sender, exchange, *piece)
                tally.count("dropped as known")
            except RefusedError:
                tally.count("refused")
        for number, peer in peers.items():
            peer.hear(boxes[number].arrived(peer.exchange))
    return all(equal(peer.hub, reference[number].hub) for number, peer in peers.items())


def _replayed_server(count: int, tally: Tally) -> bool:
    """Whether a hub and sites to which old orders and answers are sent again end as others do."""
    place = federation_of(METHODS["scaffold"](), rounds=5, participation=3)
    reference = place.hub()
    carry(reference, InProcess(place.sites()))
    hub, sites = begun(place)
    draw = random.Random(20)
    given: list[tuple[int, Order, bytes]] = []  # to whom, what, and what it answered
    while not hub.done:
        orders = hub.orders()
        answers = InProcess(sites).ask(orders).data
        stale = {site: answer for site, _, answer in given if site not in answers}
        given += [(site, orders[site], answer) for site, answer in answers.items()]
        for _ in range(-(-count // place.terms.rounds)):
            site, order, answer = draw.choice(given)
            try:
                demand(sites[site].answer(order) == answer, "an old order was answered with something else")
                tally.count("answered alike")
            except RefusedError:
                tally.count("refused")
        report = hub.take({**stale, **answers})  # old ones from those who were not asked
        demand(set(report.refused) == set(stale), f"refused: {report.refused}")
    return equal(hub.state, reference.state)


# 21: rounds

FARTHEST = 5


def other_rounds(trials: int, folder: Path) -> Finding:
    """Check 21: messages of rounds from five before to five after, at a hub, at a peer and in a mailbox."""
    tally = Tally()
    spots = (at_hub("fedavg", FARTHEST), at_peer("fedavg", FARTHEST))
    for offset in sorted(range(-FARTHEST, FARTHEST + 1), key=abs)[:trials]:
        for spot in spots:
            with tally.trial(f"{spot.name}, {offset:+d}"):
                _in_round(spot, offset)
        with tally.trial(f"mailbox, {offset:+d}"):
            _in_box(offset)
    return tally.finding()


def _in_round(spot: Spot, offset: int) -> None:
    message = rewritten(spot.honest, round=wire.decode(spot.honest)[1].round + offset)
    if offset:
        spot.check(message)
    else:
        demand(spot.hear(message)[0] is None, "the current round was refused")


def _in_box(offset: int) -> None:
    box, data = Mailbox([LIAR]), b"0123456789"
    box.turn({10: len(data), 11: len(data)})
    box.appear(LIAR, 1)
    try:
        for piece in cut(data, 10 + offset, 1):
            box.take(LIAR, 10 + offset, *piece)
        taken = True
    except RefusedError:
        taken = False
    demand(taken == (offset in (0, 1)), "it was taken" if taken else "it was refused")
    demand(box.arrived(10) == ({LIAR: data} if offset == 0 else {}), "another exchange has it")
