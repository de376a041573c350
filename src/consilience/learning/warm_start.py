"""Weights from a file, from which a run starts. Nothing is ever unpickled but plain tensors."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from consilience import heads
from consilience.errors import UserError
from consilience.learning.layers import copied

WRAPPED = ("state_dict", "model_state_dict", "model")
"""Keys under which others keep a state dict beside other things."""


def warm_started(module: nn.Module, path: Path) -> nn.Module:
    """A copy of a module with the weights of a file: safetensors, or a state dict of torch."""
    module = copied(module)  # one that was given stays as it is
    tensors = _read(path)
    masks = {name for name, value in module.named_buffers() if value.isinf().any()}
    if not all(value.isfinite().all() for name, value in tensors.items() if name not in masks):
        raise UserError(f"init: {path} holds NaN or infinity")
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        why = " ".join(str(error).split()).partition(": ")[2] or str(error)
        raise UserError(f"init: {path} does not hold this model's weights: {why:.300}") from None
    return module


def digest_of_file(path: Path) -> str:
    """A digest of a file's bytes."""
    with _readable(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _readable(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"init: expected common, different or a file of weights, and there is no file {path}")
    return path


def _read(path: Path) -> dict[str, Tensor]:
    path = _readable(path)
    try:
        if path.suffix == ".safetensors":
            heads.check_file(path)
            tensors = load_file(path)
            for name, value in tensors.items():
                heads.check(name, (value.dtype, tuple(value.shape)))
            return tensors
        found = torch.load(path, map_location="cpu", weights_only=True)
    except heads.LimitError as error:
        raise UserError(f"init: {path}: {error}") from None
    except (SafetensorError, pickle.UnpicklingError, EOFError, RuntimeError, ValueError):
        raise UserError(
            f"init: {path} is neither safetensors nor a state dict of plain tensors, as "
            "torch.save(model.state_dict(), ...) writes it"
        ) from None
    for key in WRAPPED:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"init: {path} holds a {type(found).__name__}, not a state dict of tensors")
    return {str(name): value for name, value in found.items()}
