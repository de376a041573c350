"""Inboxes from messages that arrived, as a deployed hub makes them."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from consilience.exchange.inbox import Arrival, make_inbox, screened
from consilience.tree import Schema


def arrival(sender: int, samples: int = 10, value: float = 1.0) -> Arrival:
    return Arrival(sender, samples, {"params": {"w": torch.full((2,), value)}, "buffers": {}})


SCHEMA = Schema.of(arrival(0).message)


def test_the_order_of_arrival_does_not_matter():
    messages = [arrival(3, 5, 0.5), arrival(0, 10, 2.0), arrival(2, 1, -1.0)]
    inboxes = []
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        accepted, refused = screened([messages[i] for i in order], SCHEMA)
        assert not refused
        inboxes.append(make_inbox(accepted, population=4).mean("params")["w"])
    assert all(torch.equal(inboxes[0], other) for other in inboxes)
    assert_close(inboxes[0], torch.full((2,), (10 * 2 + 1 * -1 + 5 * 0.5) / 16))


def test_what_is_refused_has_a_reason_and_the_rest_goes_on():
    turned = Arrival(7, 3, {"params": {"v": torch.ones(2)}, "buffers": {}})
    given = [arrival(1), arrival(1, 99), arrival(2, 0), arrival(4, value=torch.nan), turned, arrival(9, -3)]
    accepted, refused = screened(given, SCHEMA)
    assert [one.sender for one in accepted] == [1]
    assert accepted[0].samples == 10
    assert refused == {
        1: "it came twice",
        2: "it claims 0 samples",
        4: "params/w is not finite",
        7: "params/w is missing",
        9: "it claims -3 samples",
    }


def test_names_come_in_the_order_of_the_schema():
    both = {"params": {"a": torch.zeros(1), "b": torch.ones(1)}}
    turned = {"params": {"b": torch.ones(1), "a": torch.zeros(1)}}
    accepted, _ = screened([Arrival(0, 1, turned)], Schema.of(both))
    assert list(accepted[0].message["params"]) == ["a", "b"]


def test_a_node_knows_itself_among_its_neighbours():
    accepted, _ = screened([arrival(2, 10), arrival(5, 30), arrival(8, 60)], SCHEMA)
    own = {"params": {"w": torch.ones(2)}, "buffers": {}, "move": {"w": torch.ones(2)}}
    inbox = make_inbox(accepted, population=9, itself=5, own=own, mixing=torch.tensor([0.25, 0.5, 0.25]))
    assert_close(inbox.weights, torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64))
    assert_close(inbox.peers, torch.tensor([10, 0, 60], dtype=torch.float64) / 70)
    assert inbox.own is own
    assert "move" not in inbox.messages
    assert inbox.population == 9
