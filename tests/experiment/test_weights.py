"""Models that a run leaves behind are used like any other: one line, or plain files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import consilience as cs
from consilience.data import load
from consilience.experiment.exporting import export
from consilience.learning.warm_start import warm_started
from consilience.models import MLP, Classifier, ModelSpec

TINY: dict[str, Any] = {
    "data": "mnist-sample",
    "model": {"name": "mlp", "hidden": [8]},
    "clients": 3,
    "rounds": 2,
    "local": {"steps": 10, "batch_size": 8},
    "solver": {"name": "sgd", "lr": 0.1},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> cs.Result:
    """A run of methods with a server's model, with clients' own, and with both."""
    out = tmp_path_factory.mktemp("runs")
    methods = ["hwa", "local", "pfedme", {"name": "fedprox", "mu": [0.1, 1.0]}]
    return cs.run(methods, out=out, name="a", seeds=[3, 4], **TINY)


def accuracy(model: nn.Module) -> float:
    """On the raw test set, as a user would find it."""
    data = load("mnist-sample")
    with torch.no_grad():
        return (model(data.test_inputs).argmax(1) == data.test_targets).double().mean().item()


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("method", ["hwa", "pfedme", "fedprox mu=1.0"])
def test_a_model_in_one_line(finished: cs.Result, method: str, seed: int):
    model = cs.load_model(finished.path, method=method, seed=seed)  # type: ignore[arg-type]
    told = [r["test_accuracy"] for r in finished.records if (r["method"], r["seed"]) == (method, seed)]
    assert accuracy(model) == pytest.approx(told[-1], abs=0.002)  # a row or two, by rounding
    assert not model.training
    assert (model.origin.method, model.origin.seed, model.origin.rounds) == (method, seed, 2)


def test_plain_files_are_what_the_plain_module_takes(finished: cs.Result):
    assert finished.path is not None
    path = finished.path / "weights" / "star" / "hwa" / "seed-4" / "model.safetensors"
    plain = MLP(hidden=(8,)).build((1, 28, 28), 10)
    plain.load_state_dict(load_file(path))
    final = finished.models["star hwa"]["params"]
    assert all(torch.equal(value, final[name][1]) for name, value in plain.named_parameters())
    assert accuracy(cs.load_model(path)) == accuracy(cs.load_model(finished.path, method="hwa", seed=4))


@pytest.mark.parametrize("method", ["local", "pfedme"])
def test_personal_models_are_there_by_client(finished: cs.Result, method: str):
    assert finished.path is not None
    models = [cs.load_model(finished.path, method=method, client=client) for client in range(3)]
    weights = [model.module.state_dict()["head.weight"] for model in models]
    assert not torch.equal(weights[0], weights[1])
    if method == "local":
        told = [c["test_accuracy"] for c in finished.clients if (c["method"], c["seed"]) == ("local", 3)]
        assert [accuracy(model) for model in models] == pytest.approx(told, abs=0.002)


def test_nodes_of_a_graph_have_models_by_their_numbers(tmp_path: Path):
    result = cs.run("dechetero", out=tmp_path, topology="ring", **TINY)
    models = [cs.load_model(tmp_path / "run", client=node) for node in range(3)]
    told = [client["test_accuracy"] for client in result.clients]
    assert [accuracy(model) for model in models] == pytest.approx(told, abs=0.002)


QUESTIONS = [
    ({}, "there are several methods: choose one of 'fedprox mu=0.1', 'fedprox mu=1.0', 'hwa'"),
    ({"method": "hwaa"}, "unknown method 'hwaa'; did you mean 'hwa'?"),
    ({"method": "hwa", "seed": 9}, "unknown seed '9'"),
    ({"method": "hwa", "setting": "stars"}, "unknown setting 'stars'; did you mean 'star'?"),
    ({"method": "hwa", "client": 1}, "clients of hwa have no models of their own: leave client out"),
    ({"method": "local"}, "every client of local has a model of its own: choose a client, 0 to 2"),
    ({"method": "local", "client": 7}, "there is no model of client 7; there are those of 0 to 2"),
]


@pytest.mark.parametrize(("question", "line"), QUESTIONS)
def test_what_is_not_there_is_said_in_one_line(finished: cs.Result, question: dict[str, Any], line: str):
    with pytest.raises(cs.UserError, match=line):
        cs.load_model(finished.path, **question)  # type: ignore[arg-type]


def test_a_folder_without_models(tmp_path: Path):
    with pytest.raises(cs.UserError, match="holds no models"):
        cs.load_model(tmp_path)
    (tmp_path / "some.safetensors").write_bytes(b"else")
    with pytest.raises(cs.UserError, match="is no model of a run"):
        cs.load_model(tmp_path / "some.safetensors")


class Tied(Classifier):
    """Two layers that share a weight, and a normalisation with buffers."""

    def __init__(self, width: int, outputs: int) -> None:
        first, second = nn.Linear(width, width), nn.Linear(width, width)
        second.weight = first.weight
        super().__init__(nn.Sequential(first, nn.BatchNorm1d(width), second), nn.Linear(width, outputs))


@dataclass(frozen=True)
class TiedSpec(ModelSpec):
    """A model from Python, which no configuration can name."""

    name: ClassVar[str] = "tied"

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        return Tied(shape[0], outputs)


def test_own_floats_and_an_own_model(blobs: cs.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Normalisation is part of the model; a network that nobody can import has to be given again."""
    monkeypatch.setattr(TiedSpec, "__module__", "__main__")
    settings = {
        **TINY,
        "model": TiedSpec(),
        "data": {"name": blobs.name, "normalize": "standard", "own": blobs},
    }
    result = cs.run("fedavg", out=tmp_path, dtype="float64", **settings)
    with pytest.raises(cs.UserError, match="'tied' was made in Python; pass one"):
        cs.load_model(tmp_path / "run")
    given = Tied(5, 3)
    before = {name: value.clone() for name, value in given.state_dict().items()}
    model = cs.load_model(result, model=given)
    for name, value in given.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])  # one that was given stays as it is
    made = cs.load_model(result, model=lambda shape, outputs: Tied(shape[0], outputs))
    assert torch.equal(made.module.state_dict()["body.0.weight"], model.module.state_dict()["body.0.weight"])
    with torch.no_grad():
        found = (model(blobs.test_inputs).argmax(1) == blobs.test_targets).double().mean().item()
    assert found == pytest.approx(result.accuracy)
    assert torch.equal(model.module.state_dict()["body.2.weight"], model.module.state_dict()["body.0.weight"])
    with pytest.raises(cs.UserError, match="does not fit the model"):
        cs.load_model(tmp_path / "run", model=nn.Linear(5, 3))
    with pytest.raises(cs.UserError, match="model: expected a name"):
        cs.load_model(tmp_path / "run", model=3)
    with pytest.raises(cs.UserError, match="this run wrote no files"):
        cs.load_model(cs.run("fedavg", **settings))


def test_layers_that_have_grown(tmp_path: Path):
    result = cs.run({"name": "fedma"}, out=tmp_path, **{**TINY, "clients": 2})
    model = cs.load_model(tmp_path / "run")
    grown = model.module.state_dict()["body.1.weight"].shape[0]
    assert grown >= 8
    assert accuracy(model) == pytest.approx(result.accuracy, abs=0.002)


def test_overwriting_a_run_removes_its_models(tmp_path: Path):
    cs.run("hwa", out=tmp_path, **TINY)
    cs.run("fedavg", out=tmp_path, existing="overwrite", **TINY)
    assert cs.load_model(tmp_path / "run").origin.method == "fedavg"


class Reader(nn.Module):
    """A classifier of texts that asks for a mask, and answers as HuggingFace's do."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, outputs)

    def forward(self, tokens: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        there = attention_mask[..., None]
        return {"logits": (self.embedding(tokens) * there).sum(1) / there.sum(1)}


def test_texts_are_read_with_their_mask(tmp_path: Path):
    texts = [[row % 7, *range(row % 5)] for row in range(60)]
    data = cs.Dataset.from_sequences(texts, [row % 2 for row in range(60)], padding=8)
    settings: dict[str, Any] = {"clients": 3, "rounds": 1, "dtype": "float64", "out": tmp_path}
    result = cs.run("fedavg", data=data, model=Reader, **settings)
    model = cs.load_model(result, model=Reader)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(data.test_inputs[:]), data.test_targets)
    assert float(loss) == pytest.approx(result.scores["loss"])
    assert export(model, tmp_path / "reader", "torch").exists()


def frame(head: str | bytes, body: bytes = b"", length: int | None = None) -> bytes:
    text = head if isinstance(head, bytes) else head.encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def entry(shape: list[int], end: int = 0) -> str:
    return f'{{"w":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{end}]}}}}'


HOSTILE = {
    "a head of 2^63 bytes": frame("{}", length=2**63),
    "a head of 17 MB": frame(b" " * (17 * 2**20)),
    "100,000 tensors": frame("{" + '"w":{},' * 100_000 + '"x":{}}'),
    "lists": frame('{"w":' + "[[],[]]," * 300_000 + "1}"),
    "a shape that cannot be": frame(entry([0, 2**62, 2**62])),
    "a shape beyond 64 bits": frame(entry([2**64])),
    "more bytes than there are": frame(entry([2**40], 2**42)),
    "depth": frame("[" * 100_000),
    "a pickle": b"\x80\x04\x95\x00",
    "nothing": b"",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_one_line(what: str, tmp_path: Path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(HOSTILE[what])
    with pytest.raises(cs.UserError, match=r"model\.safetensors") as one:
        cs.load_model(path)
    with pytest.raises(cs.UserError, match=r"model\.safetensors") as other:
        warm_started(torch.nn.Linear(1, 1), path)
    assert all("\n" not in str(error.value) and len(str(error.value)) < 500 for error in (one, other))


@pytest.mark.parametrize(
    "change",
    [{"dtype": "load"}, {"inputs": "hub"}, {"shape": "x"}, {"seed": []}, {"outputs": None}],
    ids=str,
)
def test_a_header_that_says_something_else_is_one_line(change: dict[str, Any], finished, tmp_path: Path):
    there = next((finished.path / "weights").rglob("*.safetensors"))
    with safetensors.safe_open(there, "pt") as file:
        origin = json.loads(file.metadata()["consilience"])
    path = tmp_path / "model.safetensors"
    header = {"consilience": json.dumps({**origin, **change})}
    save_file(load_file(there), path, header)
    with pytest.raises(cs.UserError, match="is no model of a run"):
        cs.load_model(path)
