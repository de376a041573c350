"""Commands about runs that have ended: models for other programs, and plots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from consilience.api import load_model
from consilience.data import load


def test_a_model_is_exported_beside_its_weights(
    command: Callable[..., Any], tiny: Path, out: Path, refused: Callable[..., None]
):
    assert command("run", tiny, "method=[fedavg, swa]", "rounds=1").code == 0
    refused(command("export", out / "tiny", "--format", "torch"), "there are several methods: choose one of ")
    answer = command("export", out / "tiny", "--format", "torch", "--method", "swa")
    path = out / "tiny" / "weights" / "star" / "swa" / "seed-0" / "model.pt2"
    assert (answer.code, answer.out, answer.err) == (0, f"{path}\n", "")
    inputs = load("mnist-sample").test_inputs[:7]
    found = torch.export.load(path).module()(inputs)
    torch.testing.assert_close(found, load_model(out / "tiny", method="swa")(inputs))


def test_plots_are_drawn_as_vector_graphics(
    command: Callable[..., Any], tiny: Path, out: Path, refused: Callable[..., None]
):
    words = ("method={name: fedprox, mu: [0.1, 1]}", "topology=ring", "rounds=1", "--format", "svg")
    answer = command("run", tiny, *words)
    assert (answer.code, answer.err) == (0, "")
    plots = [f"{name}.{kind}" for kind in ("png", "svg") for name in ("accuracy", "sweep", "nodes", "map")]
    assert all(f"plot: {out / 'tiny' / plot}\n" in answer.out for plot in plots)
    again = command("plot", out / "tiny", "--format", "pdf")
    drawn = [out / "tiny" / f"{name}.pdf" for name in ("accuracy", "sweep", "nodes", "map")]
    assert again.out == "".join(f"plot: {plot}\n" for plot in drawn)
    assert all(plot.read_bytes().startswith(b"%PDF") for plot in drawn)
    with Image.open(out / "tiny" / "sweep.png") as image:
        assert image.width > image.height
    refused(command("plot", out / "tiny", "--format", "gif"), "unknown format 'gif'")
    refused(command("run", tiny, "--format", "gif"), "unknown format 'gif'")
    refused(command("plot", out), "does not hold a run that has ended")
    assert command("run", tiny, "rounds=1", "--overwrite").code == 0
    assert not list((out / "tiny").glob("*.pdf"))
    assert not (out / "tiny" / "sweep.png").exists()


def test_splits_and_graphs_are_drawn_as_vector_graphics(command: Callable[..., Any], tiny: Path, out: Path):
    assert command("partition", tiny, "--format", "pdf").code == 0
    assert command("topology", tiny, "topology=ring", "--format", "svg").code == 0
    assert {path.name for path in out.iterdir()} == {"tiny-star-partition.pdf", "tiny-ring-topology.svg"}
