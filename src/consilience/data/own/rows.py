"""What tables, HuggingFace data sets and sequences have in common: rows, some of them for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from consilience.errors import UserError, abridged, unknown
from consilience.problems import PROBLEMS, Problem, Regression
from consilience.types import IntArray

Column = npt.NDArray[Any]
"""[rows] numbers or texts."""

MOST_CLASSES = 10_000
"""The most different values of a column that are taken for classes."""


def kept_back(
    name: str, count: int, fraction: float, clients: Column | None = None
) -> tuple[IntArray, IntArray]:
    """The rows to train on and those kept back as test rows, both in order and always the same.

    Args:
        name: What the data are called.
        count: How many rows there are.
        fraction: How many of them are kept back.
        clients: [rows] who holds each; the fraction is then kept back of each client's rows.
    """
    if not isinstance(fraction, int | float) or not 0 < fraction < 1:
        raise UserError(
            f"{name}: without test rows holdout must be between 0 and 1, not {abridged(fraction)}"
        )
    owners = (
        np.zeros(count, dtype=np.int64) if clients is None else np.unique(clients, return_inverse=True)[1]
    )
    back = np.zeros(count, dtype=np.bool_)
    for owner in range(int(owners.max(initial=-1)) + 1):
        rows = np.flatnonzero(owners == owner)
        chosen = np.random.default_rng([owner, len(rows)]).permutation(rows)
        back[chosen[: min(round(fraction * len(rows)), len(rows) - 1)]] = True
    if not back.any():
        raise UserError(f"{name}: a holdout of {fraction} leaves no test rows of {count}")
    return np.flatnonzero(~back), np.flatnonzero(back)


def of_clients(name: str, train: Column | None, test: Column | None) -> dict[str, Any]:
    """The fields of a data set that say who holds each row, from columns that name the client."""
    if train is None or test is None:
        return {}
    names = list(dict.fromkeys(map(str, train.tolist())))
    strangers = sorted(set(map(str, test.tolist())) - set(names))
    if strangers:
        raise UserError(f"{name}: {strangers[0]} has test rows and none to train on; leave them out")
    numbers = {client: number for number, client in enumerate(names)}
    groups, test_groups = (
        torch.tensor([numbers[str(client)] for client in column.tolist()]) for column in (train, test)
    )
    return {"groups": groups, "test_groups": test_groups, "clients": tuple(names)}


def read_problem(problem: Problem | str | None) -> Problem | None:
    """The problem that is meant by a name, or the problem itself."""
    if not isinstance(problem, str):
        return problem
    if problem not in PROBLEMS:
        raise unknown("problem", problem, PROBLEMS)
    return PROBLEMS[problem]()


def targets_of(
    name: str, train: Column, test: Column, problem: Problem | None
) -> tuple[tuple[Tensor, Tensor], int | None]:
    """Columns as targets: floats stay; texts and whole numbers become the numbers of classes, in order.

    Returns:
        Those of training and test rows, and how many classes there are, None where there are none.
    """
    both: Column = np.concatenate([train, test])
    if isinstance(problem, Regression) or both.dtype.kind == "f" or both.ndim > 1:
        if both.dtype.kind not in "fiub":
            raise UserError(f"{name}: the target holds text, which is no number to predict")
        kind = np.float32 if isinstance(problem, Regression) or both.dtype.kind == "f" else np.int64
        if kind is np.float32:
            check_range(f"{name}: the target", both)
        return (torch.from_numpy(train.astype(kind)), torch.from_numpy(test.astype(kind))), None
    values, numbers = np.unique(both, return_inverse=True)
    if len(values) > MOST_CLASSES:
        raise UserError(
            f"{name}: the target has {len(values)} different values, too many to be classes; "
            "say problem='regression' if they are numbers to predict"
        )
    classes = torch.from_numpy(numbers.astype(np.int64))
    return (classes[: len(train)], classes[len(train) :]), len(values)


def check_range(what: str, numbers: Column) -> None:
    """Refuse numbers that are none, or none of those that float32 can hold."""
    if not (np.abs(numbers) <= np.finfo(np.float32).max).all():
        raise UserError(f"{what} holds NaN, infinity or numbers above 3.4e38, which float32 cannot hold")


def chosen(columns: dict[str, Column], rows: IntArray) -> dict[str, Column]:
    """Some rows of all columns."""
    return {label: column[rows] for label, column in columns.items()}


def check_label(label: object) -> None:
    """Refuse what is no name of a column, nor none."""
    if not isinstance(label, str | None):
        raise UserError(f"columns are called by their names, not by {abridged(label)}")


def listed(labels: str | Sequence[str]) -> list[str]:
    """One label or several, as a list."""
    found = [labels] if isinstance(labels, str) else labels
    if not isinstance(found, Sequence) or not all(isinstance(label, str) for label in found):
        raise UserError(f"columns are called by their names, not by {abridged(labels)}")
    return list(found)
