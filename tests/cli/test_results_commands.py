"""Commands about runs that have ended: models for other programs, and plots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from consilience.api import load_model
from consilience.data import load


def test_a_model_is_exported_beside_its_weights(
    command: Callable[..., Any], tiny: Path, out: Path, refused: Callable[..., None]
):
    assert command("run", tiny, "method=[fedavg, swa]", "rounds=1").code == 0
    refused(command("export", out / "tiny", "--format", "torch"), "there are several methods: choose method=")
    answer = command("export", out / "tiny", "--format", "torch", "--method", "swa")
    path = out / "tiny" / "weights" / "star" / "swa" / "seed-0" / "model.pt2"
    assert (answer.code, answer.out, answer.err) == (0, f"{path}\n", "")
    inputs = load("mnist-sample").test_inputs[:7]
    found = torch.export.load(path).module()(inputs)
    torch.testing.assert_close(found, load_model(out / "tiny", method="swa")(inputs))
