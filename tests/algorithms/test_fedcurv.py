"""FedCurv: section 4.1 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedcurv import FedCurv
from consilience.engine.build import simulate
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD
from consilience.objectives.base import Pass
from consilience.objectives.fisher_elastic import FisherElastic

CLIENT = SimpleNamespace(solver=SGD(0.1))


@pytest.fixture
def clients():
    """[4 clients, 6] random Fisher diagonals and models."""
    random = torch.Generator().manual_seed(0)
    return torch.rand(4, 6, generator=random, dtype=torch.float64), torch.randn(
        4, 6, generator=random, dtype=torch.float64
    )


def context_of(objective, fisher, models, client):
    """What a client makes of the hub's sums over all clients and its own terms."""
    terms = {"fisher": {"w": fisher}, "fisher_params": {"w": fisher * models}}
    down = tree.map_leaves(lambda value: value.sum(0), terms)
    return objective.context(CLIENT, down, tree.index(terms, client))


def pull(objective, context, at):
    """The gradient of the penalty."""
    return torch.func.grad(lambda w: objective.penalty(Pass(None, {"w": w}, None, None), context))(at)


def memories(simulation):
    return simulation.store.load(range(simulation.world.population))


# 1
@pytest.mark.parametrize("client", range(4))
def test_the_sums_give_the_gradient_of_the_explicit_penalty_over_the_others(clients, client):
    objective = FisherElastic(strength=0.7, stiffness=None)
    fisher, models = clients
    at = torch.linspace(-1, 1, 6, dtype=torch.float64)
    others = [k for k in range(4) if k != client]

    def explicit(w):
        return 0.7 * sum(((w - models[k]) ** 2 * fisher[k]).sum() for k in others)

    context = context_of(objective, fisher, models, client)
    assert_close(pull(objective, context, at), torch.func.grad(explicit)(at), rtol=1e-12, atol=1e-12)


# 2
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_strength_it_is_uniform_fedavg_bit_for_bit(scene, play, dtype):
    where = scene(dtype=dtype)
    curved, plain = play(where, FedCurv(strength=0.0)).hub, play(where, FedAvg("uniform")).hub
    assert_close(curved["params"], plain["params"], rtol=0, atol=0)


# 3
def test_of_two_clients_one_is_pulled_by_the_others_upload_alone(clients):
    objective = FisherElastic(stiffness=None)
    fisher, models = clients[0][:2], clients[1][:2]
    context = context_of(objective, fisher, models, 0)
    assert_close(context["others"]["w"], fisher[1], rtol=1e-12, atol=1e-15)
    assert_close(context["others_params"]["w"], fisher[1] * models[1], rtol=1e-12, atol=1e-15)


# 4
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("strength", [1.0, 1e4])
def test_the_first_round_is_fedavg_for_any_strength(scene, play, dtype, strength):
    where = scene(dtype=dtype)
    curved, plain = play(where, FedCurv(strength=strength), 1).hub, play(where, FedAvg("uniform"), 1).hub
    assert_close(curved["params"], plain["params"], rtol=0, atol=0)


def test_later_rounds_are_not(scene, play):
    curved, plain = play(scene(), FedCurv(), 2).hub, play(scene(), FedAvg("uniform"), 2).hub
    assert not torch.allclose(curved["params"]["0.weight"], plain["params"]["0.weight"])


@pytest.mark.parametrize("loss_rate", [0.0, 0.4])
def test_with_partial_participation_the_hub_holds_the_sum_of_everybodys_last_terms(scene, play, loss_rate):
    simulation = play(replace(scene(), participation=3, failure_rate=loss_rate), FedCurv(), 8)
    total = tree.map_leaves(lambda value: value.sum(0), memories(simulation))
    for group in ("fisher", "fisher_params"):
        assert_close(tree.index(simulation.hub, 0)[group], total[group], rtol=1e-10, atol=1e-14)


def test_a_client_remembers_its_fisher_diagonal_and_that_times_its_model(scene, play):
    simulation = play(scene(sizes=(7,)), FedCurv(), 1)
    kept = memories(simulation)
    expected = tree.mul(kept["fisher"], simulation.hub["params"])
    assert_close(kept["fisher_params"], expected, rtol=1e-12, atol=1e-15)


def test_the_hub_does_not_grow_over_rounds(scene, play):
    simulation = play(replace(scene(sizes=(3, 2), epochs=1), participation=1), FedCurv(), 1)
    size = tree.nbytes(simulation.hub)
    assert size == 3 * tree.nbytes({"params": simulation.hub["params"]})
    for _ in range(29):
        simulation.step(evaluate=False)
        assert tree.nbytes(simulation.hub) == size


def test_the_importance_to_others_is_never_negative():
    sums, own = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([1.0 + 1e-6, 1e-12, 0.5])
    down = {"fisher": {"w": sums}, "fisher_params": {"w": sums}}
    context = FisherElastic().context(CLIENT, down, {"fisher": {"w": own}, "fisher_params": {"w": own}})
    assert context["others"]["w"].tolist() == [0.0, 0.0, 1.5]


def test_the_cap_on_stiffness_rests_in_an_ordinary_setting(scene, play):
    models = [play(scene(), FedCurv(stiffness=stiffness), 4).hub for stiffness in (1.0, None)]
    assert_close(*models, rtol=0, atol=0)


def test_the_cap_keeps_training_stable_where_the_penalty_is_huge(scene, play):
    capped, free = (play(scene(), FedCurv(strength=1e4, stiffness=s), 6).hub["params"] for s in (1.0, None))
    start = play(scene(), FedCurv(), 0).hub["params"]
    assert max(value.abs().max() for value in capped.values()) < 5
    assert max((free[name] - start[name]).abs().max() for name in free) > 1e3


def test_the_cap_keeps_the_target_and_limits_the_pull(clients):
    fisher, models = clients
    capped, free = (
        context_of(FisherElastic(strength=1e4, stiffness=stiffness), fisher, models, 0)
        for stiffness in (0.5, None)
    )
    assert_close(2 * 0.1 * 1e4 * capped["others"]["w"], torch.full((6,), 0.5, dtype=torch.float64))
    target = [context["others_params"]["w"] / context["others"]["w"] for context in (capped, free)]
    assert_close(*target)


def test_three_models_travel_each_way(scene, play):
    simulation = play(scene(), FedCurv(), 0)
    curved, plain = simulation.step()[0], play(scene(), FedAvg(), 0).step()[0]
    for sent, model in ((curved.bytes_up, plain.bytes_up), (curved.bytes_down, plain.bytes_down)):
        assert {group: sent[group] for group in ("params", "fisher", "fisher_params")} == dict.fromkeys(
            ("params", "fisher", "fisher_params"), model["params"]
        )


def test_the_fisher_diagonal_is_the_mean_of_squared_sample_gradients_at_the_trained_model(scene, play):
    where = scene(sizes=(6,), module="logistic")
    simulation = play(where, FedCurv(), 1)
    trained, inputs = tree.index(simulation.hub, 0)["params"], where.dataset.inputs
    chances = (inputs @ trained["weight"].T + trained["bias"]).softmax(-1)
    delta = chances - torch.nn.functional.one_hot(where.dataset.targets, 3)
    expected = {"weight": torch.einsum("nc,nf->cf", delta**2, inputs**2) / 6, "bias": (delta**2).mean(0)}
    assert_close(tree.index(memories(simulation), 0)["fisher"], expected, rtol=1e-12, atol=1e-15)


def test_a_sweep_over_strengths_may_include_none(scene, play):
    simulation = simulate(scene(), [(FedCurv(strength=s), SGD(0.1)) for s in (0.0, 1.0)])
    for _ in range(2):
        assert all(record.dropped == () for record in simulation.step())
    alone = play(scene(), FedCurv(strength=0.0), 2)
    assert_close(simulation.hub["params"]["0.weight"][:1], alone.hub["params"]["0.weight"])


def test_is_refused_on_a_graph(scene, play):
    with pytest.raises(UserError, match=r"fedcurv: .* not defined on a graph"):
        play(replace(scene(), topology=Ring()), FedCurv())
