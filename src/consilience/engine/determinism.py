"""The same run gives the same bits again, on a GPU too; and how exact its products are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from consilience.torch_internals import cudnn_flags, memory_left_as_it_is

Precision = Literal["fp32", "tf32", "bf16"]
"""How exact the products of matrices and convolutions are on a GPU.

They are full, or with inputs rounded to 10 bits, or in training to 7 bits. Sums and parameters are always in
full.
"""


@contextmanager
def repeatable(device: torch.device, precision: Precision = "fp32") -> Iterator[None]:
    """A context in which torch uses only algorithms whose results repeat, and then has its settings back."""
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    deterministic = torch.are_deterministic_algorithms_enabled()
    products = torch.get_float32_matmul_precision()
    exact = precision == "fp32"
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest" if exact else "high")
    try:
        with (
            memory_left_as_it_is(),  # nothing here reads what it did not write
            cudnn_flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=not exact),
        ):
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.set_float32_matmul_precision(products)
