"""Launches of Triton kernels, which can be compiled before they are needed, side by side.

A kernel takes some tenths of a second to compile, and a step of a network has dozens of them. Most of that is
not Python, so that threads help.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

THREADS = 16
"""How many kernels are compiled at the same time, at most."""


class Ahead:
    """What compiles kernels instead of running them; equal ones once.

    Args:
        device: The GPU they are for.
        threads: Where they are compiled.
    """

    def __init__(self, device: torch.device, threads: ThreadPoolExecutor) -> None:
        self._device, self._threads = device, threads
        self._begun: dict[Hashable, Future[None]] = {}

    def add(self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Begin to compile a kernel for some arguments."""
        key = (id(kernel), *map(_told_apart, args), *sorted(options.items()))
        if key not in self._begun:
            self._begun[key] = self._threads.submit(self._compile, kernel, grid, args, options)

    def _compile(
        self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        with torch.cuda.device(self._device):  # a thread has a current device of its own
            kernel.warmup(*args, grid=grid, **options)


_aheads: list[Ahead] = []  # for all threads, since autograd has its own


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Run a kernel with so many programs."""
    if _aheads:
        _aheads[-1].add(kernel, grid, args, options)
    else:
        kernel[grid](*args, **options)


@contextmanager
def compiling_ahead(device: torch.device) -> Iterator[None]:
    """A context in which kernels are compiled and not run, so that results are any numbers.

    At its end all are ready. One that cannot be compiled says so where it is run.
    """
    with ThreadPoolExecutor(THREADS) as threads:
        _aheads.append(Ahead(device, threads))
        try:
            yield
        finally:
            _aheads.pop()


def _told_apart(value: Any) -> Hashable:
    """What Triton tells arguments apart by; more where that is simpler."""
    return (value.dtype, value.data_ptr() % 16) if isinstance(value, Tensor) else value
