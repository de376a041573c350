"""Token sequences of unequal length, padded."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.data.dataset import Dataset, with_outputs
from consilience.data.own.rows import Column, kept_back, of_clients, read_problem, targets_of
from consilience.errors import UserError, abridged, said
from consilience.problems import NextToken, Problem
from consilience.problems.next_token import PADDING
from consilience.reading import machine_memory
from consilience.types import IntArray

MOST = 10**7
"""The most places of a sequence, and the largest token."""

Tokens = Sequence[Sequence[int]] | Sequence[IntArray] | Sequence[Tensor]
"""One sequence of tokens a row."""


@dataclass(frozen=True)
class _Part:
    """Training or test rows, with what is to be learned of them and who holds them, where that is known."""

    rows: list[IntArray]
    goals: list[Any] | None
    owners: Column | None

    @classmethod
    def of(
        cls,
        name: str,
        rows: Sequence[Any],
        goals: Sequence[Any] | None,
        owners: Sequence[str] | Column | None,
    ) -> _Part:
        for label, column in (("targets", goals), ("clients", owners)):
            if column is None:
                continue
            if not all(isinstance(one, Sized) for one in (column, rows)):
                raise UserError(f"{name}: {label}: one for each sequence is wanted, not {abridged(column)}")
            if len(column) != len(rows):
                raise UserError(f"{name}: there are {len(column)} {label} for {len(rows)} sequences")
        known = None if owners is None else np.asarray(owners, dtype=object)
        return cls(_read(name, "sequences", rows), None if goals is None else list(goals), known)

    def some(self, chosen: IntArray) -> _Part:
        """The part of some rows."""
        goals = None if self.goals is None else [self.goals[row] for row in chosen]
        owners = None if self.owners is None else self.owners[chosen]
        return _Part([self.rows[row] for row in chosen], goals, owners)

    def pairs(self, name: str) -> list[tuple[IntArray, IntArray]]:
        """The inputs of every row, and the targets of its places, of which there are none if it has one."""
        if self.goals is None:  # what comes next
            return [(row[:-1], row[1:]) for row in self.rows]
        if np.ndim(self.goals[0]) == 0:
            return [(row, row[:0]) for row in self.rows]
        return list(zip(self.rows, _read(name, "targets", self.goals), strict=True))


def of_sequences(
    sequences: Tokens,
    targets: Sequence[Any] | None,
    test_sequences: Tokens | None,
    test_targets: Sequence[Any] | None,
    clients: Sequence[str] | Column | None,
    test_clients: Sequence[str] | Column | None,
    holdout: float,
    padding: int | None,
    length: int | None,
    name: str,
    classes: int | None,
    problem: Problem | str | None,
) -> Dataset:
    """The data set of `Dataset.from_sequences`, whose arguments these are."""
    train = _Part.of(name, sequences, targets, clients)
    if test_sequences is None:
        stays, back = kept_back(name, len(train.rows), holdout, train.owners)
        train, test = train.some(stays), train.some(back)
    else:
        test = _Part.of(f"{name}: test", test_sequences, test_targets, test_clients)
    if (train.goals is None, train.owners is None) != (test.goals is None, test.owners is None):
        raise UserError(f"{name}: training and test sequences must both have targets and clients, or neither")
    places = train.goals is None or np.ndim(train.goals[0]) == 1
    pairs = [part.pairs(name) for part in (train, test)]
    every = [pair for part in pairs for pair in part]
    if any(not len(inputs) or (places and len(inputs) != len(own)) for inputs, own in every):
        wanted = (
            "at least 2 tokens" if train.goals is None else "tokens, and a target for each where all have"
        )
        raise UserError(f"{name}: every sequence must have {wanted}")
    longest = length or max(len(inputs) for inputs, _ in every)
    for label, number, least in (("length", longest, 1), ("padding", padding or 0, 0)):
        if (
            isinstance(number, bool)
            or not isinstance(number, int | np.integer)
            or not least <= number <= MOST
        ):
            raise UserError(f"{name}: {label} must be a whole number from {least} on, not {abridged(number)}")
    size = len(every) * longest * np.dtype(np.int64).itemsize
    if size > machine_memory() // 2:
        raise UserError(f"{name}: {len(every):,} rows of length {longest:,} would take {size / 1e9:.3g} GB")
    filler = padding
    if filler is None:  # where places without a target do not count, any token will do, else a new one
        filler = 0 if places else 1 + max(int(inputs.max()) for inputs, _ in every)
    inputs, test_inputs = (_padded([row for row, _ in part], longest, filler) for part in pairs)
    kind = read_problem(problem)
    if places:
        known, asked = (_padded([own for _, own in part], longest, PADDING) for part in pairs)
        kind = kind or NextToken()
        classes = classes or 1 + max(int(one.max()) for one in (inputs, test_inputs, known, asked))
    else:
        (known, asked), count = targets_of(name, np.asarray(train.goals), np.asarray(test.goals), kind)
        classes = classes or count
    return with_outputs(
        Dataset,
        classes,
        kind,
        name=name,
        inputs=inputs,
        targets=known,
        test_inputs=test_inputs,
        test_targets=asked,
        padding=None if places and padding is None else filler,
        **of_clients(name, train.owners, test.owners),
    )


def _read(name: str, label: str, sequences: Sequence[Any]) -> list[IntArray]:
    """Sequences as arrays of whole numbers."""
    try:
        found = [np.asarray(row) for row in sequences]
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name}: {label}: sequences of tokens are wanted ({said(error)})") from None
    for number, row in enumerate(found):
        if row.ndim != 1 or (row.dtype.kind not in "iu" and len(row)):
            raise UserError(f"{name}: {label}: row {number} is no sequence of tokens (whole numbers)")
    if not found:
        raise UserError(f"{name}: there are no {label}")
    return [row.astype(np.int64) for row in found]


def _padded(rows: Sequence[IntArray], length: int, filler: int) -> Tensor:
    """[rows, length]; what is longer is cut off."""
    whole = np.full((len(rows), length), filler, dtype=np.int64)
    for place, row in zip(whole, rows, strict=True):
        place[: len(row)] = row[:length]
    return torch.from_numpy(whole)
