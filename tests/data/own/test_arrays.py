"""Arrays as people have them: floats that are already scaled, images with channels last or without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.config import read_config
from consilience.engine.build import simulate
from consilience.experiment.planning import plan

CLASSES = np.arange(60) % 3


def seen(own: cs.Dataset, **settings: Any) -> torch.Tensor:
    """The inputs of all rows as a model of a run gets them."""
    (arm,) = plan(read_config({"data": own, "clients": 3, "rounds": 1, "dtype": "float64", **settings}))
    pool = simulate(arm.scene, arm.variants).world.pool
    rows = torch.arange(len(pool.targets))
    return pool.batch(
        rows, torch.ones(len(rows), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
    ).inputs


def test_a_users_own_floats_reach_the_model_as_they_are():
    points = np.random.default_rng(0).normal(size=(60, 5))
    data = cs.Dataset.from_arrays("points", points, CLASSES, points[:9], CLASSES[:9])
    assert torch.equal(seen(data), torch.from_numpy(np.concatenate([points, points[:9]])))
    assert cs.run("fedavg", data=data, clients=3, rounds=1).accuracy is not None
    halved = seen(data, data={"name": "points", "normalize": "half", "own": data})
    assert torch.allclose(halved[:60], 2 * torch.from_numpy(points) - 1)


def test_bytes_are_scaled_as_ever():
    images = np.random.default_rng(0).integers(0, 256, (60, 1, 4, 4), dtype=np.uint8)
    data = cs.Dataset.from_arrays("images", images, CLASSES, images[:9], CLASSES[:9])
    assert torch.allclose(seen(data)[:60], torch.from_numpy(images).double() / 127.5 - 1)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_that_come_last_are_recognised(kind: type, channels: int, caplog: pytest.LogCaptureFixture):
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 6, channels)).astype(kind)
    data = cs.Dataset.from_arrays("images", images, CLASSES, images[:9], CLASSES[:9])
    assert data.shape == (channels, 8, 6)
    assert torch.equal(data.inputs[:], torch.from_numpy(images).permute(0, 3, 1, 2))
    assert len(caplog.messages) == (kind is np.float32)  # bytes are images for certain
    assert cs.run("fedavg", data=data, clients=3, rounds=1, local={"steps": 1}).accuracy is not None
    kept = cs.Dataset.from_arrays("images", images, CLASSES, images, CLASSES, channels="first")
    assert kept.shape == (8, 6, channels)


SHAPES = [
    # (shape of one array, shape of an input)
    ((3, 8, 8), (3, 8, 8)),  # channels first
    ((3, 4, 3), (3, 4, 3)),  # could be either: as it is
    ((2, 8, 8), (2, 8, 8)),
    ((8, 8, 2), (8, 8, 2)),  # no usual number of channels
    ((8, 8), (1, 8, 8)),  # grey
]


@pytest.mark.parametrize(("given", "taken"), SHAPES)
def test_other_images_stay_as_they_are(given: tuple[int, ...], taken: tuple[int, ...]):
    images = np.zeros((60, *given), dtype=np.uint8)
    assert cs.Dataset.from_arrays("images", images, CLASSES, images, CLASSES).shape == taken


def test_channels_can_be_said_to_be_last():
    images = np.random.default_rng(0).normal(size=(60, 3, 4, 2))
    data = cs.Dataset.from_arrays("images", images, CLASSES, images, CLASSES, channels="last")
    assert torch.equal(data.inputs[:], torch.from_numpy(images).movedim(-1, 1))
