"""Arrays of users as inputs, targets and numbers of groups."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from consilience.data.stored import Inputs, Mapped
from consilience.errors import UserError, said, unknown
from consilience.reading import machine_memory, mapped

LOG = logging.getLogger("consilience")

Array: TypeAlias = Tensor | npt.NDArray[Any] | str | Path
"""What a user may give as data; a path names an `.npy` file, which is memory-mapped."""

Channels: TypeAlias = Literal["auto", "first", "last"]
"""Where images have their channels.

auto: last where the last axis of four has 1, 3 or 4 entries and the second has another number; and uint8 of
three axes are grey images without an axis for channels.
"""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The floats that data may be."""
CHANNELS = (1, 3, 4)
"""How many channels images usually have: grey, colours, colours and transparency."""


def read_tensor(name: str, label: str, values: Array) -> Tensor:
    """An array as a tensor, whose memory it shares where torch can."""
    if isinstance(values, Tensor):
        check_tensor(f"{name}: {label}", values)
        return values.detach()
    given = _opened(name, label, values)
    try:
        # Torch wants memory that is contiguous and writable; this copies only where it is not.
        return torch.from_numpy(np.require(given, requirements=["C", "W"]))
    except TypeError as error:
        if np.asarray(given).dtype.kind not in "fiub":
            hint = "; np.unique(labels, return_inverse=True)[1] numbers classes" if "targets" in label else ""
            raise UserError(f"{name}: {label} hold text or other objects, not numbers{hint}") from None
        raise UserError(f"{name}: {label} cannot become a tensor ({said(error)})") from None
    except Exception as error:  # of rows that differ in length, or of objects that are no arrays
        raise UserError(f"{name}: {label} cannot become a tensor ({said(error)})") from None


def check_tensor(where: str, tensor: Tensor) -> None:
    """Refuse a tensor that has no numbers at hand, one for each place: sparse, meta, quantised, ..."""
    kinds = {
        "nested": tensor.is_nested,
        "on the device meta": tensor.is_meta,
        "quantised": tensor.is_quantized,
    }
    found = next((kind for kind, is_so in kinds.items() if is_so), None)
    if found is None and tensor.layout is not torch.strided:
        found = str(tensor.layout).removeprefix("torch.").removeprefix("_")
    if found is None and tensor.dtype.is_floating_point and tensor.dtype not in FLOATS:
        found = str(tensor.dtype).removeprefix("torch.")
    if found is not None:
        raise UserError(f"{where} are {found}; plain tensors of numbers are wanted, e.g. by to_dense()")
    size = tensor.numel() * tensor.dtype.itemsize
    if size > machine_memory():  # of one that was expanded, say
        raise UserError(f"{where} would take {size / 1e9:.3g} GB, more than this machine has")


def read_inputs(name: str, label: str, values: Array, channels: Channels = "auto") -> Inputs:
    """Inputs as a tensor, or as what reads a memory-mapped array.

    Whole numbers that are no bytes are tokens and become int64. Images get their channels first.
    """
    given = values if isinstance(values, Tensor) else _opened(name, label, values)
    if isinstance(given, np.memmap):
        mapped: npt.NDArray[Any] = given
        layout = _layout(name, label, mapped.shape, mapped.dtype == np.uint8, channels)
        return Mapped({"": mapped, "last": np.moveaxis(mapped, -1, 1), "grey": mapped[:, None]}[layout])
    tensor = read_tensor(name, label, given)
    whole = tensor.dtype in (torch.int8, torch.int16, torch.int32)
    tensor = tensor.to(torch.int64) if whole else tensor
    layout = _layout(name, label, tuple(tensor.shape), tensor.dtype == torch.uint8, channels)
    if layout:
        tensor = tensor.movedim(-1, 1).contiguous() if layout == "last" else tensor[:, None]
    return tensor


def _layout(
    name: str, label: str, shape: tuple[int, ...], is_bytes: bool, channels: Channels
) -> Literal["", "last", "grey"]:
    """What has to be done to have channels first: nothing, or the last axis moves, or one is missing."""
    if channels not in get_args(Channels):
        raise unknown("value of channels", str(channels), get_args(Channels))
    if channels == "auto" and len(shape) == 3 and is_bytes:
        return "grey"
    if channels == "last" and len(shape) > 2:
        return "last"
    if channels != "auto" or len(shape) != 4 or shape[3] not in CHANNELS or shape[1] in CHANNELS:
        return ""
    if not is_bytes and label == "inputs":  # bytes are images for certain
        LOG.warning(
            "%s: floats of shape %s are taken for images with channels last; say channels='first' if not",
            name,
            list(shape),
        )
    return "last"


def _opened(name: str, label: str, values: npt.NDArray[Any] | str | Path) -> npt.NDArray[Any]:
    """The array, memory-mapped where a file is named."""
    if not isinstance(values, str | Path):
        return values
    try:
        return mapped(Path(values))
    except Exception as error:  # of a damaged header, say
        raise UserError(
            f"{name}: {label}: {values} is no .npy file that can be read ({said(error)})"
        ) from None


def read_targets(name: str, label: str, values: Array) -> Tensor:
    """Targets as a tensor: floats stay as they are, all others become int64."""
    tensor = read_tensor(name, label, values)
    if tensor.is_complex() or tensor.ndim == 0:
        raise UserError(
            f"{name}: {label} are {tensor.dtype} {list(tensor.shape)}; real ones, a row each, are wanted"
        )
    return tensor if tensor.is_floating_point() else tensor.to(torch.int64)


def read_integers(name: str, label: str, values: Array) -> Tensor:
    """Whole numbers as an int64 tensor."""
    tensor = read_tensor(name, label, values)
    if tensor.is_floating_point() or tensor.is_complex():
        raise UserError(f"{name}: {label} are {tensor.dtype}; they must be integers")
    return tensor.to(torch.int64)
