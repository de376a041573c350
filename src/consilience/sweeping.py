"""A part's numbers as tensors: how a sweep gives every lane its own hyper-parameters.

A method, an objective or a solver is a frozen dataclass of numbers. In a sweep some of these numbers
are 0-d tensors that differ between lanes, the places in which clients train side by side as one stacked
computation. `split` takes them out, `join` puts them back; what is left in between is hashable, equal for
all lanes, and holds nothing that a `vmap` must not capture.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from consilience.errors import UserError
from consilience.types import Number, Params

Part = TypeVar("Part")


@dataclasses.dataclass(frozen=True)
class Hole:
    """What stands where a tensor was taken out.

    Arithmetic with a hole gives a hole, so that a part with holes can make other parts of its numbers: what
    exchanges a method has can be asked before its numbers are known.
    """

    def _absorb(self, other: object = None) -> Hole:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _absorb
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __neg__ = _absorb


def is_part(value: object) -> bool:
    """Whether a value is a dataclass instance, i.e. a part that can hold numbers of its own."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_swept(number: object) -> bool:
    """Whether a number differs between lanes, so that only code that runs in them knows it."""
    return isinstance(number, Tensor | Hole)


def is_zero(number: Number) -> bool:
    """Whether a number is surely 0: a term with this coefficient may be skipped."""
    return not isinstance(number, Tensor) and number == 0


def split(part: Part) -> tuple[Part, Params]:
    """The part with holes in place of its tensor fields (at any depth), and those tensors by path."""
    tensors: Params = {}
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(cast(Any, part)):
        value = getattr(part, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = value
            changes[field.name] = Hole()
        elif is_part(value):
            changes[field.name], inner = split(value)
            tensors |= {f"{field.name}.{path}": tensor for path, tensor in inner.items()}
    return (replace(part, changes) if tensors else part), tensors


def join(part: Part, tensors: Params) -> Part:
    """The part with tensors in its holes: the inverse of `split`."""
    if not tensors:
        return part
    changes: dict[str, Any] = {path: value for path, value in tensors.items() if "." not in path}
    for field in {path.partition(".")[0] for path in tensors if "." in path}:
        inner = {path.partition(".")[2]: v for path, v in tensors.items() if path.startswith(f"{field}.")}
        changes[field] = join(getattr(part, field), inner)
    return replace(part, changes)


def replace(part: Part, changes: dict[str, Any]) -> Part:
    """A copy of a part with other field values, without `__post_init__` (checks are for users' numbers)."""
    copy = object.__new__(type(part))
    for field in dataclasses.fields(cast(Any, part)):
        object.__setattr__(copy, field.name, changes.get(field.name, getattr(part, field.name)))
    return copy


def merge_variants(parts: Sequence[Part], dtype: torch.dtype, device: torch.device) -> tuple[Part, Params]:
    """Variants (parts that differ in floats only) as one part with holes, and [variants] tensors for them."""
    first = parts[0]
    tensors: Params = {}
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(cast(Any, first)):
        values = [getattr(part, field.name) for part in parts]
        if is_part(values[0]):
            changes[field.name], inner = merge_variants(values, dtype, device)
            tensors |= {f"{field.name}.{path}": tensor for path, tensor in inner.items()}
        elif any(value != values[0] for value in values):
            tensors[field.name] = torch.tensor(values, dtype=dtype, device=device)
            changes[field.name] = Hole()
    return (replace(first, changes) if tensors else first), tensors


def check_non_negative(part: object, *fields: str) -> None:
    """Raise a UserError for what is no number, negative or not finite in the named fields."""
    for field in fields:
        value = getattr(part, field)
        if is_swept(value):
            continue
        bound = None
        if not isinstance(value, int | float):
            bound = "a number"
        elif not 0 <= value < math.inf:
            bound = "finite" if value == math.inf else "at least 0"
        if bound:
            name = getattr(part, "name", type(part).__name__)
            raise UserError(f"{name}: {field} must be {bound}, not {value!r}")
