"""How clients are laid out follows from the model and the batch size."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.config.config import read_config
from consilience.data.dataset import Dataset
from consilience.engine.build import simulate
from consilience.experiment import plan

IMAGES = np.zeros((40, 1, 28, 28), dtype=np.uint8)
CLASSES = np.arange(40) % 10


@pytest.mark.parametrize(
    ("model", "batch", "lanes"),
    [
        ({"name": "mlp", "hidden": [8]}, 32, 16),  # as many rows as are worth stacking
        ({"name": "mlp", "hidden": [8]}, 1000, 1),
        ({"name": "mlp", "hidden": [200, 200]}, 32, 5),  # as many models as fit into caches
        ({"name": "mlp", "hidden": [1200, 300]}, 32, 1),
        ({"name": "mnist-cnn"}, 32, 1),
    ],
)
def test_small_dense_models_are_stacked_on_a_cpu(model, batch, lanes):
    data = Dataset.from_arrays("images", IMAGES, CLASSES, IMAGES, CLASSES)
    settings = {"data": data, "partition": "iid", "clients": 2, "model": model, "method": "fedavg"}
    settings |= {"local": {"epochs": 1, "batch_size": batch}, "rounds": 1, "device": "cpu"}
    arm = plan(read_config(settings, "test"))[0]
    assert simulate(arm.scene, arm.variants).world.executor.lanes == lanes
