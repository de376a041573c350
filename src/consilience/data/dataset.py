"""Training and test data held in memory, and the numbers that normalise inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from consilience.errors import UserError, unknown
from consilience.problems import Classification, MultiLabel, NextToken, Problem, Regression

Array = Tensor | npt.NDArray[Any]
"""What a user may give as data."""
Normalisation = Literal["none", "unit", "half", "standard"]
"""How inputs are scaled: see `normalisation`."""

CHUNK_ROWS = 4096
"""How many rows are converted to float64 at a time while the moments of float inputs are computed."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test data of one problem, held whole in memory (uint8 where published so).

    Attributes:
        name: What reports call it.
        inputs: Training inputs, `[n, channels, height, width]` uint8 for images, `[n, ...]` for floats, `[n,
            places]` int64 for tokens.
        targets: What is to be learned of each training row, as the problem asks for it: `[n]` int64 classes,
            `[n]` or `[n, numbers]` floats, `[n, labels]` 0 or 1, `[n, places]` int64 tokens.
        test_inputs: Test inputs, of the same type and shape as the training inputs.
        test_targets: What is to be learned of each test row.
        outputs: How many numbers a model gives for a row (or for a place of it): classes, labels, tokens.
        problem: What is to be learned.
        groups: Who produced each training row (a writer, a hospital), `[n]` int64, or None.
        test_groups: Who produced each test row, numbered as `groups`, or None.
    """

    name: str
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    outputs: int
    problem: Problem = field(default_factory=Classification)
    groups: Tensor | None = None
    test_groups: Tensor | None = None

    def __post_init__(self) -> None:
        _check_inputs(self.name, "training", self.inputs)
        _check_inputs(self.name, "test", self.test_inputs)
        rows, test_rows = len(self.inputs), len(self.test_inputs)
        if self.outputs < 1:
            raise UserError(f"{self.name}: the targets leave nothing to predict")
        self.check(self.problem)
        if _kind(self.targets) != _kind(self.test_targets):
            found, asked = _kind(self.targets), _kind(self.test_targets)
            raise UserError(f"{self.name}: targets are {found} but test_targets are {asked}; make them alike")
        if self.groups is not None:
            _check_column(self.name, "groups", self.groups, rows)
        if self.test_groups is not None:
            _check_column(self.name, "test_groups", self.test_groups, test_rows)
        train, test = _kind(self.inputs), _kind(self.test_inputs)
        if train != test:
            raise UserError(
                f"{self.name}: training inputs are {train} but test inputs are {test}; make them alike"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input, without the row axis."""
        return tuple(self.inputs.shape[1:])

    def check(self, problem: Problem) -> None:
        """Refuse a problem whose targets are not of this kind."""
        for label, column, rows in (
            ("targets", self.targets, len(self.inputs)),
            ("test_targets", self.test_targets, len(self.test_inputs)),
        ):
            if len(column) != rows:
                raise UserError(f"{self.name}: there are {len(column)} {label} for {rows} inputs")
            if column.is_floating_point() and not column.isfinite().all():
                raise UserError(f"{self.name}: {label} hold NaN or infinity; clean them first")
            reason = problem.fault(column, self.outputs)
            if reason:
                raise UserError(f"{self.name}: {label}: {reason}")
        if not isinstance(problem, NextToken):
            return
        largest = max(int(inputs.max()) for inputs in (self.inputs, self.test_inputs))
        if largest >= self.outputs:
            raise UserError(f"{self.name}: inputs hold the token {largest}; tokens go to {self.outputs - 1}")

    @property
    def _unusual(self) -> str:
        """What is to be learned, where that is not classification."""
        return "" if self.problem == Classification() else f" {self.problem}"

    def digest(self) -> str:
        """The SHA-256, in hexadecimal, of all tensors and the number of outputs; computed at each call."""
        hasher = hashlib.sha256(f"classes {self.outputs}{self._unusual}".encode())
        parts = {
            "inputs": self.inputs,
            "targets": self.targets,
            "test_inputs": self.test_inputs,
            "test_targets": self.test_targets,
            "groups": self.groups,
            "test_groups": self.test_groups,
        }
        for label, tensor in parts.items():
            if tensor is not None:
                hasher.update(f"\n{label} {_kind(tensor)} {len(tensor)}\n".encode())
                # Bytes through torch, because numpy has no bfloat16.
                hasher.update(tensor.detach().cpu().contiguous().view(torch.uint8).flatten().numpy().data)
        return hasher.hexdigest()

    @classmethod
    def from_arrays(
        cls,
        name: str,
        inputs: Array,
        targets: Array,
        test_inputs: Array,
        test_targets: Array,
        *,
        classes: int | None = None,
        problem: Problem | None = None,
        groups: Array | None = None,
        test_groups: Array | None = None,
    ) -> Dataset:
        """A data set of your own arrays; their memory is shared where possible, so do not change them later.

        Args:
            name: What reports call it.
            inputs: Training inputs, NumPy or torch: uint8 `[n, channels, height, width]`, float `[n, ...]` or
                integer tokens `[n, places]`.
            targets: Training targets: classes `[n]`, real numbers `[n]` or `[n, numbers]`, labels that are 0
                or 1 `[n, labels]`, tokens `[n, places]`.
            test_inputs: Test inputs.
            test_targets: Test targets.
            classes: The number of classes or tokens; by default one more than the largest seen.
            problem: What is to be learned; by default what targets look like: floats mean regression, whole
                numbers classification, several of them a row several labels, or the next token where inputs
                are tokens too.
            groups: Who produced each training row, or None.
            test_groups: Who produced each test row, or None.
        """
        train, test = _inputs(name, "inputs", inputs), _inputs(name, "test_inputs", test_inputs)
        known, asked = _targets(name, "targets", targets), _targets(name, "test_targets", test_targets)
        kind = problem or problem_of(train, known)
        if classes is None:
            classes = max(kind.outputs(column) if column.numel() else 0 for column in (known, asked))
            if isinstance(kind, NextToken) and train.numel():
                classes = max(classes, int(train.max()) + 1)
        return cls(
            name=name,
            inputs=train,
            targets=known,
            test_inputs=test,
            test_targets=asked,
            outputs=classes,
            problem=kind,
            groups=None if groups is None else _integers(name, "groups", groups),
            test_groups=None if test_groups is None else _integers(name, "test_groups", test_groups),
        )

    @classmethod
    def from_torch(
        cls,
        train: TorchDataset[Any],
        test: TorchDataset[Any],
        name: str = "own data",
        classes: int | None = None,
        problem: Problem | None = None,
    ) -> Dataset:
        """A data set of any two map-style torch data sets of (input, target) pairs, read once and stacked.

        Args:
            train: Training pairs.
            test: Test pairs.
            name: What reports call it.
            classes: The number of classes or tokens; by default one more than the largest seen.
            problem: What is to be learned; by default what targets look like.
        """
        inputs, targets = _stacked(name, "training", train)
        test_inputs, test_targets = _stacked(name, "test", test)
        return cls.from_arrays(
            name, inputs, targets, test_inputs, test_targets, classes=classes, problem=problem
        )


def problem_of(inputs: Tensor, targets: Tensor) -> Problem:
    """The problem that training data look like."""
    if targets.is_floating_point():
        return Regression()
    if targets.ndim == 1:
        return Classification()
    return NextToken() if inputs.dtype == torch.int64 and inputs.shape == targets.shape else MultiLabel()


def normalisation(dataset: Dataset, kind: Normalisation) -> tuple[Tensor, Tensor]:
    """Shift and scale, float64 and one a channel, with which `(raw - shift) / scale` is the model's input.

    Args:
        dataset: The data set, whose training inputs alone decide the numbers.
        kind: `none` raw values; `unit` uint8 divided by 255, floats unchanged; `half` unit values mapped from
            [0, 1] to [-1, 1]; `standard` mean 0 and standard deviation 1 for every channel (a constant
            channel becomes 0).

    Returns:
        Two tensors of shape `[channels, 1, ...]` that broadcast over a batch; the axis after the rows is the
        channel.
    """
    if kind not in get_args(Normalisation):
        raise unknown("normalisation", kind, get_args(Normalisation))
    if dataset.inputs.dtype == torch.int64:  # tokens are names, not numbers
        kind = "none"
    unit = 255.0 if dataset.inputs.dtype == torch.uint8 else 1.0
    one = torch.ones(dataset.shape[:1] + (1,) * (len(dataset.shape) - 1), dtype=torch.float64)
    if kind == "none":
        return 0 * one, one
    if kind == "unit":
        return 0 * one, unit * one
    if kind == "half":
        return unit / 2 * one, unit / 2 * one
    mean, deviation = _byte_moments(dataset.inputs) if unit == 255.0 else _float_moments(dataset.inputs)
    # Relative, because the mean of equal floats may be off by a rounding error.
    scale = torch.where(deviation > 1e-12 * mean.abs(), deviation, 1.0)
    return mean.reshape(one.shape), scale.reshape(one.shape)


def _byte_moments(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and population standard deviation of every channel, from its histogram of 256 values."""
    counts = torch.stack(
        [torch.bincount(inputs[:, channel].flatten(), minlength=256) for channel in range(inputs.shape[1])]
    )
    share = counts.cpu().double() / counts.sum(dim=1, keepdim=True).cpu()
    values = torch.arange(256, dtype=torch.float64)
    mean = share @ values
    return mean, (share * (values - mean[:, None]) ** 2).sum(dim=1).sqrt()


def _float_moments(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and population standard deviation of every channel, in two passes over chunks of rows."""
    axes = [axis for axis in range(inputs.ndim) if axis != 1]
    count = inputs.numel() // inputs.shape[1]
    chunks = torch.split(inputs.detach(), CHUNK_ROWS)
    mean = torch.stack([chunk.double().sum(axes) for chunk in chunks]).sum(0) / count
    centre = mean.reshape(-1, *[1] * (inputs.ndim - 2))
    variance = torch.stack([((chunk.double() - centre) ** 2).sum(axes) for chunk in chunks]).sum(0) / count
    return mean.cpu(), variance.sqrt().cpu()


def _kind(tensor: Tensor) -> str:
    """The element type and shape of one row, in words, for comparisons and messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape[1:])}"


def _check_inputs(name: str, split: str, inputs: Tensor) -> None:
    shape = tuple(inputs.shape)
    if inputs.dtype not in (torch.uint8, torch.int64) and not inputs.is_floating_point():
        raise UserError(f"{name}: {split} inputs are {_kind(inputs)}; give uint8 images, floats or tokens")
    if inputs.dtype == torch.int64 and inputs.numel() and int(inputs.min()) < 0:
        raise UserError(f"{name}: {split} inputs hold the token {int(inputs.min())}; tokens count from 0")
    if inputs.dtype == torch.uint8 and inputs.ndim != 4:
        wanted = "[n, channels, height, width]"
        raise UserError(f"{name}: uint8 {split} inputs have shape {shape}; they must be {wanted}")
    if inputs.ndim < 2 or 0 in shape:
        raise UserError(
            f"{name}: {split} inputs have shape {shape}; they must be [n, ...] with nothing empty"
        )
    if inputs.is_floating_point():
        low, high = torch.aminmax(inputs.detach())
        if not (low.isfinite() and high.isfinite()):
            raise UserError(f"{name}: {split} inputs hold NaN or infinity; clean them first")


def _check_column(name: str, label: str, column: Tensor, rows: int) -> None:
    """Refuse a column that is not `rows` int64 numbers from 0 on."""
    if column.dtype != torch.int64 or tuple(column.shape) != (rows,):
        found = f"{column.dtype} of shape {tuple(column.shape)}"
        raise UserError(f"{name}: {label} are {found}; they must be torch.int64 of shape {(rows,)}")
    low, high = (int(bound) for bound in torch.aminmax(column))
    if low < 0:
        raise UserError(f"{name}: {label} go from {low} to {high}; they must be 0 or more")


def _tensor(name: str, label: str, values: Array) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    try:
        # Torch wants memory that is contiguous and writable; this copies only where it is not.
        return torch.from_numpy(np.require(values, requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {label} cannot become a tensor ({error})") from None


def _inputs(name: str, label: str, values: Array) -> Tensor:
    """Inputs as a tensor; whole numbers that are no bytes are tokens and become int64."""
    tensor = _tensor(name, label, values)
    whole = tensor.dtype in (torch.int8, torch.int16, torch.int32)
    return tensor.to(torch.int64) if whole else tensor


def _targets(name: str, label: str, values: Array) -> Tensor:
    """Targets as a tensor: floats stay as they are, all others become int64."""
    tensor = _tensor(name, label, values)
    if tensor.is_complex() or tensor.ndim == 0:
        raise UserError(
            f"{name}: {label} are {tensor.dtype} {list(tensor.shape)}; real ones, a row each, are wanted"
        )
    return tensor if tensor.is_floating_point() else tensor.to(torch.int64)


def _integers(name: str, label: str, values: Array) -> Tensor:
    tensor = _tensor(name, label, values)
    if tensor.is_floating_point() or tensor.is_complex():
        raise UserError(f"{name}: {label} are {tensor.dtype}; they must be integers")
    return tensor.to(torch.int64)


def _stacked(name: str, split: str, source: TorchDataset[Any]) -> tuple[Tensor, Tensor]:
    if isinstance(source, IterableDataset) or not isinstance(source, Sized):
        kind = type(source).__name__
        raise UserError(f"{name}: the {split} data is a {kind} without a length; give a map-style data set")
    inputs: list[Tensor] = []
    targets: list[Tensor] = []
    for row in range(len(source)):
        try:
            value, target = source[row]
            targets.append(torch.as_tensor(target))
        except (TypeError, ValueError) as error:
            raise UserError(f"{name}: {split} row {row} is not an (input, target) pair ({error})") from None
        if not isinstance(value, Tensor | np.ndarray):
            kind = type(value).__name__
            raise UserError(f"{name}: {split} input {row} is a {kind}; use a transform that gives tensors")
        inputs.append(_tensor(name, f"{split} input {row}", value))
        first = inputs[0]
        if inputs[-1].shape != first.shape or inputs[-1].dtype != first.dtype:
            found, wanted = (f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (inputs[-1], first))
            raise UserError(
                f"{name}: {split} input {row} is {found} but input 0 is {wanted}; make them alike"
            )
    if not inputs:
        raise UserError(f"{name}: the {split} data is empty")
    try:
        return torch.stack(inputs), torch.stack(targets)
    except RuntimeError as error:
        raise UserError(f"{name}: {split} targets are not alike ({error})") from None
