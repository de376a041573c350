"""Numbers on their way to a device and back, without waiting for what the device is doing.

A plain copy to a GPU waits until all work that was given to it before is done, so that the host cannot
prepare what comes next. A copy from memory that the system cannot move (pinned memory) waits in line like
other work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def to_device(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The values (a tensor, an array or nested lists) as a tensor on a device."""
    host = torch.as_tensor(values, dtype=dtype)
    if host.device == device or host.is_cuda:
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


class Late:
    """The values of tensors that are still being computed, to be looked at later."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        on_gpu = any(value.is_cuda for value in tensors)
        # A copy that does not wait lands in pinned memory.
        self._host = [value.detach().to("cpu", non_blocking=True) for value in tensors]
        self._event = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        if self._event is not None:
            device = next(value.device for value in tensors if value.is_cuda)
            self._event.record(torch.cuda.current_stream(device))

    def get(self) -> list[npt.NDArray[Any]]:
        """The values, once they are there."""
        if self._event is not None:
            self._event.synchronize()
        return [np.asarray(value.numpy()) for value in self._host]
