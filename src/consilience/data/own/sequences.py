"""Token sequences of unequal length, padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consilience.data.dataset import Dataset, with_outputs
from consilience.data.own.rows import Column, kept_back, of_clients, read_problem, targets_of
from consilience.errors import UserError
from consilience.problems import NextToken, Problem
from consilience.problems.next_token import PADDING
from consilience.types import IntArray

Tokens = Sequence[Sequence[int]] | Sequence[IntArray] | Sequence[Tensor]
"""One sequence of tokens a row."""


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
    rows, owners = _read(name, "sequences", sequences), _column(clients)
    goals = None if targets is None else list(targets)
    if test_sequences is None:
        stays, back = (part.tolist() for part in kept_back(name, len(rows), holdout, owners))
        test_rows, rows = [rows[row] for row in back], [rows[row] for row in stays]
        if goals is not None:
            test_goals, goals = [goals[row] for row in back], [goals[row] for row in stays]
        test_owners = None if owners is None else owners[back]
        owners = None if owners is None else owners[stays]
    else:
        test_rows, test_owners = _read(name, "test_sequences", test_sequences), _column(test_clients)
        test_goals = [] if test_targets is None else list(test_targets)
        if (targets is None) != (test_targets is None) or (owners is None) != (test_owners is None):
            raise UserError(
                f"{name}: training and test sequences must both have targets and clients, or neither"
            )
    places = goals is None or np.ndim(goals[0]) == 1
    if goals is None:  # what comes next
        pairs = [[(row[:-1], row[1:]) for row in part] for part in (rows, test_rows)]
    elif places:
        both = ((rows, goals), (test_rows, test_goals))
        pairs = [list(zip(part, _read(name, "targets", own), strict=True)) for part, own in both]
    else:
        pairs = [[(row, row[:0]) for row in part] for part in (rows, test_rows)]
    if any(not len(inputs) or (places and len(inputs) != len(own)) for part in pairs for inputs, own in part):
        short = (
            "at least 2 tokens" if goals is None else "tokens, and as many targets where they are sequences"
        )
        raise UserError(f"{name}: every sequence must have {short}")
    longest = length or max(len(inputs) for part in pairs for inputs, _ in part)
    filler = padding
    if filler is None:  # where places without a target do not count, any token will do, else a new one
        filler = 0 if places else 1 + max(int(inputs.max()) for part in pairs for inputs, _ in part)
    padded = [_padded([inputs for inputs, _ in part], longest, filler) for part in pairs]
    wanted = read_problem(problem)
    if places:
        known, asked = (_padded([own for _, own in part], longest, PADDING) for part in pairs)
        wanted = wanted or NextToken()
        seen = max(int(one.max()) for one in (*padded, known, asked))
        count: int | None = seen + 1
    else:
        assert goals is not None
        (known, asked), count = targets_of(name, np.asarray(goals), np.asarray(test_goals), wanted)
    return with_outputs(
        Dataset,
        classes or count,
        wanted,
        name=name,
        inputs=padded[0],
        targets=known,
        test_inputs=padded[1],
        test_targets=asked,
        padding=None if places and padding is None else filler,
        **of_clients(name, owners, test_owners),
    )


def _read(name: str, label: str, sequences: Sequence[Any]) -> list[IntArray]:
    """Sequences as arrays of whole numbers."""
    found = [np.asarray(row) for row in sequences]
    for number, row in enumerate(found):
        if row.ndim != 1 or (row.dtype.kind not in "iu" and len(row)):
            raise UserError(f"{name}: {label}: row {number} is no sequence of tokens (whole numbers)")
    if not found:
        raise UserError(f"{name}: there are no {label}")
    return [row.astype(np.int64) for row in found]


def _column(values: Sequence[str] | Column | None) -> Column | None:
    return None if values is None else np.asarray(values, dtype=object)


def _padded(rows: Sequence[IntArray], length: int, filler: int) -> Tensor:
    """[rows, length]; what is longer is cut off."""
    whole = np.full((len(rows), length), filler, dtype=np.int64)
    for place, row in zip(whole, rows, strict=True):
        place[: len(row)] = row[:length]
    return torch.from_numpy(whole)
