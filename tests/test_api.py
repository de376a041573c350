"""The library from Python: one function, with names, objects, own data, own models and own methods."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import consilience as cs
from consilience.client import Client
from consilience.data.partitioners import Shards
from consilience.experiment import Arm
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD
from consilience.models import MLP, Classifier, ModelSpec
from consilience.types import State

pytestmark = pytest.mark.usefixtures("unpainted")

TINY: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [8]},
    "clients": 3,
    "rounds": 2,
    "local": {"steps": 2, "batch_size": 8},
}
POINTS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
CLASSES = np.arange(40) % 4
OWN = cs.Dataset.from_arrays("points", POINTS, CLASSES, POINTS[:12], CLASSES[:12])


def test_the_one_liner():
    result = cs.run(cs.HWA(), **{**TINY, "data": "mnist-sample", "clients": 10, "seeds": [0, 1]})
    assert len(result.records) == 4
    assert len(result.clients) == 20
    (summary,) = result.summaries
    assert (summary.setting, summary.method, summary.seeds, summary.rounds) == ("star", "hwa", 2, 2)
    assert result.accuracy == summary.final_mean
    assert 0 < result.accuracy < 1
    params = result.models["star hwa"]["params"]
    assert {name: tuple(value.shape) for name, value in params.items()} == {
        "body.1.weight": (2, 8, 784),
        "body.1.bias": (2, 8),
        "head.weight": (2, 10, 8),
        "head.bias": (2, 10),
    }
    assert len(result.digest) == 64
    assert result.path is None


def test_nothing_is_written_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    cs.run("fedavg", data=OWN, **TINY)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_written_when_asked(tmp_path: Path):
    result = cs.run("fedavg", out=tmp_path / "some" / "where", name="mine", data=OWN, **TINY)
    assert result.path == tmp_path / "some" / "where" / "mine"
    assert {"config.yaml", "metrics.jsonl", "summary.json"} <= {path.name for path in result.path.iterdir()}


def test_an_existing_run(tmp_path: Path):
    first = cs.run("fedavg", out=str(tmp_path), data=OWN, **TINY)
    with pytest.raises(cs.UserError, match="holds a run already"):
        cs.run("fedavg", out=tmp_path, data=OWN, **TINY)
    with pytest.raises(cs.UserError, match="made with another configuration"):
        cs.run("fedavg", out=tmp_path, existing="resume", data=OWN, **{**TINY, "rounds": 1})
    with pytest.raises(cs.UserError, match="unknown value of existing 'replace'"):
        cs.run("hwa", out=tmp_path, existing="replace", data=OWN, **TINY)
    resumed = cs.run("fedavg", out=tmp_path, existing="resume", data=OWN, **TINY)
    assert (resumed.digest, resumed.records) == (first.digest, first.records)
    replaced = cs.run("fedavg", out=tmp_path, existing="overwrite", data=OWN, **{**TINY, "rounds": 1})
    assert len(replaced.records) == 1


RESUMABLE = {
    "object": cs.HWA(layers="all"),
    "several objects": [cs.FedProx(mu=0.3), cs.FedProx(mu=3.0)],
    "composed": cs.Composed(),
    "name": "hwa",
    "mapping": {"name": "fedprox", "mu": [0.1, 0.2]},
}


@pytest.mark.parametrize("method", RESUMABLE.values(), ids=RESUMABLE.keys())
def test_a_run_from_python_is_resumed_from_its_folder(method: Any, tmp_path: Path):
    """As `consilience resume` does, which knows nothing but the folder."""
    setting = {**TINY, "rounds": 1, "model": MLP(hidden=(8,)), "solver": SGD(lr=0.1), "partition": Shards()}
    first = cs.run(method, out=tmp_path, data="mnist-sample", **setting)
    resumed = cs.resume(tmp_path / "run")
    assert (resumed.digest, resumed.records) == (first.digest, first.records)


def test_names_and_objects_are_the_same():
    by_name = cs.run({"name": "fedprox", "mu": 0.5}, data=OWN, topology="ring", solver="sgd", **TINY)
    by_object = cs.run(
        cs.FedProx(mu=0.5), data=OWN, topology=Ring(), solver=SGD(), **{**TINY, "model": MLP((8,))}
    )
    assert by_name.digest == by_object.digest


def test_several_methods():
    result = cs.run(["local", cs.FedAvg(), {"name": "hwa", "label": "mine"}], data=OWN, **TINY)
    assert [summary.method for summary in result.summaries] == ["local", "fedavg", "mine"]


@pytest.mark.parametrize("kind", ["arrays", "tensors", "torch", "images"])
def test_own_data(kind: str):
    inputs, targets = torch.from_numpy(POINTS), torch.from_numpy(CLASSES)
    if kind == "torch":
        data = cs.Dataset.from_torch(TensorDataset(inputs, targets), TensorDataset(inputs[:9], targets[:9]))
    elif kind == "images":
        images = torch.randint(0, 256, (40, 1, 5, 5), dtype=torch.uint8)
        data = cs.Dataset.from_arrays("images", images, targets, images, targets)
    elif kind == "tensors":
        data = cs.Dataset.from_arrays("tensors", inputs, targets, inputs, targets, classes=7)
    else:
        data = OWN
    result = cs.run("fedavg", data=data, **TINY)
    (params,) = (models["params"] for models in result.models.values())
    assert params["head.bias"].shape[-1] == data.outputs
    assert params["body.1.weight"].shape[-1] == data.inputs[0].numel()


def test_own_data_cannot_be_resumed_without_them(tmp_path: Path):
    cs.run("fedavg", out=tmp_path, data=OWN, **TINY)
    with pytest.raises(cs.UserError, match=r"data of this run \(points\) were given from Python"):
        cs.resume(tmp_path / "run")


@dataclass(frozen=True)
class Linear(ModelSpec):
    """One layer, without a bias if so wished."""

    name: ClassVar[str] = "linear"
    bias: bool = True

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        return Classifier(nn.Flatten(), nn.Linear(shape[0], outputs, bias=self.bias))


def test_an_own_model(tmp_path: Path):
    result = cs.run("hwa", data=OWN, out=tmp_path, **{**TINY, "model": Linear(bias=False)})
    assert list(result.models["star hwa"]["params"]) == ["head.weight"]
    assert f"name: {__name__}:Linear\n" in (tmp_path / "run" / "config.yaml").read_text()


@dataclass(frozen=True)
class Lazy(cs.SingleExchange):
    """Clients send the model back as it came."""

    name: ClassVar[str] = "lazy"
    effort: float = 0.0

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        return down, memory


def test_an_own_method():
    result = cs.run([Lazy(), Lazy(effort=1.0), "fedavg"], data=OWN, seeds=[3], **TINY)
    assert [summary.method for summary in result.summaries] == ["lazy", "lazy effort=1.0", "fedavg"]
    still, moved = (result.models[f"star {name}"]["params"]["head.bias"] for name in ("lazy", "fedavg"))
    losses = [record["test_loss"] for record in result.records if record["method"] == "lazy"]
    assert losses[0] == losses[1]
    assert not torch.equal(still, moved)


def test_own_parts_can_be_compared():
    result = cs.run(Lazy(), data=OWN, compare=[{"rounds": 1}, {"clients": 5}], **{**TINY, "model": Linear()})
    assert [summary.method for summary in result.summaries] == ["lazy", "lazy"]


class Diary(cs.Listener):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self, arms: list[Arm]) -> None:
        self.told.append(f"start {len(arms)}")

    def round(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        self.told.append(f"{arm.name} {lines[0]['round']} x{len(lines)}")

    def finish(self) -> None:
        self.told.append("finish")


def test_a_listener_is_told_everything():
    diary = Diary()
    cs.run(["fedavg", "swa"], data=OWN, listener=diary, seeds=[0, 1], **TINY)
    rounds = [f"star {name} {number} x2" for name in ("fedavg", "swa") for number in (1, 2)]
    assert diary.told == ["start 2", *rounds, "finish"]


REFUSED = [
    ("fedavgg", {}, "run: unknown method 'fedavgg'; did you mean 'fedavg'?"),
    ("fedavg", {"round": 3}, "run: unknown key 'round'; did you mean 'rounds'?"),
    ([], {}, "run: method: the list is empty"),
    ([cs.FedAvg(), "fedavg"], {}, "run: method: 'fedavg' is there twice"),
    (cs.Scaffold(), {"topology": "ring"}, "scaffold: its control is a mean"),
    ("fedavg", {"clients": 41}, "iid: 41 clients cannot share 40 training rows"),
    ("fedavg", {"model": 7}, "run: model: expected a name"),
    ("fedavg", {"model": nn.Linear(6, 5)}, "the model gives [5] numbers for a row"),
]


@pytest.mark.parametrize(("method", "changes", "line"), REFUSED)
def test_bad_input(method: Any, changes: dict[str, Any], line: str):
    with pytest.raises(cs.UserError) as refused:
        cs.run(method, **{**TINY, "data": OWN, **changes})
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_every_public_name_is_there():
    for name in cs.__all__:
        assert getattr(cs, name) is not None
    assert set(cs.__all__) <= set(dir(cs))
    with pytest.raises(AttributeError, match="no attribute 'FedAvgg'"):
        _ = cs.FedAvgg


class Viewing(nn.Module):
    """A network as many are written: it asks for a view of its images, which must lie row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3))
        self.head = nn.Linear(6 * 10 * 10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).view(len(x), -1))


@dataclass(frozen=True)
class ViewingSpec(ModelSpec):
    name: ClassVar[str] = "viewing"

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return Viewing()


def test_a_model_may_ask_for_views_of_its_images():
    settings = {**TINY, "model": ViewingSpec(), "data": "mnist-sample", "dtype": "float64"}
    models = [cs.run("fedavg", **settings, executor=one).models for one in ("batched", "sequential")]
    torch.testing.assert_close(*models, rtol=1e-9, atol=1e-12)
