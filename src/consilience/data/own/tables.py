"""Tables: CSV and Parquet files, or columns in memory, of numbers and categories."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from consilience.data.dataset import Dataset, with_outputs
from consilience.data.own.rows import (
    Column,
    check_label,
    check_range,
    chosen,
    kept_back,
    listed,
    of_clients,
    read_problem,
    targets_of,
)
from consilience.data.storage import readable
from consilience.errors import UserError, kind_of, said, unknown
from consilience.problems import Problem
from consilience.reading import content, machine_memory

MOST_VALUES = 64
"""The most different values of a category that get a column each."""

TEXT_GROWS = 32
"""How much more memory than bytes of a CSV file its values take, at most."""

NUMBERS = "fiub"
"""The kinds of arrays that hold numbers."""

NO_VALUES = ("none", "nan", "nat", "<na>")
"""What stands for a value that is missing, in words: those of Python, NumPy and pandas."""

Table = str | Path | Mapping[str, Any] | Any
"""A file, columns by name, or a data frame."""


def of_table(
    table: Table,
    target: str | Sequence[str],
    test: Table | None,
    client: str | None,
    holdout: float,
    categorical: Sequence[str],
    drop: Sequence[str],
    standardise: bool,
    name: str | None,
    problem: Problem | str | None,
) -> Dataset:
    """The data set of `Dataset.from_table`, whose arguments these are."""
    title = name or (Path(table).stem if isinstance(table, str | Path) else "table")
    check_label(client)
    train = _columns(title, table, listed(drop))
    for label in (*listed(target), *listed(categorical), *([client] if client else ())):
        if label not in train:
            raise unknown(f"column of {title}", label, train)
    if test is None:
        rows = len(train[listed(target)[0]])
        stays, back = kept_back(title, rows, holdout, train[client] if client else None)
        known, asked = chosen(train, stays), chosen(train, back)
    else:
        known, asked = train, _columns(title, test, listed(drop))
        for label in set(train) - set(asked):
            raise UserError(f"{title}: the test table has no column {label!r}")
    wanted = read_problem(problem)
    goals = [np.stack([part[label] for label in listed(target)], -1) for part in (known, asked)]
    if isinstance(target, str):
        goals = [goal[:, 0] for goal in goals]
    (targets, test_targets), classes = targets_of(f"{title}: {target}", goals[0], goals[1], wanted)
    aside = {*listed(target), client}
    features = [label for label in train if label not in aside]
    if not features:
        raise UserError(f"{title}: nothing is left to predict {target} from")
    for label in features:
        if label not in listed(categorical):
            _check_texts(title, label, train[label])
            if test is not None:
                _check_texts(f"{title}, test", label, asked[label], train[label].dtype.kind in NUMBERS)
    encoded = [
        _encoded(title, label, known[label], asked[label], label in listed(categorical), standardise)
        for label in features
    ]
    inputs, test_inputs = (np.concatenate([pair[part] for pair in encoded], 1) for part in (0, 1))
    return with_outputs(
        Dataset,
        classes,
        wanted,
        name=title,
        inputs=torch.from_numpy(inputs.astype(np.float32)),
        targets=targets,
        test_inputs=torch.from_numpy(test_inputs.astype(np.float32)),
        test_targets=test_targets,
        **of_clients(title, known[client] if client else None, asked[client] if client else None),
    )


def _check_texts(title: str, label: str, column: Column, numbers: bool = False) -> None:
    """Refuse texts where numbers are wanted, or most are such: what is between them is no category."""
    texts = [] if column.dtype.kind in NUMBERS else [str(value) for value in column.tolist()]
    others = [row for row, text in enumerate(texts) if not _is_number(text.replace(",", "."))]
    numbers = numbers or len(others) < len(texts) / 2
    others = others or [row for row, text in enumerate(texts) if not _is_number(text)]
    if others and numbers:
        raise UserError(
            f"{title}: column {label!r} holds numbers, but {texts[others[0]]!r} in row {others[0] + 1}; mend "
            f"such rows, or say categorical=[{label!r}]"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _encoded(
    title: str, label: str, train: Column, test: Column, categorical: bool, standardise: bool
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """[rows, ...] a column as numbers, of training and of test rows; training rows alone decide how."""
    if categorical or train.dtype.kind not in NUMBERS or test.dtype.kind not in NUMBERS:
        texts = [np.asarray([str(value) for value in column.tolist()]) for column in (train, test)]
        values = np.unique(texts[0])
        if len(values) > MOST_VALUES:
            raise UserError(
                f"{title}: column {label!r} has {len(values)} different values, more than the {MOST_VALUES} "
                f"that become columns of their own; leave it out by drop=[{label!r}], or group them"
            )
        # A value that training rows do not have is none of them.
        first, second = ((column[:, None] == values).astype(np.float64) for column in texts)
        return first, second
    numbers = [column.astype(np.float64)[:, None] for column in (train, test)]
    for column in numbers:
        check_range(f"{title}: column {label!r}", column)
    if standardise:
        mean, deviation = numbers[0].mean(), numbers[0].std()
        scale = deviation if deviation > 1e-12 * abs(mean) else 1.0
        numbers = [(column - mean) / scale for column in numbers]
    return numbers[0], numbers[1]


def _columns(title: str, table: Table, drop: Sequence[str]) -> dict[str, Column]:
    """The columns of a table but for some; none of them lacks a value."""
    if isinstance(table, str | Path):
        path = Path(table)
        columns = _parquet(path) if path.suffix in (".parquet", ".pq") else _csv(path)
    elif isinstance(table, Mapping) or hasattr(table, "columns"):
        labels = list(table if isinstance(table, Mapping) else table.columns)
        _check_once(title, [str(label) for label in labels])
        try:
            columns = {str(label): np.asarray(table[label]) for label in labels}
        except Exception as error:  # of objects that are no arrays
            raise UserError(f"{title}: a column cannot be read ({said(error)})") from None
    else:
        raise UserError(f"{title}: expected a file or columns by name, not {kind_of(table)}")
    for label in drop:
        if label not in columns:
            raise unknown(f"column of {title}", label, columns)
        del columns[label]
    for label, column in columns.items():
        if column.ndim != 1:
            raise UserError(f"{title}: column {label!r} has {column.ndim} axes; one value a row is wanted")
    lengths = {len(column) for column in columns.values()}
    if lengths in (set(), {0}) or len(lengths) > 1:
        raise UserError(f"{title}: the table has no rows, or columns of different lengths")
    for label, column in columns.items():
        gaps = _gaps(column)
        if gaps.any():
            raise UserError(
                f"{title}: column {label!r} lacks {int(gaps.sum())} of {len(column)} values, the first in "
                f"row {int(gaps.argmax()) + 1}; fill them, or leave such rows or the column out"
            )
    return columns


def _check_once(title: str, labels: Sequence[str]) -> None:
    twice = [label for label, count in Counter(labels).items() if count > 1]
    if twice:
        raise UserError(f"{title}: two columns are called {twice[0]!r}; give each a name of its own")


def _gaps(column: Column) -> npt.NDArray[np.bool_]:
    """[rows] where a column has no value."""
    if column.dtype.kind == "f":
        return np.isnan(column)
    if column.dtype.kind in "iub":
        return np.zeros(len(column), dtype=np.bool_)
    return np.array(
        [value == "" if isinstance(value, str) else str(value).lower() in NO_VALUES for value in column]
    )


def _csv(path: Path) -> dict[str, Column]:
    """The columns of a CSV file, whose first line names them; commas, semicolons or tabs are between them."""
    with readable(path):
        text = content(path, machine_memory() // TEXT_GROWS).decode("utf-8-sig")
        between = max(",;\t", key=text.partition("\n")[0].count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=between)
        lines = [(reader.line_num, row) for row in reader if row]
    rows = [row for _, row in lines]
    for number, row in lines:
        if len(row) != len(rows[0]):
            raise UserError(f"{path}: line {number} has {len(row)} values for {len(rows[0])} columns")
    if len(rows) < 2:
        raise UserError(f"{path}: expected a line that names the columns, and rows")
    _check_once(str(path), [label.strip() for label in rows[0]])
    return {
        label.strip(): _typed([value.strip() for value in column], commas=between == ";")
        for label, *column in zip(*rows, strict=True)
    }


def _typed(texts: Sequence[str], *, commas: bool) -> Column:
    """Texts as whole numbers where all are, as numbers where all are or are missing, else as they are.

    Numbers may have decimal commas, as they do where columns are between semicolons.
    """
    try:
        return np.array(texts).astype(np.int64)
    except (ValueError, OverflowError):
        numbers = [(text.replace(",", ".") if commas else text) or "nan" for text in texts]
    try:
        return np.array(numbers).astype(np.float64)
    except ValueError:
        return np.array(texts, dtype=object)


def _parquet(path: Path) -> dict[str, Column]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            f"{path}: to read Parquet takes pyarrow: pip install 'consilience[parquet]'"
        ) from None
    with readable(path):
        held, most = parquet.read_metadata(path), machine_memory() // 2
        if held.num_rows * held.num_columns * np.dtype(np.float64).itemsize > most:
            raise ValueError(
                f"{held.num_rows:,} rows of {held.num_columns:,} columns take more than {most:,} bytes"
            )
        table = parquet.read_table(path, page_checksum_verification=True)
        _check_once(str(path), table.column_names)
        return {label: table[label].to_numpy() for label in table.column_names}
