"""Matrices of low rank and a diagonal against dense linear algebra, in float64."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from consilience.learning.low_rank import LowRank, from_dense, largest_eigenpairs, orthonormal

DTYPE = torch.float64


def symmetric(size=12, rank=None):
    """A random symmetric matrix, indefinite."""
    vectors = torch.linalg.qr(torch.randn(size, size, dtype=DTYPE)).Q
    values = torch.randn(size, dtype=DTYPE) * 2.0 ** -torch.arange(size, dtype=DTYPE)
    if rank is not None:
        values[rank:] = 0
    return (vectors * values) @ vectors.T


@pytest.fixture
def low():
    return from_dense(symmetric(rank=4), 6)._replace(diagonal=0.3)


def test_it_is_the_matrix(low):
    matrix = symmetric(rank=5)
    assert_close(from_dense(matrix, 5).dense(), matrix, rtol=1e-10, atol=1e-12)
    columns = torch.randn(12, 3, dtype=DTYPE)
    assert_close(low.times(columns), low.dense() @ columns)
    assert_close(low.times(columns[:, 0]), low.dense() @ columns[:, 0])
    plain = low._replace(diagonal=0.0)
    assert_close(plain.block(0, 2, 4), plain.dense()[:4, 8:])
    varied = low._replace(diagonal=torch.rand(12, dtype=DTYPE))
    assert_close(varied.times(columns), varied.dense() @ columns)


def test_what_is_smallest_falls_away():
    matrix = symmetric()
    values, vectors = torch.linalg.eigh(matrix)
    kept = values.abs().argsort()[-5:]
    best = (vectors[:, kept] * values[kept]) @ vectors[:, kept].T
    assert_close(from_dense(matrix, 5).dense(), best, rtol=1e-10, atol=1e-12)


def test_sums_are_exact_while_there_is_room(low):
    columns, core = torch.randn(12, 2, dtype=DTYPE), symmetric(2)
    after = low.plus(columns, core)
    assert_close(after.dense(), low.dense() + columns @ core @ columns.T, rtol=1e-10, atol=1e-12)
    free = after.values == 0
    assert free.sum() == 0
    assert_close(after.vectors.T @ after.vectors, torch.eye(6, dtype=DTYPE), rtol=1e-10, atol=1e-12)


def test_beyond_that_they_are_the_best_of_the_rank(low):
    columns, core = torch.randn(12, 5, dtype=DTYPE), symmetric(5)
    after = low._replace(diagonal=0.0).plus(columns, core)
    whole = low._replace(diagonal=0.0).dense() + columns @ core @ columns.T
    assert_close(after.dense(), from_dense(whole, 6).dense(), rtol=1e-9, atol=1e-11)


def test_free_places_stay_free():
    low = LowRank.zero(7, 4, torch.zeros((), dtype=DTYPE))
    vector = torch.randn(7, 1, dtype=DTYPE)
    once = low.plus(vector, torch.ones(1, 1, dtype=DTYPE))
    twice = once.plus(vector, torch.ones(1, 1, dtype=DTYPE))  # nothing new
    for one in (once, twice):
        assert (one.values != 0).sum() == 1
        assert (one.vectors[:, 1:] == 0).all()
    assert_close(twice.dense(), 2 * vector @ vector.T)
    gone = twice.plus(vector, torch.full((1, 1), -2.0, dtype=DTYPE))
    assert gone.dense().abs().max() < 1e-12


def test_more_columns_than_rows():
    low = LowRank.zero(5, 5, torch.zeros((), dtype=DTYPE))
    columns, core = torch.randn(5, 9, dtype=DTYPE), symmetric(9)
    assert_close(low.plus(columns, core).dense(), columns @ core @ columns.T, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("floor", [1e-3, 0.25, 0.3, 0.7])
def test_the_floor_is_the_projection(low, floor):
    values, vectors = torch.linalg.eigh(low.dense())
    expected = (vectors * values.clamp(min=floor)) @ vectors.T
    found = low.floored(floor).dense()
    assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert torch.linalg.eigvalsh(found).min() >= floor - 1e-12


def test_what_is_above_the_floor_stays():
    high = from_dense(symmetric(rank=4) @ symmetric(rank=4).T, 6)._replace(diagonal=0.5)
    high = LowRank(high.vectors, high.values.abs(), 0.5)
    assert_close(high.floored(0.4).dense(), high.dense())


@pytest.mark.parametrize("kind", ["number", "tensor", "vector"])
def test_solves(low, kind):
    diagonals = {
        "number": 0.7,
        "tensor": torch.tensor(0.7, dtype=DTYPE),
        "vector": torch.rand(12).double() + 0.5,
    }
    one = low._replace(diagonal=diagonals[kind])
    right = torch.randn(12, dtype=DTYPE)
    assert_close(one.solve(right), torch.linalg.solve(one.dense(), right), rtol=1e-9, atol=1e-11)


def test_the_largest_eigenpairs():
    matrix = symmetric(20)
    values, vectors = torch.linalg.eigh(matrix)
    order = values.abs().argsort(descending=True)[:2]
    found, sizes = largest_eigenpairs(lambda v: matrix @ v, torch.randn(20, 8, dtype=DTYPE), 2, 6)
    assert_close(sizes, values[order], rtol=1e-8, atol=1e-10)
    assert_close((found.T @ vectors[:, order]).abs(), torch.eye(2, dtype=DTYPE), rtol=1e-5, atol=1e-5)


def test_they_are_exact_where_the_rank_is_small():
    matrix = symmetric(20, rank=5)
    found, values = largest_eigenpairs(lambda v: matrix @ v, torch.randn(20, 8, dtype=DTYPE), 6, 1)
    assert_close((found * values) @ found.T, matrix, rtol=1e-9, atol=1e-11)
    assert values[5] == 0


def test_what_is_no_number_is_seen_and_harms_nobody_else():
    matrices = torch.stack([symmetric(), torch.full((12, 12), torch.nan, dtype=DTYPE)])
    start = torch.randn(12, 4, dtype=DTYPE)
    found, values = torch.func.vmap(lambda m: largest_eigenpairs(lambda v: m @ v, start, 2, 3))(matrices)
    assert_close(found[0], largest_eigenpairs(lambda v: matrices[0] @ v, start, 2, 3)[0])
    assert values[1].isnan().all()


def test_many_at_once():
    lows = [from_dense(symmetric(rank=3), 5) for _ in range(3)]
    columns, core, right = torch.randn(3, 12, 2).double(), torch.eye(2, dtype=DTYPE), torch.randn(12).double()

    def together(vectors, values, new):
        return LowRank(vectors, values).plus(new, core)._replace(diagonal=0.2).floored(0.1).solve(right)

    stacked = [torch.stack(list(parts)) for parts in zip(*[one[:2] for one in lows], strict=True)]
    found = torch.func.vmap(together)(*stacked, columns)
    alone = [together(one.vectors, one.values, new) for one, new in zip(lows, columns, strict=True)]
    assert_close(found, torch.stack(alone), rtol=1e-9, atol=1e-11)


def test_bases_go_along_their_columns():
    columns = torch.randn(9, 3, dtype=DTYPE)
    basis = orthonormal(columns)
    assert_close(basis.T @ basis, torch.eye(3, dtype=DTYPE))
    assert ((basis.T @ columns).diagonal() > 0).all()
