"""Updates: how parameters and what belongs to them move, in words that both torch and Triton understand.

An update is a short list of Python lines such as `t1 = ops.sqrt(a0) + g`, where `g` is the gradient of a dense
layer's weights or biases and `a0`, `a1`, ... are tensors that are read. Run by Python, where `ops` is torch, they
compute with whole tensors; in the text of a kernel, where `ops` is Triton's language, with tiles of them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

Shape = tuple[int, ...]

OWN, SHARED, LANE, ONE = "own", "shared", "lane", "one"
"""What a tensor holds: values of its own for each lane, the same for all lanes, a number a lane, a number."""

@dataclass(frozen=True)
class Operand:
    """A tensor that lines read by a name."""

    name: str
    place: int
    """Its position among the tensors that are written, or from their end on among those that are given."""
    kind: str
    """OWN, SHARED, LANE or ONE."""


@dataclass(frozen=True)
class Update:
    """How tensors of one shape move together.

    Positions count the tensors that are written and then those that are only read.
    """

    gradient: tuple[int, ...]
    """What the gradient is made of: (grad, x) for weights, (grad,) for biases, () for neither."""
    reads: tuple[Operand, ...]
    lines: tuple[str, ...]
    writes: tuple[tuple[int, str], ...]
    """Which tensors are written, and the names of their new values."""


def encoded(updates: Sequence[Update]) -> str:
    """Updates as a string, which an operation of torch can take."""
    return json.dumps([asdict(update) for update in updates])


def decoded(text: str) -> list[Update]:
    """The updates that a string stands for."""
    return [
        Update(
            tuple(fields["gradient"]),
            tuple(Operand(**operand) for operand in fields["reads"]),
            tuple(fields["lines"]),
            tuple((place, name) for place, name in fields["writes"]),
        )
        for fields in json.loads(text)
    ]


def apply(tensors: Sequence[Tensor], updates: Sequence[Update]) -> None:
    """Move tensors by updates, with torch's own operations."""
    for update in updates:
        lanes = len(tensors[update.writes[0][0]])
        names: dict[str, Any] = {"ops": torch}
        if update.gradient:
            grad, *x = (tensors[place] for place in update.gradient)
            of = torch.bmm(grad.transpose(1, 2), x[0]) if x else grad.sum(1)
            names["g"] = of.reshape(lanes, -1)
        for operand in update.reads:
            rows = lanes if operand.kind in (OWN, LANE) else 1
            names[operand.name] = tensors[operand.place].reshape(rows, -1)
        exec("\n".join(update.lines), names)
        for place, name in update.writes:
            tensors[place].view(lanes, -1).copy_(names[name])


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
    columns = min(64, _side(ins))
    return Tile(min(2048 // columns, _side(outs)), columns)


def kernel(
    updates: Sequence[Update],
    shapes: Sequence[Shape],
    precision: str,
    cut: Callable[[int, int], Tile] = tile,
) -> Source:
    """The Triton kernel that does updates of tensors of some shapes.

    A program does a part of one lane's part of one update.
    """
    lines = [
        "import triton",
        "import triton.language as ops",
        "from consilience.kernels.triton_dense import column_sums, product",
        "",
        "",
        "@triton.jit",
        f"def descend({', '.join(f'p{number}' for number in range(len(shapes)))}):",
        "    program = ops.program_id(0)",
    ]
    programs = 0
    for number, update in enumerate(updates):
        part, body = _part(update, shapes, precision, cut)
        first, programs = programs, programs + part
        lines.append(f"    {'elif' if number else 'if'} program < {programs}:")
        lines += [f"        {line}" for line in (f"own = program - {first}", *body)]
    return Source("\n".join(lines) + "\n", programs)


def digest(text: str) -> str:
    """A short name for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _part(
    update: Update, shapes: Sequence[Shape], precision: str, cut: Callable[[int, int], Tile]
) -> tuple[int, list[str]]:
    """The number of programs of an update and what each of them does."""
    lanes, *rest = shapes[update.writes[0][0]]
    size = math.prod(rest)
    head, tiles = (
        _weights(update.gradient, shapes, precision, cut)
        if len(update.gradient) > 1
        else _others(update.gradient, shapes, size)
    )
    body = [f"lane = (own // {tiles}).to(ops.int64)", f"part = own % {tiles}", *head]
    body += [f"{operand.name} = {_load(operand, size)}" for operand in update.reads]
    body += update.lines
    body += [f"ops.store(p{place} + lane * {size} + place, {name}, mask=use)" for place, name in update.writes]
    return lanes * tiles, body


def _weights(
    gradient: tuple[int, ...], shapes: Sequence[Shape], precision: str, cut: Callable[[int, int], Tile]
) -> tuple[list[str], int]:
    grad, x = gradient
    (_, rows, outs), ins = shapes[grad], shapes[x][2]
    high, wide = cut(outs, ins)
    across = -(-ins // wide)
    # The gradient comes first: what is computed then takes the layout of the tensors that are read.
    return [
        f"row, column = part // {across} * {high}, part % {across} * {wide}",
        f"g = product(p{grad} + lane * {rows * outs}, p{x} + lane * {rows * ins}, row, column, {rows}, {ins}, "
        f"{outs}, {min(ROWS, _side(rows))}, {high}, {wide}, {precision!r}).to(p{grad}.dtype.element_ty)",
        f"flat = ops.arange(0, {high * wide})",
        f"row, column = row + flat // {wide}, column + flat % {wide}",
        f"place = row * {ins} + column",
        f"use = (row < {outs}) & (column < {ins})",
    ], -(-outs // high) * across


def _others(gradient: tuple[int, ...], shapes: Sequence[Shape], size: int) -> tuple[list[str], int]:
    wide = min(256 if gradient else PLAIN, _side(size))
    lines = [f"column = part * {wide}", f"place = column + ops.arange(0, {wide})", f"use = place < {size}"]
    for grad in gradient:
        rows = shapes[grad][1]
        lines.append(
            f"g = column_sums(p{grad} + lane * {rows * size}, column, {rows}, {size}, "
            f"{min(ROWS, _side(rows))}, {wide}).to(p{grad}.dtype.element_ty)"
        )
    return lines, -(-size // wide)


def _load(operand: Operand, size: int) -> str:
    begin = f"p{operand.place}"
    if operand.kind == ONE:
        return f"ops.load({begin})"
    if operand.kind == LANE:
        return f"ops.load({begin} + lane)"
    if operand.kind == OWN:
        begin += f" + lane * {size}"
    return f"ops.load({begin} + place, mask=use, other=0.0)"


def _side(count: int) -> int:
    """A power of two that is no smaller than a count, nor than the hardware's products ask for."""
    return max(16, 1 << (count - 1).bit_length())
