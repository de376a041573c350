"""How differences of Hessians are compressed, and how what was learned is kept, in FedNL and BL1.

A client knows its exact Hessian by what it does. What it has learned of it is kept as factors or as entries,
in no more than `capacity` numbers a row. Where these places are full, learning goes on within them (within
the span of the factors, at the known entries), so that a hub's sum of all messages stays the sum of what
clients hold. The hub's own factors have HUB_PLACES times as many places; there the smallest fall away.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from consilience.algorithms.exact_hessian import Curvature, pairs
from consilience.client import Client
from consilience.learning.low_rank import LowRank, from_dense, largest_eigenpairs, orthonormal
from consilience.learning.randomness import normals
from consilience.types import Number, Params

SPARE = 8
"""How many more columns than are wanted a search for eigenvectors has."""
HUB_PLACES = 8
"""How many times the rank of what a client has learned that of a hub may be."""
_STREAM = 1 << 25  # far from other uses of a key


class Dense(NamedTuple):
    """A symmetric matrix + diagonal I, with what `LowRank` can do."""

    whole: Tensor
    diagonal: Number = 0.0

    def times(self, columns: Tensor) -> Tensor:
        """The product with a vector."""
        return self.whole @ columns + self.diagonal * columns

    def floored(self, floor: Number) -> Dense:
        """The nearest matrix whose eigenvalues are all at least `floor`."""
        values, vectors = torch.linalg.eigh(self.whole)
        return Dense((vectors * torch.clamp(values + self.diagonal, min=floor)) @ vectors.mT)

    def solve(self, right: Tensor) -> Tensor:
        """The x of (matrix + diagonal I) x = right."""
        shifted = self.whole.diagonal_scatter(self.whole.diagonal() + self.diagonal)
        found: Tensor = torch.linalg.solve(shifted, right)
        return found


class Compressor(ABC):
    """How a difference of Hessians is sent, and how what was learned is kept by clients and by a hub.

    What a client or a hub has learned, and a message, are named tensors.
    """

    @abstractmethod
    def init(self, size: int, like: Tensor) -> Params:
        """What a client has learned before it begins: 0."""

    @abstractmethod
    def known(self, matrix: Tensor) -> Params:
        """What a client has learned that knows a small matrix from the start."""

    @abstractmethod
    def leading(self, size: int) -> Compressor:
        """The compressor of a first message that fills half of the places, with the largest there are."""

    @abstractmethod
    def learn(
        self, truth: Curvature, learned: Params, alpha: Number | None, client: Client
    ) -> tuple[Params, Params]:
        """What is sent of `truth - learned`, and what was learned, moved by `alpha` times that.

        An alpha of None is the one that the theory has for the compressor.
        """

    @abstractmethod
    def block(self, learned: Params, first: int, second: int, truth: Curvature) -> Tensor:
        """[width, width] one block of what was learned, on the diagonal or above it."""

    @abstractmethod
    def times(self, learned: Params, vector: Tensor) -> Tensor:
        """What was learned, times a vector."""

    @abstractmethod
    def init_hub(self, size: int, like: Tensor) -> Params:
        """What a hub has learned before it begins: 0."""

    @abstractmethod
    def hub_known(self, matrix: Tensor) -> Params:
        """What a hub has learned that knows a small matrix from the start."""

    @abstractmethod
    def add(self, hub: Params, messages: Params, weights: Tensor, alpha: Number | None) -> Params:
        """What a hub has learned after messages [messages, ...], each with its weight."""

    @abstractmethod
    def matrix(self, hub: Params, diagonal: Number) -> LowRank | Dense:
        """What a hub has learned, + diagonal I."""

    def error(self, truth: Curvature, learned: Params) -> Tensor:
        """0-d, the Frobenius norm of `truth - learned`, block by block."""
        squares = []
        for first, second in pairs(truth.blocks):
            gap = truth.block(first, second) - self.block(learned, first, second, truth)
            squares.append((2 - (first == second)) * gap.square().sum())
        return torch.stack(squares).sum().sqrt()


@dataclass(frozen=True)
class Factors(Compressor):
    """Differences as factors of low rank, V C V'; what was learned is one `LowRank`.

    Attributes:
        rank: How many columns V has.
        capacity: The largest rank of what a client has learned.
    """

    rank: int
    capacity: int

    @abstractmethod
    def columns(self) -> int:
        """How much one message may add to the rank."""

    @abstractmethod
    def compressed(self, gap: Gap, start: Tensor, learned: Params) -> Params:
        """What is sent of a difference.

        Args:
            gap: The difference.
            start: [size, k] random columns.
            learned: What the client has learned.
        """

    @abstractmethod
    def decoded(self, message: Params) -> tuple[Tensor, Tensor]:
        """[size, k] V and [k, k] C of a message."""

    def start(self, size: int) -> int:
        """How many random columns are wanted."""
        return self.rank

    def init(self, size: int, like: Tensor) -> Params:
        zero = LowRank.zero(size, min(size, self.capacity), like)
        return {"vectors": zero.vectors, "values": zero.values, "rank": _count(0, like)}

    def known(self, matrix: Tensor) -> Params:
        found = from_dense(matrix, len(matrix))
        return {"vectors": found.vectors, "values": found.values, "rank": _count(len(matrix), matrix)}

    def leading(self, size: int) -> Compressor:
        return RankR(min(size, self.capacity // 2), self.capacity)

    def learn(
        self, truth: Curvature, learned: Params, alpha: Number | None, client: Client
    ) -> tuple[Params, Params]:
        held = LowRank(learned["vectors"], learned["values"])
        size, places = held.vectors.shape
        rank = learned["rank"] + self.columns()
        room = torch.ones_like(rank) > 0 if places == size else rank <= places
        blank = torch.zeros(size, self.start(size), dtype=held.values.dtype, device=held.values.device)
        message = self.compressed(Gap(truth, held, room), normals(client.common_key, _STREAM, blank), learned)
        columns, core = self.decoded(message)
        after = held.plus(columns, (1.0 if alpha is None else alpha) * core)
        renewed = {**learned, "vectors": after.vectors, "values": after.values}
        return message, {**renewed, "rank": torch.clamp(rank, max=places), **self.renewed(message, learned)}

    def renewed(self, message: Params, learned: Params) -> Params:
        """What else a client remembers of what it sent."""
        return {}

    def block(self, learned: Params, first: int, second: int, truth: Curvature) -> Tensor:
        return LowRank(learned["vectors"], learned["values"]).block(first, second, truth.width)

    def times(self, learned: Params, vector: Tensor) -> Tensor:
        return LowRank(learned["vectors"], learned["values"]).times(vector)

    def init_hub(self, size: int, like: Tensor) -> Params:
        zero = LowRank.zero(size, min(size, HUB_PLACES * self.capacity), like)
        return {"vectors": zero.vectors, "values": zero.values}

    def hub_known(self, matrix: Tensor) -> Params:
        found = from_dense(matrix, len(matrix))
        return {"vectors": found.vectors, "values": found.values}

    def add(self, hub: Params, messages: Params, weights: Tensor, alpha: Number | None) -> Params:
        columns, cores = torch.func.vmap(self.decoded)(messages)
        scaled = (1.0 if alpha is None else alpha) * weights.to(cores.dtype)[:, None, None] * cores
        after = LowRank(hub["vectors"], hub["values"]).plus(
            columns.movedim(0, 1).flatten(1), _block_diagonal(scaled)
        )
        return {"vectors": after.vectors, "values": after.values}

    def matrix(self, hub: Params, diagonal: Number) -> LowRank:
        return LowRank(hub["vectors"], hub["values"], diagonal)


def _count(number: int, like: Tensor) -> Tensor:
    return torch.full((), number, dtype=torch.int64, device=like.device)


def _block_diagonal(blocks: Tensor) -> Tensor:
    """[n k, n k] the matrix with blocks [n, k, k] along its diagonal."""
    count, width = blocks.shape[:2]
    chosen = torch.eye(count, dtype=blocks.dtype, device=blocks.device)
    return torch.einsum("nij,nm->nimj", blocks, chosen).reshape(count * width, count * width)


@dataclass(frozen=True)
class Gap:
    """The difference between a Hessian and what was learned of it.

    Where there is no room for new directions, the difference within the span of the old ones.
    """

    truth: Curvature
    held: LowRank
    room: Tensor

    def times(self, columns: Tensor) -> Tensor:
        """The product with columns [size, k]."""
        inside = torch.where(self.room, columns, self.held.within(columns))
        found = self.truth.times(inside) - self.held.times(inside)
        return torch.where(self.room, found, self.held.within(found))


@final
@dataclass(frozen=True)
class RankR(Factors):
    """The best approximation of rank R: R eigenvectors and their eigenvalues.

    Attributes:
        rounds: How many products with the difference a search for eigenvectors takes before its last one.
    """

    rounds: int = 4

    def columns(self) -> int:
        return self.rank

    def start(self, size: int) -> int:
        return min(size, self.rank + SPARE)

    def compressed(self, gap: Gap, start: Tensor, learned: Params) -> Params:
        vectors, values = largest_eigenpairs(gap.times, start, self.rank, self.rounds)
        return {"vectors": vectors, "values": values}

    def decoded(self, message: Params) -> tuple[Tensor, Tensor]:
        return message["vectors"], torch.diag(message["values"])


@final
@dataclass(frozen=True)
class PowerSGD(Factors):
    """One step of a power iteration that goes on where the last round's ended, P Q', made symmetric.

    Vogels, Karimireddy, Jaggi: PowerSGD (NeurIPS 2019). P is an orthonormal basis of D Q_old, Q = D P.
    """

    def columns(self) -> int:
        return 2 * self.rank

    def init(self, size: int, like: Tensor) -> Params:
        query = torch.zeros(size, self.rank, dtype=like.dtype, device=like.device)
        return {**super().init(size, like), "query": query}

    def known(self, matrix: Tensor) -> Params:
        return {**super().known(matrix), "query": torch.zeros_like(matrix[:, : self.rank])}

    def compressed(self, gap: Gap, start: Tensor, learned: Params) -> Params:
        query = learned["query"]
        begun = (query != 0).any()
        left = orthonormal(gap.times(torch.where(begun, query, start)))
        return {"left": left, "right": gap.times(left)}

    def renewed(self, message: Params, learned: Params) -> Params:
        right = message["right"]
        # A difference that is rounding alone says nothing about where to look next.
        noise = len(right) * torch.finfo(right.dtype).eps * learned["values"].abs().amax()
        return {"query": torch.where(right.norm() > noise, right, 0.0)}

    def decoded(self, message: Params) -> tuple[Tensor, Tensor]:
        columns = torch.cat([message["left"], message["right"]], 1)
        half = 0.5 * torch.eye(self.rank, dtype=columns.dtype, device=columns.device)
        return columns, torch.cat([torch.cat([0 * half, half], 1), torch.cat([half, 0 * half], 1)])
