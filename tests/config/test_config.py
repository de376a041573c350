"""The configuration: one schema, from files and from Python, of one setting or of several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.hwa import HWA
from consilience.config import load_config, read_config
from consilience.data.dataset import Dataset
from consilience.errors import UserError
from consilience.learning.solvers import SGD
from consilience.method import Composed
from consilience.models import MLP
from consilience.objectives.proximal import Proximal

COMPOSED = {"objective": {"name": "proximal", "mu": 0.1}, "rule": "hessian_weighted"}
GRAPH = {"name": "erdos_renyi", "nodes": 12, "p": 0.5}


def test_the_published_example_is_valid():
    config = load_config(Path(__file__).with_name("published.yaml"), ())
    (choice,) = config.method
    assert choice.sweep.variants == (HWA(layers="output"),)
    assert config.solver.variants == (SGD(lr=0.001, momentum=0.9, weight_decay=0.001),)
    assert config.model == MLP(hidden=(200, 200))
    assert (config.population, config.participants, config.rounds, config.seeds) == (10, 10, 50, [0, 1, 2])
    assert (config.local.epochs, config.local.steps, config.local.batch_size) == (5, None, 32)
    assert (config.data.name, config.data.normalize, config.topology.name) == ("mnist", "half", "star")
    assert (config.executor, config.device, config.out) == ("auto", "auto", Path("runs"))


SHORT = [
    ({"method": "hwa"}, {"method": {"name": "hwa"}}),
    ({"method": ["hwa", "fedavg"]}, {"method": [{"name": "hwa"}, {"name": "fedavg"}]}),
    ({"data": "mnist-sample"}, {"data": {"name": "mnist-sample"}}),
    ({"partition": "shards"}, {"partition": {"name": "shards"}}),
    ({"model": "lenet5"}, {"model": {"name": "lenet5"}}),
    ({"solver": "adam"}, {"solver": {"name": "adam"}}),
    ({"topology": "ring"}, {"topology": {"name": "ring"}}),
    ({"seeds": 3}, {"seeds": [3]}),
    ({}, {"local": {"epochs": 1}, "solver": "sgd", "partition": "iid", "model": "mlp", "method": "fedavg"}),
    ({"local": {"batch_size": 5}}, {"local": {"batch_size": 5, "epochs": 1}}),
    ({"method": {"rule": "hessian_weighted"}}, {"method": {"rule": {"name": "hessian_weighted"}}}),
]


@pytest.mark.parametrize(("short", "spelled_out"), SHORT)
def test_short_forms(short: dict[str, Any], spelled_out: dict[str, Any]):
    assert read_config(short) == read_config(spelled_out)


METHODS = [
    # (entry, labels of its variants)
    ("fedavg", ["fedavg"]),
    ({"name": "fedprox", "mu": 2}, ["fedprox mu=2.0"]),
    ({"name": "fedprox", "mu": 2, "label": "mine"}, ["mine"]),
    ({"name": "fedprox", "mu": [0.01, 1]}, ["fedprox mu=0.01", "fedprox mu=1"]),
    (
        {"name": "fedprox", "mu": [0.01, 1], "weighting": "uniform"},
        ["fedprox weighting=uniform mu=0.01", "fedprox weighting=uniform mu=1"],
    ),
    (COMPOSED, ["proximal+hessian_weighted"]),
    (
        {**COMPOSED, "objective": {"name": "proximal", "mu": [1, 2]}},
        ["proximal+hessian_weighted mu=1", "proximal+hessian_weighted mu=2"],
    ),
    (HWA(layers="all"), ["hwa layers=all"]),
    (FedAvg(), ["fedavg"]),
]


@pytest.mark.parametrize(("entry", "labels"), METHODS)
def test_labels_tell_methods_and_variants_apart(entry: object, labels: list[str]):
    (choice,) = read_config({"method": entry}).method
    assert [" ".join(filter(None, (choice.label, label))) for label in choice.sweep.labels] == labels


def test_a_composed_method_is_its_parts():
    (choice,) = read_config({"method": COMPOSED}).method
    (method,) = choice.sweep.variants
    assert isinstance(method, Composed)
    assert (method.objective, method.rule.name) == (Proximal(mu=0.1), "hessian_weighted")


def test_aliases_say_how_models_start():
    config = read_config({"method": ["dechetero", "dechomo", "fedavg"], "topology": "ring"})
    assert [choice.init for choice in config.method] == ["different", "common", None]
    assert [choice.sweep.variants for choice in config.method] == [(FedAvg(),)] * 3


POPULATIONS = [
    # (values, clients, clients of a round)
    ({}, 10, 10),
    ({"clients": 7}, 7, 7),
    ({"topology": GRAPH}, 12, 12),
    ({"topology": {"name": "ring", "nodes": 3}, "clients": 3}, 3, 3),
    ({"clients": 7, "participation": 3}, 7, 3),
    ({"clients": 7, "participation": 0.5}, 7, 4),
    ({"clients": 7, "participation": 0.01}, 7, 1),
    ({"clients": 7, "participation": 1}, 7, 1),
    ({"clients": 7, "participation": 1.0}, 7, 7),
]


@pytest.mark.parametrize(("values", "clients", "participants"), POPULATIONS)
def test_who_takes_part(values: dict[str, Any], clients: int, participants: int):
    config = read_config(values)
    assert (config.population, config.participants) == (clients, participants)


def test_settings_to_compare():
    base = {
        "rounds": 9,
        "method": "fedavg",
        "seeds": [3],
        "partition": {"name": "dirichlet_class", "alpha": 2},
    }
    changes = [
        {"label": "few", "rounds": 2},
        {"topology": GRAPH, "method": ["dechomo", "dechw"]},
        {"partition": "iid", "clients": 4},
    ]
    config = read_config({**base, "compare": changes})
    settings = dict(config.settings())
    assert list(settings) == ["few", "erdos_renyi", "star"]
    assert [one.rounds for one in settings.values()] == [2, 9, 9]
    assert [one.population for one in settings.values()] == [10, 12, 4]
    assert [one.partition.name for one in settings.values()] == ["dirichlet_class"] * 2 + ["iid"]
    assert [choice.label for choice in settings["erdos_renyi"].method] == ["dechomo", "dechw"]
    assert all(one.seeds == [3] and not one.compare for one in settings.values())


def test_settings_of_the_same_name_are_numbered():
    config = read_config({"compare": [{"rounds": 1}, {"rounds": 2}]})
    assert [label for label, _ in config.settings()] == ["star 1", "star 2"]


def test_without_comparison_there_is_one_setting():
    config = read_config({"topology": "ring"})
    assert config.settings() == [("ring", config)]


def test_objects_can_be_compared_too():
    config = read_config({"method": Composed(objective=Proximal(mu=0.5)), "compare": [{"rounds": 1}]})
    ((_, setting),) = config.settings()
    assert setting.method[0].sweep.variants == (Composed(objective=Proximal(mu=0.5)),)


def test_own_data_stay_with_every_setting():
    blank, rows = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    own = Dataset.from_arrays("mine", blank, rows, blank, rows)
    config = read_config(
        {"data": own, "compare": [{"rounds": 1}, {"data": {"name": "mine", "normalize": "none"}}]}
    )
    assert config.written()["data"].items() >= {"name": "mine", "normalize": "auto"}.items()
    assert [(one.data.own is own, one.data.normalize) for _, one in config.settings()] == [
        (True, "auto"),
        (True, "none"),
    ]


@pytest.mark.parametrize("key", ["name", "out", "targets", "note", "device", "compare"])
def test_what_belongs_to_the_whole_run_is_refused_in_a_setting(key: str):
    with pytest.raises(UserError, match=f"{key} belongs to the whole run"):
        read_config({"compare": [{key: "x"}]}).settings()


@pytest.mark.parametrize("data", [(1, 2), [3], 4])
def test_data_of_another_kind_are_refused_by_kind(data: object):
    with pytest.raises(UserError, match=r"Dataset\.from_arrays"):
        read_config({"data": data})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there():
    assert read_config({}).torch_device == torch.device("cpu")
    with pytest.raises(UserError, match="cuda is not available here; use cpu or auto"):
        _ = read_config({"device": "cuda"}).torch_device
