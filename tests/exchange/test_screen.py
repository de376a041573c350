"""Only finite messages of the expected form may be combined."""

from __future__ import annotations

import pytest
import torch

from consilience.exchange import screen
from consilience.exchange.screen import fault, finite
from consilience.tree import Schema

CPU = torch.device("cpu")


def message(**changes: torch.Tensor) -> dict[str, dict[str, torch.Tensor]]:
    return {
        "params": {"w": torch.zeros(2, 3), "b": torch.zeros(2)} | changes,
        "buffers": {"n": torch.tensor(1)},
    }


USUAL = message()
ODD = {
    "params/w is float32 of shape [3, 2] instead of float32 of shape [2, 3]": message(w=torch.zeros(3, 2)),
    "params/w is float64 of shape [2, 3] instead of float32 of shape [2, 3]": message(
        w=torch.zeros(2, 3).double()
    ),
    "params/b is missing": {"params": {"w": torch.zeros(2, 3)}, "buffers": {"n": torch.tensor(1)}},
    "'params/c' is not part of this message": message(c=torch.zeros(1)),
    "buffers/n is missing": {"params": USUAL["params"], "buffer": USUAL["buffers"]},
    "params/b is not finite": message(b=torch.tensor([0.0, torch.nan])),
    "params/w is not finite": message(w=torch.full((2, 3), torch.inf)),
}


@pytest.mark.parametrize("reason", ODD)
def test_what_is_wrong_is_said(reason):
    assert fault(USUAL, Schema.of(USUAL)) is None
    assert fault(ODD[reason], Schema.of(USUAL)) == reason


def test_the_order_of_names_does_not_matter():
    turned = {"buffers": USUAL["buffers"], "params": dict(reversed(USUAL["params"].items()))}
    assert fault(turned, Schema.of(USUAL)) is None
    assert list(Schema.of(USUAL).ordered(turned)["params"]) == ["w", "b"]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    "place", [("params", "w", (1, 0, 2)), ("params", "scalar", (1,)), ("other", "half", (1, 1))]
)
@pytest.mark.parametrize("large", [0, screen.LARGE])
def test_one_bad_number_condemns_its_message_alone(bad, place, large, monkeypatch):
    monkeypatch.setattr(screen, "LARGE", large)
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
