"""Which messages may be combined: those of the expected schema whose numbers are finite."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from consilience import tree
from consilience.types import State


def fault(message: State, schema: tree.Schema) -> str | None:
    """Why a message cannot be combined, in a few words; None where it can."""
    tensors, expected = tree.flatten(message), schema.kinds()
    for path, kind in expected.items():
        if path not in tensors:
            return f"{path} is missing"
        found = tree.kind_of(tensors[path])
        if found != kind:
            return f"{path} is {_shown(found)} instead of {_shown(kind)}"
    strange = next((path for path in tensors if path not in expected), None)
    if strange is not None:
        return f"{strange!r:.80} is not part of this message"
    wrong = (path for path, value in tensors.items() if not _is_finite(value))
    infinite = next(wrong, None)
    return None if infinite is None else f"{infinite} is not finite"


def _is_finite(value: Tensor) -> bool:
    return not value.is_floating_point() or bool(value.isfinite().all())


def _shown(kind: tree.Kind) -> str:
    shape, dtype = kind
    return f"{str(dtype).removeprefix('torch.')} of shape {list(shape)}"


LARGE = 2**20
"""How many numbers a tensor has for which an answer each would take too much memory."""


def finite(states: Sequence[State], count: int, device: torch.device) -> Tensor:
    """[count] whether all numbers of each row of the stacked states are finite."""
    verdicts = [
        _rows_are_finite(value.reshape(count, -1))
        for state in states
        for value in tree.flatten(state).values()
        if value.is_floating_point() and value.numel()
    ]
    return torch.stack(verdicts).all(0) if verdicts else torch.ones(count, dtype=torch.bool, device=device)


def _rows_are_finite(rows: Tensor) -> Tensor:
    if rows.numel() < LARGE:  # extremes of few numbers take longer to begin with
        return rows.isfinite().all(1)
    least, most = rows.aminmax(dim=1)
    return least.isfinite() & most.isfinite()


def sound(*states: State) -> bool:
    """Whether all numbers of some states are finite."""
    return all(_is_finite(value) for state in states for value in tree.flatten(state).values())
