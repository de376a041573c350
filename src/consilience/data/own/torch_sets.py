"""Torch data sets, stacked."""

from __future__ import annotations

import logging
from collections.abc import Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from consilience.data.arrays import check_tensor, read_tensor
from consilience.errors import UserError, described, kind_of

LOG = logging.getLogger("consilience")

LOOKED_AT = 16
"""How many items are read a second time, to see whether they are random."""


def stacked(name: str, split: str, source: TorchDataset[Any]) -> tuple[Tensor, Tensor]:
    """The inputs and the targets of a map-style data set, each of whose items is read once.

    Items that are random (a transform that crops, say) would be the same in every epoch: that is said.
    """
    if isinstance(source, IterableDataset) or not isinstance(source, Sized):
        found = kind_of(source)
        raise UserError(f"{name}: the {split} data is {found} without a length; give a map-style data set")
    inputs: list[Tensor] = []
    targets: list[Tensor] = []
    for row in range(len(source)):
        try:
            value, target = source[row]
            targets.append(torch.as_tensor(target))
            check_tensor(f"{name}: {split} target {row}", targets[-1])
        except UserError:
            raise
        except (TypeError, ValueError) as error:
            raise UserError(f"{name}: {split} row {row} is not an (input, target) pair ({error})") from None
        except Exception as error:  # whatever a user's data set raises
            raise UserError(f"{name}: {split} row {row} cannot be read ({described(error)})") from error
        if not isinstance(value, Tensor | np.ndarray):
            raise UserError(
                f"{name}: {split} input {row} is {kind_of(value)}; use a transform that gives tensors"
            )
        inputs.append(read_tensor(name, f"{split} input {row}", value))
        first = inputs[0]
        if inputs[-1].shape != first.shape or inputs[-1].dtype != first.dtype:
            found, wanted = (f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (inputs[-1], first))
            raise UserError(
                f"{name}: {split} input {row} is {found} but input 0 is {wanted}; make them alike"
            )
    if not inputs:
        raise UserError(f"{name}: the {split} data is empty")
    if any(not _same(source[row], (inputs[row], targets[row])) for row in range(min(LOOKED_AT, len(inputs)))):
        LOG.warning(
            "%s: %s items are not the same when they are read again, as random transforms make them; "
            "they are read once and stay as they were then: use augment for what is to be random",
            name,
            split,
        )
    try:
        return torch.stack(inputs), torch.stack(targets)
    except RuntimeError as error:
        raise UserError(f"{name}: {split} targets are not alike ({error})") from None


def _same(item: Any, read: tuple[Tensor, Tensor]) -> bool:
    """Whether an item that is read again is what it was."""
    return all(
        torch.equal(torch.as_tensor(new), torch.as_tensor(old)) for new, old in zip(item, read, strict=True)
    )
