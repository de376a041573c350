"""Local training: section 3.4 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.local import Local
from consilience.data.partition import Partition
from consilience.graphs.ring import Ring


def memories(simulation):
    return simulation.store.load(range(simulation.world.population))


# 1
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_client_with_all_data_is_the_centralised_run_bit_for_bit(scene, play, centralised, dtype):
    alone = replace(scene(sizes=(26,), dtype=dtype), executor="sequential")
    trained = tree.index(memories(play(alone, Local())), 0)["params"]
    assert_close(trained, centralised(alone, 3), rtol=0, atol=0)


# 2
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_clients_data_do_not_matter_bit_for_bit(scene, play, dtype):
    before = scene(dtype=dtype)
    part = before.partitions[0]
    shards = (part.shards[0], part.shards[1], np.array([3, 25]), *part.shards[3:])
    after = replace(before, partitions={0: Partition(shards, part.holdouts, {}, 0)})
    trained = [memories(play(where, Local())) for where in (before, after)]
    others = torch.tensor([0, 1, 3, 4])
    assert_close(*(tree.index(one, others) for one in trained), rtol=0, atol=0)
    assert not torch.equal(trained[0]["params"]["0.weight"][2], trained[1]["params"]["0.weight"][2])


@pytest.mark.parametrize("topology", [None, Ring()])
def test_nothing_travels(scene, play, topology):
    where = scene() if topology is None else replace(scene(), topology=topology)
    record = play(where, Local(), 0).step()[0]
    assert record.bytes_up == record.bytes_down == {}


def test_the_total_of_epochs_is_rounds_times_local_epochs(scene, play):
    simulation = play(scene(epochs=3), Local(), 0)
    assert sum(simulation.step()[0].samples for _ in range(4)) == 4 * 3 * 26


def test_every_clients_model_is_scored_on_the_global_test_set(scene, play):
    simulation = play(replace(scene(), init="different"), Local(), 2)
    scores = simulation.evaluate()[0]
    each = [client["test_accuracy"] for client in simulation.clients()]
    assert len(set(each)) > 1
    assert scores["test_accuracy"] == pytest.approx(np.mean(each))
    assert scores["accuracy_std"] == pytest.approx(np.std(each))


def test_clients_may_start_from_models_of_their_own(scene, play):
    starts = [memories(play(replace(scene(), init=init), Local(), 0)) for init in ("common", "different")]
    spread = [start["params"]["0.weight"].std(0).max() for start in starts]
    assert spread[0] == 0 < spread[1]
