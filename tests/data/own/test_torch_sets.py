"""Torch data sets: read once, and those whose items are random say so."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

import consilience as cs

POINTS, CLASSES = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 4


class Augmented(TorchDataset):
    """Items with noise, as a random transform would make them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return POINTS[row] + torch.randn(6), int(CLASSES[row])


def test_random_items_are_not_taken_in_silence(caplog: pytest.LogCaptureFixture):
    with torch.random.fork_rng():
        data = cs.Dataset.from_torch(Augmented(), TensorDataset(POINTS, CLASSES))
    assert data.shape == (6,)
    (said,) = caplog.messages
    assert "training items are not the same when they are read again" in said
    assert "augment" in said


def test_items_that_stay_the_same_need_no_word(caplog: pytest.LogCaptureFixture):
    whole = TensorDataset(POINTS, CLASSES)
    data = cs.Dataset.from_torch(whole, whole)
    assert torch.equal(data.inputs[:], POINTS)
    assert not caplog.messages


class Broken(Augmented):
    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        raise OSError("scan-17.dcm is missing")


def test_an_item_that_cannot_be_read_is_named():
    with pytest.raises(
        cs.UserError, match=r"training row 0 cannot be read \(OSError: scan-17.dcm is missing\)"
    ):
        cs.Dataset.from_torch(Broken(), Broken())
