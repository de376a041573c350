"""How a model is asked: which places of a padded sequence are tokens, and what of its answer counts."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from consilience.errors import UserError, kind_of

TAKEN = {"attention_mask": torch.int64, "mask": torch.bool}
"""Arguments of a model's `forward` that are such a mask, and their types."""


class Masking:
    """What tells a module which places are padding.

    Args:
        module: A module that takes tokens.
        padding: The token that fills up sequences; None where none does.
    """

    def __init__(self, module: nn.Module, padding: int | None) -> None:
        self.padding = padding
        known = inspect.signature(module.forward).parameters
        self.asked = next((name for name in TAKEN if name in known), None)

    def __call__(self, inputs: Tensor) -> dict[str, Tensor]:
        """The mask of a batch, under the name that the module knows; nothing where it does not ask for it."""
        if self.padding is None or self.asked is None or inputs.dtype != torch.int64:
            return {}
        return {self.asked: (inputs != self.padding).to(TAKEN[self.asked])}

    def ask(self, module: nn.Module, inputs: Tensor) -> Tensor:
        """What a module says about a batch; of an object with logits, these."""
        found = module(inputs, **self(inputs))
        given = found.get("logits") if isinstance(found, dict) else getattr(found, "logits", found)
        if not isinstance(given, Tensor):
            raise UserError(f"the model gives {kind_of(found)}, not a tensor or an object with logits")
        return given
