"""Numbers on their way to a device and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from consilience.transfer import Late, to_device

CPU = torch.device("cpu")
DEVICES = [CPU, *([torch.device("cuda:0")] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("values", [[1, 2, 3], np.array([1, 2, 3]), torch.tensor([1, 2, 3])], ids=type)
def test_values_arrive(values, device):
    found = to_device(values, device, torch.float64)
    assert found.device == device
    assert found.dtype == torch.float64
    assert found.tolist() == [1, 2, 3]


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_late_values_are_those_at_the_time_of_asking(device):
    number = torch.tensor([1.0, 2.0], device=device)
    late = Late([number, torch.tensor([True], device=device)])
    number.add_(1)
    first, second = late.get()
    assert second.tolist() == [True]
    if device != CPU:  # a CPU's memory is not copied
        assert first.tolist() == [1, 2]
