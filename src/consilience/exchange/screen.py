"""Which messages may be averaged: well-formed ones from clients whose numbers are finite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from consilience import tree
from consilience.types import State

Schema = tuple[tuple[str, torch.Size, torch.dtype], ...]


def schema(message: State) -> Schema:
    """Names, shapes and types of a message's tensors."""
    return tuple((name, value.shape, value.dtype) for name, value in sorted(tree.flatten(message).items()))


def well_formed(results: Sequence[tuple[State, State]]) -> list[bool]:
    """Whether each client's upload and memory have the schemas that most have."""
    schemas = [(schema(upload), schema(memory)) for upload, memory in results]
    usual = Counter(schemas).most_common(1)[0][0]
    return [found == usual for found in schemas]


def finite(states: Sequence[State], count: int, device: torch.device) -> Tensor:
    """[count] whether all numbers of each row of the stacked states are finite."""
    verdict = torch.ones(count, dtype=torch.bool, device=device)
    for state in states:
        for value in tree.flatten(state).values():
            if value.is_floating_point():
                verdict = verdict & value.isfinite().reshape(count, -1).all(1)
    return verdict
