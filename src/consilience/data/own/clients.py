"""Data that come from clients, each with rows of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from consilience import reading
from consilience.data.arrays import Array, Channels, read_inputs, read_targets
from consilience.data.dataset import Dataset, with_outputs
from consilience.data.storage import folder_of, readable
from consilience.data.stored import Inputs, Joined
from consilience.errors import UserError, abridged
from consilience.problems import Problem
from consilience.types import IntArray

Part = tuple[Inputs, Tensor]
"""Inputs and targets."""

Given = Sequence[Array]
"""What a client gives: inputs and targets, and the same of its test rows where it has any."""

KEYS = (
    ("inputs", "targets", "test_inputs", "test_targets"),
    ("x", "y", "x_test", "y_test"),
    ("X", "y", "X_test", "y_test"),
    ("x_train", "y_train", "x_test", "y_test"),
    ("X_train", "y_train", "X_test", "y_test"),
)
"""What the four arrays of a client's file may be called."""


def of_clients(
    clients: Mapping[str, Given],
    name: str,
    holdout: float,
    classes: int | None,
    problem: Problem | None,
    channels: Channels,
) -> Dataset:
    """The data set of `Dataset.from_clients`, whose arguments these are."""
    if not isinstance(clients, Mapping):
        raise UserError(f"{name}: give each client's arrays by its name, {{name: (inputs, targets)}}")
    if not clients:
        raise UserError(f"{name}: there are no clients")
    if not isinstance(holdout, int | float) or not 0 <= holdout < 1:
        raise UserError(
            f"{name}: holdout must be a number of at least 0 and below 1, not {abridged(holdout)}"
        )
    train: list[Part] = []
    test: list[tuple[int, Part]] = []
    for number, (client, arrays) in enumerate(clients.items()):
        known, asked = _parts(f"{name}: {client}", arrays, channels, _Holdout(holdout, number))
        train.append(known)
        test += [] if asked is None else [(number, asked)]
    names = [str(client) for client in clients]
    if not test:
        raise UserError(
            f"{name}: no client has test rows, so that nothing could be evaluated; give "
            "(inputs, targets, test_inputs, test_targets), or holdout=0.2 to keep a fifth of each one's rows"
        )
    _check_alike(name, names, [*enumerate(train), *test])
    inputs, targets = _joined(train)
    test_inputs, test_targets = _joined([part for _, part in test])
    return with_outputs(
        Dataset,
        classes,
        problem,
        name=name,
        inputs=inputs,
        targets=targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        groups=_numbers(list(enumerate(train))),
        test_groups=_numbers(test),
        clients=tuple(names),
    )


def of_files(folder: str | Path) -> dict[str, list[Array]]:
    """The arrays of every `.npz` file of a folder, by the files' names: one file a client."""
    paths = sorted(folder_of(folder).glob("*.npz"))
    if not paths:
        raise UserError(f"{folder}: there are no .npz files, one a client")
    found, most = dict[str, list[Array]](), reading.machine_memory() // 2
    for path in paths:
        with readable(path):
            held = reading.arrays(path, most)
        most -= sum(array.nbytes for array in held.values())
        found[path.stem] = _named(path, held)
    return found


def _named(path: Path, held: Mapping[str, Array]) -> list[Array]:
    """The arrays of a client's file in their order."""
    for keys in KEYS:
        if held.keys() in (set(keys[:2]), set(keys)):
            return [held[key] for key in keys if key in held]
    wanted = " or ".join(", ".join(keys[:2]) for keys in KEYS[:2])
    raise UserError(
        f"{path} holds {', '.join(sorted(held)) or 'nothing'}; wanted are arrays named {wanted}, and where "
        f"there are test rows {', '.join(KEYS[0][2:])} or {', '.join(KEYS[1][2:])}"
    )


class _Holdout:
    """Which rows of a client without test rows become such; always the same ones."""

    def __init__(self, fraction: float, client: int) -> None:
        self.fraction, self.client = fraction, client

    def rows(self, count: int) -> tuple[IntArray, IntArray]:
        """The rows that stay, and those that are kept back, both in order."""
        order = np.random.default_rng([self.client, count]).permutation(count)
        back = min(round(self.fraction * count), count - 1)
        return np.sort(order[back:]), np.sort(order[:back])


def _parts(where: str, arrays: Given, channels: Channels, holdout: _Holdout) -> tuple[Part, Part | None]:
    """The training and the test part of one client."""
    if isinstance(arrays, tuple | list) and len(arrays) == 4 and arrays[2] is None and arrays[3] is None:
        arrays = arrays[:2]
    if not isinstance(arrays, tuple | list) or len(arrays) not in (2, 4):
        raise UserError(f"{where}: give (inputs, targets) or (inputs, targets, test_inputs, test_targets)")
    train, *test = [
        (
            read_inputs(where, f"{label}inputs", arrays[place], channels),
            read_targets(where, f"{label}targets", arrays[place + 1]),
        )
        for place, label in zip(range(0, len(arrays), 2), ("", "test_"), strict=False)
    ]
    for inputs, targets in (train, *test):
        if len(inputs) != len(targets):
            raise UserError(f"{where}: there are {len(targets)} targets for {len(inputs)} inputs")
    count = len(train[1])
    if count == 0:
        raise UserError(f"{where}: there are no training rows; leave it out")
    if test:
        return train, (test[0] if len(test[0][1]) else None)
    stays, back = holdout.rows(count)
    return (_chosen(train, stays), _chosen(train, back)) if len(back) else (train, None)


def _chosen(part: Part, rows: IntArray) -> Part:
    inputs, targets = part
    taken = inputs[torch.from_numpy(rows)] if isinstance(inputs, Tensor) else inputs.rows(rows)
    return taken, targets[torch.from_numpy(rows)]


def _joined(parts: Sequence[Part]) -> Part:
    inputs = [one for one, _ in parts]
    tensors = [one for one in inputs if isinstance(one, Tensor)]
    joined = torch.cat(tensors) if len(tensors) == len(inputs) else Joined(inputs)
    return joined, torch.cat([targets for _, targets in parts])


def _numbers(parts: Sequence[tuple[int, Part]]) -> Tensor:
    """[rows] the client of every row."""
    return torch.cat([torch.full((len(targets),), number) for number, (_, targets) in parts])


def _check_alike(name: str, names: Sequence[str], parts: Sequence[tuple[int, Part]]) -> None:
    """Refuse rows of another kind than the first client's."""

    def kinds(part: Part) -> list[str]:
        return [f"{str(one.dtype).removeprefix('torch.')} {list(one.shape[1:])}" for one in part]

    first = kinds(parts[0][1])
    for number, part in parts:
        for label, found, wanted in zip(("inputs", "targets"), kinds(part), first, strict=True):
            if found != wanted:
                raise UserError(
                    f"{name}: {label} of {names[number]} are {found}, but those of {names[0]} are {wanted}; "
                    "make them alike"
                )
