"""Augmentation: keyed, so that runs repeat and executors agree, and of training batches alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import consilience as cs
from consilience.client import GradStep, LossStep, ScoreStep, TrainStep
from consilience.config import load_config, read_config
from consilience.experiment import run
from consilience.learning.augmentations import Crop, Flip, Own
from consilience.learning.augmentations.base import augmented
from consilience.learning.randomness import normals, uniforms
from consilience.learning.solvers import SGD
from consilience.learning.task import Task
from consilience.objectives.base import Objective
from consilience.types import Batch

RANDOM = np.random.default_rng(0)
IMAGES, CLASSES = RANDOM.integers(0, 256, (60, 3, 9, 8), dtype=np.uint8), np.arange(60) % 3
OWN = cs.Dataset.from_arrays("images", IMAGES, CLASSES, IMAGES[:9], CLASSES[:9])
PIXELS = torch.from_numpy(IMAGES).double()
KEY = torch.tensor(123456789)
TINY: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [4]},
    "clients": 4,
    "rounds": 2,
    "local": {"epochs": 2, "batch_size": 8},
    "dtype": "float64",
}


def noisy(inputs: Tensor, key: Tensor, sigma: float = 0.1) -> Tensor:
    """A user's own augmentation."""
    return inputs + sigma * normals(key, 0, inputs)


def test_some_images_are_mirrored():
    found = Flip()(PIXELS, KEY)
    mirrored = [torch.equal(new, old.flip(-1)) for new, old in zip(found, PIXELS, strict=True)]
    same = [torch.equal(new, old) for new, old in zip(found, PIXELS, strict=True)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 15 < sum(mirrored) < 45
    assert torch.equal(Flip(probability=1.0, axis="vertical")(PIXELS, KEY), PIXELS.flip(-2))
    assert torch.equal(Flip(probability=0.0)(PIXELS, KEY), PIXELS)


def test_images_are_cut_from_mirrored_ones():
    """Each is one of the 49 pieces that torch's own reflecting padding has."""
    found, wide = Crop(padding=3)(PIXELS, KEY), F.pad(PIXELS, (3, 3, 3, 3), mode="reflect")
    places = []
    for new, whole in zip(found, wide, strict=True):
        pieces = {(y, x): whole[:, y : y + 9, x : x + 8] for y in range(7) for x in range(7)}
        places += [place for place, piece in pieces.items() if torch.equal(piece, new)]
    assert len(places) == 60
    assert len({y for y, _ in places}) == len({x for _, x in places}) == 7


@pytest.mark.parametrize("one", [Flip(), Crop(2), Own("noisy", noisy)], ids=["flip", "crop", "own"])
def test_a_row_does_not_depend_on_padding_nor_on_who_trains_beside(one):
    assert torch.equal(one(PIXELS, KEY)[:7], one(PIXELS[:7], KEY))
    keys = torch.tensor([3, 2**61 + 1, 5])
    lanes = torch.func.vmap(one)(PIXELS.reshape(3, 20, 3, 9, 8), keys)
    for lane, inputs, key in zip(lanes, PIXELS.reshape(3, 20, 3, 9, 8), keys, strict=True):
        assert torch.equal(lane, one(inputs, key))
    assert not torch.equal(lanes[0], one(PIXELS[:20], keys[1]))


def test_two_of_a_kind_draw_differently():
    batch = Batch(PIXELS, torch.from_numpy(CLASSES), torch.ones(60), KEY)
    twice = augmented([Flip(), Flip()], batch).inputs
    assert not torch.equal(twice, PIXELS)  # which two equal draws would give back


def test_uniform_numbers():
    numbers = uniforms(KEY, 0, torch.empty(10_000))
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    counts = torch.histc(numbers, 10, 0, 1)
    assert float((counts - 1000).abs().max()) < 150  # five standard deviations


def test_training_batches_alone_are_augmented():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(216, 3))
    tasks = [Task(model, torch.float64, augment=chosen) for chosen in ((), (Flip(),))]
    batch = Batch(PIXELS[:8] / 255, torch.arange(8) % 3, torch.ones(8, dtype=torch.float64), KEY)
    weights = tasks[0].weights_of(model)
    zeros = {"loss": torch.zeros((), dtype=torch.float64), "rows": torch.zeros((), dtype=torch.float64)}

    def found(kind: str, task: Task, given: Batch) -> Tensor:
        steps = {
            "train": (TrainStep(task, SGD(), Objective()), {**weights, "tally": zeros}, {"objective": {}}),
            "grad": (GradStep(task), {"buffers": {}}, weights),
            "loss": (LossStep(task, training=True), {}, weights),
            "score": (ScoreStep(task), {}, weights),
            "holdout": (LossStep(task), {}, weights),
        }
        step, carry, extras = steps[kind]
        state = step.measure(carry, given, extras)
        return torch.cat([value.flatten() for group in state.values() for value in group.values()])

    varied = augmented((Flip(),), batch)
    for kind in ("train", "grad", "loss"):
        assert torch.equal(found(kind, tasks[1], batch), found(kind, tasks[0], varied))
        assert not torch.equal(found(kind, tasks[1], batch), found(kind, tasks[0], batch))
    for kind in ("score", "holdout"):
        assert torch.equal(found(kind, tasks[1], batch), found(kind, tasks[0], batch))


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "moon"])
def test_executors_agree_and_runs_repeat(method: str):
    augment = ["flip", {"name": "crop", "padding": 2}, noisy]
    plain, batched, again, sequential = (
        cs.run(method, data=OWN, executor=executor, **chosen, **TINY)
        for executor, chosen in (
            ("batched", {}),
            ("batched", {"augment": augment}),
            ("batched", {"augment": augment}),
            ("sequential", {"augment": augment}),
        )
    )
    assert batched.digest == again.digest != plain.digest
    (first,), (second,) = batched.models.values(), sequential.models.values()
    for name, value in first["params"].items():
        assert torch.allclose(value, second["params"][name], rtol=1e-9, atol=1e-11)
    assert batched.records[0]["test_loss"] == pytest.approx(sequential.records[0]["test_loss"])


MODULE = """
from consilience.learning.randomness import normals

def noisy(inputs, key, sigma=0.1):
    return inputs + sigma * normals(key, 0, inputs)
"""


def test_a_configuration_file_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "augmentation_of_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(
        "{rounds: 1, clients: 3, local: {steps: 1}, model: {name: mlp, hidden: [4]},\n"
        " augment: [flip, {name: crop, padding: 2}, {name: 'augmentation_of_a_test:noisy', sigma: 0.2}]}"
    )
    config = load_config(tmp_path / "run.yaml")
    assert config.augment[:2] == (Flip(), Crop(2))
    assert config.written()["augment"] == [
        {"name": "flip", "axis": "horizontal", "probability": 0.5},
        {"name": "crop", "padding": 2},
        {"name": "augmentation_of_a_test:noisy", "sigma": 0.2},
    ]
    digest = run(config).digest
    written = {**config.written(), "compare": []}
    assert run(read_config({**written, "seeds": [0]})).digest == digest
    assert run(read_config({**written, "augment": ["flip"]})).digest != digest


def careless(inputs: Tensor, key: Tensor) -> Tensor:
    return inputs + torch.rand_like(inputs)


def smaller(inputs: Tensor, key: Tensor) -> Tensor:
    return inputs[..., 1:]


def nothing(inputs: Tensor, key: Tensor) -> None:
    inputs.flip(-1)


def alone(inputs: Tensor) -> Tensor:
    return inputs


POINTS = cs.Dataset.from_arrays("points", PIXELS[:, 0, 0], CLASSES, PIXELS[:, 0, 0], CLASSES)
REFUSED = [
    (OWN, [careless], "gives other results for the same key; draw from the key"),
    (OWN, [smaller], "gives torch.float64 [3, 3, 9, 7] for torch.float64 [3, 3, 9, 8]"),
    (OWN, [alone], "alone(inputs, key, ...): too many positional arguments"),
    (OWN, [nothing], "gives a NoneType, not the inputs"),
    (OWN, "flop", "unknown augment 'flop'; did you mean 'flip'?"),
    (OWN, {"name": "crop", "padding": 8}, "padding 8 is too much for images of 9x8"),
    (POINTS, "flip", "augment: flip: it takes images, not inputs of shape (8,)"),
]


@pytest.mark.parametrize(("data", "augment", "message"), REFUSED)
def test_what_does_not_work_is_refused_in_a_line(data: cs.Dataset, augment: Any, message: str):
    with pytest.raises(cs.UserError) as caught:
        cs.run("fedavg", data=data, augment=augment, **TINY)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
