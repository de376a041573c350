"""The curvature of each output at each client: what its formula says, at weights trained once more."""

from __future__ import annotations

import pytest
import torch

import consilience as cs
from consilience.errors import UserError

CLASSES = {"a": [0, 0, 1, 1, 1, 2], "b": [2, 2, 2, 2], "c": [0, 1]}


@pytest.fixture
def rows():
    """The inputs and classes of three clients of different sizes."""
    source = torch.Generator().manual_seed(0)
    return {
        name: (torch.randn(len(held), 4, generator=source, dtype=torch.float64), torch.tensor(held))
        for name, held in CLASSES.items()
    }


@pytest.fixture
def run(rows):
    """Runs methods on these clients, with the curvature of each."""

    def begin(method="fedavg", lr=0.1, **changes):
        settings = {"model": "logistic", "rounds": 2, "dtype": "float64", "evaluate": {"curvature": True}}
        data = {name: (*held, *held) for name, held in rows.items()}
        settings |= {"data": cs.Dataset.from_clients(data), "solver": {"name": "sgd", "lr": lr}}
        return cs.run(method, **(settings | {"local": {"epochs": 1, "batch_size": 2}} | changes))

    return begin


def found(result):
    return torch.tensor([line["curvature"] for line in result.clients], dtype=torch.float64)


def by_hand(result, rows):
    """[clients, outputs] the mean square of gradients, over rows and over all parameters of an output."""
    params = next(iter(result.models.values()))["params"]
    weight, bias = sorted((value[0] for value in params.values()), key=lambda value: -value.ndim)
    curved = []
    for inputs, classes in rows.values():
        wrong = (inputs @ weight.T + bias).softmax(1) - torch.nn.functional.one_hot(classes, 3)
        known = torch.cat([inputs, torch.ones(len(inputs), 1)], 1)  # the last one is the bias's
        curved.append((wrong[:, :, None] * known[:, None]).square().mean(0).mean(1))
    return torch.stack(curved)


@pytest.mark.parametrize("executor", ["sequential", "batched"])
def test_it_is_the_mean_square_of_gradients_behind_an_output(run, rows, executor):
    result = run(lr=1e-12, executor=executor)  # with which training changes nothing
    torch.testing.assert_close(found(result), by_hand(result, rows), rtol=1e-5, atol=0)


def test_it_is_taken_after_training_once_more(run, rows):
    result = run(lr=0.5)
    here, there = found(result), by_hand(result, rows)
    assert here[1].sum() < 0.5 * there[1].sum()  # of one class alone, which it has learned by then


def test_seeds_variants_and_early_ends_all_have_it(run):
    result = run(cs.FedProx(mu=[0.1, 1.0]), seeds=[0, 1], stop_when={"train_loss": 0.5})
    assert found(result).shape == (2 * 2 * 3, 3)
    assert "curvature" not in result.to_pandas("clients")
    plain = run(cs.FedProx(mu=[0.1, 1.0]), seeds=[0, 1], stop_when={"train_loss": 0.5}, evaluate={})
    keys = [{k: v for k, v in line.items() if k != "curvature"} for line in result.clients]
    assert keys == plain.clients  # all else is the same


def test_nodes_have_that_of_their_own_models(run):
    result = run("dechw", topology="complete")
    assert found(result).shape == (3, 3)


def test_it_is_refused_before_anything_is_computed(run):
    with pytest.raises(UserError, match=r"set evaluate\.clients: true"):
        run(evaluate={"curvature": True, "clients": False})
    wide = {str(n): (torch.zeros(1, 4), torch.tensor([n])) * 2 for n in (0, 1000)}
    with pytest.raises(UserError, match="this model has 1,001 outputs; at most 1,000 are kept"):
        run(data=cs.Dataset.from_clients(wide))
