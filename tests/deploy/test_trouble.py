"""Answers that get lost, members that are started again, sites that lie, files that are damaged."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from consilience import tree, wire
from consilience.algorithms import METHODS
from consilience.deploy.carrying import InProcess, enrol, gossip
from consilience.deploy.carrying import federate as carry
from consilience.deploy.site import Order
from consilience.deploy.terms import RefusedError
from consilience.engine.rounds.simulation import Simulation
from consilience.errors import UserError
from consilience.exchange.cohort import failed_clients
from consilience.graphs import Ring
from consilience.testing.federation import SIZES
from consilience.transforms.noised import Noised

EXACT = {"rtol": 0, "atol": 0}


def finished(place, **options):
    hub = place.hub(**options)
    carry(hub, InProcess(place.sites()))
    return hub.state


@pytest.mark.parametrize("name", ["scaffold", "fedcurv", "feddyn"])
def test_what_was_not_heard_is_not_remembered(name, federate):
    place = federate(METHODS[name](), rounds=5)
    unreliable = dataclasses.replace(place.simulation.world, failure_rate=0.4)
    simulation = Simulation(unreliable, place.simulation.algorithm)
    place = dataclasses.replace(place, simulation=simulation)

    def lost(round_number):
        return failed_clients(0, round_number, np.arange(len(SIZES)), 0.4)

    assert any(lost(number) for number in range(5))
    hub = place.hub()
    carry(hub, InProcess(place.sites(), lost))
    assert_close(hub.state, place.simulated()[0], **EXACT)


@pytest.mark.parametrize("name", ["scaffold", "fedlin", "fedma"])
def test_members_that_are_started_again_after_every_exchange_end_alike(name, federate, tmp_path):
    place = federate(METHODS[name]())
    file = tmp_path / "hub.safetensors"
    while not place.hub(file=file).done:
        sites = place.sites(tmp_path)
        hub = place.hub(file=file)
        enrol(hub, InProcess(sites))
        InProcess(place.sites(tmp_path)).ask(hub.orders())  # a hub that is killed before it has heard them
        hub = place.hub(file=file)
        hub.take(InProcess(place.sites(tmp_path)).ask(hub.orders()).data)
    assert_close(place.hub(file=file).state, finished(place), **EXACT)


def test_nodes_that_are_started_again_after_every_exchange_end_alike(federate, tmp_path):
    place = federate(METHODS["cfa-ge"](), Ring())

    def again():
        return {n: place.peer(n, file=tmp_path / f"{n}.safetensors") for n in range(len(SIZES))}

    while not all(peer.done for peer in again().values()):
        for peer in again().values():
            peer.speak()  # killed before anybody heard it
        said = {}
        peers = again()
        for number, peer in peers.items():
            said[number] = peer.speak()
        for number, peer in peers.items():
            peer.hear({sender: words[number] for sender, words in said.items() if number in words})
    others = place.peers()
    gossip(others)
    for number, peer in again().items():
        assert_close(peer.hub, others[number].hub, **EXACT)


def begun(place, **options):
    """A hub whose sites have enrolled, and these."""
    hub, sites = place.hub(**options), place.sites()
    assert enrol(hub, InProcess(sites)) == {}
    return hub, sites


def changed(data: bytes, header: dict | None = None, **tensors) -> bytes:
    """A message with something else in it, and a digest that fits."""
    message, old = wire.decode(data)
    params = {**message["params"], **tensors}
    return wire.encode({**message, "params": params}, dataclasses.replace(old, **(header or {})))


def lies(data: bytes, earlier: bytes) -> dict[str, tuple[bytes, str]]:
    message, header = wire.decode(data)
    name, value = next(iter(message["params"].items()))
    other = {"params": dict(reversed(message["params"].items())), **tree.without(message, {"params"})}
    return {
        "nan": (changed(data, **{name: torch.full_like(value, torch.nan)}), f"params/{name} is not finite"),
        "infinite": (changed(data, **{name: torch.full_like(value, torch.inf)}), "is not finite"),
        "shape": (changed(data, **{name: value.T.contiguous()}), "instead of float64 of shape"),
        "type": (changed(data, **{name: value.to(torch.int64)}), "int64 of shape"),
        "order": (wire.encode(other, header), "its names are in another order"),
        "name": (
            wire.encode(
                {**message, "params": {"x" * len(n): v for n, v in message["params"].items()}}, header
            ),
            "bytes instead of",
        ),
        "large": (changed(data, **{name: torch.cat([value] * 10)}), "bytes instead of"),
        "replay": (earlier, "it is of round 0, exchange 0 instead of round 1, exchange 0"),
        "future": (changed(data, {"round": 5}), "it is of round 5"),
        "sender": (changed(data, {"sender": 2}), "it calls itself 2"),
        "run": (changed(data, {"run": "another"}), "it belongs to another run"),
        "samples": (changed(data, {"samples": 10**6}), "it claims 1000000 samples, and had 4"),
        "kind": (changed(data, {"kind": "score"}), "it is about 'score'"),
        "damaged": (data[:-1] + bytes([data[-1] ^ 1]), "the digest does not match"),
        "cut": (data[:-1], "bytes instead of"),
        "nothing": (b"", "bytes instead of"),
    }


CASES = ["nan", "infinite", "shape", "type", "order", "name", "large", "replay", "future", "sender", "run"]
CASES += ["samples", "kind", "damaged", "cut", "nothing"]


@pytest.mark.parametrize("lie", CASES)
def test_a_site_that_lies_is_refused_and_the_round_goes_on(lie, federate):
    place = federate(METHODS["fedavg"]())
    hub, sites = begun(place)
    first = InProcess(sites).ask(hub.orders()).data
    hub.take(first)
    answers = InProcess(sites).ask(hub.orders()).data
    data, reason = lies(answers[1], first[1])[lie]
    before = hub.state
    report = hub.take({**answers, 1: data})
    assert reason in report.refused[1]
    assert report.heard == (0, 2, 3, 4)
    assert report.done
    assert hub.round == 2
    # The others are heard as if it were away.
    honest, _ = begun(place)
    honest.take(first)
    honest.take({site: one for site, one in answers.items() if site != 1})
    assert_close(hub.state, honest.state, **EXACT)
    assert not torch.equal(tree.concatenated(hub.state["params"]), tree.concatenated(before["params"]))


def test_a_stranger_is_not_heard(federate):
    place = federate(METHODS["fedavg"](), participation=3)
    hub, sites = begun(place)
    orders = hub.orders()
    stranger = next(site for site in sites if site not in orders)
    answers = InProcess(sites).ask({**orders, stranger: next(iter(orders.values()))}).data
    assert hub.take(answers).refused == {stranger: "it was not asked"}


def test_an_order_that_comes_again_has_the_same_answer_and_an_older_one_none(federate):
    place = federate(METHODS["scaffold"]())
    hub, sites = begun(place)
    order = hub.orders()[0]
    answer = sites[0].answer(order)
    assert sites[0].answer(order) == answer
    hub.take(InProcess(sites).ask(hub.orders()).data)
    sites[0].answer(hub.orders()[0])
    with pytest.raises(RefusedError, match="order 0 is older than 1, which was answered"):
        sites[0].answer(order)


ORDERS = [
    ({"run": "another"}, "the order is of another run"),
    ({"sender": 3}, "the order is for -1 by 3"),
    ({"receiver": 4}, "the order is for 4 by -1"),
    ({"round": 70}, "there is no round 70"),
    ({"exchange": 7}, "round 0 has no exchange 7"),
    ({"exchange": -7}, "has no exchange"),
]


@pytest.mark.parametrize(("header", "reason"), ORDERS)
def test_a_site_refuses_orders_that_cannot_be(header, reason, federate):
    hub, sites = begun(federate(METHODS["fedavg"]()))
    data = hub.orders()[0].data
    with pytest.raises(RefusedError, match=reason):
        sites[0].answer(Order(changed(data, header)))


def test_a_site_refuses_a_model_that_does_not_fit_and_work_before_it_has_enrolled(federate):
    place = federate(METHODS["fedavg"]())
    hub, sites = begun(place)
    order = hub.orders()[0]
    with pytest.raises(RefusedError, match="has not enrolled"):
        place.site(0).answer(order)
    name, value = next(iter(place.model["params"].items()))
    for data in (order.data, hub.invitation().data):
        with pytest.raises(RefusedError, match="does not fit: params/"):
            sites[0].answer(Order(changed(data, **{name: value[:1]})))
    with pytest.raises(RefusedError, match="has enrolled with another initial model"):
        sites[0].answer(Order(changed(hub.invitation().data, **{name: value + 1})))
    with pytest.raises(RefusedError, match="more than any should"):
        sites[0].answer(Order(b"x" * 2**21))
    with pytest.raises(RefusedError, match="not a whole consilience message"):
        sites[0].answer(Order(b"x" * 100))


def test_a_site_whose_file_is_too_old_says_so(federate):
    hub, sites = begun(federate(METHODS["scaffold"]()))
    data = hub.orders()[0].data
    with pytest.raises(RefusedError, match="its file is older than the federation"):
        sites[0].answer(Order(data, accepted=5))


def test_too_few_answers_leave_the_hub_as_it_was(federate):
    place = federate(METHODS["fedlin"]())
    hub, sites = begun(place, quorum=0.5)
    before = hub.state
    two = {site: hub.orders()[site] for site in (0, 1)}
    report = hub.take(InProcess(sites).ask(two).data)
    assert report.done
    assert hub.round == 1  # the other exchange of the round makes no sense any more
    assert hub.state is before


def test_where_all_are_needed_an_exchange_is_repeated(federate):
    place = federate(METHODS["fedlin"]())
    hub, sites = begun(place, quorum="all")
    away = iter([{0}, {1, 2}, set(), {4}, *[set()] * 20])
    while not hub.done:
        missing = next(away)
        orders = {site: order for site, order in hub.orders().items() if site not in missing}
        assert hub.take(InProcess(sites).ask(orders).data).done is not bool(missing)
    assert_close(hub.state, finished(place), **EXACT)


def test_who_enrols_is_known_by_its_connection(federate):
    place = federate(METHODS["fedavg"]())
    hub, sites = begun(place)
    answer = sites[1].answer(hub.invitation())
    assert hub.enrol(1, answer) is None
    assert hub.enrol(2, answer) == "it calls itself 1"
    assert "it had 4 samples and now has 5" in str(hub.enrol(1, _with_header(answer, samples=5)))
    assert "bytes instead of" in str(hub.enrol(1, answer + b" "))
    assert "there are sites 0 to 4" in str(hub.enrol(9, _with_header(answer, sender=9)))


def _with_header(data: bytes, **fields) -> bytes:
    message, header = wire.decode(data)
    return wire.encode(message, dataclasses.replace(header, **fields), empty=True)


def test_noise_cannot_be_undone_by_who_knows_the_seed(federate):
    place = federate(Noised(0.1)(METHODS["fedavg"]()))
    hub, _ = begun(place)

    def said(secret):
        site = place.site(1, secret=secret)
        site.answer(hub.invitation())
        return wire.decode(site.answer(hub.orders()[0]))[0]["params"]

    public, own, other = said(None), said(11), said(12)
    name = next(iter(public))
    assert torch.equal(said(11)[name], own[name])
    for left, right in ((public, own), (own, other)):
        assert (left[name] - right[name]).abs().max() > 1e-3


def test_scores_are_those_of_the_sites_rows(federate):
    place = federate(METHODS["pfedme"]())
    hub, sites = begun(place)
    carry(hub, InProcess(sites))
    found, refused = hub.scores(InProcess(sites).ask(hub.score_orders()).data)
    assert not refused
    place.simulated()
    expected = {row["client"]: row for row in place.simulation.clients()}
    for site in sites:
        own = found["train"][site]["accuracy"], found["personal_train"][site]["accuracy"]
        assert own == (expected[site]["train_accuracy"], expected[site]["personal_train_accuracy"])


@pytest.mark.parametrize("damage", ["flip", "cut", "other terms"])
def test_a_damaged_file_is_refused_by_name(damage, federate, tmp_path):
    place = federate(METHODS["scaffold"]())
    sites = place.sites(tmp_path)
    enrol(place.hub(), InProcess(sites))
    path = tmp_path / "1.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-3] ^= 4
    path.write_bytes(data[:-9] if damage == "cut" else data)
    if damage == "other terms":
        place = dataclasses.replace(place, terms=dataclasses.replace(place.terms, digest="f" * 64))
    with pytest.raises(UserError, match=r"1\.safetensors.*move it away to begin anew"):
        place.site(1, file=path)
