"""Updates: how parameters and what belongs to them move, in words that both torch and Triton understand.

An update is a short list of Python lines such as `t1 = ops.sqrt(a0) + g`, where `g` is the gradient of a
dense layer's weights or biases and `a0`, `a1`, ... are tensors that are read. Run by Python, where `ops` is
torch, they compute with whole tensors; in the text of a kernel, where `ops` is Triton's language, with tiles.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Update:
    """How tensors of one shape, whose first axis are lanes, move together.

    Positions count the tensors that are written and then those that are only read.
    """

    gradient: tuple[int, ...]
    """What the gradient is made of: (grad, x) for weights, (grad,) for biases, () where there is none.

    A shift and a scale, each one number, may follow: then `x` are bytes, and inputs were (x - shift) / scale.
    """
    reads: tuple[tuple[str, int], ...]
    """Names of tensors that are read; what is written has their shape, or one to which they expand."""
    lines: tuple[str, ...]
    writes: tuple[tuple[int, str], ...]
    """Which tensors are written, and the names of their new values."""


def encoded(updates: Sequence[Update]) -> str:
    """Updates as a string, which an operation of torch can take."""
    return json.dumps([astuple(update) for update in updates])


def decoded(text: str) -> list[Update]:
    """The updates that a string stands for."""
    return [Update(*(_frozen(field) for field in fields)) for fields in json.loads(text)]


def _frozen(value: Any) -> Any:
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value


def apply(tensors: Sequence[Tensor], updates: Sequence[Update]) -> None:
    """Move tensors by updates, with torch's own operations."""
    for update in updates:
        names: dict[str, Any] = {"ops": torch, **{name: tensors[place] for name, place in update.reads}}
        if update.gradient:
            grad, *inputs = (tensors[place] for place in update.gradient)
            names["g"] = torch.bmm(grad.transpose(1, 2), scaled(*inputs)) if inputs else grad.sum(1)
        exec("\n".join(update.lines), names)
        for place, name in update.writes:
            tensors[place].copy_(names[name])


def scaled(x: Tensor, shift: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """The inputs (x - shift) / scale, or `x` itself."""
    return (
        x if shift is None or scale is None else (x.to(shift.dtype) - shift.reshape(())) / scale.reshape(())
    )


class Form(NamedTuple):
    """How a tensor lies in memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Form:
        """The form of a tensor."""
        return cls(tuple(tensor.shape), tensor.stride())


class Tile(NamedTuple):
    """How much of a layer's weights one program moves."""

    outs: int
    ins: int


class Source(NamedTuple):
    """The text of a Triton kernel, and how many programs it is to be launched with."""

    text: str
    programs: int


PLAIN = 1024
"""How many numbers a program moves where there is no product."""
ROWS = 32
"""How many rows of a batch are read at once."""


def tile(outs: int, ins: int) -> Tile:
    """The part of weights [outs, ins] that one program moves."""
    columns = min(128, _side(ins))
    return Tile(min(2048 // columns, _side(outs)), columns)


def kernel(
    updates: Sequence[Update],
    forms: Sequence[Form],
    precision: str,
    cut: Callable[[int, int], Tile] = tile,
) -> Source:
    """The Triton kernel that does updates of tensors of some forms.

    A program does a part of one lane's part of one update.
    """
    lines = [
        "import triton",
        "import triton.language as ops",
        "from consilience.kernels.triton_dense import column_sums, product",
        "",
        "",
        "@triton.jit",
        f"def descend({', '.join(f'p{number}' for number in range(len(forms)))}):",
        "    program = ops.program_id(0)",
    ]
    programs = 0
    for number, update in enumerate(updates):
        part, body = _part(update, forms, precision, cut)
        first, programs = programs, programs + part
        lines.append(f"    {'elif' if number else 'if'} program < {programs}:")
        lines += [f"        {line}" for line in (f"own = program - {first}", *body)]
    return Source("\n".join(lines) + "\n", programs)


def digest(text: str) -> str:
    """A short name for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _part(
    update: Update, forms: Sequence[Form], precision: str, cut: Callable[[int, int], Tile]
) -> tuple[int, list[str]]:
    """The number of programs of an update and what each of them does."""
    lanes, *rest = forms[update.writes[0][0]].shape
    size = math.prod(rest)
    head, tiles = (
        _weights(update.gradient, forms, precision, cut)
        if len(update.gradient) > 1
        else _others(update.gradient, forms, size)
    )
    body = [f"lane = (own // {tiles}).to(ops.int64)", f"part = own % {tiles}", *head]
    body += [f"{name} = ops.load({_place(place, forms[place], rest)})" for name, place in update.reads]
    body += update.lines
    body += [
        f"ops.store(p{place} + lane * {size} + place, {name}, mask=use)" for place, name in update.writes
    ]
    return lanes * tiles, body


def _weights(
    gradient: tuple[int, ...], forms: Sequence[Form], precision: str, cut: Callable[[int, int], Tile]
) -> tuple[list[str], int]:
    grad, x, *numbers = gradient
    (_, rows, outs), ins = forms[grad].shape, forms[x].shape[2]
    high, wide = cut(outs, ins)
    across = -(-ins // wide)
    deep = min(ROWS, _side(rows))
    shift, scale = (f"p{place}" for place in numbers or (grad, grad))
    # The gradient comes first: what is computed then takes the layout of the tensors that are read.
    return [
        f"row, column = part // {across} * {high}, part % {across} * {wide}",
        f"g = product(p{grad} + lane * {rows * outs}, p{x} + lane * {rows * ins}, {shift}, {scale}, "
        f"row, column, {rows}, {ins}, {outs}, {bool(numbers)}, {deep}, {high}, {wide}, {precision!r})"
        f".to(p{grad}.dtype.element_ty)",
        f"flat = ops.arange(0, {high * wide})",
        f"row, column = row + flat // {wide}, column + flat % {wide}",
        f"place = row * {ins} + column",
        f"use = (row < {outs}) & (column < {ins})",
    ], -(-outs // high) * across


def _others(gradient: tuple[int, ...], forms: Sequence[Form], size: int) -> tuple[list[str], int]:
    wide = min(256 if gradient else PLAIN, _side(size))
    lines = [f"column = part * {wide}", f"place = column + ops.arange(0, {wide})", f"use = place < {size}"]
    for grad in gradient:
        rows = forms[grad].shape[1]
        lines.append(
            f"g = column_sums(p{grad} + lane * {rows * size}, column, {rows}, {size}, "
            f"{min(ROWS, _side(rows))}, {wide}).to(p{grad}.dtype.element_ty)"
        )
    return lines, -(-size // wide)


def _place(place: int, form: Form, shape: Sequence[int]) -> str:
    """Where a program finds its entries of a tensor that has a shape in each lane, or is expanded to it."""
    missing = 1 + len(shape) - len(form.shape)
    steps = [0] * missing + [step * (size > 1) for size, step in zip(form.shape, form.stride, strict=True)]
    begin = f"p{place}" + f" + lane * {steps[0]}" * (steps[0] > 0)
    counts = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    moving = [axis for axis, size in enumerate(shape) if size > 1 and steps[axis + 1]]
    if not moving:
        return begin
    if all(steps[axis + 1] == counts[axis] for axis, size in enumerate(shape) if size > 1):
        return f"{begin} + place, mask=use, other=0.0"
    parts = (f"place // {counts[axis]} % {shape[axis]} * {steps[axis + 1]}" for axis in moving)
    return f"{begin} + {' + '.join(parts)}, mask=use, other=0.0"


def _side(count: int) -> int:
    """A power of two that is no smaller than a count, nor than the hardware's products ask for."""
    return max(16, 1 << (count - 1).bit_length())
