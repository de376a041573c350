"""Which rows a client visits: all of them, in an order that is its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from consilience.engine.batches import Order, Pool, Visit, data_order, plan, training_order
from consilience.engine.randomness import Purpose, generator, torch_seed

CPU = torch.device("cpu")


def visit(seed: int = 0, round_number: int = 0, client: int = 0, count: int = 10) -> Visit:
    return Visit(seed, round_number, client, np.arange(100, 100 + count))


def counted(rows: np.ndarray) -> list[int]:
    return sorted(rows[rows >= 0].tolist())


def part(order: Order, begin: int, end: int) -> tuple[list[list[int]], list[int]]:
    """Some steps, such that == compares rows and keys."""
    return order.rows[begin:end].tolist(), order.keys[begin:end].tolist()


def whole(order: Order) -> tuple[list[list[int]], list[int]]:
    return part(order, 0, len(order.rows))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3))
def test_every_epoch_visits_every_row_once(count, batch_size, epochs):
    rows, per_epoch = visit(count=count), -(-count // batch_size)
    order = training_order(rows, range(epochs), None, batch_size)
    assert order.rows.shape == (epochs * per_epoch, batch_size)
    assert order.keys.shape == (epochs * per_epoch,)
    for epoch in range(epochs):
        begin, end = epoch * per_epoch, (epoch + 1) * per_epoch
        one = order.rows[begin:end]
        assert counted(one) == rows.rows.tolist()
        assert (one[:-1] >= 0).all()  # only the last batch is short, and it is kept
        assert (one[-1] >= 0).sum() == count - (per_epoch - 1) * batch_size
        assert whole(training_order(rows, [epoch], None, batch_size)) == part(order, begin, end)
    assert counted(data_order(rows, batch_size).rows) == rows.rows.tolist()


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 30))
def test_steps_mode_gives_exactly_that_many(count, batch_size, steps):
    rows = visit(count=count)
    order = training_order(rows, [], steps, batch_size)
    assert order.rows.shape == (steps, batch_size)
    assert (order.rows[:, 0] >= 0).all()
    epochs = -(-steps // -(-count // batch_size))
    assert whole(order) == part(training_order(rows, range(epochs), None, batch_size), 0, steps)


@pytest.mark.parametrize(("epochs", "steps"), [(range(2), None), ([1], None), ([], 3)])
def test_without_rows_there_are_no_steps(epochs, steps):
    rows = visit(count=0)
    for order in (training_order(rows, epochs, steps, 4), data_order(rows, 4)):
        assert order.rows.shape == (0, 4)
        assert order.keys.shape == (0,)


def test_the_first_steps_of_an_order():
    order = training_order(visit(), range(2), None, 4)
    assert whole(order.first(4)) == part(order, 0, 4)
    assert whole(order.first(None)) == whole(order)


def test_epochs_are_reshuffled_and_differ_from_the_pass_over_the_data():
    rows = visit(count=50)
    orders = [training_order(rows, [0], None, 10), training_order(rows, [1], None, 10), data_order(rows, 10)]
    assert len({tuple(order.rows.ravel()) for order in orders}) == 3
    keys = [key for order in orders for key in order.keys.tolist()]
    assert len(set(keys)) == 3 * 5
    assert all(0 <= key < 2**62 for key in keys)


@pytest.mark.parametrize("change", [{"seed": 1}, {"round_number": 1}, {"client": 1}])
@pytest.mark.parametrize(
    "made",
    [lambda one: training_order(one, range(2), None, 4), lambda one: data_order(one, 4)],
    ids=["training", "data pass"],
)
def test_order_and_keys_depend_on_seed_round_and_client(made, change):
    order, other = made(visit()), made(visit(**change))
    assert whole(made(visit())) == whole(order)
    assert other.rows.tolist() != order.rows.tolist()
    assert not set(other.keys.tolist()) & set(order.keys.tolist())


def test_a_plan_lays_jobs_end_to_end_and_pads_with_their_own_rows():
    visits = [visit(client=1, count=5), visit(client=2, count=0), visit(client=3, count=2)]
    orders = [training_order(one, range(2), None, 3) for one in visits]
    made = plan(orders, CPU)
    assert made.steps.tolist() == [4, 0, 2]
    assert made.first.tolist() == [0, 4, 4]
    assert [list(made.of_job(job)) for job in range(3)] == [[0, 1, 2, 3], [], [4, 5]]
    assert made.sizes.tolist() == [3, 2, 3, 2, 2, 2]
    assert made.keys.dtype == torch.int64
    assert made.keys.tolist() == [*orders[0].keys, *orders[2].keys]
    listed = np.concatenate([order.rows for order in orders])
    for step, size in enumerate(made.sizes):
        row = made.rows[step].tolist()
        assert row[:size] == [number for number in listed[step] if number >= 0]
        assert row[size:] == [row[0]] * (3 - size)


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
    # A key that is longer by a zero is another key.
    key_parts = [(), (0,), (0, 0), (1,), (1, 0), (2,), (1, 1), (1, 2), (2, 1)]
    keys = [(seed, purpose, *key) for seed in (0, 1) for purpose in Purpose for key in key_parts]
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
