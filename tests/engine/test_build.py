"""How clients are laid out follows from the model and the batch size."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.config.config import read_config
from consilience.data.dataset import Dataset
from consilience.engine.build import simulate
from consilience.experiment import plan


@pytest.mark.parametrize(
    ("model", "rows", "batch", "lanes"),
    [
        ({"name": "mlp", "hidden": [8]}, 1000, 32, 16),  # as many rows as are worth stacking
        ({"name": "mlp", "hidden": [8]}, 1000, 1000, 1),
        ({"name": "mlp", "hidden": [8]}, 64, 1000, 8),  # no client's batch has more than its own rows
        ({"name": "mlp", "hidden": [200, 200]}, 1000, 32, 5),  # as many models as fit into caches
        ({"name": "mlp", "hidden": [1200, 300]}, 1000, 32, 1),
        ({"name": "mnist-cnn"}, 1000, 32, 1),
    ],
)
def test_small_dense_models_are_stacked_on_a_cpu(model, rows, batch, lanes):
    images = np.zeros((2 * rows, 1, 28, 28), dtype=np.uint8)
    classes = np.arange(2 * rows) % 10
    data = Dataset.from_arrays("images", images, classes, images, classes)
    settings = {"data": data, "partition": "iid", "clients": 2, "model": model, "method": "fedavg"}
    settings |= {"local": {"epochs": 1, "batch_size": batch}, "rounds": 1, "device": "cpu"}
    arm = plan(read_config(settings, "test"))[0]
    assert simulate(arm.scene, arm.variants).world.executor.lanes == lanes
