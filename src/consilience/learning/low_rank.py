"""Symmetric matrices that are a diagonal and little else: U diag(s) U' + diag(t), never made whole.

The columns of U are orthonormal, or 0 where a place is free. All functions are pure and work under `vmap`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.types import Number


class LowRank(NamedTuple):
    """U diag(s) U' + diag(t)."""

    vectors: Tensor
    """[size, places] U."""
    values: Tensor
    """[places] s."""
    diagonal: Number = 0.0
    """t: a number, a 0-d tensor, or [size]."""

    @classmethod
    def zero(cls, size: int, places: int, like: Tensor) -> LowRank:
        """A matrix of 0, of the type and on the device of a tensor."""
        vectors = torch.zeros(size, places, dtype=like.dtype, device=like.device)
        return cls(vectors, torch.zeros(places, dtype=like.dtype, device=like.device))

    def times(self, columns: Tensor) -> Tensor:
        """The product with a vector [size] or with columns [size, k]."""
        inner = self.vectors.mT @ columns
        scaled = self.values.reshape(-1, *[1] * (columns.ndim - 1)) * inner
        diagonal = self.diagonal
        if isinstance(diagonal, Tensor) and diagonal.ndim:
            diagonal = diagonal.reshape(-1, *[1] * (columns.ndim - 1))
        return self.vectors @ scaled + diagonal * columns

    def within(self, columns: Tensor) -> Tensor:
        """Columns projected onto the span of U."""
        return self.vectors @ (self.vectors.mT @ columns)

    def block(self, first: int, second: int, width: int) -> Tensor:
        """[width, width] one block of the grid of blocks of a width, without the diagonal t."""
        rows, columns = (self.vectors[place * width : (place + 1) * width] for place in (first, second))
        return (rows * self.values) @ columns.mT

    def dense(self) -> Tensor:
        """[size, size] the matrix itself."""
        diagonal = torch.as_tensor(self.diagonal, dtype=self.values.dtype, device=self.values.device)
        return (self.vectors * self.values) @ self.vectors.mT + torch.diag(
            diagonal.expand(self.vectors.shape[0])
        )

    def plus(self, columns: Tensor, core: Tensor) -> LowRank:
        """The matrix + V C V', recompressed to as many places: what is smallest falls away.

        Nothing falls away where the rank of the sum is at most the number of places.

        Args:
            columns: [size, k] V, any columns.
            core: [k, k] C, symmetric.
        """
        places, kind = self.values.shape[0], self.values.dtype
        # In float64: sums go on for many rounds, and what is rounding alone must be told from what is not.
        vectors, new = self.vectors.double(), columns.double()
        # The new columns are U inside + Q triangle, Q orthonormal and orthogonal to U: twice is enough.
        first = vectors.mT @ new
        outside = new - vectors @ first
        second = vectors.mT @ outside
        basis, triangle = torch.linalg.qr(outside - vectors @ second)
        parts = torch.cat([first + second, triangle])
        inner = parts @ core.double() @ parts.mT
        inner = inner + torch.diag(torch.cat([self.values.double(), inner.new_zeros(len(triangle))]))
        turned, values = _eigenpairs(inner, places)
        found = vectors @ turned[:places] + basis @ turned[places:]
        return LowRank(*_tidy(found, values, kind), self.diagonal)

    def floored(self, floor: Number) -> LowRank:
        """The nearest matrix whose eigenvalues are all at least `floor`; the diagonal must be one number."""
        diagonal = torch.as_tensor(self.diagonal, dtype=self.values.dtype, device=self.values.device)
        rest = torch.clamp(diagonal, min=floor)
        raised = torch.clamp(self.values + diagonal, min=floor) - rest
        return LowRank(self.vectors, raised, rest)

    def solve(self, right: Tensor) -> Tensor:
        """The x of (U diag(s) U' + diag(t)) x = right, [size], by Woodbury; t must not be 0."""
        divided = right / self.diagonal
        if not isinstance(self.diagonal, Tensor) or self.diagonal.ndim == 0:
            shares = self.values / (self.values + self.diagonal)
            return divided - self.vectors @ (shares * (self.vectors.mT @ divided))
        # The inner system is I + diag(s) U' diag(t)^-1 U, in which free places do no harm.
        scaled = self.vectors.mT / self.diagonal
        inner = self.values[:, None] * (scaled @ self.vectors)
        inner = inner + torch.eye(len(self.values), dtype=right.dtype, device=right.device)
        found: Tensor = torch.linalg.solve(inner, self.values * (self.vectors.mT @ divided))
        return divided - scaled.mT @ found


def from_dense(matrix: Tensor, places: int) -> LowRank:
    """A symmetric matrix, up to what is smallest of it where its rank is above the number of places."""
    return LowRank(*_tidy(*_eigenpairs(matrix.double(), places), matrix.dtype))


def largest_eigenpairs(
    times: Callable[[Tensor], Tensor], start: Tensor, count: int, rounds: int
) -> tuple[Tensor, Tensor]:
    """[size, count] vectors and [count] values: the eigenpairs of largest |value| of a symmetric operator.

    It is subspace iteration (Halko, Martinsson, Tropp, 2011). They are exact where the operator's rank is at
    most the number of columns to start with; else the error falls by |value_k+1 / value_count|^2 a round.

    Args:
        times: The product of the operator with columns [size, k].
        start: [size, k] random columns; k is `count` and some more.
        count: How many pairs are wanted.
        rounds: How many products are taken before the last one.
    """
    basis = orthonormal(start)
    for _ in range(rounds):
        basis = orthonormal(times(basis))
    vectors, values = _eigenpairs(basis.double().mT @ times(basis).double(), count)
    return _tidy(basis.double() @ vectors, values, start.dtype)


def orthonormal(columns: Tensor) -> Tensor:
    """An orthonormal basis of the span of columns (and of more, where they are dependent)."""
    basis, triangle = torch.linalg.qr(columns)
    # Along the columns and not against them: which it is would be up to rounding.
    along: Tensor = basis * torch.where(triangle.diagonal() < 0, -1.0, 1.0).to(basis.dtype)
    return along


def _eigenpairs(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The eigenvectors and eigenvalues of largest |value| of a matrix that is symmetric up to rounding."""
    sane = matrix.isfinite().all()  # else LAPACK would end the run, and with it all other clients' work
    values, vectors = torch.linalg.eigh(torch.where(sane, (matrix + matrix.mT) / 2, 0.0))
    values = torch.where(sane, values, torch.nan)
    chosen = values.abs().argsort(descending=True)[:count]
    return vectors.index_select(1, chosen), values.gather(0, chosen)


def _tidy(vectors: Tensor, values: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Eigenpairs with signs that do not depend on rounding, and 0 where a value is rounding alone."""
    size = vectors.shape[0]
    # A fixed direction, to which no eigenvector of structured data is orthogonal.
    probe = torch.cos(1.0 + torch.arange(size, dtype=values.dtype, device=values.device) ** 2)
    sides = torch.where(probe @ vectors < 0, -1.0, 1.0)
    noise = 10 * size**0.5 * torch.finfo(values.dtype).eps * values.abs().amax()
    alive = ~(values.abs() <= noise)  # what is no number stays seen
    return torch.where(alive, sides * vectors, 0.0).to(kind), torch.where(alive, values, 0.0).to(kind)
