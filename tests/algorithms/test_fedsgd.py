"""FedSGD: section 3.1 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedsgd import FedSGD
from consilience.data.partition import Partition
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD


# 1
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_equals_fedavg_with_one_full_batch_step(scene, play, dtype, tolerance):
    full = scene(epochs=1, batch_size=1000, dtype=dtype)
    models = play(full, FedSGD(0.3)).hub, play(full, FedAvg(), 3, SGD(0.3)).hub
    assert_close(*models, rtol=tolerance, atol=tolerance)


# 2
def test_equals_centralised_gradient_descent_on_the_pooled_data(scene, play, centralised):
    full = scene(epochs=1, batch_size=1000)
    shards = (np.concatenate(full.partitions[0].shards),)
    pooled = replace(full, partitions={0: Partition(shards, (np.arange(0),), {}, 0)})
    trained = tree.index(play(full, FedSGD(0.3), 5).hub, 0)["params"]
    assert_close(trained, centralised(pooled, 5, SGD(0.3)), rtol=1e-12, atol=1e-14)


def test_the_gradient_does_not_depend_on_the_batches_it_is_summed_over(scene, play):
    models = [play(scene(batch_size=size), FedSGD(0.3)).hub for size in (2, 1000)]
    assert_close(*models, rtol=1e-12, atol=1e-14)


def test_normalisation_statistics_move_travel_and_are_averaged(scene, play):
    full = scene(sizes=(7, 3, 10), module="normalised", epochs=1, batch_size=1000)
    trained, averaged = play(full, FedSGD(0.3)).hub, play(full, FedAvg(), 3, SGD(0.3)).hub
    assert_close(trained["buffers"], averaged["buffers"], rtol=1e-12, atol=1e-14)
    assert trained["buffers"]["1.running_mean"].abs().min() > 0


def test_is_refused_on_a_graph(scene, play):
    with pytest.raises(UserError, match=r"fedsgd: .* not defined on a graph"):
        play(replace(scene(), topology=Ring()), FedSGD())
