"""What people may give in place of plain arrays and numbers: one line that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.config import read_config
from consilience.errors import UserError
from consilience.experiment.planning import plan

X = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
Y = np.arange(20) % 3
T = torch.from_numpy(X)
LARGE = np.where(Y == 0, 10**9, Y)


class Odd:
    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise RuntimeError("no array")


def of(**changes: Any) -> Callable[[], object]:
    given = {"inputs": X, "targets": Y, "test_inputs": X, "test_targets": Y, **changes}
    return lambda: cs.Dataset.from_arrays(given.pop("name", "own"), **given)


def column(**changes: Any) -> Callable[[], object]:
    return lambda: cs.Dataset.from_table({"a": [1.0, 2.0] * 6, "y": [0, 1] * 6, **changes}, "y")


def client(name: Any) -> Callable[[], object]:
    return lambda: cs.Dataset.from_table({"a": [1.0, 2.0] * 6, "y": [0, 1] * 6}, "y", client=name)


def tokens(rows: int = 5, **options: Any) -> Callable[[], object]:
    return lambda: cs.Dataset.from_sequences([[1, 2, 3]] * rows, **options)


def plain(**changes: Any) -> Callable[[], object]:
    given = {"targets": torch.from_numpy(Y), "test_targets": torch.from_numpy(Y), "outputs": 3, **changes}
    return lambda: cs.Dataset("own", T, test_inputs=T, **given)


def planned(dtype: str = "float32", **changes: Any) -> Callable[[], object]:
    return lambda: plan(read_config({"data": of(**changes)(), "clients": 2, "dtype": dtype}).resolved())


HUGE = np.where(X > 0, 1e300, X.astype(np.float64))
ODD: dict[str, tuple[Callable[[], object], str]] = {
    "half a class": (of(classes=2.5), "own: classes: a whole number"),
    "classes in words": (of(classes="3"), "own: classes: a whole number"),
    "classes as truth": (of(classes=True), "own: classes: a whole number"),
    "a list of classes": (of(classes=[3]), "own: classes: a whole number"),
    "no classes": (of(classes=0), "own: classes: a whole number from 1 to"),
    "fewer than no classes": (of(classes=-1), "own: classes: a whole number from 1 to"),
    "a label of 10^9": (of(targets=LARGE), "own: targets go up to 1000000000"),
    "10^9 classes": (
        of(targets=LARGE, classes=10**9 + 1),
        "own: classes: a whole number from 1 to 10,000,000",
    ),
    "a token of 10^9": (lambda: cs.Dataset.from_sequences([[10**9, 1, 2]] * 5), "classes: a whole number"),
    "negative labels": (of(targets=-Y), "own: targets"),
    "sparse": (of(inputs=T.to_sparse()), "own: inputs are sparse_coo"),
    "sparse labels": (of(targets=torch.from_numpy(Y).to_sparse()), "own: targets are sparse_coo"),
    "sparse rows": (of(inputs=T.to_sparse_csr()), "own: inputs are sparse_csr"),
    "meta": (of(test_inputs=T.to("meta")), "own: test_inputs are on the device meta"),
    "meta labels": (of(targets=torch.zeros(20, device="meta")), "own: targets are on the device meta"),
    "float8": (of(inputs=T.to(torch.float8_e4m3fn)), "own: inputs are float8_e4m3fn"),
    "expanded": (of(inputs=torch.zeros(1, 1).expand(2**40, 4)), "own: inputs would take 1.76e+04 GB"),
    "complex": (of(inputs=X.astype(np.complex64)), "own: training inputs are complex64"),
    "truth": (of(inputs=X > 0), "own: training inputs are bool"),
    "NaN": (of(inputs=X * np.nan), "own: training inputs hold NaN"),
    "objects": (of(inputs=X.astype(object)), "own: inputs hold text or other objects"),
    "no array": (of(inputs=Odd()), "own: inputs cannot become a tensor (no array)"),
    "a generator": (of(inputs=(row for row in X)), "own: inputs"),
    "nothing": (of(inputs=X[:0], targets=Y[:0]), "own: training inputs have shape (0, 4)"),
    "fewer labels": (of(targets=Y[:5]), "own: there are 5 targets for 20 inputs"),
    "channels": (of(channels="middle"), "unknown value of channels"),
    "a problem's name": (of(problem=5), "own: problem"),
    "a name": (of(name=5), "name: a text is wanted"),
    "a name with NUL": (of(name="a\0b"), "holds the character U+0000"),
    "too large for float32": (planned(inputs=HUGE, test_inputs=HUGE), "own: inputs go up to 1e+300"),
    "targets, too": (planned(targets=HUGE[:, 0], test_targets=HUGE[:, 0]), "own: targets go up to 1e+300"),
    "clients: none": (lambda: cs.Dataset.from_clients({}), "there are no clients"),
    "clients: alike": (
        lambda: cs.Dataset.from_clients({1: (X, Y, X, Y), "1": (X, Y, X, Y)}),  # type: ignore[dict-item]
        "two clients are called '1'",
    ),
    "clients: sparse": (lambda: cs.Dataset.from_clients({"a": (T.to_sparse(), Y)}), "a: inputs are sparse"),
    "folder": (lambda: cs.Dataset.from_folder(None), "folder: the name of one"),  # type: ignore[arg-type]
    "images": (lambda: cs.Dataset.from_images(None), "folder: the name of one"),  # type: ignore[arg-type]
    "table: too large": (column(a=[1e300, -1e300] * 6), "table: column 'a' holds NaN, infinity or numbers"),
    "table: a target too large": (column(y=[1e300, 2.0] * 6), "table: y: the target holds NaN, infinity"),
    "table: a number": (column(a=5), "table: column 'a' has 0 axes"),
    "table: a matrix": (column(a=X[:12]), "table: column 'a' has 2 axes"),
    "table: meta": (column(a=torch.zeros(12, device="meta")), "table: a column cannot be read"),
    "table: a target by number": (lambda: cs.Dataset.from_table({"a": [1.0]}, 5), "called by their names"),  # type: ignore[arg-type]
    "table: a client by number": (client(5), "columns are called by their names, not by 5"),
    "table: two clients": (client(["a"]), "columns are called by their names, not by ['a']"),
    "sequences: none": (lambda: cs.Dataset.from_sequences(None), "own data: sequences"),  # type: ignore[arg-type]
    "sequences: length": (tokens(length=10**12), "own data: length must be"),
    "sequences: half": (tokens(length=2.5), "own data: length must be"),
    "sequences: padding": (tokens(padding=-1), "own data: padding must be"),
    "sequences: a true length": (tokens(length=True), "own data: length must be"),
    "sequences: too long": (tokens(length=10**7, rows=10**4), "own data: 10,000 rows of length 10,000,000"),
    "sequences: one target": (tokens(targets=5), "own data: targets: one for each sequence"),
    "torch: sparse": (
        lambda: cs.Dataset.from_torch([(T[0].to_sparse(), 0)], [(T[0], 1)]),  # type: ignore[arg-type]
        "training input 0 are sparse_coo",
    ),
    "torch: meta": (
        lambda: cs.Dataset.from_torch([(T[0], torch.zeros((), device="meta"))], [(T[0], 1)]),  # type: ignore[arg-type]
        "training target 0 are on the device meta",
    ),
    "a problem in words": (plain(problem="x"), "own: problem: e.g. Classification() is wanted, not 'x'"),
    "padding in words": (plain(padding="x"), "own: padding: a whole number"),
    "clients by number": (plain(clients=5), "own: clients: a tuple of names is wanted, not 5"),
    "arrays in place of tensors": (lambda: cs.Dataset("own", X, Y, X, Y, 3), "own: inputs: a tensor"),  # type: ignore[arg-type]
    "out: number": (lambda: cs.run("fedavg", out=5), "run: out: a folder is wanted"),  # type: ignore[arg-type]
    "out: NUL": (lambda: cs.run("fedavg", out="a\0b"), "out: 'a\\x00b' holds the character U+0000"),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_data_are_one_line(case: str):
    make, line = ODD[case]
    with pytest.raises(UserError) as caught:
        make()
    assert line in str(caught.value)
    assert len(str(caught.value)) < 400


FINE = {
    "numbers of NumPy": of(classes=np.int64(3)),
    "gradients": of(inputs=T.clone().requires_grad_()),
    "the other order": of(inputs=np.asfortranarray(X)),
    "backwards": of(inputs=X[::-1]),
    "lists": of(targets=Y.tolist()),
    "large numbers in float64": planned("float64", inputs=HUGE, test_inputs=HUGE),
}


@pytest.mark.parametrize("case", FINE)
def test_what_is_only_unusual_is_taken(case: str):
    assert FINE[case]()
