"""Every method has every property on a CUDA device too."""

from __future__ import annotations

import pytest
import torch

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
