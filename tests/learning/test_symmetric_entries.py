"""Matrices of few entries against dense ones."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from consilience.errors import UserError
from consilience.learning.symmetric_entries import Entries, check_size, place_of, triangle

SIZE = 6


def some(*numbers, places=8):
    """Entries with some numbers, valued 1, 2, 3, ..., and free places."""
    positions = place_of(torch.tensor(numbers), SIZE).sort().values
    values = torch.arange(1.0, len(numbers) + 1, dtype=torch.float64)
    return Entries.zero(places, values).plus(Entries(positions, values))


@pytest.mark.parametrize("size", [1, 2, 5, 6, 9])
def test_numbers_reach_every_place_of_the_triangle_once(size):
    places = place_of(torch.arange(triangle(size)), size)
    rows, columns = torch.triu_indices(size, size)
    assert places.sort().values.tolist() == (rows * size + columns).sort().values.tolist()


def test_sums():
    one, other = some(0, 7, 20), some(3, 7, places=2)
    total = one.plus(other)
    assert_close(total.dense(SIZE), one.dense(SIZE) + other.dense(SIZE))
    known = total.positions[total.positions >= 0]
    assert known.tolist() == sorted(set(known.tolist()))
    assert len(known) == 4
    assert total.positions.shape == one.positions.shape
    assert (total.values[total.positions < 0] == 0).all()


def test_products_blocks_and_single_entries():
    one = some(0, 2, 7, 11, 20)
    matrix = one.dense(SIZE)
    assert_close(matrix, matrix.T)
    vector = torch.randn(SIZE, dtype=torch.float64)
    assert_close(one.times(vector), matrix @ vector)
    for first, second in ((0, 0), (0, 1), (1, 2), (2, 2)):
        expected = matrix[2 * first : 2 * first + 2, 2 * second : 2 * second + 2]
        assert_close(one.block(first, second, 2, SIZE), expected)
    rows, columns = torch.triu_indices(SIZE, SIZE)
    assert_close(one.at((rows * SIZE + columns).int()), matrix[rows, columns])


def test_many_at_once():
    left, right = [some(0, 7), some(1, 2)], [some(7, 8, places=2), some(2, 20, places=2)]

    def together(*parts):
        total = Entries(*parts[:2]).plus(Entries(*parts[2:]))
        return total.dense(SIZE), total.at(torch.tensor([7, 8], dtype=torch.int32))

    stacked = [torch.stack(parts) for side in (left, right) for parts in zip(*side, strict=True)]
    found, picked = torch.func.vmap(together)(*stacked)
    alone = [together(*one, *other) for one, other in zip(left, right, strict=True)]
    assert_close(found, torch.stack([one[0] for one in alone]))
    assert_close(picked, torch.stack([one[1] for one in alone]))


def test_matrices_that_cannot_be_numbered_are_refused():
    check_size(46_340, "fednl")
    with pytest.raises(UserError, match="fednl: entries of a Hessian of 46,341 parameters are too many"):
        check_size(46_341, "fednl")
