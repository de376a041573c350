"""Differences of Hessians as single entries of the upper triangle: Top-K and Rand-K.

A client keeps the entries that it has learned, a hub the whole matrix.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from consilience.algorithms.exact_hessian import Curvature, ExactHessian, pairs
from consilience.algorithms.hessian_compressors import Compressor, Dense
from consilience.client import Client
from consilience.errors import UserError
from consilience.learning.randomness import stream_bits
from consilience.learning.symmetric_entries import Entries, check_size, place_of, triangle
from consilience.types import Number, Params


@dataclass(frozen=True)
class SomeEntries(Compressor):
    """Differences as entries; what was learned is one `Entries`.

    Attributes:
        size: The size of the matrix.
        count: How many entries are sent.
        capacity: How many numbers for each row of the matrix a client keeps, positions and values.
    """

    size: int
    count: int
    capacity: int

    @property
    def places(self) -> int:
        """How many entries a client keeps."""
        return min(triangle(self.size), self.capacity * self.size // 2)

    def check(self, name: str) -> None:
        """Refuse what cannot be counted or kept, in the name of a method."""
        check_size(self.size, name)
        most = self.places if self.places == triangle(self.size) else self.places // 2
        if self.count > most:
            raise UserError(f"{name}: entries may be at most {most:,} here, not {self.count:,}")

    @abstractmethod
    def compressed(self, truth: Curvature, held: Entries, room: Tensor, client: Client) -> Entries:
        """What is sent of a difference; where there is no room, only at positions that are held."""

    def step(self, alpha: Number | None) -> Number:
        """How far to go along what was sent."""
        return 1.0 if alpha is None else alpha

    def init(self, size: int, like: Tensor) -> Params:
        return Entries.zero(self.places, like)._asdict()

    def known(self, matrix: Tensor) -> Params:
        numbers = torch.arange(triangle(self.size), device=matrix.device)
        positions = place_of(numbers, self.size).sort().values
        return Entries(positions, matrix.flatten()[positions.long()])._asdict()

    def leading(self, size: int) -> Compressor:
        return TopK(size, min(triangle(size), self.capacity * size // 4), self.capacity)

    def learn(
        self, truth: Curvature, learned: Params, alpha: Number | None, client: Client
    ) -> tuple[Params, Params]:
        held = Entries(**learned)
        used = (held.positions >= 0).sum() + self.count
        room = torch.ones_like(used) > 0 if self.places == triangle(self.size) else used <= self.places
        sent = self.compressed(truth, held, room, client)
        after = held.plus(Entries(sent.positions, self.step(alpha) * sent.values))
        return sent._asdict(), after._asdict()

    def block(self, learned: Params, first: int, second: int, truth: Curvature) -> Tensor:
        return Entries(**learned).block(first, second, truth.width, self.size)

    def times(self, learned: Params, vector: Tensor) -> Tensor:
        return Entries(**learned).times(vector)

    def init_hub(self, size: int, like: Tensor) -> Params:
        return {"matrix": torch.zeros(size, size, dtype=like.dtype, device=like.device)}

    def hub_known(self, matrix: Tensor) -> Params:
        return {"matrix": matrix}

    def add(self, hub: Params, messages: Params, weights: Tensor, alpha: Number | None) -> Params:
        values = self.step(alpha) * weights.to(messages["values"].dtype)[:, None] * messages["values"]
        positions = messages["positions"].long()
        row, column = positions // self.size, positions % self.size
        values = torch.where(positions < 0, 0.0, values)
        places = torch.where(
            positions < 0, 0, torch.stack([row * self.size + column, column * self.size + row])
        )
        # An entry on the diagonal has one place, the others two.
        both = torch.stack([values, torch.where(row == column, 0.0, values)])
        flat = hub["matrix"].flatten().scatter_add(0, places.flatten(), both.flatten())
        return {"matrix": flat.reshape(self.size, self.size)}

    def matrix(self, hub: Params, diagonal: Number) -> Dense:
        return Dense(hub["matrix"], diagonal)


@final
@dataclass(frozen=True)
class TopK(SomeEntries):
    """The entries of the upper triangle that are largest in absolute value, found block by block.

    Every block of a linear model's Hessian is symmetric itself, so that most entries are there twice. Which
    of the two is taken first must not be up to rounding: those below a block's diagonal count 1/1024 less.
    """

    def compressed(self, truth: Curvature, held: Entries, room: Tensor, client: Client) -> Entries:
        width, device = truth.width, held.values.device
        rows = torch.arange(width, dtype=torch.int32, device=device)
        handicap = torch.where(rows[:, None] > rows, 1 - 2**-10, 1.0).to(held.values.dtype)
        known = held._replace(values=torch.ones_like(held.values))
        best: list[Tensor] = []
        for first, second in pairs(truth.blocks):
            gap = truth.block(first, second) - self.block(held._asdict(), first, second, truth)
            # Where there is no room, what is not held does not count.
            allowed = room | (known.block(first, second, width, self.size) > 0)
            scores = torch.where(allowed, handicap * gap.abs(), 0.0)
            if first == second:  # the lower triangle says the same again
                scores = torch.where(rows[:, None] > rows, -1.0, scores)
            places = (first * width + rows[:, None]) * self.size + second * width + rows
            found = [scores, torch.where(allowed, gap, 0.0), places.expand_as(gap) + 0 * scores.int()]
            best = _best([one.flatten() for one in found], best, self.count)
        _, values, positions = best
        order = positions.argsort()
        return Entries(positions[order], values[order])


def _best(found: list[Tensor], before: list[Tensor], count: int) -> list[Tensor]:
    """What has the highest scores of what was found and what was best before; the highest come first."""
    both = [torch.cat(parts) for parts in zip(before, found, strict=True)] if before else found
    chosen = both[0].topk(min(count, both[0].shape[0])).indices
    return [one.gather(0, chosen) for one in both]


@final
@dataclass(frozen=True)
class RandK(SomeEntries):
    """Random entries, each multiplied by how rare its choice is: right on average.

    The upper triangle is cut into K strata of equal size up to one, and one entry of each is drawn: as Rand-K
    that draws without putting back, every entry is as likely as any other, and no list of all is needed.
    """

    def compressed(self, truth: Curvature, held: Entries, room: Tensor, client: Client) -> Entries:
        device, total = held.values.device, triangle(self.size)
        borders = torch.arange(self.count + 1, device=device) * total // self.count
        rare = borders[1:] - borders[:-1]
        draws = stream_bits(client.key, torch.arange(self.count, device=device), 31)
        positions = place_of(borders[:-1] + draws * rare // 2**31, self.size)
        assert isinstance(truth, ExactHessian)  # single entries in another basis would cost whole blocks
        gap = truth.entries(positions) - held.at(positions)
        allowed = room | (held._replace(values=torch.ones_like(held.values)).at(positions) > 0)
        return Entries(torch.where(allowed, positions, -1), torch.where(allowed, rare * gap, 0.0))

    def step(self, alpha: Number | None) -> Number:
        """The usual step is 1 / (1 + variance): what is drawn is then learned as it is."""
        return self.count / triangle(self.size) if alpha is None else alpha
