"""Client after client: what does not have the expected form is not combined, whoever sends it."""

from __future__ import annotations

import torch

from consilience import tree


def run(federation, odd):
    """Clients send their parameters; the odd ones (by their number of samples) send them in another form."""
    where = federation(sizes=(7, 3, 10))

    def work(client, down):
        sent = {"params": down["params"], "count": {"samples": client.samples}}
        if int(client.samples) in odd:
            return {"params": tree.map_leaves(lambda v: v[..., None], sent)["params"], "count": sent["count"]}
        return sent

    return where.run(where.sequential(), work)


def test_a_message_of_another_form_does_not_count(federation):
    outcome = run(federation, odd=(3,))
    assert outcome.arrived.tolist() == [True, False, True]
    assert outcome.uploads["count"]["samples"][[0, 2]].tolist() == [7, 10]


def test_no_majority_decides_what_the_form_is(federation):
    """The dry run does: it sees the first client."""
    assert run(federation, odd=(3, 10)).arrived.tolist() == [True, False, False]


def test_a_message_that_is_not_finite_does_not_count(federation):
    where = federation(sizes=(7, 3, 10))
    poison = torch.tensor(3.0, dtype=torch.float64)

    def work(client, down):
        return {"params": tree.scale(torch.where(client.samples == poison, torch.inf, 1.0), down["params"])}

    assert where.run(where.sequential(), work).arrived.tolist() == [True, False, True]
