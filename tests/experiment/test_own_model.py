"""Models of one's own: a module, something that makes one, or `package.module:Name`."""

from __future__ import annotations

import functools
import random
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import consilience as cs
from consilience.config.config import read_config
from consilience.errors import UserError
from consilience.experiment import execution
from consilience.experiment.folder import CONFIG
from consilience.models import MLP

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, outputs, hidden=4):
        super().__init__()
        self.inner, self.outer = nn.Linear(shape[0], hidden), nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))

def narrow(num_classes):
    return nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.LazyLinear(num_classes))

def no_module(shape, outputs):
    return {"layers": 3}

def needy(shape, outputs, width):
    return nn.Linear(width, outputs)

ready = nn.Linear(5, 3)
number = 3
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of models, from which a user starts Python."""
    (tmp_path / "my_nets.py").write_text(SOURCE)
    (tmp_path / "my_broken_nets.py").write_text("1 / 0\n")
    (tmp_path / "my_needy_nets.py").write_text("import no_such_library\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("my_nets", "my_broken_nets", "my_needy_nets"):
        sys.modules.pop(name, None)


class Net(nn.Module):
    """A model in a user's own script."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(5, width), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.relu(self.inner(x)))


class Doing(nn.Module):
    """A model that does something to its inputs, and to what it says."""

    def __init__(self, after=lambda x: x, *, before=lambda x: x) -> None:
        super().__init__()
        self.layer, self.before, self.after = nn.Linear(5, 3), before, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.layer(self.before(x)))


class Locked(Doing):
    """A model that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Clipping(nn.Linear):
    """A model that keeps its weights small."""

    def __init__(self) -> None:
        super().__init__(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data.clamp_(-0.01, 0.01)
        return super().forward(x)


class Counting(nn.Linear):
    """A model that counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__(5, 3)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return super().forward(x)


class Causal(nn.Module):
    """A model whose mask of zeros and minus infinity is part of its state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.max_norm = nn.Linear(5, 3), 1.0  # which only an embedding means otherwise
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer((x[:, None] + self.mask).softmax(-1).sum(1))


@pytest.fixture
def train(blobs):
    """Runs two rounds with a model."""

    def run(model: Any, **changes: Any) -> cs.Result:
        settings = {"data": blobs, "clients": 3, "rounds": 2, "local": {"steps": 2, "batch_size": 4}}
        return cs.run("fedavg", model=model, **{**settings, **changes})

    return run


def test_a_module_is_where_every_seed_begins_and_stays_as_it_is(train):
    module = Net()
    held = {name: value.clone() for name, value in module.state_dict().items()}
    result = train(module, seeds=[0, 1], solver={"name": "sgd", "lr": 1e-12})
    for name, value in module.state_dict().items():
        assert torch.equal(value, held[name])
        for trained in result.models["star fedavg"]["params"][name]:
            torch.testing.assert_close(trained, value, rtol=0, atol=1e-6)


def test_factories_and_paths_draw_the_weights_of_every_seed(train, nets):
    found = [
        train(model, seeds=[0, 1], dtype="float64")
        for model in (
            {"name": "my_nets:Net", "hidden": 8},
            lambda shape, outputs: sys.modules["my_nets"].Net(shape, outputs, hidden=8),
        )
    ]
    assert found[0].digest == found[1].digest
    one, other = found[0].models["star fedavg"]["params"]["inner.weight"]
    assert not torch.equal(one, other)
    assert one.shape == (8, 5)


@pytest.mark.parametrize("model", [Net, functools.partial(Net, width=6), lambda: Net(2), "my_nets:narrow"])
def test_other_ways_to_say_which_model(train, nets, model):
    assert 0 <= train(model).accuracy <= 1


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("no_such_nets:Net", "cannot import no_such_nets (ModuleNotFoundError"),
        ("my_nets.deep:Net", "cannot import my_nets.deep (ModuleNotFoundError"),
        ("my_needy_nets:Net", "no_such_library"),
        ("my_broken_nets:Net", "cannot import my_broken_nets (ZeroDivisionError"),
        ("my_nets:Nett", "did you mean 'Net'"),
        ("my_nets:", "unknown model 'my_nets:'"),
        ("my_nets:number", "neither a module nor a function"),
        ({"name": "my_nets:ready", "width": 3}, "takes no options"),
        ({"name": "my_nets:Net", "hiden": 3}, "did you mean 'hidden'"),
        ({"name": "my_nets:Net", "hidden": "x"}, "cannot be made: TypeError"),
        ("my_nets:no_module", "gives a dict, not a torch.nn.Module"),
        ("my_nets:needy", "needs width: give options"),
        (nn.Linear(5, 7), "gives [7] numbers for a row, and classification of these data asks for 3"),
        (nn.Linear(5, 2), "gives [2] numbers for a row, and classification of these data asks for 3"),
        (Doing(lambda x: x.detach()), "does not depend on its parameters, so it cannot learn"),
        (Doing(lambda x: x.long()), "does not depend on its parameters, so it cannot learn"),
        (
            Doing(lambda x: x + float(x.detach().numpy().sum())),
            "cannot be trained, it leaves torch",
        ),
        (Doing(lambda x: x + random.random()), "gives something else when it is called again"),
        (
            Doing(lambda x: checkpoint(torch.tanh, x, use_reentrant=False)),
            "torch.func cannot differentiate it",
        ),
        (Locked(), "the model cannot be copied (TypeError: cannot pickle '_thread.lock' object)"),
        (Clipping(), "writes to weight in its forward"),
        (Counting(), "writes to count in its forward; move that out of it, or, if it is a buffer, do it in"),
        (
            Doing(lambda x: F.batch_norm(x, None, None, training=True)),
            "F.batch_norm does not know which rows of a batch count: use nn.BatchNorm layers",
        ),
        (nn.Sequential(nn.Embedding(9, 3, max_norm=1.0)), "an embedding with max_norm writes to its weights"),
        (Doing(before=lambda x: x.add_(1)), "cannot be trained, write to a copy of its inputs"),
        (nn.Linear(9, 3), "does not fit classification of float32 [5] inputs"),
        (nn.LSTM(5, 3), "gives a tuple, not a tensor"),
        (nn.Sequential(nn.LazyConv2d(3, 3)), "does not fit classification"),
        (nn.Linear(5, 3).requires_grad_(False), "no parameters to train"),
        (3, "expected a name"),
    ],
)
def test_what_is_wrong_is_one_line(train, nets, model, words):
    with pytest.raises(UserError) as caught:
        train(model)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def interrupted(run: Any, listener: Any, **settings: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(**settings, listener=listener)


def test_a_run_of_a_path_resumes(train, nets, stop_after, blobs):
    settings = {"model": {"name": "my_nets:Net", "hidden": 6}, "checkpoint": {"every": 1}}
    whole = train(**settings)
    interrupted(train, stop_after(2), **settings, out=nets / "runs", name="path")
    written = yaml.safe_load((nets / "runs" / "path" / CONFIG).read_text())
    assert written["model"] == {"name": "my_nets:Net", "hidden": 6}
    config = read_config(written, "test", blobs)  # data from Python are there again, the model by its path
    resumed = execution.run(config, folder=execution.RunFolder(nets / "runs" / "path"), existing="resume")
    assert resumed.digest == whole.digest


def test_a_run_of_a_module_goes_on_with_the_same_module_alone(train, tmp_path, stop_after, blobs):
    torch.manual_seed(0)
    module, settings = Net(), {"checkpoint": {"every": 1}, "out": tmp_path, "name": "module"}
    whole = train(module, checkpoint={"every": 1})
    interrupted(train, stop_after(2), model=module, **settings)
    written = yaml.safe_load((tmp_path / "module" / CONFIG).read_text())
    with pytest.raises(UserError, match=r"\(Net\) was given from Python"):
        read_config(written, "test", blobs)
    for other in (Net(), Net(5)):  # other weights, another form
        with pytest.raises(UserError, match="another model"):
            train(other, **settings, existing="resume")
    with pytest.raises(UserError, match="another configuration"):
        train(nn.Linear(5, 3), **settings, existing="resume")
    assert train(module, **settings, existing="resume").digest == whole.digest


def test_nodes_start_alike_from_a_module_and_differently_from_its_class(train):
    graph = {"topology": "ring", "clients": 5, "rounds": 1, "solver": {"name": "sgd", "lr": 1e-12}}
    for model, alike in ((Net(), True), (Net, False)):
        value = train(model, **graph).models["ring fedavg"]["params"]["inner.weight"]
        assert torch.allclose(value[0], value[1], atol=1e-6) is alike
    with pytest.raises(UserError, match="comes with its weights"):
        train(Net(), **graph, init="different")


def test_an_object_of_this_library_still_is_a_model(train):
    assert train(MLP((3,))).digest == train({"name": "mlp", "hidden": [3]}).digest


class Keeping(nn.Module):
    """A model that keeps a result of its last call, which torch refuses to copy."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.layer(x)
        return self.last


def test_results_that_a_module_keeps_are_no_hindrance(train):
    module = Keeping()
    module(torch.zeros(2, 5))
    assert train(module).digest == train(module).digest
    with pytest.warns(FutureWarning, match="weight_norm"):
        old = nn.utils.weight_norm(nn.Linear(5, 3))
    new = nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))
    with torch.no_grad():
        new.parametrizations.weight.original0.copy_(old.weight_g)
        new.parametrizations.weight.original1.copy_(old.weight_v)
        new.bias.copy_(old.bias)
    losses = [train(one, dtype="float64").records[-1]["test_loss"] for one in (old, new)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_a_model_does_not_change_the_data_that_it_is_tried_on(train, blobs):
    before = blobs.inputs[:].clone()
    with pytest.raises(UserError, match="copy of its inputs"):
        train(Doing(before=lambda x: x.add_(1)))
    assert torch.equal(blobs.inputs[:], before)


def test_a_mask_of_infinities_is_no_statistic(train, tmp_path):
    model = Causal()
    result = train(model, out=tmp_path, name="causal")
    assert not any(line["dropped"] for line in result.records)
    assert not result.models["star fedavg"]["buffers"]
    loaded = cs.load_model(tmp_path / "causal", model=Causal(), seed=0)
    assert torch.equal(loaded.module.mask, model.mask)
    path = next((tmp_path / "causal" / "weights").rglob("*.safetensors"))
    assert train(model, init=path).digest == train(model, init=path).digest


class Shifted(nn.Module):
    """A model with a buffer that no state dict holds."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.register_buffer("shift", torch.tensor(shift), persistent=False)

    def forward(self, x):
        return self.layer(x.flatten(1) + self.shift)


def test_a_run_goes_on_with_the_same_constants_alone(tmp_path):
    setting = {"data": "mnist-sample", "clients": 2, "rounds": 2, "local": {"steps": 1}}
    cs.run("fedavg", model=Shifted(0.5), out=tmp_path, name="run", **setting)
    assert cs.resume(tmp_path / "run", model=Shifted(0.5)).folder == tmp_path / "run"
    with pytest.raises(UserError, match="was made with another model"):
        cs.resume(tmp_path / "run", model=Shifted(0.7))
