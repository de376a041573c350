"""Data sets of HuggingFace's library, made in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import consilience as cs

hf = pytest.importorskip("datasets")

RANDOM = np.random.default_rng(0)
ROWS = 40
TINY: dict[str, Any] = {"model": {"name": "mlp", "hidden": [4]}, "rounds": 1, "local": {"batch_size": 8}}


def table(**columns: Any) -> Any:
    return hf.Dataset.from_dict({"label": RANDOM.integers(0, 3, ROWS).tolist(), **columns})


def test_columns_of_numbers_with_hospitals():
    data = table(
        age=RANDOM.normal(size=ROWS), dose=RANDOM.normal(size=ROWS), hospital=["Basel"] * 10 + ["Bern"] * 30
    )
    own = cs.Dataset.from_huggingface(data, client="hospital", name="visits")
    assert (own.shape, own.clients, own.name) == ((2,), ("Basel", "Bern"), "visits")
    assert torch.bincount(own.test_groups).tolist() == [2, 6]
    result = cs.run("fedavg", data=own, **TINY)
    assert [line["name"] for line in result.clients] == ["Basel", "Bern"]


def test_splits_and_vectors_and_names_of_classes():
    vectors = RANDOM.normal(size=(ROWS, 5)).astype(np.float32)
    data = table(features=vectors.tolist()).cast_column("label", hf.ClassLabel(names=["a", "b", "c", "d"]))
    own = cs.Dataset.from_huggingface(hf.DatasetDict({"train": data, "test": data.select(range(9))}))
    assert own.outputs == 4  # as the data say, though nobody is a d
    assert torch.allclose(own.inputs[:], torch.from_numpy(vectors))
    assert torch.equal(own.targets[:9], own.test_targets)


def test_images():
    pytest.importorskip("PIL")
    pixels = RANDOM.integers(0, 256, (ROWS, 8, 6, 3), dtype=np.uint8)
    data = table(image=list(pixels)).cast_column("image", hf.Image())
    own = cs.Dataset.from_huggingface(data, data.select(range(9)))
    assert torch.equal(own.inputs[:], torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert cs.run("fedavg", data=own, clients=3, **TINY).accuracy is not None


def test_tokens_of_unequal_length():
    texts = [RANDOM.integers(0, 9, length).tolist() for length in RANDOM.integers(2, 7, ROWS)]
    own = cs.Dataset.from_huggingface(table(input_ids=texts), inputs="input_ids")
    assert own.padding == 1 + max(max(text) for text in texts)
    assert own.inputs.dtype == torch.int64


def test_what_is_wrong_is_said_in_a_line():
    with pytest.raises(cs.UserError, match="column 'text' holds text; turn it into tokens first"):
        cs.Dataset.from_huggingface(table(text=["a"] * ROWS))
    with pytest.raises(cs.UserError, match="unknown column of own data 'labl'"):
        cs.Dataset.from_huggingface(table(x=[0.0] * ROWS), target="labl")
    with pytest.raises(cs.UserError, match="expected a Dataset of the library datasets, not a list"):
        cs.Dataset.from_huggingface([1, 2])
    with pytest.raises(cs.UserError, match="library datasets, not an IterableDataset"):
        cs.Dataset.from_huggingface(table(x=[0.0] * ROWS).to_iterable_dataset())
