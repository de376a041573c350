"""FedAvg: section 3.2 of the algorithm reference; numbers are those of its tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.fedavg import FedAvg
from consilience.data.partition import Partition
from consilience.exchange.cohort import sample_clients
from consilience.learning.solvers import SGD
from consilience.rules.by_data import ByData


# 1
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_client_is_centralised_training_bit_for_bit(scene, play, centralised, dtype):
    alone = replace(scene(sizes=(11,), dtype=dtype), executor="sequential")
    trained = tree.index(play(alone, FedAvg()).hub, 0)["params"]
    assert_close(trained, centralised(alone, 3), rtol=0, atol=0)


# 1
@pytest.mark.parametrize("solver", [SGD(0.1), SGD(0.1, momentum=0.9, weight_decay=0.01)])
def test_one_client_is_centralised_training_whose_momentum_starts_anew(scene, play, centralised, solver):
    alone = replace(scene(sizes=(11,)), executor="batched")
    trained = tree.index(play(alone, FedAvg(), 3, solver).hub, 0)["params"]
    assert_close(trained, centralised(alone, 3, solver), rtol=1e-12, atol=1e-14)


# 2
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_identical_uploads_return_that_upload_bit_for_bit(inbox, weighting):
    upload = torch.randn(50, generator=torch.Generator().manual_seed(0))
    heard = inbox({"params": {"w": upload.expand(7, 50)}}, [1, 2, 3, 5, 7, 11, 13])
    assert torch.equal(ByData(weighting).merge({}, heard)["w"], upload)


# 3
def test_permuting_messages_changes_the_mean_in_float32_by_its_last_bit_at_most(inbox):
    values = torch.randn(6, 200, generator=torch.Generator().manual_seed(0))
    sizes = torch.arange(1, 7)
    orders = torch.arange(6), torch.tensor([4, 0, 5, 2, 1, 3])
    merged = [ByData().merge({}, inbox({"params": {"w": values[o]}}, sizes[o]))["w"] for o in orders]
    assert_close(*merged, rtol=torch.finfo(torch.float32).eps, atol=0)
    assert (merged[0] != merged[1]).sum() <= 2  # where the sum in float64 lies between two numbers


# 3
def test_permuting_clients_does_not_change_the_model(scene, play):
    full = scene(batch_size=1000, epochs=1)  # one batch, so that the order within it only changes rounding
    part = full.partitions[0]
    permuted = Partition(tuple(part.shards[k] for k in (3, 0, 4, 1, 2)), part.holdouts, {}, 0)
    models = [play(where, FedAvg()).hub for where in (full, replace(full, partitions={0: permuted}))]
    assert_close(*models, rtol=1e-12, atol=1e-14)


def test_weights_are_normalised_over_the_sampled_clients(scene, play):
    some = replace(scene(), participation=2)
    sampled, part = sample_clients(0, 0, np.arange(5), 2), some.partitions[0]
    shards = tuple(shard if k in sampled else shard[:0] for k, shard in enumerate(part.shards))
    only = replace(some, partitions={0: Partition(shards, part.holdouts, {}, 0)})
    assert_close(play(some, FedAvg(), 1).hub, play(only, FedAvg(), 1).hub, rtol=0, atol=0)


@pytest.mark.parametrize(("weighting", "expected"), [("samples", 4.1), ("uniform", 2.0)])
def test_clients_weigh_by_samples_or_all_alike_and_unheard_ones_not_at_all(inbox, weighting, expected):
    values = torch.tensor([[0.0], [1.0], [99.0], [5.0]], dtype=torch.float64)
    merged = ByData(weighting).merge({}, inbox({"params": {"w": values}}, [1, 1, 0, 8]))
    assert merged["w"].item() == pytest.approx(expected)


def test_one_model_travels_each_way(scene, play):
    record = play(scene(), FedAvg(), 0).step(evaluate=False)[0]
    assert record.bytes_up == record.bytes_down
    assert record.bytes_up.keys() == {"params", "header"}
    assert record.bytes_up["params"] == 5 * 8 * (6 * 8 + 8 + 8 * 3 + 3)
