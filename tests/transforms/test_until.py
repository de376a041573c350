"""One method for some rounds, then another: states, bytes, and runs that are interrupted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from consilience.algorithms.dechw import DecHW, DecHWStar
from consilience.algorithms.fagh import FAGH
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedcurv import FedCurv
from consilience.algorithms.fedlin import FedLin
from consilience.algorithms.hwa import HWA
from consilience.algorithms.local import Local
from consilience.algorithms.scaffold import Scaffold
from consilience.engine.rounds.simulation import Simulation
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.graphs.star import Star
from consilience.method import Composed
from consilience.rules.hessian_weighted import HessianWeighted
from consilience.testing import prepare
from consilience.testing.federation import Layout, simulation_of
from consilience.transforms.compressed import Compressed
from consilience.transforms.noised import Noised
from consilience.transforms.until import Until


@pytest.mark.parametrize("topology", [Star(), Ring()], ids=lambda one: one.name)
@pytest.mark.parametrize("lanes", [0, 3])
def test_hwa_for_two_rounds_then_fedavg_is_both_by_hand(topology, lanes):
    subject = replace(prepare(Until(HWA("all"), 2, FedAvg())))
    layout = Layout(topology, lanes=lanes)
    whole = simulation_of(subject, layout)
    first, then = (simulation_of(subject, layout, (one, subject.solver)) for one in (HWA("all"), FedAvg()))
    records = [whole.step(evaluate=False)[0] for _ in range(4)]
    by_hand = [first.step(evaluate=False)[0] for _ in range(2)]
    then.hub, then.round = first.hub, first.round
    by_hand += [then.step(evaluate=False)[0] for _ in range(2)]
    assert_close(whole.hub, then.hub, rtol=0, atol=0)
    assert [(r.bytes_up, r.bytes_down, r.train_loss) for r in records] == [
        (r.bytes_up, r.bytes_down, r.train_loss) for r in by_hand
    ]
    assert ["importance" in record.bytes_up for record in records] == [True, True, False, False]


@pytest.mark.parametrize(("rounds", "same"), [(0, FedAvg()), (4, HWA())])
def test_never_and_always(play, rounds, same):
    found, expected = play(Until(HWA(), rounds, FedAvg()), 4), play(same, 4)
    assert_close(found.params, expected.params, rtol=0, atol=0)


def test_both_find_their_states_and_the_first_ones_stay(play):
    run = play(Until(FedCurv(), 2, Scaffold()), 2)
    assert run.simulation.hub.keys() == {"params", "buffers", "fisher", "fisher_params", "control"}
    after_first = run.simulation.hub
    assert not any(value.any() for value in after_first["control"].values())
    run.simulation.step(evaluate=False)
    assert_close(run.simulation.hub["fisher"], after_first["fisher"], rtol=0, atol=0)
    assert all(value.any() for value in run.simulation.hub["control"].values())


def test_a_state_of_one_name_is_taken_over(play):
    """Two options of one method are the method itself where they agree."""
    found, expected = play(Until(Scaffold(), 2, Scaffold()), 4), play(Scaffold(), 4)
    assert_close(found.simulation.hub, expected.simulation.hub, rtol=0, atol=0)


def test_methods_with_rounds_of_different_lengths(play):
    run = play(Until(FedAvg(), 1, FedLin()), 3)
    assert [record.bytes_up.get("gradient", 0) > 0 for record in run.records] == [False, True, True]


def test_messages_of_both_can_be_changed(play):
    small = Compressed(one_in=10)
    one = play(small(Until(FedAvg(), 1, FedLin())), 3)
    other = play(Until(small(FedAvg()), 1, small(FedLin())), 3)
    assert_close(one.params, other.params, rtol=0, atol=0)
    assert one.records[2].bytes_up == other.records[2].bytes_up
    assert "params" not in one.records[0].bytes_up
    noisy = play(Until(Noised(0.1)(FedAvg()), 1, FedAvg()), 1)
    assert_close(noisy.params, play(Noised(0.1)(FedAvg()), 1).params, rtol=0, atol=0)


def test_a_snapshot_continues_across_the_change():
    subject = prepare(Until(FedCurv(), 2, Scaffold()))
    straight: Simulation = simulation_of(subject, Layout(participation=3, lanes=2))
    for stop in (1, 2, 3):
        resumed = simulation_of(subject, Layout(participation=3, lanes=2))
        while straight.round < stop:
            straight.step(evaluate=False)
        resumed.restore(straight.snapshot())
        expected = simulation_of(subject, Layout(participation=3, lanes=2))
        for _ in range(4):
            expected.step(evaluate=False)
        while resumed.round < 4:
            resumed.step(evaluate=False)
        assert_close(resumed.hub, expected.hub, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("first", "rounds", "then", "reason"),
    [
        (HWA(), -1, FedAvg(), "until: rounds must be at least 0, not -1"),
        (Local(), 2, FedAvg(), "until: local and fedavg do not evaluate the same models"),
        (HWA(), FedAvg(), 2, r"until: rounds must be of type int, not FedAvg\("),
        (
            HWA(),
            2,
            Until(FedAvg(), 2, HWA()),
            "so fedavg would never run: it begins after 2 rounds, hwa after 2",
        ),
    ],
)
def test_nonsense_is_refused(first, rounds, then, reason):
    with pytest.raises(UserError, match=reason):
        Until(first, rounds, then)


def test_states_of_one_name_but_other_shapes_are_refused(play):
    output = Composed(rule=HessianWeighted("output", accumulate="sum"))
    with pytest.raises(
        UserError, match="until: dechw and composed both keep 'importance', but of other shapes"
    ):
        play(Until(DecHW(), 1, output))


@pytest.mark.parametrize(
    ("algorithm", "topology", "reason"),
    [
        (Until(FedAvg(), 1, FedCurv()), Ring(), "fedcurv: .* not defined on a graph"),
        (Until(Compressed()(Scaffold()), 1, FedAvg()), Ring(), "scaffold compressed: .* graph"),
        (Until(FAGH(row_index="max_diag"), 1, FedAvg()), Star(), "an exchange before the first round"),
    ],
)
def test_what_one_of_them_refuses_both_refuse(algorithm, topology, reason):
    subject = replace(prepare(FedAvg()), algorithm=algorithm)
    with pytest.raises(UserError, match=f"until: .*{reason}"):
        simulation_of(subject, Layout(topology))


def test_a_method_with_a_change_of_its_own_can_be_first(play):
    run = play(Until(DecHWStar(until=1), 2, FedAvg()), 3)
    assert ["importance" in record.bytes_up for record in run.records] == [True, False, False]
    assert torch.isfinite(next(iter(run.params.values()))).all()
