"""The `l2` term is a part of every client's loss: of what is trained, differentiated and multiplied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import consilience as cs
from consilience import tree

L2 = 0.3


def weights(method: Any, **changes: Any) -> dict[str, torch.Tensor]:
    """The model after two rounds."""
    random = np.random.default_rng(0)
    inputs, targets = random.random((40, 1, 3, 3), dtype=np.float32), np.arange(40) % 4
    data = cs.Dataset.from_arrays("some", inputs[:32], targets[:32], inputs[32:], targets[32:])
    settings: dict[str, Any] = {
        "data": data,
        "partition": "iid",
        "model": "logistic",
        "clients": 2,
        "rounds": 2,
        "local": {"steps": 3, "batch_size": 5},
        "solver": {"name": "sgd", "lr": 0.1},
        "dtype": "float64",
    }
    (found,) = cs.run(method, **{**settings, **changes}).models.values()
    return found["params"]


@pytest.mark.parametrize("executor", ["batched", "sequential"])
def test_training_decays_weights(executor):
    found = weights("fedavg", l2=L2, executor=executor)
    decayed = weights("fedavg", solver={"name": "sgd", "lr": 0.1, "weight_decay": L2}, executor=executor)
    assert_close(found, decayed, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(found["head.weight"], weights("fedavg")["head.weight"])


WHOLE = {"clients": 1, "rounds": 1, "local": {"steps": 1, "batch_size": 40}, "l2": L2}


def test_what_takes_its_place_in_a_gradient_has_it_too():
    # A client alone: its gradient, less its gradient at the start, plus the mean of all.
    assert_close(weights("fedlin", **WHOLE), weights("fedavg", **WHOLE), rtol=1e-12, atol=1e-12)


def test_personal_models_have_it():
    plain = weights("pfedme", **{**WHOLE, "l2": 0.0})
    assert not torch.allclose(weights("pfedme", **WHOLE)["head.weight"], plain["head.weight"])


def test_one_step_on_all_data_is_a_step_along_the_gradient():
    assert_close(weights("fedsgd", **WHOLE), weights("fedavg", **WHOLE), rtol=1e-10, atol=1e-10)


def test_gradients_and_products_with_the_hessian_have_it(federation):
    place = federation("mlp")

    def work(client: cs.Client, down: Any) -> Any:
        return {"g": client.grad(down).params, "h": client.hvp(down, down["params"])}

    plain = place.run(place.batched(), work).uploads
    place.task.l2 = L2
    found = place.run(place.batched(), work).uploads
    term = {name: (L2 * value).expand_as(found["g"][name]) for name, value in place.start["params"].items()}
    for group in ("g", "h"):  # of the gradient l2 w, and of the Hessian l2 I, times w
        assert_close(tree.sub(found[group], plain[group]), term, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["fednl", "bl1"])
def test_a_term_of_a_methods_own_is_that_of_the_run(name):
    own = {"name": name, "l2": L2}
    for options in ({}, {"partial": True}) if name == "fednl" else ({},):
        of_run = weights({"name": name, **options}, l2=L2)
        assert_close(of_run, weights({**own, **options}), rtol=1e-9, atol=1e-11)
        assert_close(of_run, weights({**own, **options}, l2=L2), rtol=1e-9, atol=1e-11)
    with pytest.raises(cs.UserError, match=f"{name}: its l2 is 0.3 and the run's is 0.1"):
        weights(own, l2=0.1)
