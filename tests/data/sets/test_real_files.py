"""The published files themselves, where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from consilience.data import load, normalisation

SHARED = Path(__file__).parents[3].parent / "shared" / "data"
REAL = Path(os.environ.get("CONSILIENCE_DATA") or SHARED)

# Published or well-known statistics of the training images, and sizes.
PUBLISHED = {
    "mnist": (60_000, 10_000, 0.1307, 0.3081),
    "fashion-mnist": (60_000, 10_000, 0.2860, 0.3530),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_real_files(name: str):
    if not (REAL / name).is_dir():
        pytest.skip(f"{name} is not in the data directory")
    rows, test_rows, mean, deviation = PUBLISHED[name]
    dataset = load(name, REAL)
    assert (len(dataset.inputs), len(dataset.test_inputs)) == (rows, test_rows)
    shift, scale = normalisation(dataset, "standard")
    assert (shift.item() / 255, scale.item() / 255) == pytest.approx((mean, deviation), abs=1e-4)


def test_the_sample_is_a_part_of_mnist():
    if not (REAL / "mnist").is_dir():
        pytest.skip("mnist is not in the data directory")
    whole, sample = load("mnist", REAL), load("mnist-sample")

    def rows(inputs: torch.Tensor, targets: torch.Tensor) -> set[bytes]:
        return {
            image.tobytes() + bytes([label])
            for image, label in zip(inputs.numpy(), targets.tolist(), strict=True)
        }

    assert rows(sample.inputs, sample.targets) < rows(whole.inputs, whole.targets)
    assert rows(sample.test_inputs, sample.test_targets) < rows(whole.test_inputs, whole.test_targets)


def test_the_real_femnist():
    if not list(REAL.glob("femnist-*.npz")) and not list((REAL / "femnist").glob("femnist-*.npz")):
        pytest.skip("no femnist-*.npz in the data directory")
    dataset = load("femnist", REAL)
    assert (dataset.shape, dataset.outputs) == ((1, 28, 28), 62)
    assert dataset.groups is not None
    assert dataset.test_groups is not None
    assert set(dataset.test_groups.tolist()) <= set(dataset.groups.tolist())
    assert dataset.inputs[:, 0, 0, 0].float().mean() > 250  # white background
