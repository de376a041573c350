"""Which rows a client visits: all of them, in an order that is its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from consilience.engine.batches import Pool, Visit, data_order, plan, training_order
from consilience.engine.randomness import Purpose, generator, torch_seed

CPU = torch.device("cpu")


def visit(seed: int = 0, round_number: int = 0, client: int = 0, count: int = 10) -> Visit:
    return Visit(seed, round_number, client, np.arange(100, 100 + count))


def counted(order: np.ndarray) -> list[int]:
    return sorted(order[order >= 0].tolist())


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3))
def test_every_epoch_visits_every_row_once(count, batch_size, epochs):
    rows, per_epoch = visit(count=count), -(-count // batch_size)
    order = training_order(rows, range(epochs), None, batch_size)
    assert order.shape == (epochs * per_epoch, batch_size)
    for epoch in range(epochs):
        one = order[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert counted(one) == rows.rows.tolist()
        assert (one[:-1] >= 0).all()  # only the last batch is short, and it is kept
        assert (one[-1] >= 0).sum() == count - (per_epoch - 1) * batch_size
        np.testing.assert_array_equal(training_order(rows, [epoch], None, batch_size), one)
    assert counted(data_order(rows, batch_size)) == rows.rows.tolist()


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 30))
def test_steps_mode_gives_exactly_that_many(count, batch_size, steps):
    rows = visit(count=count)
    order = training_order(rows, [], steps, batch_size)
    assert order.shape == (steps, batch_size)
    assert (order[:, 0] >= 0).all()
    per_epoch = -(-count // batch_size)
    if steps >= per_epoch:
        full = training_order(rows, range(steps // per_epoch), None, batch_size)
        np.testing.assert_array_equal(order[: len(full)], full)


def test_epochs_are_reshuffled_and_differ_from_the_pass_over_the_data():
    rows = visit(count=50)
    orders = [training_order(rows, [0], None, 50), training_order(rows, [1], None, 50), data_order(rows, 50)]
    assert len({tuple(order[0]) for order in orders}) == 3


@pytest.mark.parametrize("change", [{"seed": 1}, {"round_number": 1}, {"client": 1}])
def test_order_and_keys_depend_on_seed_round_and_client(change):
    def made(one: Visit) -> tuple[list[int], list[int]]:
        order = training_order(one, range(2), None, 4)
        return order.ravel().tolist(), plan([one], [order], 0, CPU).keys.tolist()

    order, keys = made(visit())
    assert made(visit()) == (order, keys)
    other_order, other_keys = made(visit(**change))
    assert other_order != order
    assert not set(other_keys) & set(keys)


def test_a_plan_lays_jobs_end_to_end_and_pads_with_their_own_rows():
    visits = [visit(client=1, count=5), visit(client=2, count=0), visit(client=3, count=2)]
    orders = [training_order(one, range(2), None, 3) for one in visits]
    made = plan(visits, orders, 0, CPU)
    assert made.steps.tolist() == [4, 0, 2]
    assert made.first.tolist() == [0, 4, 4]
    assert [list(made.of_job(job)) for job in range(3)] == [[0, 1, 2, 3], [], [4, 5]]
    assert made.sizes.tolist() == [3, 2, 3, 2, 2, 2]
    assert made.keys.dtype == torch.int64
    for step, size in enumerate(made.sizes):
        row = made.rows[step].tolist()
        assert row[:size] == [number for number in np.concatenate(orders)[step] if number >= 0]
        assert row[size:] == [row[0]] * (3 - size)


def test_keys_of_streams_and_steps_are_apart():
    orders = [training_order(visit(), range(3), None, 2)]
    keys = [plan([visit()], orders, stream, CPU).keys.tolist() for stream in range(3)]
    assert len({key for stream in keys for key in stream}) == 3 * 15
    assert all(0 <= key < 2**62 for stream in keys for key in stream)


@pytest.mark.parametrize("rows", [torch.tensor([2, 0]), torch.tensor([[1], [3]])])
def test_a_pool_normalises_the_rows_it_reads(rows):
    inputs = torch.arange(24, dtype=torch.uint8).reshape(4, 3, 2)
    shift, scale = torch.tensor([[1.0], [2.0], [3.0]]).double(), torch.tensor(4.0).double()
    pool = Pool(inputs, torch.arange(4), shift, scale, torch.float64)
    batch = pool.batch(rows, torch.ones(rows.shape), torch.tensor(0))
    assert batch.inputs.dtype == torch.float64
    assert torch.equal(batch.inputs, (inputs[rows].double() - shift) / scale)
    assert torch.equal(batch.targets, rows)


def test_streams_of_random_numbers():
    keys = [(0, purpose, *key) for purpose in Purpose for key in [(), (1,), (2,), (1, 1), (1, 2), (2, 1)]]
    assert len({generator(*key).random() for key in keys}) == len(keys)
    assert generator(3, Purpose.COHORT, 1).random() == generator(3, Purpose.COHORT, 1).random()


def test_torch_seed_is_keyed_and_leaves_no_trace():
    before = torch.get_rng_state()
    drawn = []
    for seed in (0, 0, 1):
        with torch_seed(seed, Purpose.INITIAL_WEIGHTS):
            drawn.append(torch.rand(()).item())
    assert drawn[0] == drawn[1] != drawn[2]
    assert torch.equal(torch.get_rng_state(), before)
