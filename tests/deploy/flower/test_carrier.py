"""Federations over a Grid in this process: ClientApps, sockets and sites are real, the SuperLink is not."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'consilience[flower]'")

from flwr.app import Message

from consilience import wire
from consilience.deploy.carrying import InProcess, enrol, federate
from consilience.deploy.flower.carrier import GridCarrier
from consilience.deploy.flower.records import packed, said, unpacked
from consilience.deploy.hub import Hub
from consilience.deploy.journal import AUDIT, METRICS, read_lines
from consilience.deploy.serving import serve
from consilience.deploy.site import Site
from scorecard.flower_grid import ended, equal, federation, simulated

STAR = ["fedavg", "scaffold", "hwa", "fedcurv", "fagh", "fedlin", "pfedme"]


def carrier_of(place, **options):
    options = {"deadline": 30.0, "file": place.folder / "nodes.json", **options}
    return GridCarrier(place.grid, place.agreement.terms.population, **options)


def served(place, **options):
    place.hub.mkdir(exist_ok=True)
    return serve(place.agreement, carrier_of(place, **options), place.hub, wait=lambda: None)


@pytest.mark.parametrize("method", STAR)
def test_equal_to_the_simulation(method, place):
    quorum = "all" if method == "fedlin" else 1
    here = place(federation(method, deploy={"secret": "seed", "quorum": quorum}))
    served(here)
    assert equal(ended(here.agreement, here.hub), simulated(here.agreement))


def test_in_flowers_simulation_sites_are_made_for_every_message(place):
    here = place(federation("scaffold"))
    nodes = {100 + number: {"partition-id": number, "num-partitions": 3} for number in range(3)}
    here.grid.nodes, here.grid.run_config = nodes, {"out": str(here.folder / "all")}
    served(here)
    assert equal(ended(here.agreement, here.hub), simulated(here.agreement))
    assert (here.folder / "all" / "sites" / "2" / "site-2.safetensors").exists()


def test_a_supernode_without_a_socket_is_told_so(place):
    here = place(federation())
    here.grid.nodes[100] = {"number": 0}
    carrier = carrier_of(here)
    carrier.sites()
    carrier.sites()
    hub = Hub(here.agreement.terms, here.agreement.initial())
    assert "names no socket" in enrol(hub, carrier)[0]


# Sites that lie. What they send is refused with a reason, and the round goes on as if nothing had come.


def altered(change):
    """A reply whose state is changed, and written as a whole message again."""

    def change_reply(reply):
        state, header = wire.decode(unpacked(reply.content))
        return packed(change(state, header))

    return change_reply


def with_nan(state, header):
    first = next(iter(state["params"]))
    state["params"][first] = torch.full_like(state["params"][first], float("nan"))
    return wire.encode(state, header)


def of_other_shape(state, header):
    params = {name: value.t().contiguous() for name, value in state["params"].items()}  # of as many bytes
    return wire.encode({**state, "params": params}, header)


def in_other_order(state, header):
    params = dict(reversed(state["params"].items()))
    return wire.encode({**state, "params": params}, header)


def ten_times_as_large(state, header):
    more = {f"more{i}": state["params"] for i in range(9)}
    return wire.encode({**state, **more}, header)


LIES = {
    "not finite": altered(with_nan),
    "bytes instead of": altered(ten_times_as_large),
    "shape": altered(of_other_shape),
    "another order": altered(in_other_order),
    "calls itself 2": altered(lambda s, h: wire.encode(s, wire.Header(**{**vars(h), "sender": 2}))),
    "another run": altered(lambda s, h: wire.encode(s, wire.Header(**{**vars(h), "run": "other"}))),
    "samples": altered(lambda s, h: wire.encode(s, wire.Header(**{**vars(h), "samples": 10**6}))),
    "not a whole": lambda reply: packed(bytes(len(unpacked(reply.content)))),
    "holds no state": lambda reply: said(number=1),
    "had no time": lambda reply: said(refused="had no time"),
}


def lying(reason, site=1):
    """What becomes of replies where one site lies from the second round on."""

    def changed(node, reply):
        if node != 100 + site or not reply.content.array_records:
            return reply
        _, header = wire.decode(unpacked(reply.content))
        if header.kind != "work" or header.round < 1:
            return reply
        return Message(LIES[reason](reply), reply_to=asked_by(reply))

    return changed


def asked_by(reply):
    """A message to which this is the reply, for the sake of its address."""
    question = Message(said(), dst_node_id=reply.metadata.src_node_id, message_type="train")
    question.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return question


def unheard(agreement, site=1):
    """The hub's state where all answers of a site get lost from the second round on."""
    terms = agreement.terms
    sites = {number: Site(terms, number, agreement.dealt(number)) for number in range(terms.population)}
    hub = Hub(terms, agreement.initial())
    federate(hub, InProcess(sites, lambda round_number: {site} if round_number >= 1 else ()))
    return hub.state


@pytest.mark.parametrize("reason", LIES)
def test_a_lie_is_refused_and_the_round_goes_on(reason, place):
    here = place(federation("scaffold", evaluate={"clients": False}), changed=lying(reason))
    served(here)
    assert equal(ended(here.agreement, here.hub), unheard(here.agreement))
    told = [line for line in read_lines(here.hub / AUDIT) if line["from"] == "1"]
    assert [line["round"] for line in told] == [1, 2]
    assert all(reason in line["reason"] for line in told)


def test_a_replay_is_refused(place):
    first = {}

    def replayed(node, reply):
        if node != 101 or not reply.content.array_records:
            return reply
        data = unpacked(reply.content)
        if wire.decode(data)[1].kind != "work":
            return reply
        return Message(packed(first.setdefault(node, data)), reply_to=asked_by(reply))

    here = place(federation("fedavg", evaluate={"clients": False}), changed=replayed)
    hub = served(here)
    assert hub.done
    told = read_lines(here.hub / AUDIT)
    assert [line["round"] for line in told] == [1, 2]
    assert all("round 0, exchange 0" in line["reason"] for line in told)


def test_an_order_that_comes_twice_is_answered_twice_alike(place):
    here = place(federation("scaffold"))
    carrier = carrier_of(here)
    hub = Hub(here.agreement.terms, here.agreement.initial())
    carrier.sites()
    carrier.sites()
    enrol(hub, carrier)
    orders = hub.orders()
    assert carrier.ask(orders) == carrier.ask(orders)


def test_who_does_not_answer_before_the_deadline_is_missed(place, monkeypatch):
    here = place(federation())
    carrier, hub = carrier_of(here), Hub(here.agreement.terms, here.agreement.initial())
    carrier.sites()
    carrier.sites()
    enrol(hub, carrier)
    here.grid.changed = lambda node, reply: None if node == 101 else reply
    clock = itertools.count(step=10)
    monkeypatch.setattr("consilience.deploy.flower.carrier.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("consilience.deploy.flower.carrier.time.sleep", lambda seconds: None)
    found = carrier.ask(hub.orders())
    assert sorted(found.data) == [0, 2]
    assert found.failed == {1: "no answer in 30 s"}
    assert hub.take(found.data).heard == (0, 2)


def test_a_site_that_is_not_there_yet_is_awaited_and_told_of_once(place):
    here = place(federation())
    socket = here.grid.nodes[101].pop("socket")
    here.grid.nodes[101]["socket"] = str(here.folder / "nobody")
    waits = itertools.count()

    def wait():
        if next(waits) == 5:
            here.grid.nodes[101]["socket"] = socket

    here.hub.mkdir()
    hub = serve(here.agreement, carrier_of(here), here.hub, wait=wait)
    assert hub.done
    (line,) = read_lines(here.hub / AUDIT)
    assert "no site answers at" in line["reason"]
    assert read_lines(here.hub / METRICS)[-1]["final"].keys() == {"train", "own"}


def test_a_federation_that_is_over_is_scored_again(place):
    here = place(federation())
    served(here)
    served(here)
    assert [len(line["final"]["train"]) for line in read_lines(here.hub / METRICS) if "final" in line] == [
        3,
        3,
    ]


# Who is who.


def test_a_number_stays_with_its_node(place):
    here = place(federation())
    told = []
    carrier = carrier_of(here, refused=lambda who, why: told.append((who, why)))
    carrier.sites()
    assert sorted(carrier.sites()) == [0, 1, 2]
    here.grid.nodes[200] = {"number": 1, "socket": "elsewhere"}
    here.grid.nodes[201] = {"number": 7, "socket": "elsewhere"}
    here.grid.nodes[202] = {"socket": "elsewhere"}
    carrier.sites()
    assert sorted(carrier.sites()) == [0, 1, 2]
    assert {who for who, _ in told} == {"node 200", "node 201", "node 202"}
    assert "which is node 101" in dict(told)["node 200"]
    again = carrier_of(here)  # a server that is started again knows who was who
    assert sorted(again.sites()) == [0, 1, 2]


@pytest.mark.parametrize("strict", [False, True])
def test_a_node_that_was_started_again_has_its_number_back(strict, place):
    here = place(federation())
    carrier = carrier_of(here, strict=strict)
    carrier.sites()
    carrier.sites()
    here.grid.nodes[300] = here.grid.nodes.pop(101)
    carrier.sites()
    assert sorted(carrier.sites()) == ([0, 2] if strict else [0, 1, 2])
    assert json.loads((here.folder / "nodes.json").read_text())["1"] == (101 if strict else 300)


def test_a_node_that_came_too_early_gets_the_number_once_it_is_free(place):
    here = place(federation())
    carrier = carrier_of(here)
    carrier.sites()
    carrier.sites()
    here.grid.nodes[300] = here.grid.nodes[101]  # started again before the old one is known to be gone
    carrier.sites()
    carrier.sites()
    del here.grid.nodes[101]
    carrier.sites()
    assert sorted(carrier.sites()) == [0, 1, 2]


def test_a_reply_of_another_node_does_not_count(place):
    def swapped(node, reply):
        if node == 101:
            reply.metadata.__dict__["_src_node_id"] = 102
        return reply

    here = place(federation(), changed=swapped)
    told = {}
    carrier = carrier_of(here, refused=told.__setitem__)
    carrier.sites()
    assert sorted(carrier.sites()) == [0, 2]
    assert "from node 102 instead of 101" in told["node 101"]


# Those who go, and come back.


class Killed(BaseException):
    """Ends a hub in the middle of its work."""


@pytest.mark.parametrize("method", ["scaffold", "fedlin"])
def test_a_hub_that_is_killed_at_any_message_ends_alike(method, place):
    here = place(federation(method, deploy={"secret": "seed", "quorum": "all"}))
    push, count = here.grid.push_messages, 0

    def failing(messages):
        nonlocal count
        count += 1
        ids = push(messages)  # sites have worked, and the hub does not hear it
        if count % 2:
            raise Killed
        return ids

    here.grid.push_messages = failing
    for _ in range(100):
        try:
            served(here)
            break
        except Killed:
            continue
    assert count > here.agreement.terms.rounds
    assert equal(ended(here.agreement, here.hub), simulated(here.agreement))


def test_a_node_that_goes_is_not_waited_for(place):
    here = place(federation("hwa", evaluate={"clients": False}))
    push = here.grid.push_messages

    def leaving(messages):
        if len(here.grid.sent) > 10:
            here.grid.nodes.pop(102, None)
        return push(messages)

    here.grid.push_messages = leaving
    hub = served(here)
    assert hub.done
    told = read_lines(here.hub / AUDIT)
    assert {line["from"] for line in told} == {"2"}
    assert {line["reason"] for line in told} <= {"Flower: Node Unavailable", "it is not there"}


def test_rounds_are_not_spent_while_too_few_are_there(place):
    here = place(federation("fedavg", deploy={"secret": "seed", "quorum": 1.0}))
    gone = {}

    def waited():
        here.grid.nodes |= gone
        gone.clear()

    push = here.grid.push_messages

    def leaving(messages):
        ids = push(messages)
        if len(here.grid.sent) == 12:  # three introductions, three enrolments, two rounds
            gone[100] = here.grid.nodes.pop(100)
        return ids

    here.grid.push_messages = leaving
    here.hub.mkdir()
    serve(here.agreement, carrier_of(here), here.hub, wait=waited)
    assert not gone
    assert equal(ended(here.agreement, here.hub), simulated(here.agreement))


def test_what_travels_is_one_array_and_equal_orders_travel_once(place):
    here = place(federation())
    served(here)
    orders = [one for one in here.grid.sent if one.content.array_records]
    assert all(len(record) == 1 for one in orders for record in one.content.array_records.values())
    assert len({id(one.content) for one in orders}) == len(orders) / 3
