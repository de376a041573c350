"""Training and test data, in memory or read from where they are stored."""

from __future__ import annotations

import hashlib
import logging
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from consilience.data.arrays import (
    Array,
    Channels,
    check_tensor,
    read_inputs,
    read_integers,
    read_targets,
)
from consilience.data.own.reading import FromOwn
from consilience.data.stored import Inputs, Stored, chunks
from consilience.errors import UserError, abridged, kind_of
from consilience.plain import check_plain
from consilience.problems import Classification, MultiLabel, NextToken, Problem, Regression

LOG = logging.getLogger("consilience")

MOST_OUTPUTS = 10**7
"""How many classes, labels or tokens there may be: a model has weights for each."""
MORE_CLASSES = 1000
"""How many more classes than rows there may be before labels are taken for something else."""
OF_PROBLEM = "e.g. Classification() is wanted"


@dataclass(frozen=True, eq=False)
class Dataset(FromOwn):
    """Training and test data of one problem (uint8 where published so).

    Attributes:
        name: What reports call it.
        inputs: Training inputs, `[n, channels, height, width]` uint8 for images, `[n, ...]` for floats, `[n,
            places]` int64 for tokens; in memory, or where they are stored.
        targets: What is to be learned of each training row, as the problem asks for it: `[n]` int64 classes,
            `[n]` or `[n, numbers]` floats, `[n, labels]` 0 or 1, `[n, places]` int64 tokens.
        test_inputs: Test inputs, of the same type and shape as the training inputs.
        test_targets: What is to be learned of each test row.
        outputs: How many numbers a model gives for a row (or for a place of it): classes, labels, tokens.
        problem: What is to be learned.
        groups: Who produced each training row (a writer, a hospital), `[n]` int64, or None.
        test_groups: Who produced each test row, numbered as `groups`, or None.
        clients: The names of the groups, where each of them is a client.
        padding: The token that fills up sequences, of which models that ask for a mask are told; or None.
    """

    name: str
    inputs: Inputs
    targets: Tensor
    test_inputs: Inputs
    test_targets: Tensor
    outputs: int
    problem: Problem = field(default_factory=Classification)
    groups: Tensor | None = None
    test_groups: Tensor | None = None
    clients: tuple[str, ...] = ()
    padding: int | None = None

    def __post_init__(self) -> None:
        self._check_kinds()
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
        if self.clients:
            self._check_clients()
        train, test = _kind(self.inputs), _kind(self.test_inputs)
        if train != test:
            raise UserError(
                f"{self.name}: training inputs are {train} but test inputs are {test}; make them alike"
            )

    def _check_kinds(self) -> None:
        """Refuse what is no text, tensor or number where one is wanted; all else is looked at afterwards."""
        if not isinstance(self.name, str):
            raise UserError(f"name: a text is wanted, not {abridged(self.name)}")
        if not isinstance(self.problem, Problem):
            raise UserError(f"{self.name}: problem: {OF_PROBLEM}, not {abridged(self.problem)}")
        if not isinstance(self.clients, tuple) or not all(isinstance(one, str) for one in self.clients):
            raise UserError(f"{self.name}: clients: a tuple of names is wanted, not {abridged(self.clients)}")
        for text in (self.name, *self.clients):
            check_plain(text, ("name of data or of a client",))
        columns = ("inputs", "targets", "test_inputs", "test_targets", "groups", "test_groups")
        for label in columns:
            value = getattr(self, label)
            if isinstance(value, Tensor):
                check_tensor(f"{self.name}: {label}", value)
            elif not isinstance(value, Stored if "inputs" in label else type(None)) or label.endswith(
                "targets"
            ):
                raise UserError(
                    f"{self.name}: {label}: a tensor is wanted, not {kind_of(value)}; see from_arrays"
                )
        read_count(f"{self.name}: outputs", self.outputs)
        if self.padding is not None:
            read_count(f"{self.name}: padding", self.padding)

    def _check_clients(self) -> None:
        if len(set(self.clients)) < len(self.clients):
            twice = next(name for name in self.clients if self.clients.count(name) > 1)
            raise UserError(f"{self.name}: two clients are called {twice!r}; give each a name of its own")
        held = [column for column in (self.groups, self.test_groups) if column is not None]
        if len(held) < 2 or max(int(column.max()) for column in held) >= len(self.clients):
            raise UserError(f"{self.name}: groups and test_groups must say which of the clients holds a row")

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
        largest = max(
            int(chunk.max()) for inputs in (self.inputs, self.test_inputs) for chunk in chunks(inputs)
        )
        if largest >= self.outputs:
            raise UserError(f"{self.name}: inputs hold the token {largest}; tokens go to {self.outputs - 1}")

    @property
    def _unusual(self) -> str:
        """What is to be learned, where that is not classification."""
        return "" if self.problem == Classification() else f" {self.problem}"

    def digest(self) -> str:
        """The SHA-256, in hexadecimal, of all tensors and the number of outputs; computed at each call."""
        hasher = hashlib.sha256(f"classes {self.outputs}{self._unusual}".encode())
        hasher.update("".join(f"\nclient {name}" for name in self.clients).encode())
        parts: dict[str, Inputs | None] = {
            "inputs": self.inputs,
            "targets": self.targets,
            "test_inputs": self.test_inputs,
            "test_targets": self.test_targets,
            "groups": self.groups,
            "test_groups": self.test_groups,
        }
        for label, part in parts.items():
            if part is None:
                continue
            hasher.update(f"\n{label} {_kind(part)} {len(part)}\n".encode())
            for chunk in chunks(part):
                # Bytes through torch, because numpy has no bfloat16.
                hasher.update(chunk.cpu().contiguous().view(torch.uint8).flatten().numpy().data)
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
        channels: Channels = "auto",
    ) -> Dataset:
        """A data set of your own arrays; their memory is shared where possible, so do not change them later.

        Memory-mapped arrays, and files named `something.npy`, stay on disk where they are too large to be
        read whole.

        Args:
            name: What reports call it.
            inputs: Training inputs, NumPy or torch: uint8 `[n, channels, height, width]` (or with channels
                last, or grey without channels), float `[n, ...]` or integer tokens `[n, places]`.
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
            channels: Where images have their channels. By default they are last if the last axis of four has
                1, 3 or 4 entries and the second has another number.
        """
        train = read_inputs(name, "inputs", inputs, channels)
        test = read_inputs(name, "test_inputs", test_inputs, channels)
        known = read_targets(name, "targets", targets)
        asked = read_targets(name, "test_targets", test_targets)
        return with_outputs(
            cls,
            classes,
            problem,
            name=name,
            inputs=train,
            targets=known,
            test_inputs=test,
            test_targets=asked,
            groups=None if groups is None else read_integers(name, "groups", groups),
            test_groups=None if test_groups is None else read_integers(name, "test_groups", test_groups),
        )


def with_outputs(cls: type[Dataset], classes: int | None, problem: Problem | None, **parts: Any) -> Dataset:
    """The data set of some parts, with the problem and the number of outputs that they ask for.

    Args:
        cls: The class of the data set.
        classes: The number of classes or tokens; None: one more than the largest seen.
        problem: What is to be learned; None: what targets look like.
        parts: The other fields of a data set.
    """
    inputs, columns = parts["inputs"], (parts["targets"], parts["test_targets"])
    if problem is not None and not isinstance(problem, Problem):
        raise UserError(f"{parts['name']}: problem: {OF_PROBLEM}, not {abridged(problem)}")
    kind = problem or problem_of(inputs, columns[0])
    if classes is not None:
        classes = read_count(f"{parts['name']}: classes", classes, least=1)
    if classes is None:
        classes = max(kind.outputs(column) if column.numel() else 0 for column in columns)
        if isinstance(kind, NextToken):
            classes = max([classes, *(int(chunk.max()) + 1 for chunk in chunks(inputs) if chunk.numel())])
        if isinstance(kind, Classification):
            _check_labels(parts["name"], torch.cat(columns), classes)
    if problem is None and isinstance(kind, Regression) and all((c == c.round()).all() for c in columns):
        LOG.warning(
            "%s: targets are floats, so these are numbers to predict; give integers if they are classes",
            parts["name"],
        )
    return cls(outputs=classes, problem=kind, **parts)


def read_count(where: str, value: Any, least: int = 0) -> int:
    """The number of classes, labels or tokens that is given; anything else is refused."""
    try:
        count = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = None
    if count is None or not least <= count <= MOST_OUTPUTS:
        wanted = f"a whole number from {least} to {MOST_OUTPUTS:,}"
        raise UserError(f"{where}: {wanted} is wanted, not {abridged(value)}")
    return count


def _check_labels(name: str, labels: Tensor, classes: int) -> None:
    """Say so where classes seem not to be counted from 0, and refuse far more classes than rows."""
    if labels.ndim != 1 or not len(labels):
        return
    lowest = int(labels.min())
    if classes > len(labels) + MORE_CLASSES:
        raise UserError(
            f"{name}: targets go up to {classes - 1}, for {len(labels)} rows; number classes from 0 on, "
            "e.g. by np.unique(labels, return_inverse=True)[1]"
        )
    if lowest > 0:
        LOG.warning(
            "%s: targets go from %d to %d, and classes are counted from 0: %d of them have no rows",
            name, lowest, classes - 1, lowest,
        )  # fmt: skip


def problem_of(inputs: Inputs, targets: Tensor) -> Problem:
    """The problem that training data look like."""
    if targets.is_floating_point():
        return Regression()
    if targets.ndim == 1:
        return Classification()
    return NextToken() if inputs.dtype == torch.int64 and inputs.shape == targets.shape else MultiLabel()


def _kind(tensor: Inputs) -> str:
    """The element type and shape of one row, in words, for comparisons and messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape[1:])}"


def _check_inputs(name: str, split: str, inputs: Inputs) -> None:
    shape = tuple(inputs.shape)
    floats = inputs.dtype.is_floating_point
    if inputs.dtype not in (torch.uint8, torch.int64) and not floats:
        raise UserError(f"{name}: {split} inputs are {_kind(inputs)}; give uint8 images, floats or tokens")
    if inputs.dtype == torch.uint8 and len(shape) != 4:
        wanted = "[n, channels, height, width]"
        raise UserError(f"{name}: uint8 {split} inputs have shape {shape}; they must be {wanted}")
    if len(shape) < 2 or 0 in shape:
        raise UserError(
            f"{name}: {split} inputs have shape {shape}; they must be [n, ...] with nothing empty"
        )
    for chunk in () if inputs.dtype == torch.uint8 else chunks(inputs):
        low, high = torch.aminmax(chunk)
        if floats and not (low.isfinite() and high.isfinite()):
            raise UserError(f"{name}: {split} inputs hold NaN or infinity; clean them first")
        if not floats and int(low) < 0:
            raise UserError(f"{name}: {split} inputs hold the token {int(low)}; tokens count from 0")


def _check_column(name: str, label: str, column: Tensor, rows: int) -> None:
    """Refuse a column that is not `rows` int64 numbers from 0 on."""
    if column.dtype != torch.int64 or tuple(column.shape) != (rows,):
        found = f"{column.dtype} of shape {tuple(column.shape)}"
        raise UserError(f"{name}: {label} are {found}; they must be torch.int64 of shape {(rows,)}")
    low, high = (int(bound) for bound in torch.aminmax(column))
    if low < 0:
        raise UserError(f"{name}: {label} go from {low} to {high}; they must be 0 or more")
