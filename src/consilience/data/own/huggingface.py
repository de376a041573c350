"""Data sets of HuggingFace's library `datasets`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from consilience.data.arrays import Channels, read_inputs, read_targets
from consilience.data.dataset import Dataset, with_outputs
from consilience.data.own.rows import (
    Column,
    check_label,
    chosen,
    kept_back,
    listed,
    of_clients,
    read_problem,
    targets_of,
)
from consilience.data.own.sequences import of_sequences
from consilience.errors import UserError, kind_of, unknown
from consilience.problems import Problem

TESTS = ("test", "validation")
"""Which split is taken for test rows, the first that there is."""


def of_huggingface(
    data: Any,
    test: Any,
    inputs: str | Sequence[str] | None,
    target: str,
    client: str | None,
    holdout: float,
    name: str,
    classes: int | None,
    problem: Problem | str | None,
    channels: Channels,
) -> Dataset:
    """The data set of `Dataset.from_huggingface`, whose arguments these are."""
    for label in (target, client):
        check_label(label)
    if isinstance(data, Mapping):
        splits, data = data, data.get("train")
        if data is None:
            raise UserError(f"{name}: there is no split 'train' (there are: {', '.join(map(str, splits))})")
        test = test if test is not None else next((splits[kind] for kind in TESTS if kind in splits), None)
    known, labels = _columns(name, data, inputs, target, client)
    if test is None:
        stays, back = kept_back(name, len(known[target]), holdout, known[client] if client else None)
        known, asked = chosen(known, stays), chosen(known, back)
    else:
        asked, _ = _columns(name, test, labels, target, client)
    owners, test_owners = (part[client] if client else None for part in (known, asked))
    feature = data.features[target]
    names = getattr(feature, "names", None)  # of classes, where the data say so
    first, second = _inputs(name, labels, known), _inputs(name, labels, asked)
    if object in (first.dtype, second.dtype):
        return of_sequences(
            list(first), list(known[target]), list(second), list(asked[target]), owners, test_owners, holdout,
            None, None, name, classes or (len(names) if names else None), problem,
        )  # fmt: skip
    wanted = read_problem(problem)
    (targets, test_targets), found = targets_of(name, known[target], asked[target], wanted)
    if names:  # numbered as the data say, even where some class has no rows
        targets, test_targets = (read_targets(name, target, part[target]) for part in (known, asked))
        found = len(names)
    return with_outputs(
        Dataset,
        classes or found,
        wanted,
        name=name,
        inputs=read_inputs(name, "inputs", first, channels),
        targets=targets,
        test_inputs=read_inputs(name, "test_inputs", second, channels),
        test_targets=test_targets,
        **of_clients(name, owners, test_owners),
    )


def _columns(
    name: str, data: Any, inputs: str | Sequence[str] | None, target: str, client: str | None
) -> tuple[dict[str, Column], list[str]]:
    """The columns that are needed, read whole, and which of them are inputs."""
    if not all(hasattr(data, needed) for needed in ("with_format", "column_names", "__len__")):
        raise UserError(f"{name}: expected a Dataset of the library datasets, not {kind_of(data)}")
    there = list(data.column_names)
    others = [label for label in there if label not in (target, client)]
    labels = others if inputs is None else listed(inputs)
    for label in (*labels, target, *([client] if client else ())):
        if label not in there:
            raise unknown(f"column of {name}", label, there)
    needed = [*labels, target, *([client] if client else ())]
    read = data.select_columns(needed).with_format("numpy")[:]
    return {label: np.asarray(read[label]) for label in needed}, labels


def _inputs(name: str, labels: Sequence[str], columns: Mapping[str, Column]) -> npt.NDArray[Any]:
    """The inputs of all rows: one column of arrays, or several of numbers side by side."""
    for label in labels:
        if columns[label].dtype.kind in "US" or any(isinstance(one, str) for one in columns[label][:1]):
            raise UserError(
                f"{name}: column {label!r} holds text; turn it into tokens first, or name the columns that "
                "are inputs: inputs=[...]"
            )
    if len(labels) == 1 and columns[labels[0]].ndim != 1:
        return columns[labels[0]]
    if len(labels) == 1 and columns[labels[0]].dtype == object:
        if np.ndim(columns[labels[0]][0]) != 1:
            raise UserError(
                f"{name}: inputs {labels[0]!r} have different shapes; make them alike, e.g. resize"
            )
        return columns[labels[0]]
    if any(columns[label].ndim != 1 or columns[label].dtype.kind not in "fiub" for label in labels):
        raise UserError(f"{name}: several inputs must be columns of numbers; name others by inputs=...")
    return np.stack([columns[label] for label in labels], -1).astype(np.float32)
