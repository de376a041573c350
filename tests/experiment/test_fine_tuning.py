"""What is not trained is held once, neither sent nor weighed; a checkpoint names it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import consilience as cs
from consilience.errors import UserError


def backbone(seed: int = 0) -> nn.Module:
    """What somebody else has trained."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 20), nn.Tanh())


def tuned(body: nn.Module) -> nn.Module:
    """A new head on a backbone that stays as it is."""
    torch.manual_seed(3)
    return nn.Sequential(copy.deepcopy(body).requires_grad_(False), nn.Linear(20, 3))


@pytest.fixture
def train(blobs):
    """Runs some rounds on the blobs."""

    def run(model: Any, method: Any = "fedavg", **changes: Any) -> cs.Result:
        settings = {
            "data": {"name": "blobs", "own": blobs, "normalize": "none"},
            "clients": 3,
            "rounds": 2,
            "local": {"epochs": 1, "batch_size": 8},
            "dtype": "float64",
        }
        return cs.run(method, model=model, **{**settings, **changes})

    return run


def params(result: cs.Result) -> dict[str, torch.Tensor]:
    return next(iter(result.models.values()))["params"]


METHODS = {
    "fedavg": ("fedavg", {}),
    "hwa": ("hwa", {}),
    "hwa, all layers": ({"name": "hwa", "layers": "all"}, {}),
    "fedcurv": ("fedcurv", {}),
    "kfac": ("kfac_weighted", {}),
    "dechw": ("dechw", {"topology": "ring"}),
    "scaffold": ("scaffold", {}),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_head_is_tuned_and_nothing_else_is_known_of_the_model(name, train):
    method, setting = METHODS[name]
    model = tuned(backbone())
    held = {key: value.clone() for key, value in model.state_dict().items()}
    found = train(model, method, rounds=6, solver={"name": "sgd", "lr": 0.5}, **setting)
    assert set(params(found)) == {"1.weight", "1.bias"}
    assert_close(dict(model.state_dict()), held, rtol=0, atol=0)
    assert found.accuracy > 0.8
    alone = train(model, method, rounds=1, **setting)
    # What a linear model of the features would send, byte for byte.
    assert alone.records[0]["bytes_up"] == _of_features(train, method, setting).records[0]["bytes_up"]


def _of_features(train: Any, method: Any, setting: dict[str, Any]) -> cs.Result:
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(90, 20, generator=random)
    targets = torch.arange(90) % 3
    data = cs.Dataset.from_arrays("features", inputs[:60], targets[:60], inputs[60:], targets[60:])
    named = nn.Sequential(nn.Identity(), nn.Linear(20, 3))
    return train(named, method, rounds=1, **{**setting, "data": data})


def test_one_step_is_that_of_torch(train, blobs):
    model = tuned(backbone())
    step = {"clients": 1, "rounds": 1, "local": {"epochs": 1, "batch_size": 60}, "l2": 0.1}
    found = train(model, **step, solver={"name": "sgd", "lr": 0.2})
    plain = copy.deepcopy(model).double()
    loss = F.cross_entropy(plain(blobs.inputs.double()), blobs.targets)
    loss = loss + 0.05 * sum(value.square().sum() for value in plain[1].parameters())
    loss.backward()
    for name, value in plain[1].named_parameters():
        assert_close(params(found)[f"1.{name}"][0], value - 0.2 * value.grad, rtol=1e-9, atol=1e-12)


def test_another_backbone_is_noticed(train, tmp_path, stop_after):
    pretrained = [backbone(0)]

    def make() -> nn.Module:
        return tuned(pretrained[0])

    settings = {"checkpoint": {"every": 1}, "out": tmp_path, "name": "tuned"}
    whole = train(make)
    with pytest.raises(KeyboardInterrupt):
        train(make, **settings, listener=stop_after(2))
    pretrained[0] = backbone(1)
    with pytest.raises(UserError, match="another model"):
        train(make, **settings, existing="resume")
    pretrained[0] = backbone(0)
    assert train(make, **settings, existing="resume").digest == whole.digest


def test_a_frozen_part_that_is_drawn_is_the_same_for_every_seed(train):
    """As a random backbone is: only heads differ from seed to seed."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 9).requires_grad_(False), nn.Tanh(), nn.Linear(9, 3))

    both, second = train(make, seeds=[0, 1]), train(make, seeds=[1])
    assert_close(params(both)["2.weight"][1], params(second)["2.weight"][0], rtol=1e-12, atol=1e-12)
    assert not torch.equal(*params(both)["2.weight"])
    assert train(make, seeds=[1]).digest == second.digest


def test_units_of_a_model_that_is_partly_frozen_cannot_change_places(train):
    with pytest.raises(UserError, match="parameters that are not trained"):
        train(tuned(backbone()), "fedma")


def test_a_trained_bias_and_a_frozen_weight(train):
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    for name, value in model.named_parameters():
        value.requires_grad_(name.endswith("bias"))
    found = train(model, "fedcurv")
    assert set(params(found)) == {"0.bias", "2.bias"}
    expected = train(model, "fedcurv", executor="sequential")
    assert_close(params(found), params(expected), rtol=1e-10, atol=1e-12)
