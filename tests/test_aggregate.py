"""Means over messages: the guarantees that hold bit for bit, on random messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.testing import assert_close

from consilience import aggregate
from consilience.aggregate import importance_mean, mean, merge_buffers, weighted_sum

VALUES = st.floats(-1e6, 1e6, width=32)
IMPORTANCE = st.one_of(st.just(0.0), st.floats(0, 1e4, width=32))


@st.composite
def inboxes(draw):
    """Messages [k, n], importance [k, n] and weights [k] that sum to 1, some of them 0."""
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 5)))
    values = torch.from_numpy(draw(arrays(np.float32, shape, elements=VALUES)))
    importance = torch.from_numpy(draw(arrays(np.float32, shape, elements=IMPORTANCE)))
    shares = draw(st.lists(st.integers(0, 50), min_size=shape[0], max_size=shape[0]).filter(any))
    weights = torch.tensor(shares, dtype=torch.float64)
    return values, importance, weights / weights.sum()


def weigh(values, importance, weights, heard=None):
    return importance_mean({"x": values}, {"x": importance}, weights, heard)["x"]


def average(values, weights):
    return mean({"x": values}, weights)["x"]


@given(inboxes())
def test_importance_mean_lies_between_the_messages(inbox):
    values, _, weights = inbox
    merged, heard = weigh(*inbox), weights > 0
    assert merged.dtype == values.dtype
    assert (merged >= values[heard].amin(0)).all()
    assert (merged <= values[heard].amax(0)).all()


@given(inboxes(), st.data())
def test_the_only_important_message_wins_bit_for_bit(inbox, data):
    values, importance, weights = inbox
    chosen = data.draw(st.sampled_from(torch.nonzero(weights).flatten().tolist()))
    alone = torch.zeros_like(importance)
    alone[chosen] = importance[chosen] + 1e-20
    assert torch.equal(weigh(values, alone, weights), values[chosen])


@given(inboxes())
def test_without_any_importance_it_is_the_mean_bit_for_bit(inbox):
    values, importance, weights = inbox
    assert torch.equal(weigh(values, torch.zeros_like(importance), weights), average(values, weights))
    nobody = importance.sum(0) == 0
    assert torch.equal(weigh(values, importance, weights)[nobody], average(values, weights)[nobody])


@given(inboxes())
def test_equal_messages_give_that_message_bit_for_bit(inbox):
    values, importance, weights = inbox
    same = values[:1].expand_as(values)
    assert torch.equal(weigh(same, importance, weights), values[0])
    assert torch.equal(average(same, weights), values[0])


@given(inboxes(), st.randoms(use_true_random=False))
def test_the_order_of_messages_does_not_matter(inbox, random):
    values, importance, weights = (value.double() for value in inbox)
    order = random.sample(range(len(values)), len(values))
    shuffled = values[order], importance[order], weights[order]
    scale = float(values.abs().max())
    assert_close(weigh(*shuffled), weigh(values, importance, weights), rtol=0, atol=1e-14 * scale)
    assert_close(average(shuffled[0], shuffled[2]), average(values, weights), rtol=0, atol=1e-14 * scale)


@given(inboxes())
def test_what_was_not_heard_does_not_count(inbox):
    values, importance, weights = inbox
    silent = (weights == 0)[:, None]
    loud = torch.where(silent, 1e30, values), torch.where(silent, 1e30, importance), weights
    assert torch.equal(weigh(*loud), weigh(values, importance, weights))
    assert torch.equal(average(loud[0], weights), average(values, weights))


def test_importance_mean_equals_the_formula():
    values = torch.tensor([[1.0, 1.0, 1.0], [3.0, 5.0, 9.0]], dtype=torch.float64)
    importance = torch.tensor([[1.0, 3.0, 0.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
    weights = torch.tensor([0.75, 0.25], dtype=torch.float64)
    assert weigh(values, importance, weights).tolist() == [2.0, 2.0, 3.0]


def test_heard_can_differ_from_having_data():
    values, importance = torch.tensor([[1.0], [5.0]]), torch.tensor([[1.0], [1.0]])
    weights, heard = torch.tensor([1.0, 0.0]), torch.tensor([True, True])
    assert weigh(values, importance, weights).item() == 1
    assert weigh(values, importance, weights, heard).item() == 3


@pytest.mark.parametrize("part", [1, 6, aggregate.PART])
def test_weighted_sum_keeps_the_shape_and_serves_many_receivers(part, monkeypatch):
    monkeypatch.setattr(aggregate, "PART", part)
    stacked = torch.arange(12.0).reshape(3, 2, 2)
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    both = torch.func.vmap(weighted_sum, in_dims=(None, 0))(stacked, weights)
    assert both.dtype == torch.float64
    assert both[0].tolist() == [[3.0, 4.0], [5.0, 6.0]]
    assert both[1].tolist() == stacked[1].tolist()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integer_buffers_take_the_maximum_of_those_heard(dtype):
    stacked = {
        "steps": torch.tensor([3, 8, 200], dtype=dtype),
        "table": torch.tensor([[1, 4], [2, 0], [9, 9]]),
    }
    merged = merge_buffers(stacked, torch.tensor([0.5, 0.5, 0.0]))
    assert merged["steps"].item() == 8
    assert merged["steps"].dtype == dtype
    assert merged["table"].tolist() == [2, 4]


def test_floating_buffers_take_the_mean():
    merged = merge_buffers(
        {"running_mean": torch.tensor([[0.0, 2.0], [4.0, 6.0]])}, torch.tensor([0.75, 0.25])
    )
    assert merged["running_mean"].tolist() == [1.0, 3.0]


def test_boolean_buffers_say_whether_anybody_heard_says_so():
    mask = torch.tensor([[True, True, False, False], [True, False, False, False], [True] * 4])
    merged = merge_buffers({"mask": mask}, torch.tensor([0.5, 0.5, 0.0]))
    assert merged["mask"].dtype == torch.bool
    assert merged["mask"].tolist() == [True, True, False, False]
