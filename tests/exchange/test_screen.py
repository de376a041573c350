"""Only finite messages of the usual form may be averaged."""

from __future__ import annotations

import pytest
import torch

from consilience.exchange.screen import finite, schema, well_formed

CPU = torch.device("cpu")


def message(**changes: torch.Tensor) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "params": {"w": torch.zeros(2, 3), "b": torch.zeros(2)} | changes,
        "buffers": {"n": torch.tensor(1)},
    }


USUAL = message()
ODD = {
    "shape": message(w=torch.zeros(3, 2)),
    "type": message(w=torch.zeros(2, 3, dtype=torch.float64)),
    "missing": {"params": {"w": torch.zeros(2, 3)}, "buffers": {"n": torch.tensor(1)}},
    "additional": message(c=torch.zeros(1)),
    "other group": {"params": USUAL["params"], "buffer": USUAL["buffers"]},
}


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("odd", ODD)
def test_the_odd_one_out_is_found(odd, place):
    messages = [message(w=torch.full((2, 3), float(number))) for number in range(3)]
    messages.insert(place, ODD[odd])
    assert well_formed([(message, {}) for message in messages]) == [number != place for number in range(4)]


def test_the_order_of_names_does_not_matter():
    turned = {"buffers": USUAL["buffers"], "params": dict(reversed(USUAL["params"].items()))}
    assert schema(turned) == schema(USUAL)
    assert well_formed([(USUAL, {}), (turned, {})]) == [True, True]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "place", [("params", "w", (1, 0, 2)), ("params", "scalar", (1,)), ("other", "half", (1, 1))]
)
def test_one_bad_number_condemns_its_message_alone(bad, place):
    stacked = {
        "params": {"w": torch.randn(3, 2, 4), "scalar": torch.randn(3), "n": torch.arange(3)},
        "other": {"half": torch.randn(3, 2).half(), "empty": torch.zeros(3, 0)},
    }
    assert finite([stacked], 3, CPU).tolist() == [True, True, True]
    group, name, position = place
    stacked[group][name][position] = bad
    assert finite([stacked], 3, CPU).tolist() == [True, False, True]


def test_messages_without_numbers_are_finite():
    assert finite([{}], 2, CPU).tolist() == [True, True]


def test_a_memory_of_the_wrong_shape_counts_too():
    good, bad = {"control": {"w": torch.zeros(2)}}, {"control": {"w": torch.zeros(3)}}
    assert well_formed([(USUAL, good), (USUAL, bad), (USUAL, good)]) == [True, False, True]
