"""FedExP: section 5.4 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedexp import FedExP
from consilience.algorithms.scaffold import Scaffold
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD
from consilience.method import Composed
from consilience.objectives.control_variates import ControlVariates
from consilience.objectives.proximal import Proximal
from consilience.rules.by_data import ByData
from consilience.rules.hessian_weighted import HessianWeighted
from consilience.server_steps.extrapolate import Extrapolate

SCAFFOLD_TOO = Composed(ControlVariates(), ByData("uniform"), Extrapolate())


def model(simulation):
    return tree.index(simulation.hub, 0)["params"]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def rate(inbox):
    """How far the server goes if clients with some samples send some updates [messages, numbers]."""

    def of(updates, epsilon=0.0, sizes=None):
        old = draw(updates.shape[1], seed=1).to(updates.dtype)
        half = len(old) // 2
        uploads = {"a": (old + updates)[:, :half], "b": (old + updates)[:, half:]}
        received = inbox({"params": uploads}, sizes or [1] * len(updates))
        start = {"a": old[:half], "b": old[half:]}
        return Extrapolate(epsilon).rate(start, received.mean("params"), received)

    return of


@pytest.fixture
def alike(scene):
    """Makes scenes of clients that have the same rows, all in one batch."""

    def make(dtype):
        where = scene(sizes=(6, 6, 6), batch_size=100, dtype=dtype)
        part = where.partitions[0]
        return replace(where, partitions={0: replace(part, shards=part.shards[:1] * 3)})

    return make


# 1
def test_the_rate_of_equal_updates_is_1(rate):
    assert rate(draw(1, 10).expand(4, 10)) == 1
    assert rate(draw(1, 10)) == 1


# 1
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_equal_updates_it_is_fedavg_bit_for_bit(alike, play, dtype):
    assert_close(model(play(alike(dtype), FedExP())), model(play(alike(dtype), FedAvg())), rtol=0, atol=0)


# 2
@pytest.mark.parametrize("clients", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("length", [1e-4, 1.0, 1e3])
def test_the_rate_of_orthogonal_updates_is_half_their_number(rate, clients, length):
    basis = torch.linalg.qr(draw(12, 12)).Q[:clients]
    assert_close(rate(length * basis).item(), max(1.0, clients / 2), rtol=1e-9, atol=0)


# 3
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1.0])
def test_the_rate_is_never_below_1(rate, epsilon):
    for seed in range(20):
        updates = draw(5, 10, seed=seed) + 0.2 * seed
        assert rate(updates, epsilon) >= 1
    assert rate(torch.zeros(3, 10, dtype=torch.float64), epsilon) == 1


def test_updates_that_cancel_do_not_make_the_model_infinite(inbox):
    update = {"w": torch.tensor([[1.0, -2.0], [-1.0, 2.0]])}
    hub = {"params": {"w": torch.zeros(2)}, "previous": {"w": torch.zeros(2)}}
    for epsilon in (0.0, 1e-3):
        received = inbox({"params": update}, [1, 1])
        params, _ = Extrapolate(epsilon).apply(hub, received.mean("params"), received)
        assert torch.equal(params["w"], torch.zeros(2))


@pytest.mark.parametrize("epsilon", [0.0, 0.7])
def test_the_rate_weighs_clients_as_the_mean_does(rate, epsilon):
    updates, sizes = draw(4, 10), [5, 1, 3, 1]
    shares = torch.tensor(sizes, dtype=torch.float64) / 10
    apart = (shares * (updates**2).sum(1)).sum()
    together = ((shares[:, None] * updates).sum(0) ** 2).sum()
    expected = apart / (2 * (together + epsilon))
    assert expected > 1
    assert_close(rate(updates, epsilon, sizes), expected, rtol=1e-10, atol=0)


def test_messages_that_were_not_received_do_not_count(inbox):
    """Their tensors are zeros, so that they would be far from the old model."""
    old, uploads = {"w": draw(10, seed=1)}, draw(3, 10)
    heard = inbox({"params": {"w": uploads}}, [2, 1, 1])
    padded = inbox({"params": {"w": torch.cat([uploads, torch.zeros(2, 10).double()])}}, [2, 1, 1, 0, 0])
    rates = [Extrapolate().rate(old, one.mean("params"), one) for one in (heard, padded)]
    assert_close(*rates, rtol=1e-12, atol=0)


def test_an_epsilon_that_grows_with_the_squared_updates_keeps_the_rate(rate):
    updates = draw(5, 10)
    assert rate(updates, 0.5) < rate(updates)
    assert_close(rate(1e-3 * updates, 0.5e-6), rate(updates, 0.5), rtol=1e-9, atol=0)


def test_norms_are_summed_in_float64(inbox):
    """A million squares of about 1, which float32 adds up to five digits at best."""
    uploads = draw(3, 1_000_000).float()
    old = {"w": torch.zeros(1_000_000)}
    single = inbox({"params": {"w": uploads}}, [1, 1, 1])
    merged = single.mean("params")
    double = inbox({"params": {"w": uploads.double()}}, [1, 1, 1])
    exact = Extrapolate().rate({"w": old["w"].double()}, {"w": merged["w"].double()}, double)
    assert exact > 1
    assert_close(Extrapolate().rate(old, merged, single), exact, rtol=1e-12, atol=0)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_round_is_the_papers_formula(scene, play, weighting):
    """Each client trained alone by FedAvg; then the updates, their mean and the rate."""
    where = scene(sizes=(5, 3, 8))
    part, start = where.partitions[0], model(play(where, FedAvg(), 0))
    updates = []
    for client in range(3):
        shards = tuple(shard if k == client else shard[:0] for k, shard in enumerate(part.shards))
        own = model(play(replace(where, partitions={0: replace(part, shards=shards)}), FedAvg(), 1))
        updates.append(tree.sub(own, start))
    shares = [5 / 16, 3 / 16, 8 / 16] if weighting == "samples" else [1 / 3] * 3
    mean = {name: sum(p * u[name] for p, u in zip(shares, updates, strict=True)) for name in start}
    apart = sum(p * tree.sq_norm(u) for p, u in zip(shares, updates, strict=True))
    far = apart / (2 * (tree.sq_norm(mean) + 1e-3))
    assert far > 1.1
    found = model(play(where, FedExP(weighting=weighting), 1))
    assert_close(found, tree.axpy(far, mean, start), rtol=1e-10, atol=1e-12)


def test_the_mean_of_the_last_two_models_is_evaluated_and_training_goes_on_from_the_last(scene, play):
    last, both = play(scene(), FedExP(average_last_two=False), 0), play(scene(), FedExP(), 0)
    before = model(both)
    assert_close(both.models(both.evaluated())["params"], last.hub["params"], rtol=0, atol=0)
    for _ in range(4):
        for simulation in (last, both):
            simulation.step(evaluate=False)
        assert_close(model(both), model(last), rtol=0, atol=0)
        evaluated = tree.index(both.models(both.evaluated()), 0)["params"]
        assert_close(evaluated, tree.scale(0.5, tree.add(before, model(last))), rtol=1e-14, atol=1e-16)
        assert_close(last.models(last.evaluated())["params"], last.hub["params"], rtol=0, atol=0)
        before = model(last)


def test_trainable_parameters_alone_count_and_move(scene, play):
    where = scene(sizes=(7, 3), module="normalised")
    hub, plain = play(where, FedExP(), 1).hub, play(where, FedAvg(), 1).hub
    assert_close(hub["buffers"], plain["buffers"], rtol=0, atol=0)
    assert hub["previous"].keys() == hub["params"].keys()


def test_buffers_do_not_change_the_rate(inbox):
    uploads, old = {"w": draw(3, 4)}, {"w": draw(4, seed=1)}
    still, moved = (
        inbox({"params": uploads, "buffers": {"running_mean": size * draw(3, 4)}}, [1, 1, 1])
        for size in (0, 1e6)
    )
    rates = [Extrapolate().rate(old, one.mean("params"), one) for one in (still, moved)]
    assert torch.equal(*rates)


@pytest.mark.parametrize(("average", "copies"), [(True, 2), (False, 1)])
def test_the_hub_holds_as_much_after_any_number_of_rounds(scene, play, average, copies):
    sizes = {tree.nbytes(play(scene(), FedExP(average_last_two=average), r).hub) for r in (0, 1, 3)}
    assert sizes == {copies * tree.nbytes(play(scene(), FedAvg(), 0).hub)}


def test_bytes_are_those_of_fedavg(scene, play):
    records = [play(scene(), method, 0).step(evaluate=False)[0] for method in (FedExP(), FedAvg())]
    assert records[0].bytes_up == records[1].bytes_up
    assert records[0].bytes_down == records[1].bytes_down


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_controls_and_equal_updates_it_is_scaffold_bit_for_bit(alike, play, dtype):
    both, scaffold = (play(alike(dtype), method).hub for method in (SCAFFOLD_TOO, Scaffold()))
    assert_close({group: both[group] for group in scaffold}, scaffold, rtol=0, atol=0)


def test_with_controls_the_first_round_is_fedexp_and_controls_keep_their_mean(scene, play):
    simulation = play(scene(), SCAFFOLD_TOO, 1)
    assert_close(model(simulation), model(play(scene(), FedExP(weighting="uniform"), 1)), rtol=0, atol=0)
    for _ in range(4):
        kept = simulation.store.load(range(5))["control"]
        mean = {name: value.mean(0) for name, value in kept.items()}
        assert_close(tree.index(simulation.hub, 0)["control"], mean, rtol=1e-10, atol=1e-13)
        simulation.step(evaluate=False)


def test_with_controls_it_finds_the_optimum_of_a_convex_problem_and_alone_it_does_not(scene, play):
    """Logistic regression, three full-batch steps a round; at the optimum the gradient is 0."""
    full = scene(sizes=(20, 20, 20), module="logistic", epochs=3, batch_size=100)

    def slope(method):
        params = model(play(full, method, 50, SGD(1.5)))
        inputs, targets = full.dataset.inputs, full.dataset.targets
        gradient = torch.func.grad(lambda p: F.cross_entropy(F.linear(inputs, *p.values()), targets))(params)
        return tree.sq_norm(gradient).sqrt()

    assert slope(SCAFFOLD_TOO) < 1e-5
    assert slope(FedExP(weighting="uniform")) > 1e-2


def test_it_goes_with_fedproxs_objective(scene, play):
    far, near = (play(scene(), Composed(Proximal(mu=mu), server=Extrapolate()), 1) for mu in (0.0, 5.0))
    start = model(play(scene(), FedAvg(), 0))
    assert tree.sq_norm(tree.sub(model(near), start)) < tree.sq_norm(tree.sub(model(far), start))


def test_rules_other_than_a_mean_are_refused():
    with pytest.raises(UserError, match=r"extrapolate with plain and hessian_weighted: .* by_data"):
        Composed(rule=HessianWeighted(), server=Extrapolate())


def test_is_refused_on_a_graph(scene, play):
    with pytest.raises(UserError, match=r"fedexp: neighbours train from other models"):
        play(replace(scene(), topology=Ring()), FedExP())


def test_a_negative_epsilon_is_refused():
    with pytest.raises(UserError, match=r"epsilon must be at least 0, not -0\.1"):
        FedExP(epsilon=-0.1)


def test_it_learns_and_the_last_model_alone_oscillates(learned):
    """Behind FedAvg by 0.00 and, the last model, by 0.23; an epsilon for this learning rate is 0.05 ahead."""
    both = learned(FedExP())
    assert both.rise > 0.5
    assert both.behind < 0.05
    assert learned(FedExP(average_last_two=False)).behind > both.behind + 0.1
    assert learned(FedExP(epsilon=0.1)).behind < -0.02
