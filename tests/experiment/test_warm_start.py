"""A run starts from a file of weights: safetensors or a state dict, and nothing that could be code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import consilience as cs
from consilience.config.config import Config, read_config
from consilience.data.dataset import Dataset
from consilience.errors import UserError
from consilience.experiment import Listener
from consilience.experiment import execution as experiment
from consilience.experiment.folder import RunFolder

FROZEN: dict[str, Any] = {"solver": {"name": "sgd", "lr": 0.0}, "rounds": 1}
"""A run that leaves models as they were."""


@pytest.fixture
def trained(configure: Callable[..., Config], tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """The folder of a run, and its final weights."""
    result = experiment.run(configure(), folder=RunFolder(tmp_path / "before"))
    return tmp_path / "before", {name: v[0] for name, v in result.models["star fedavg"]["params"].items()}


def write(kind: str, folder: Path, weights: dict[str, torch.Tensor]) -> Path:
    """A file of weights."""
    if kind == "run":
        return next((folder / "weights").rglob("*.safetensors"))
    path = folder / f"model.{kind.split(maxsplit=1)[0]}"
    if kind == "safetensors":
        save_file(weights, path)
    else:
        torch.save({"state_dict": weights, "epoch": 3} if "wrapped" in kind else weights, path)
    return path


@pytest.mark.parametrize("kind", ["safetensors", "pt", "pt wrapped", "run"])
@pytest.mark.parametrize("topology", ["star", "ring"])
def test_all_models_start_from_the_file(kind, topology, trained, configure: Callable[..., Config]):
    folder, weights = trained
    path = write(kind, folder, weights)
    result = experiment.run(configure(**FROZEN, init=str(path), topology=topology, seeds=[0, 1]))
    found = result.models[f"{topology} fedavg"]["params"]
    for name, value in weights.items():
        assert all(
            torch.allclose(one, value, rtol=1e-6, atol=1e-7)
            for one in found[name].flatten(0, -value.ndim - 1)
        )


def test_training_goes_on_where_it_ended(trained, configure: Callable[..., Config]):
    folder, weights = trained
    path = write("safetensors", folder, weights)
    cold, warm = (experiment.run(configure(rounds=1, **how)) for how in ({}, {"init": str(path)}))
    assert warm.records[0]["train_loss"] < cold.records[0]["train_loss"]
    assert warm.digest == experiment.run(configure(rounds=1, init=str(path))).digest


def test_a_run_does_not_go_on_with_another_file(
    trained, tmp_path: Path, configure: Callable[..., Config], stop_after: Callable[[int], Listener]
):
    folder, weights = trained
    path = write("safetensors", folder, weights)
    config, run = configure(init=str(path), checkpoint={"every": 1}), RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=run, listener=stop_after(2))
    save_file({name: value + 1 for name, value in weights.items()}, path)
    with pytest.raises(UserError, match=r"where it started from a file \(init\), that must be the same"):
        experiment.run(config, folder=run, existing="resume")
    save_file(weights, path)
    resumed = experiment.run(config, folder=run, existing="resume")
    assert resumed.digest == experiment.run(config).digest


class Evil:
    """What a pickle could do."""

    def __reduce__(self):
        return (print, ("code of others",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "^init: expected common, different or a file of weights, and there is no file"),
        ("text", "neither safetensors nor a state dict"),
        (Evil(), "neither safetensors nor a state dict"),
        ([1, 2], "holds a list, not a state dict"),
        (torch.nn.Linear(2, 2), r"neither safetensors nor a state dict of plain tensors, as torch.save"),
        ({"a": torch.full((2,), torch.nan)}, "holds NaN or infinity"),
        ({"a": torch.zeros(2)}, r"does not hold this model's weights: .*Missing key"),
    ],
)
def test_other_files_are_refused(
    content: Any,
    message: str,
    tmp_path: Path,
    configure: Callable[..., Config],
    capsys: pytest.CaptureFixture[str],
):
    path = tmp_path / "model.pt"
    if content == "text":
        path.write_text("not a model")
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(UserError, match=message):
        experiment.plan(configure(init=str(path)))
    assert "code of others" not in capsys.readouterr().out


def test_a_run_of_a_frozen_model_starts_another(tmp_path: Path, blobs: Dataset):
    model = torch.nn.Sequential(torch.nn.Linear(5, 4).requires_grad_(False), torch.nn.Linear(4, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings: dict[str, Any] = {"data": blobs, "model": model, "clients": 3}
    first = cs.run("fedavg", rounds=2, out=tmp_path, **settings)
    path = next((tmp_path / "run" / "weights").rglob("*.safetensors"))
    second = cs.run("fedavg", init=path, **{**settings, **FROZEN})
    for name, value in first.models["star fedavg"]["params"].items():
        torch.testing.assert_close(second.models["star fedavg"]["params"][name], value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_misspelt_word_is_no_file():
    with pytest.raises(
        UserError, match=r"init: common, different or the path of a file of weights, not a Linear"
    ):
        read_config({"init": torch.nn.Linear(2, 2)})
    with pytest.raises(UserError, match="expected common, different or a file of weights"):
        experiment.plan(read_config({"init": "comon"}))
    with pytest.raises(UserError, match=r"dechetero means init: different, but init is model\.pt"):
        read_config({"init": "model.pt", "method": "dechetero", "topology": "ring"})
