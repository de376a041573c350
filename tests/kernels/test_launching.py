"""Kernels are compiled ahead, once each, and then run."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from consilience.kernels.launching import compiling_ahead, launch


class Kernel:
    """What stands for one of Triton's."""

    def __init__(self) -> None:
        self.compiled: list[Any] = []
        self.ran: list[Any] = []

    def warmup(self, *args: Any, grid: tuple[int, ...], **options: Any) -> None:
        self.compiled.append((grid, args, options))
        if options["WIDE"] < 0:
            raise RuntimeError("no such width")

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.ran.append((grid, args, options))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return Kernel()


def test_what_is_compiled_ahead_does_not_run(kernel):
    numbers, others = torch.zeros(4), torch.zeros(4, dtype=torch.int64)
    with compiling_ahead(torch.device("cuda")):
        for given in (numbers, others, numbers):
            launch(kernel, (2,), given, WIDE=4)
        launch(kernel, (2,), numbers, WIDE=8)
    assert len(kernel.compiled) == 3  # two types, two widths
    assert not kernel.ran
    launch(kernel, (2,), numbers, WIDE=4)
    assert kernel.ran == [((2,), (numbers,), {"WIDE": 4})]


def test_what_cannot_be_compiled_is_heard_of_where_it_runs(kernel):
    with compiling_ahead(torch.device("cuda")):
        launch(kernel, (1,), WIDE=-1)
    launch(kernel, (1,), WIDE=-1)
    assert len(kernel.ran) == 1


def test_after_an_error_kernels_run_again(kernel):
    with pytest.raises(ValueError, match="no"), compiling_ahead(torch.device("cuda")):
        raise ValueError("no")
    launch(kernel, (1,), WIDE=1)
    assert len(kernel.ran) == 1
