"""Training that ends when the held-out loss rises: where it ends, and with which weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from consilience.data.dataset import Dataset
from consilience.data.partition import Partition
from consilience.engine.build import simulate
from consilience.engine.scene import Scene
from consilience.exchange.cohort import LocalWork
from consilience.graphs.star import Star
from consilience.learning.solvers import SGD
from consilience.method import Composed
from consilience.objectives.base import Objective

EPOCHS = 4


@pytest.fixture
def scene():
    """Two clients. The first one's held-out labels contradict its training labels, the second one's agree."""
    inputs = np.random.default_rng(0).normal(size=(6, 3))
    inputs[2:4], inputs[5] = inputs[:2], inputs[4]
    targets = np.array([0, 0, 1, 1, 1, 1])
    data = Dataset.from_arrays("made", inputs, targets, inputs, targets, classes=2)
    shards, holdouts = (np.array([0, 1]), np.array([4])), (np.array([2, 3]), np.array([5]))
    return Scene(
        dataset=data,
        build=lambda: nn.Linear(3, 2),
        partitions={0: Partition(shards, holdouts, {}, 0)},
        topology=Star(),
        work=LocalWork(EPOCHS, None, 10),
        participation=2,
        normalize="none",
        dtype=torch.float64,
    )


def only(scene, client):
    part = scene.partitions[0]
    shards = tuple(shard if k == client else shard[:0] for k, shard in enumerate(part.shards))
    return replace(scene, partitions={0: replace(part, shards=shards)})


def train(scene, early_stop, epochs=EPOCHS):
    """The model after one round, and the round's record."""
    where = replace(scene, work=replace(scene.work, epochs=epochs))
    simulation = simulate(where, [(Composed(Objective(early_stop=early_stop)), SGD(0.5))])
    record = simulation.step(evaluate=False)[0]
    return simulation.hub["params"], record


def start(scene):
    return simulate(scene, [(Composed(), SGD(0.5))]).hub["params"]


@pytest.mark.parametrize("executor", ["batched", "sequential"])
def test_the_epoch_that_raises_the_loss_is_the_last(scene, executor):
    """The first epoch has nothing to compare with, so the second one is."""
    alone = replace(only(scene, 0), executor=executor)
    assert_close(train(alone, "stop")[0], train(alone, "never", epochs=2)[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("executor", ["batched", "sequential"])
def test_rolled_back_the_client_sends_what_it_started_from(scene, executor):
    alone = replace(only(scene, 0), executor=executor)
    assert_close(train(alone, "rollback")[0], start(alone), rtol=0, atol=0)


@pytest.mark.parametrize("early_stop", ["stop", "rollback"])
def test_a_falling_loss_does_not_stop(scene, early_stop):
    alone = only(scene, 1)
    assert_close(train(alone, early_stop)[0], train(alone, "never")[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("early_stop", ["stop", "rollback"])
def test_every_client_stops_for_itself(scene, early_stop):
    together = train(scene, early_stop)[0]
    alone = [train(only(scene, client), early_stop)[0] for client in (0, 1)]
    mean = {name: 2 / 3 * alone[0][name] + 1 / 3 * alone[1][name] for name in together}
    assert_close(together, mean, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("client", "epochs"), [(0, 2), (1, EPOCHS)])
def test_samples_and_loss_are_counted_once_and_up_to_the_stop(scene, client, epochs):
    alone = only(scene, client)
    stopped, plain = train(alone, "stop")[1], train(alone, "never", epochs)[1]
    assert stopped.samples == plain.samples == 4
    assert stopped.train_loss == pytest.approx(plain.train_loss)
