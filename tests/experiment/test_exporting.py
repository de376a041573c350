"""Exported files predict what the module predicts, for batches of any size; others are not kept."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import consilience as cs
from consilience.experiment.exporting import export
from consilience.experiment.weights import Origin, Predictor

IMAGES = Origin(
    setting="star",
    method="hwa",
    seed=0,
    client=None,
    rounds=1,
    model={"name": "own"},
    shape=(2, 4, 4),
    outputs=3,
    inputs="uint8",
    tokens=0,
    dtype="float32",
    shift=[[[10.0]], [[20.0]]],
    scale=[[[100.0]], [[50.0]]],
)


def images() -> Predictor:
    layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))
    return Predictor(layers, IMAGES).eval()


def test_a_torch_program(tmp_path: Path):
    predictor = images()
    path = export(predictor, tmp_path / "model.safetensors", "torch")
    assert [one.name for one in tmp_path.iterdir()] == [path.name] == ["model.pt2"]
    inputs = torch.randint(0, 256, (7, 2, 4, 4), dtype=torch.uint8)
    torch.testing.assert_close(torch.export.load(path).module()(inputs), predictor(inputs))


def test_an_onnx_file(tmp_path: Path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    predictor = images()
    session = runtime.InferenceSession(export(predictor, tmp_path / "model", "onnx"))
    inputs = torch.randint(0, 256, (7, 2, 4, 4), dtype=torch.uint8)
    (found,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), predictor(inputs).detach(), rtol=1e-4, atol=1e-4)


class Restless(nn.Module):
    """Says something else every time."""

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.rand_like(inputs)


def test_a_file_that_predicts_otherwise_is_not_kept(tmp_path: Path):
    with pytest.raises(cs.UserError, match=r"model\.pt2 would predict otherwise than the model, by 0\.\d+"):
        export(Predictor(Restless(), IMAGES), tmp_path / "model", "torch")
    assert not list(tmp_path.iterdir())


class Stubborn(nn.Module):
    """Looks at numbers, which no exporter can follow."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if inputs.sum() > 0 else -inputs


def test_a_model_that_cannot_be_exported_says_so(tmp_path: Path):
    with pytest.raises(cs.UserError, match="this model cannot be exported as torch: ") as refused:
        export(Predictor(Stubborn(), IMAGES), tmp_path / "model", "torch")
    assert "\n" not in str(refused.value)
    with pytest.raises(cs.UserError, match="unknown format 'tf'"):
        export(images(), tmp_path / "model", "tf")


@pytest.mark.skipif(importlib.util.find_spec("onnxscript") is not None, reason="it is installed here")
def test_a_missing_extra_is_named(tmp_path: Path):
    with pytest.raises(cs.UserError, match=r"pip install 'consilience\[onnx\]'"):
        export(images(), tmp_path / "model", "onnx")


@pytest.mark.parametrize(("inputs", "tokens"), [("int64", 5), ("float32", 0), ("uint8", 0)])
def test_examples_are_of_the_right_form(inputs: str, tokens: int):
    found = replace(IMAGES, inputs=inputs, tokens=tokens).example(6)
    assert (found.shape, str(found.dtype)) == ((6, 2, 4, 4), f"torch.{inputs}")
    assert not tokens or set(found.unique().tolist()) == set(range(5))
