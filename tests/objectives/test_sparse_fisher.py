"""FedCurv's own proposal: only the largest Fisher entries count and are sent."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from consilience import tree, wire
from consilience.algorithms.fedcurv import FedCurv
from consilience.engine.rounds.simulation import Simulation
from consilience.errors import UserError
from consilience.objectives.fisher_elastic import FisherElastic, unpack
from consilience.testing import perceptron, prepare
from consilience.testing.federation import Layout, simulation_of
from consilience.testing.watching import Watch, Watched
from consilience.tree import concatenated

SIZE = sum(value.numel() for value in perceptron().parameters())
TERMS = ("fisher", "fisher_params")


class Uploads(Watch):
    """Keeps messages and the memories after them."""

    def __init__(self) -> None:
        self.sent, self.kept = [], []

    def call(self, place, function, given):
        result = function(*given)
        if place.role == "local":
            self.sent.append(result[0])
            self.kept.append(result[1])
        return result


def play(method, rounds=3, **changes) -> tuple[Simulation, Uploads]:
    seen, subject = Uploads(), prepare(method)
    layout = Layout(**{"dtype": torch.float32, **changes})
    simulation = simulation_of(subject, layout, (Watched(method, seen), subject.solver))
    for _ in range(rounds):
        simulation.step(evaluate=False)
    return simulation, seen


@pytest.mark.parametrize("one_in", [2, 3, 10, 1000])
def test_a_hub_rebuilds_the_changes_from_what_travels_bit_for_bit(one_in):
    method = FedCurv(one_in=one_in)
    _, seen = play(method)
    for sent in seen.sent:
        message = method.phases()[0].travelling(sent)
        arrived, _ = wire.decode(wire.encode(message, wire.Header(1, 1, 1)))
        assert not arrived.keys() & set(TERMS)
        rebuilt = unpack(arrived["fisher_packed"], arrived["params"])
        assert_close(rebuilt, {group: sent[group] for group in TERMS}, rtol=0, atol=0)


@pytest.mark.parametrize("one_in", [2, 10, 1000])
def test_the_packed_changes_are_all_the_changes(one_in):
    """What a client remembers is the sum of what it has sent: nothing was left out."""
    _, seen = play(FedCurv(one_in=one_in), dtype=torch.float64)
    for client in range(5):
        for group in TERMS:
            total = sum(concatenated(sent[group]) for sent in seen.sent[client::5])
            assert_close(total, concatenated(seen.kept[client::5][-1][group]), rtol=1e-9, atol=1e-14)


def test_the_largest_entries_count_and_the_others_are_zero():
    (_, whole), (_, sparse) = play(FedCurv(), 1), play(FedCurv(one_in=10), 1)
    for all_of, some in zip(whole.kept, sparse.kept, strict=True):
        fisher, kept = concatenated(all_of["fisher"]), concatenated(some["fisher"])
        chosen = kept != 0
        assert 0 < chosen.sum() <= -(-SIZE // 10)
        assert_close(kept[chosen], fisher[chosen], rtol=0, atol=0)
        assert fisher[~chosen].max() <= kept[chosen].min()
        assert not concatenated(some["fisher_params"])[~chosen].any()


@pytest.mark.parametrize(
    ("one_in", "sent"),
    [
        (1, {"fisher": 4 * SIZE, "fisher_params": 4 * SIZE}),
        (2, {"fisher_packed": 12 * SIZE}),
        (10, {"fisher_packed": 12 * 2 * -(-SIZE // 10)}),
        (1000, {"fisher_packed": 12 * 2}),
    ],
)
def test_bytes(one_in, sent):
    simulation, _ = play(FedCurv(one_in=one_in), 0)
    record = simulation.step(evaluate=False)[0]
    terms = {group: size for group, size in record.bytes_up.items() if group.startswith("fisher")}
    assert terms == {group: 5 * size for group, size in sent.items()}
    assert record.bytes_down["fisher"] == record.bytes_down["fisher_params"] == 5 * 4 * SIZE


def test_the_hub_holds_the_sum_of_everybodys_last_terms_with_partial_participation():
    method = FedCurv(one_in=4)
    simulation = simulation_of(prepare(method), Layout(participation=3, lanes=2))
    for _ in range(6):
        simulation.step(evaluate=False)
    memories = simulation.store.load(range(5))
    for group in TERMS:
        total = {name: value.sum(0) for name, value in memories[group].items()}
        assert_close(tree.index(simulation.hub, 0)[group], total, rtol=1e-10, atol=1e-14)


def test_one_in_so_many_is_a_penalty_between_none_and_the_whole():
    none, some, whole = (
        play(method, dtype=torch.float64)[0].hub["params"]
        for method in (FedCurv(strength=0.0), FedCurv(one_in=4), FedCurv())
    )
    gap = tree.sq_norm(tree.sub(whole, none)).sqrt()
    assert 0 < tree.sq_norm(tree.sub(some, none)).sqrt() < 1.5 * gap
    assert tree.sq_norm(tree.sub(some, whole)).sqrt() > 0


@pytest.mark.parametrize("one_in", [0, -1])
def test_fewer_than_all_is_a_whole_number_from_one_on(one_in):
    with pytest.raises(UserError, match=f"one_in must be at least 1 .*not {one_in}"):
        FedCurv(one_in=one_in)
    with pytest.raises(UserError, match="one_in"):
        FisherElastic(one_in=one_in)
