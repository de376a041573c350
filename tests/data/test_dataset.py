from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from consilience.data import Dataset, load, normalisation
from consilience.data.stored import CHUNK_ROWS
from consilience.errors import UserError


def images(rows: int, channels: int = 3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, channels, 4, 5), dtype=torch.uint8, generator=generator)


def small(**changes: object) -> Dataset:
    fields: dict[str, object] = {
        "name": "small",
        "inputs": images(6),
        "targets": torch.tensor([0, 1, 2, 0, 1, 2]),
        "test_inputs": images(2, seed=1),
        "test_targets": torch.tensor([0, 2]),
        "outputs": 3,
    }
    return Dataset(**{**fields, **changes})


def test_a_valid_data_set_has_a_shape():
    assert small(groups=torch.arange(6), test_groups=torch.tensor([0, 9])).shape == (3, 4, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": torch.zeros(5, dtype=torch.int64)}, "there are 5 targets for 6 inputs"),
        ({"targets": torch.zeros(6)}, "a class for each row is wanted, [rows] int64, not torch.float32"),
        (
            {"targets": torch.tensor([0, 1, 2, 0, 1, 3])},
            "targets: they go from 0 to 3; they must be in [0, 3)",
        ),
        ({"test_targets": torch.tensor([-1, 0])}, "test_targets: they go from -1 to 0"),
        ({"groups": torch.tensor([0, 0, 0, 0, 0, -2])}, "groups go from -2 to 0; they must be 0 or more"),
        ({"test_groups": torch.arange(3)}, "test_groups are torch.int64 of shape (3,)"),
        ({"inputs": images(6).int()}, "training inputs are int32"),
        ({"inputs": images(6)[:, 0]}, "shape (6, 4, 5); they must be [n, channels, height, width]"),
        ({"inputs": torch.rand(6)}, "shape (6,)"),
        ({"test_inputs": images(0)}, "shape (0, 3, 4, 5)"),
        (
            {"inputs": torch.rand(6, 3, 4, 5)},
            "training inputs are float32 of shape (3, 4, 5) but test inputs",
        ),
        ({"test_inputs": images(2, channels=1)}, "test inputs are uint8 of shape (1, 4, 5)"),
        ({"inputs": torch.full((6, 3), torch.nan)}, "NaN or infinity"),
        ({"inputs": torch.tensor([[1.0, -torch.inf]] * 6)}, "NaN or infinity"),
        ({"outputs": 1}, "1 class is too few"),
    ],
)
def test_a_wrong_field_is_named_in_one_line(changes: dict[str, object], message: str):
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        small(**changes)
    assert "\n" not in str(caught.value)


def test_the_digest_depends_on_content_alone():
    first = small()
    assert first.digest() == small(name="other").digest()
    assert re.fullmatch("[0-9a-f]{64}", first.digest())
    changed = images(6)
    changed[5, 2, 3, 4] ^= 1
    others = [
        small(inputs=changed),
        small(outputs=4),
        small(groups=torch.zeros(6, dtype=torch.int64)),
        small(inputs=images(6).reshape(6, 3, 5, 4), test_inputs=images(2, seed=1).reshape(2, 3, 5, 4)),
        small(targets=torch.tensor([0, 1, 2, 0, 2, 1])),
    ]
    assert len({first.digest(), *(other.digest() for other in others)}) == 6
    transposed = images(6).transpose(2, 3).contiguous().transpose(2, 3)
    assert small(inputs=transposed).digest() == first.digest()


def test_arrays_of_either_kind_give_the_same_data_set():
    tensors = (images(6), torch.tensor([0, 1, 2, 0, 1, 2]), images(2, seed=1), torch.tensor([0, 2]))
    arrays = [tensor.numpy() for tensor in tensors]
    arrays[1] = arrays[1].astype(np.int16)
    arrays[0].flags.writeable = False
    arrays[2] = np.ascontiguousarray(arrays[2][::-1])[::-1]
    own = Dataset.from_arrays("own", *arrays, groups=np.arange(6, dtype=np.uint8))
    assert own.outputs == 3
    assert own.groups is not None
    assert (
        replace(own, groups=None).digest()
        == Dataset.from_arrays("own", *tensors).digest()
        == small().digest()
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("targets", np.array([0.0, 1.0]), "targets: each has 1 numbers, but a model would give 2"),
        ("inputs", np.array([["a"], ["b"]]), "inputs hold text or other objects, not numbers"),
        ("targets", np.array([0, 5]), "[0, 2)"),
    ],
)
def test_unusable_arrays_are_refused(field: str, value: object, message: str):
    arrays = {
        "inputs": np.zeros((2, 3)),
        "targets": np.array([0, 1]),
        "test_inputs": np.zeros((1, 3)),
        "test_targets": np.array([1]),
    }
    with pytest.raises(UserError, match=re.escape(message)):
        Dataset.from_arrays("own", **{**arrays, field: value}, classes=2)


class Rows(torch.utils.data.Dataset):
    def __init__(self, *rows: object):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> object:
        return self.rows[index]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


class Unsized(torch.utils.data.Dataset):
    def __getitem__(self, index: int) -> object:
        return torch.zeros(3), 0


def test_torch_data_sets_are_stacked():
    reference = small()
    train = TensorDataset(reference.inputs, reference.targets)
    test = Rows(*((row.numpy(), int(target)) for row, target in zip(images(2, seed=1), (0, 2), strict=True)))
    assert Dataset.from_torch(train, test, classes=3).digest() == reference.digest()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (Stream(), "training data is a Stream without a length"),
        (Unsized(), "training data is an Unsized without a length"),
        (Rows(), "training data is empty"),
        (Rows((torch.zeros(3), 0), (torch.zeros(4), 1)), "input 1 is torch.float32 (4,) but input 0 is"),
        (Rows((torch.zeros(3), 0), (torch.zeros(3).double(), 1)), "input 1 is torch.float64 (3,)"),
        (Rows(torch.zeros(3)), "row 0 is not an (input, target) pair"),
        (Rows((torch.zeros(3), "a")), "row 0 is not an (input, target) pair"),
        (Rows(("picture", 0)), "input 0 is a str; use a transform that gives tensors"),
    ],
)
def test_torch_data_sets_that_cannot_be_stacked_are_refused(train: object, message: str):
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        Dataset.from_torch(train, Rows((torch.zeros(3), 0)))
    assert "\n" not in str(caught.value)


def own(inputs: torch.Tensor) -> Dataset:
    targets = torch.arange(len(inputs)) % 2
    return Dataset.from_arrays("own", inputs, targets, inputs[:1], targets[:1], classes=2)


# More rows than a chunk, an offset far from zero, and more channels than one.
FLOATS = 100 + torch.randn(CHUNK_ROWS + 10, 3, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("inputs", [images(50), FLOATS, FLOATS[:, 0], FLOATS.double()], ids=str)
@pytest.mark.parametrize("kind", ["none", "unit", "half", "standard"])
def test_normalisation_against_the_definition(inputs: torch.Tensor, kind: str):
    shift, scale = normalisation(own(inputs), kind)
    assert shift.dtype == scale.dtype == torch.float64
    assert shift.shape == scale.shape == (inputs.shape[1], *[1] * (inputs.ndim - 2))
    raw = inputs.double()
    unit = raw / 255 if inputs.dtype == torch.uint8 else raw
    axes = [axis for axis in range(inputs.ndim) if axis != 1]
    mean, deviation = unit.mean(axes, keepdim=True), unit.std(axes, correction=0, keepdim=True)
    expected = {
        "none": raw,
        "unit": unit,
        "half": (unit - 0.5) / 0.5,
        "standard": (unit - mean) / deviation,
    }
    torch.testing.assert_close((raw - shift) / scale, expected[kind], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "value", [torch.tensor(7, dtype=torch.uint8), torch.tensor(0.1), torch.tensor(0.0)], ids=str
)
def test_a_constant_channel_becomes_zero(value: torch.Tensor):
    constant = value.expand(1000, 1, 3, 3).clone()
    shift, scale = normalisation(own(constant), "standard")
    assert scale.item() == 1
    assert ((constant.double() - shift) / scale).abs().max() < 1e-9


def test_an_unknown_normalisation_is_refused():
    with pytest.raises(UserError, match="did you mean 'standard'"):
        normalisation(small(), "standart")


def test_the_bundled_sample():
    sample = load("mnist-sample")
    assert (sample.inputs.shape, sample.test_inputs.shape) == ((6000, 1, 28, 28), (1000, 1, 28, 28))
    assert sample.inputs.dtype == torch.uint8
    assert torch.bincount(sample.targets).tolist() == [600] * 10
    assert torch.bincount(sample.test_targets).tolist() == [100] * 10
    # Shuffled: every class is among the first hundred rows, and in about its share.
    assert torch.bincount(sample.targets[:100], minlength=10).min() >= 3
    # Digits: the ink of all images is close to MNIST's published mean of 0.1307.
    shift, _ = normalisation(sample, "standard")
    assert shift.item() / 255 == pytest.approx(0.1307, abs=0.002)
    assert (
        Path(__file__).parents[2] / "src/consilience/data/sample/mnist-sample.npz"
    ).stat().st_size < 2_000_000
