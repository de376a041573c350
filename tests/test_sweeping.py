"""Numbers leave a part and come back, at any depth; what stays behind is hashable."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from consilience import sweeping
from consilience.learning.solvers import SGD, Adam


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    label: str = "inner"

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError("negative")


@dataclass(frozen=True)
class Middle:
    inner: Inner = field(default_factory=Inner)
    other: Inner = field(default_factory=Inner)
    power: float = 1.0


@dataclass(frozen=True)
class Outer:
    middle: Middle = field(default_factory=Middle)
    scale: float = 2.0
    count: int = 3


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def outer(rate: float, power: float, scale: float) -> Outer:
    return Outer(Middle(Inner(number(rate)), power=number(power)), number(scale))


def test_split_and_join_are_inverses_at_depth():
    part = outer(0.1, 2.0, 3.0)
    skeleton, tensors = sweeping.split(part)
    assert list(tensors) == ["middle.inner.rate", "middle.power", "scale"]
    assert skeleton.middle.other == Inner()
    assert skeleton.middle.inner.rate == skeleton.scale == sweeping.Hole()
    assert sweeping.join(skeleton, tensors) == part  # the very same tensors, so == compares by identity


def test_what_is_left_is_hashable_and_equal_for_all_values():
    one, _ = sweeping.split(outer(0.1, 2.0, 3.0))
    other, _ = sweeping.split(outer(0.7, 5.0, 0.0))
    assert one == other
    assert hash(one) == hash(other)
    assert one != sweeping.split(Outer(scale=number(3.0)))[0]


@pytest.mark.parametrize("part", [Outer(), Inner(0.1), SGD(0.1, 0.9), Adam()])
def test_a_part_without_tensors_is_left_alone(part):
    skeleton, tensors = sweeping.split(part)
    assert skeleton is part
    assert tensors == {}
    assert sweeping.join(part, {}) is part


def test_replace_does_not_check_again():
    assert sweeping.replace(Inner(), {"rate": number(-1.0)}).rate.item() == -1
    assert sweeping.replace(Inner(0.1, "kept"), {"rate": 0.2}) == Inner(0.2, "kept")


VARIANTS = [
    pytest.param(
        [Outer(Middle(Inner(rate), power=power), scale=7.0) for rate in (0.1, 0.2) for power in (1.0, 3.0)],
        ["middle.inner.rate", "middle.power"],
        id="nested",
    ),
    pytest.param([SGD(0.1, 0.0), SGD(0.2, 0.9), SGD(0.1, 0.5)], ["lr", "momentum"], id="solver"),
    pytest.param([Outer(), Outer()], [], id="equal"),
]


@pytest.mark.parametrize(("parts", "paths"), VARIANTS)
def test_merged_variants_come_back_one_by_one(parts, paths):
    merged, tensors = sweeping.merge_variants(parts, torch.float64, torch.device("cpu"))
    assert list(tensors) == paths  # only what differs becomes a tensor
    assert all(value.shape == (len(parts),) and value.dtype == torch.float64 for value in tensors.values())
    assert isinstance(hash(merged), int)
    for position, part in enumerate(parts):
        row = {path: float(value[position]) for path, value in tensors.items()}
        assert sweeping.join(merged, row) == part


@pytest.mark.parametrize(
    ("value", "zero"), [(0, True), (0.0, True), (-0.0, True), (1e-300, False), (torch.tensor(0.0), False)]
)
def test_only_a_plain_zero_is_surely_zero(value, zero):
    assert sweeping.is_zero(value) is zero


@pytest.mark.parametrize(("value", "part"), [(Inner(), True), (Inner, False), (1.0, False), (None, False)])
def test_is_part(value, part):
    assert sweeping.is_part(value) is part
