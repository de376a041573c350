"""Symmetric matrices of which few entries are known: positions in the upper triangle, with values.

A position is row * size + column, row <= column; a free place has the position -1 and the value 0. Positions
are in ascending order, each once. All functions are pure and work under `vmap`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from consilience.errors import UserError


class Entries(NamedTuple):
    """Some entries of the upper triangle."""

    positions: Tensor
    """[places] int32."""
    values: Tensor
    """[places]."""

    @classmethod
    def zero(cls, places: int, like: Tensor) -> Entries:
        """No entries at all, of the type and on the device of a tensor."""
        free = torch.full((places,), -1, dtype=torch.int32, device=like.device)
        return cls(free, torch.zeros(places, dtype=like.dtype, device=like.device))

    def plus(self, other: Entries) -> Entries:
        """The sum, in as many places as there are now; they must suffice."""
        positions = torch.cat([self.positions, other.positions])
        order = positions.argsort(stable=True)
        positions, values = positions[order], torch.cat([self.values, other.values])[order]
        # Equal positions are neighbours now: each run of them is added up where it begins.
        first = torch.cat([torch.ones_like(positions[:1]), (positions[1:] != positions[:-1]).int()]) > 0
        run = first.cumsum(0) - 1
        summed = torch.zeros_like(values).scatter_add(0, run, values)
        place = torch.full_like(positions, -1).scatter_reduce(0, run, positions, "amax")
        # Free places are the first run, and those that were not reached are the last: both go to the end.
        order = torch.where(place < 0, torch.iinfo(torch.int32).max, place).argsort(stable=True)
        kept = order[: self.positions.shape[0]]
        place, summed = place[kept], summed[kept]
        return Entries(place, torch.where(place < 0, 0.0, summed))

    def block(self, first: int, second: int, width: int, size: int) -> Tensor:
        """[width, width] one block of the grid of blocks of a width, on the diagonal or above it."""
        row, column = self.positions // size - first * width, self.positions % size - second * width
        inside = (self.positions >= 0) & (row >= 0) & (row < width) & (column >= 0) & (column < width)
        flat = torch.where(inside, row * width + column, 0).long()
        empty = torch.zeros(width * width, dtype=self.values.dtype, device=self.values.device)
        found = empty.scatter_add(0, flat, torch.where(inside, self.values, 0.0)).reshape(width, width)
        return mirrored(found) if first == second else found

    def at(self, positions: Tensor) -> Tensor:
        """The values at some positions; 0 where none is known."""
        wanted = torch.where(self.positions < 0, torch.iinfo(torch.int32).max, self.positions)
        found = torch.searchsorted(wanted, positions).clamp(max=wanted.shape[0] - 1)
        return torch.where(wanted[found] == positions, self.values[found], 0.0)

    def times(self, vector: Tensor) -> Tensor:
        """The product with a vector."""
        size = vector.shape[0]
        row, column = (self.positions // size).clamp(min=0).long(), (self.positions % size).long()
        upper = torch.zeros_like(vector).scatter_add(0, row, self.values * vector.gather(0, column))
        # An entry on the diagonal counts once.
        twice = torch.where(row == column, 0.0, self.values)
        return upper.scatter_add(0, column, twice * vector.gather(0, row))

    def dense(self, size: int) -> Tensor:
        """[size, size] the symmetric matrix."""
        return self.block(0, 0, size, size)


def mirrored(upper: Tensor) -> Tensor:
    """The symmetric matrix of an upper triangle."""
    return upper + upper.mT - torch.diag(upper.diagonal())


def triangle(size: int) -> int:
    """How many entries the upper triangle has."""
    return size * (size + 1) // 2


def check_size(size: int, name: str) -> None:
    """Refuse a matrix whose positions do not fit into 32 bits, in the name of a method."""
    if size**2 >= 2**31:
        raise UserError(f"{name}: entries of a Hessian of {size:,} parameters are too many to be numbered")


def place_of(number: Tensor, size: int) -> Tensor:
    """The position of the entries with some numbers, from 0 to `triangle(size)` - 1.

    Row i and the i-th row from the end have size + 1 entries together, so that no root is needed.
    """
    pair, offset = number // (size + 1), number % (size + 1)
    above = offset < size - pair
    row = torch.where(above, pair, size - 1 - pair)
    column = torch.where(above, pair + offset, offset - 1)
    return (row * size + column).int()
