"""What clients of any method can be told about training: clipping, a falling learning rate, less work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedprox import FedProx
from consilience.algorithms.scaffold import Scaffold
from consilience.engine.build import simulate
from consilience.errors import UserError
from consilience.learning.solvers import SGD


def moved(scene, play, **options):
    """How far one step on all data of a lone client moves its model."""
    where = scene(sizes=(7,), epochs=1, batch_size=10)
    where = replace(where, work=replace(where.work, **options))
    before, after = (tree.index(play(where, FedAvg(), rounds, SGD(1.0)).hub, 0) for rounds in (0, 1))
    return tree.sub(after["params"], before["params"])


def test_a_long_gradient_is_shortened_to_the_norm(scene, play):
    free, clipped = moved(scene, play), moved(scene, play, clip=0.01)
    assert tree.sq_norm(free).sqrt() > 0.02
    assert_close(tree.sq_norm(clipped).sqrt(), torch.tensor(0.01, dtype=torch.float64))
    assert_close(clipped, tree.scale(0.01 / tree.sq_norm(free).sqrt(), free))


def test_a_short_gradient_is_left_alone(scene, play):
    assert_close(moved(scene, play, clip=100.0), moved(scene, play), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("executor", ["sequential", "batched"])
@pytest.mark.parametrize("solver", [SGD(0.1), SGD(0.1, momentum=0.9, weight_decay=0.01)])
def test_the_learning_rate_falls_from_round_to_round(scene, executor, solver):
    where = replace(scene(), executor=executor)
    falling = simulate(replace(where, work=replace(where.work, lr_decay=0.5)), [(FedProx(), solver)])
    for number in range(3):
        slower = simulate(where, [(FedProx(), replace(solver, lr=0.1 * 0.5**number))])
        slower.restore(falling.snapshot())
        falling.step(evaluate=False)
        slower.step(evaluate=False)
        assert_close(falling.hub, slower.hub, rtol=1e-12, atol=1e-14)


def test_stragglers_take_fewer_steps_and_are_still_heard(scene):
    where = scene(sizes=(8,) * 6, epochs=4)
    lazy = replace(where, work=replace(where.work, stragglers=0.7))
    full, fewer = (simulate(one, [(FedAvg(), SGD(0.1))]) for one in (where, lazy))
    full_samples = sum(full.step(evaluate=False)[0].samples for _ in range(4))
    fewer_samples = sum(fewer.step(evaluate=False)[0].samples for _ in range(4))
    assert full_samples == 4 * 6 * 8 * 4
    assert full_samples / 4 <= fewer_samples < 0.9 * full_samples
    assert fewer_samples % 8 == 0


def test_scaffold_counts_the_steps_a_straggler_really_took(scene, play):
    where = scene(sizes=(8,) * 5, epochs=4)
    where = replace(where, work=replace(where.work, stragglers=0.7))
    simulation = play(where, Scaffold(), 4)
    controls = simulation.store.snapshot()["memory.control"]
    mean = {name: value.mean(0) for name, value in controls.items()}
    assert_close(tree.index(simulation.hub, 0)["control"], mean, rtol=1e-10, atol=1e-12)


def test_clipping_breaks_option_ii_of_scaffold_and_is_refused(scene, play):
    where = scene()
    with pytest.raises(UserError, match="clip"):
        play(replace(where, work=replace(where.work, clip=1.0)), Scaffold())
    play(replace(where, work=replace(where.work, clip=1.0)), Scaffold(option="I"), 1)
