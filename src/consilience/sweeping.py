"""A part's numbers as tensors: how a sweep gives every lane its own hyper-parameters.

A method, an objective or a solver is a frozen dataclass of numbers. In a sweep some of these numbers
are 0-d tensors that differ between lanes, the places in which clients train side by side as one stacked
computation. `split` takes them out, `join` puts them back; what is left in between is hashable, equal for
all lanes, and holds nothing that a `vmap` must not capture.

A user asks for a sweep by lists in place of numbers, in a file or in Python: `FedProx(mu=[0.1, 1.0])`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from consilience.errors import UserError
from consilience.types import Number, Params

Part = TypeVar("Part")

ANY = "any"
"""What stands for a swept number where a method does not use it: its result holds for all values."""


class Sweepable:
    """A part whose numbers may be lists, which stand for a variant with each of the values.

    A list passes no check of a number: `__post_init__` waits until the variants are made.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check = cls.__dict__.get("__post_init__")
        if check is not None:
            cls.__post_init__ = _once_known(check)  # type: ignore[attr-defined]


def _once_known(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """A check that is put off where some numbers are lists."""

    @functools.wraps(check)
    def checked(part: Any) -> None:
        if not has_lists(part):
            check(part)

    return checked


def as_list(value: object) -> list[Any] | None:
    """The values that somebody gave in place of one; None for anything that is no sequence of numbers."""
    if isinstance(value, np.ndarray):
        return cast("list[Any]", value.tolist())
    return list(value) if isinstance(value, list | tuple) else None


def has_lists(part: object) -> bool:
    """Whether a part, or one inside it, has lists in place of numbers."""
    for field in dataclasses.fields(cast(Any, part)):
        value = getattr(part, field.name)
        if is_part(value) and has_lists(value):
            return True
        if isinstance(value, list | tuple | np.ndarray) and takes_number(
            option_types(type(part))[field.name]
        ):
            return True
    return False


def option_types(cls: type) -> dict[str, object]:
    """The options of a part and their types."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def admits(kind: object, wanted: type) -> bool:
    """Whether an option's type is, or includes, a plain type. A float option can be swept."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return any(admits(one, wanted) for one in typing.get_args(kind))
    return kind is wanted


def takes_number(kind: object) -> bool:
    """Whether an option's type is a number, or includes one, and no sequence."""
    return admits(kind, float) or admits(kind, int)


def apart(numbers: Mapping[str, object], more: Mapping[str, object], owner: str) -> dict[str, object]:
    """Named numbers and some more, whose names say whose they are where they would be there twice.

    >>> apart({"lr": 1}, {"lr": 2, "momentum": 0}, "solver")
    {'lr': 1, 'solver.lr': 2, 'momentum': 0}
    """
    return {**numbers, **{f"{owner}.{key}" if key in numbers else key: v for key, v in more.items()}}


def label_of(numbers: Mapping[str, object]) -> str:
    """The words that tell a variant from others.

    >>> label_of({"mu": 0.1, "lr": ANY})
    'mu=0.1 lr=any'
    """
    return " ".join(f"{name}={value}" for name, value in numbers.items())


def without_numbers(label: str, numbers: Mapping[str, object]) -> str:
    """A label without the numbers that `label_of` put there.

    >>> without_numbers("fedprox weighting=uniform mu=0.1", {"mu": 0.1, "alpha": 1})
    'fedprox weighting=uniform'
    """
    words = {f"{name}={value}" for name, value in numbers.items()}
    return " ".join(word for word in label.split(" ") if word not in words)


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
