"""Every method has every property on a CUDA device too."""

from __future__ import annotations

import pytest
import torch

import consilience as cs
from consilience.algorithms import METHODS
from consilience.algorithms.desa import DESA
from consilience.testing import PROPERTIES, Property, check_property, prepare

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("one", PROPERTIES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_method_has_property(name: str, one: Property) -> None:
    # Little work, and no draws by client number.
    small = DESA(ipc=2, iterations=2, width=4, depth=2, anchors_per_step=None, start="common")
    method = small if name == "desa" else METHODS[name]()
    check_property(one, prepare(method, device="cuda"))


@pytest.mark.parametrize("augment", [(), ("flip", "crop")], ids=["plain", "augmented"])
@pytest.mark.parametrize("lanes", [None, 1])
def test_streamed_data_give_the_results_of_resident_ones(lanes: int | None, augment: tuple[object, ...]):
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (300, 3, 8, 8), dtype=torch.uint8, generator=random)
    classes = torch.arange(300) % 3
    data = cs.Dataset.from_arrays("images", images, classes, images[:50], classes[:50])
    digests = {
        cs.run(
            "fedavg",
            data={"name": "images", "own": data, "resident": resident},
            model={"name": "mlp", "hidden": [8]},
            augment=augment,
            local={"epochs": 2, "batch_size": 8},
            clients=5,
            rounds=3,
            lanes=lanes,
            device="cuda",
        ).digest
        for resident in ("always", "never")
    }
    assert len(digests) == 1
