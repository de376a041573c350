"""Which rows a client visits: all of them, in an order that is its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from consilience.learning import batches as batches_module
from consilience.learning.batches import Plan, Pool, Visit, common_plan, data_plan, training_plan
from consilience.learning.randomness import Purpose, generator, stream_bits, stream_keys, torch_seed

CPU = torch.device("cpu")


def visit(seed: int = 0, round_number: int = 0, client: int = 0, count: int = 10) -> Visit:
    return Visit(seed, round_number, client, np.arange(100, 100 + count))


def batches(plan: Plan, job: int = 0) -> list[list[int]]:
    """The rows that count, step by step."""
    return [plan.rows[step, : plan.sizes[step]].tolist() for step in plan.of_job(job)]


def keys(plan: Plan, job: int = 0) -> list[int]:
    return plan.keys[list(plan.of_job(job))].tolist()


def flat(steps: list[list[int]]) -> list[int]:
    return [row for step in steps for row in step]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 3))
def test_every_epoch_visits_every_row_once(count, batch_size, epochs):
    one, per_epoch = visit(count=count), -(-count // batch_size)
    plan = training_plan([one], [range(epochs)], None, batch_size, CPU)
    assert plan.rows.shape == (epochs * per_epoch, batch_size)
    for epoch in range(epochs):
        listed = batches(plan)[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(flat(listed)) == one.rows.tolist()
        # only the last batch is short, and it is kept
        assert [len(step) for step in listed[:-1]] == [batch_size] * (per_epoch - 1)
        assert len(listed[-1]) == count - (per_epoch - 1) * batch_size
        alone = training_plan([one], [[epoch]], None, batch_size, CPU)
        assert batches(alone) == listed
        assert keys(alone) == keys(plan)[epoch * per_epoch : (epoch + 1) * per_epoch]
    assert sorted(flat(batches(data_plan([one], batch_size, CPU)))) == one.rows.tolist()


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 30))
def test_steps_mode_gives_exactly_that_many(count, batch_size, steps):
    one = visit(count=count)
    plan = training_plan([one], [[]], [steps], batch_size, CPU)
    assert plan.steps.tolist() == [steps]
    epochs = -(-steps // -(-count // batch_size))
    longer = training_plan([one], [range(epochs)], None, batch_size, CPU)
    assert batches(plan) == batches(longer)[:steps]
    assert keys(plan) == keys(longer)[:steps]


@pytest.mark.parametrize(("epochs", "steps"), [([range(2)], None), ([[1]], None), ([[]], [3])])
def test_without_rows_there_are_no_steps(epochs, steps):
    nobody = visit(count=0)
    for plan in (training_plan([nobody], epochs, steps, 4, CPU), data_plan([nobody], 4, CPU)):
        assert plan.rows.shape == (0, 4)
        assert plan.keys.shape == (0,)
        assert plan.steps.tolist() == [0]


def test_epochs_are_reshuffled_and_differ_from_the_pass_over_the_data():
    one = visit(count=50)
    plans = [training_plan([one], [[epoch]], None, 10, CPU) for epoch in (0, 1)] + [data_plan([one], 10, CPU)]
    assert len({tuple(flat(batches(plan))) for plan in plans}) == 3
    found = [key for plan in plans for key in keys(plan)]
    assert len(set(found)) == 3 * 5
    assert all(0 <= key < 2**62 for key in found)


@pytest.mark.parametrize("change", [{"seed": 1}, {"round_number": 1}, {"client": 1}])
@pytest.mark.parametrize(
    "made",
    [lambda one: training_plan([one], [range(2)], None, 4, CPU), lambda one: data_plan([one], 4, CPU)],
    ids=["training", "data pass"],
)
def test_order_and_keys_depend_on_seed_round_and_client(made, change):
    plan, other = made(visit()), made(visit(**change))
    assert batches(made(visit())) == batches(plan) != batches(other)
    assert not set(keys(other)) & set(keys(plan))


@pytest.mark.parametrize("steps", [None, 3])
def test_what_a_client_does_does_not_depend_on_the_others(steps):
    visits = [visit(client=1, count=5), visit(client=2, count=0), visit(client=3, count=17)]
    counts = None if steps is None else [steps] * 3
    together = training_plan(visits, [range(2)] * 3, counts, 3, CPU)
    for job, one in enumerate(visits):
        alone = training_plan([one], [range(2)], counts and counts[:1], 3, CPU)
        assert batches(together, job) == batches(alone)
        assert keys(together, job) == keys(alone)


def test_a_plan_lays_jobs_end_to_end_and_pads_with_their_own_rows():
    visits = [visit(client=1, count=5), visit(client=2, count=0), visit(client=3, count=2)]
    plan = training_plan(visits, [range(2)] * len(visits), None, 3, CPU)
    assert plan.steps.tolist() == [4, 0, 2]
    assert plan.first.tolist() == [0, 4, 4]
    assert [list(plan.of_job(job)) for job in range(3)] == [[0, 1, 2, 3], [], [4, 5]]
    assert plan.sizes.tolist() == [3, 2, 3, 2, 2, 2]
    for step, size in enumerate(plan.sizes):
        row = plan.rows[step].tolist()
        assert row[size:] == [row[0]] * (3 - size)


def test_a_device_lists_the_batches_that_the_host_lists(monkeypatch):
    visits = [visit(client=client, count=count) for client, count in enumerate((5, 0, 2, 40))]
    given = (visits, [range(2), range(1), [], [3]], None, 3)
    host = training_plan(*given, CPU)
    monkeypatch.setattr(batches_module, "FEW", -1)
    monkeypatch.setattr(batches_module, "to_device", lambda values, _: torch.as_tensor(values))
    device = training_plan(*given, torch.device("cuda"))  # in torch, as there
    for name in ("rows", "sizes", "keys", "first", "steps"):
        assert getattr(device, name).tolist() == getattr(host, name).tolist()


def test_few_rows_and_many_are_shuffled_alike(monkeypatch):
    few = data_plan([visit(count=1000)], 7, CPU)
    monkeypatch.setattr(batches_module, "FEW", 0)
    assert torch.equal(data_plan([visit(count=1000)], 7, CPU).rows, few.rows)


def test_all_jobs_of_a_common_plan_see_the_same_rows_in_their_order():
    plan = common_plan(np.array([7, 3, 9, 4, 5]), jobs=3, batch_size=2, device=CPU)
    assert [batches(plan, job) for job in range(3)] == [[[7, 3], [9, 4], [5]]] * 3
    assert plan.rows[2].tolist() == [5, 5]


def test_shuffling_is_fair():
    # Each of 4 rows should be in each of 4 places in a quarter of the orders.
    plan = data_plan([visit(client=client, count=4) for client in range(4000)], 4, CPU)
    counts = torch.stack([(plan.rows == 100 + row).sum(0) for row in range(4)])
    assert (counts - 1000).abs().max() < 5 * (4000 * 0.25 * 0.75) ** 0.5


def test_hashes_are_spread_over_all_bits():
    streams = torch.from_numpy(stream_keys([0, -1], [1, 2**64 + 3]))
    bits = stream_bits(streams[:, None], torch.arange(5000), 40)
    assert bits.unique().numel() == 10000
    assert (bits >= 0).all()
    assert (bits < 2**40).all()
    ones = torch.stack([(bits >> bit) & 1 for bit in range(40)]).double().mean((1, 2))
    assert (ones - 0.5).abs().max() < 0.03


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


def test_nobody_has_no_batches():
    plan = training_plan([], [], None, 4, torch.device("cpu"))
    assert plan.rows.shape == (0, 4)
    assert len(plan.steps) == 0
