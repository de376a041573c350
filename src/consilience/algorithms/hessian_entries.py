"""Differences of Hessians as single entries of the upper triangle: Top-K and Rand-K.

A client keeps the entries that it has learned, a hub the whole matrix.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from consilience.algorithms.exact_hessian import Curvature, pairs
from consilience.algorithms.hessian_compressors import Compressor, Dense
from consilience.client import Client
from consilience.learning.randomness import stream_bits
from consilience.learning.symmetric_entries import Entries, place_of, triangle
from consilience.types import Number, Params


@dataclass(frozen=True)
class SomeEntries(Compressor):
    """Differences as entries; what was learned is one `Entries`.

    Attributes:
        size: The size of the matrix.
        count: How many entries are sent.
        capacity: How many entries for each row of the matrix a client keeps.
    """

    size: int
    count: int
    capacity: int

    @property
    def places(self) -> int:
        """How many entries a client keeps."""
        return min(triangle(self.size), self.capacity * self.size)

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
        places = torch.where(positions < 0, 0, torch.stack([row * self.size + column, column * self.size + row]))
        # An entry on the diagonal has one place, the others two.
        both = torch.stack([values, torch.where(row == column, 0.0, values)])
        flat = hub["matrix"].flatten().scatter_add(0, places.flatten(), both.flatten())
        return {"matrix": flat.reshape(self.size, self.size)}

    def matrix(self, hub: Params, diagonal: Number) -> Dense:
        return Dense(hub["matrix"], diagonal)


@final
@dataclass(frozen=True)
class TopK(SomeEntries):
    """The entries of the upper triangle that are largest in absolute value, found block by block."""

    def compressed(self, truth: Curvature, held: Entries, room: Tensor, client: Client) -> Entries:
        width, device = truth.width, held.values.device
        best = Entries.zero(0, held.values)
        rows = torch.arange(width, dtype=torch.int32, device=device)
        known = held._replace(values=torch.ones_like(held.values))
        for first, second in pairs(truth.blocks):
            gap = truth.block(first, second) - self.block(held._asdict(), first, second, truth)
            # Where there is no room, what is not held counts as 0.
            allowed = room | (known.block(first, second, width, self.size) > 0)
            gap = torch.where(allowed, gap, 0.0)
            places = (first * width + rows[:, None]) * self.size + second * width + rows
            if first == second:  # the lower triangle says the same again
                above = torch.triu_indices(width, width, device=device)
                gap, places = gap[above[0], above[1]], places[above[0], above[1]]
            best = _largest(best, Entries(places.flatten(), gap.flatten()), self.count)
        order = best.positions.argsort()
        return Entries(best.positions[order], best.values[order])


def _largest(one: Entries, other: Entries, count: int) -> Entries:
    values = torch.cat([one.values, other.values])
    # One client's places are everybody's: without this they would have no axis of clients.
    positions = torch.cat([one.positions, other.positions + torch.zeros_like(values[:1]).int()])
    chosen = values.abs().topk(min(count, values.shape[0])).indices
    return Entries(positions.gather(0, chosen), values.gather(0, chosen))


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
        gap = truth.entries(positions) - held.at(positions)
        allowed = room | (held._replace(values=torch.ones_like(held.values)).at(positions) > 0)
        return Entries(torch.where(allowed, positions, -1), torch.where(allowed, rare * gap, 0.0))

    def step(self, alpha: Number | None) -> Number:
        """The usual step is 1 / (1 + variance): what is drawn is then learned as it is."""
        return self.count / triangle(self.size) if alpha is None else alpha
