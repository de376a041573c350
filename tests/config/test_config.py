"""The configuration: one schema, read from files and overrides, written out and read again."""

from __future__ import annotations

import functools
import operator
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedprox import FedProx
from consilience.algorithms.hwa import HWA
from consilience.config import Config, load_config, read_config
from consilience.data.dataset import Dataset
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.solvers import SGD, Adam
from consilience.method import Composed
from consilience.models import MLP
from consilience.objectives.proximal import Proximal

# As published, with its comments.
EXAMPLE = """
name: hwa-mnist
method: {name: hwa, layers: output}
data: {name: mnist, normalize: half}      # none | unit | half ((x-0.5)/0.5) | standard
partition: {name: shards_two_classes}
model: {name: mlp, hidden: [200, 200]}
clients: 10
participation: 1.0
rounds: 50
local: {epochs: 5, batch_size: 32}
solver: {name: sgd, lr: 0.001, momentum: 0.9, weight_decay: 0.001}
topology: star                            # or {name: erdos_renyi, nodes: 50, p: 0.2}
seeds: [0, 1, 2]
executor: auto                            # auto | batched | sequential
device: auto
out: runs/
"""
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"


def load(tmp_path: Path, text: str, *overrides: str) -> Config:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    return load_config(path, overrides)


def reach(value: Any, path: str) -> Any:
    """What stands at a dotted path of nested mappings and lists."""
    steps = [int(step) if step.isdigit() else step for step in path.split(".")]
    return functools.reduce(operator.getitem, steps, value)


def test_the_published_example_is_valid(tmp_path: Path):
    config = load(tmp_path, EXAMPLE)
    (choice,) = config.method
    assert choice.sweep.variants == (HWA(layers="output"),)
    assert config.solver.variants == (SGD(lr=0.001, momentum=0.9, weight_decay=0.001),)
    assert config.model == MLP(hidden=(200, 200))
    assert (config.population, config.participants, config.rounds, config.seeds) == (10, 10, 50, [0, 1, 2])
    assert (config.local.epochs, config.local.steps, config.local.batch_size) == (5, None, 32)
    assert (config.data.name, config.data.normalize, config.topology.name) == ("mnist", "half", "star")
    assert (config.executor, config.device, config.out) == ("auto", "auto", Path("runs"))


OVERRIDES = [
    # (what the file says, overrides, path, value there)
    ("rounds: 9", ["rounds=5"], "rounds", 5),
    (EXAMPLE, ["rounds=5", "solver.lr=0.01"], "solver.lr", 0.01),
    (EXAMPLE, ["rounds=5", "solver.lr=0.01", "method.name=fedavg"], "method.0.name", "fedavg"),
    ("solver: adam", ["solver.lr=1e-2"], "solver.lr", 0.01),
    ("solver: {name: sgd, lr: 1}", ["solver.lr=0.01", "solver.momentum=0.5"], "solver.lr", 0.01),
    ("solver: {name: sgd}", ["solver.lr=[0.1,0.2]"], "solver.lr", [0.1, 0.2]),
    ("method: hwa", ["method.name=fedavg"], "method.0.name", "fedavg"),
    ("method: hwa", ["method.layers=all"], "method.0.layers", "all"),
    ("local: {epochs: 3}", ["local.steps=7"], "local.steps", 7),
    ("local: {steps: 3}", ["local.epochs=7"], "local.steps", None),
    ("method: hwa", ["method.mu=2", "method.name=fedprox"], "method.0.mu", 2.0),
    ("data: {name: mnist, normalize: unit}", ["data.name=mnist-sample"], "data.normalize", "unit"),
    ("rounds: 1", ["method=fedcurv"], "method.0.name", "fedcurv"),
    ("rounds: 1", ["method={name: fedprox, mu: 2}"], "method.0.mu", 2.0),
    ("rounds: 1", ["method=[fedavg, hwa]"], "method.1.name", "hwa"),
    ("method: [{name: fedavg}, hwa]", ["method.0.name=fedprox", "method.0.mu=3"], "method.0.mu", 3.0),
    ("method: [fedavg, hwa]", ["method.1=swa"], "method.1.name", "swa"),
    ("seeds: [7]", ["seeds=[0,1]"], "seeds", [0, 1]),
    ("seeds: [7, 8]", ["seeds.1=9"], "seeds", [7, 9]),
    ("seeds: [7]", ["seeds=3"], "seeds", [3]),
    ("data: mnist-sample", ["data.normalize=unit"], "data.normalize", "unit"),
    ("rounds: 1", ["data.normalize=unit"], "data.name", "mnist-sample"),
    ("local: {epochs: 3}", ["local.epochs=", "local.steps=4"], "local.steps", 4),
    ("clients: 5", ["clients="], "clients", None),
    ("model: mlp", ["model.hidden=[8]"], "model.hidden", [8]),
    ("compare: [{rounds: 1}, {rounds: 2}]", ["compare.1.rounds=7"], "compare.1.rounds", 7),
    ("method: [fedavg, hwa]", ["method.0.name=swa"], "method.0.name", "swa"),
    ("rounds: 1", ["solver.lr=0.5"], "solver.lr", 0.5),
    ("rounds: 1", ["model.hidden=[8]"], "model.hidden", [8]),
    ("rounds: 1", ["partition.holdout=0.2"], "partition.holdout", 0.2),
]


@pytest.mark.parametrize(("text", "overrides", "path", "value"), OVERRIDES)
def test_overrides(text: str, overrides: list[str], path: str, value: object, tmp_path: Path):
    assert reach(load(tmp_path, text, *overrides).written(), path) == value


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


COMPOSED = {"objective": {"name": "proximal", "mu": 0.1}, "rule": "hessian_weighted"}
GRAPH = {"name": "erdos_renyi", "nodes": 12, "p": 0.5}
WRITTEN: dict[str, dict[str, Any]] = {
    "defaults": {},
    "example": yaml.safe_load(EXAMPLE),
    "quickstart": yaml.safe_load(QUICKSTART.read_text()),
    "every method": {"method": ["local", "fedsgd", "fedcurv", "scaffold", "fagh", "swa", "dechw", "dechw*"]},
    "labels": {"method": [{"name": "hwa", "label": "a"}, {"name": "hwa", "layers": "all", "label": "b [c]"}]},
    "aliases": {"method": ["dechetero", "dechomo"], "topology": GRAPH},
    "sweep of the method": {"method": {"name": "fedprox", "mu": [0.01, 1]}},
    "sweep of the solver": {"solver": {"name": "adam", "lr": [0.001, 0.01], "beta1": [0.5, 0.9]}},
    "sweep of both": {
        "method": [{"name": "fedprox", "mu": [0.01, 1]}, "fedavg"],
        "solver": {"name": "sgd", "lr": [1, 2]},
    },
    "sweep of a part": {"method": {"objective": {"name": "proximal", "mu": [0.1, 2.0]}}},
    "sweep of one": {"method": {"name": "fedprox", "mu": [0.3]}},
    "composed": {"method": [COMPOSED, {**COMPOSED, "label": "mine", "server": "relax"}]},
    "options with numbers and names": {"method": [{"name": "fagh", "row_index": "bias0"}, "fagh"]},
    "count": {"clients": 7, "participation": 3},
    "fraction": {"clients": 7, "participation": 0.5},
    "steps": {"local": {"steps": 5}},
    "sizes": {"partition": {"name": "sizes", "fractions": [0.5, 0.25], "server": 0.1}, "clients": 2},
    "compare": {"compare": [{"label": "x", "topology": "ring", "method": "dechomo"}, {"rounds": 3}]},
    "objects": {
        "method": [HWA(layers="all"), FedProx(mu=2.0)],
        "solver": Adam(lr=0.5),
        "model": MLP(hidden=(3, 4)),
        "topology": Ring(),
    },
    "a composed object": {"method": Composed(objective=Proximal(mu=0.5))},
    "everything else": {
        "name": "a.b-c_1",
        "out": "some/where",
        "failure_rate": 0.25,
        "init": "different",
        "lanes": 3,
        "executor": "sequential",
        "device": "cuda:1",
        "dtype": "float64",
        "evaluate": {"every": 3, "clients": False},
        "checkpoint": {"every": 1},
        "targets": [0.5],
    },
}


@pytest.mark.parametrize("values", WRITTEN.values(), ids=WRITTEN.keys())
def test_what_is_written_reads_as_the_same_configuration(values: dict[str, Any]):
    config = read_config(values)
    again = read_config(yaml.safe_load(yaml.safe_dump(config.written(), sort_keys=False)))
    assert again == config
    assert again.written() == config.written()


def test_every_default_is_written():
    assert read_config({}).written().keys() == Config.model_fields.keys()


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
    assert config.written()["data"] == {"name": "mine", "normalize": "half"}
    assert [(one.data.own is own, one.data.normalize) for _, one in config.settings()] == [
        (True, "half"),
        (True, "none"),
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there():
    assert read_config({}).torch_device == torch.device("cpu")
    with pytest.raises(UserError, match="cuda is not available here; use cpu or auto"):
        _ = read_config({"device": "cuda"}).torch_device


# JSON Schema, as much of it as ours uses.
ANNOTATIONS = {"title", "description", "default", "format", "$defs"}
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list, tuple),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
LIMITS = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}


def is_of_type(value: object, name: str) -> bool:
    return name == "boolean" if isinstance(value, bool) else isinstance(value, TYPES[name])


def accepts(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """Whether a value is valid; a keyword that JSON Schema does not have is an error."""

    def holds(word: str, rule: Any) -> bool:
        if word in ANNOTATIONS:
            return True
        if word == "$ref":
            return accepts(reach(root, rule.removeprefix("#/").replace("/", ".")), value, root)
        if word == "anyOf":
            return any(accepts(one, value, root) for one in rule)
        if word == "enum":
            return value in rule
        if word == "const":
            return value == rule
        if word == "type":
            return is_of_type(value, rule)
        if word == "pattern":
            return not isinstance(value, str) or re.search(rule, value) is not None
        if word in LIMITS:
            return not isinstance(value, int | float) or LIMITS[word](value, rule)
        if word == "minItems":
            return not isinstance(value, list) or len(value) >= rule
        if word == "maxItems":
            return not isinstance(value, list) or len(value) <= rule
        if word == "items":
            return not isinstance(value, list) or all(accepts(rule, one, root) for one in value)
        if word == "prefixItems":
            return not isinstance(value, list) or all(
                accepts(one, inner, root) for one, inner in zip(rule, value, strict=False)
            )
        if word == "required":
            return not isinstance(value, dict) or all(key in value for key in rule)
        if word == "properties":
            return not isinstance(value, dict) or all(
                accepts(rule[key], inner, root) for key, inner in value.items() if key in rule
            )
        if word == "additionalProperties":
            known = schema.get("properties", {})
            extra = [key for key in value if key not in known] if isinstance(value, dict) else []
            return not extra or rule is True
        raise AssertionError(f"JSON Schema has no {word!r}")

    verdicts = [holds(word, rule) for word, rule in schema.items()]  # all of them, to find unknown words
    return all(verdicts)


VALID: dict[str, Any] = {
    "an alias with options": {"method": {"name": "dechetero", "weighting": "uniform"}, "topology": "ring"},
    "data by name": {"data": "mnist-sample"},
    "one seed": {"seeds": 3},
    "a note": {"note": "What there is to see."},
    "a sweep of what may be none": {"method": {"name": "fedcurv", "stiffness": [0.5, 1.0]}},
}
INVALID: dict[str, Any] = {
    "a key": {"roundz": 3},
    "a key of a section": {"local": {"epoch": 3}},
    "a method": {"method": "fedavgg"},
    "a method in a list": {"method": ["fedavg", {"name": "fedavgg"}]},
    "an option": {"method": {"name": "hwa", "layer": "all"}},
    "a choice": {"method": {"name": "hwa", "layers": "first"}},
    "a part": {"method": {"objective": "proxima"}},
    "a type": {"rounds": "many"},
    "a truth": {"rounds": True},
    "a limit": {"rounds": 0},
    "a list": {"seeds": []},
    "a text": {"note": 3},
    "a model": {"model": {"hidden": [8]}},
}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return Config.model_json_schema()


FROM_PYTHON = ("objects", "a composed object")
FILES = {name: values for name, values in WRITTEN.items() if name not in FROM_PYTHON}


@pytest.mark.parametrize("values", [*FILES.values(), *VALID.values()], ids=[*FILES, *VALID])
def test_the_schema_accepts_what_is_read(values: dict[str, Any], schema: dict[str, Any]):
    read_config(values)
    assert accepts(schema, values, schema)


@pytest.mark.parametrize("values", WRITTEN.values(), ids=WRITTEN.keys())
def test_the_schema_accepts_what_is_written(values: dict[str, Any], schema: dict[str, Any]):
    assert accepts(schema, read_config(values).written(), schema)


@pytest.mark.parametrize("values", INVALID.values(), ids=INVALID.keys())
def test_the_schema_refuses_what_is_refused(values: dict[str, Any], schema: dict[str, Any]):
    with pytest.raises(UserError):
        read_config(values)
    assert not accepts(schema, values, schema)


def test_every_key_is_described_by_the_schema(schema: dict[str, Any]):
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert schema["properties"].keys() == Config.model_fields.keys()
    assert "own" not in schema["$defs"]["DataSection"]["properties"]


def test_an_override_that_every_setting_hides_is_refused(tmp_path: Path):
    text = "compare: [{method: hwa}, {method: swa, rounds: 2}]"
    with pytest.raises(UserError, match="has no effect: every item of compare sets method"):
        load(tmp_path, text, "method.name=fedsgd")
    assert load(tmp_path, text, "rounds=7").rounds == 7


@pytest.mark.parametrize("key", ["name", "out", "targets", "note", "device", "compare"])
def test_what_belongs_to_the_whole_run_is_refused_in_a_setting(key: str):
    with pytest.raises(UserError, match=f"{key} belongs to the whole run"):
        read_config({"compare": [{key: "x"}]}).settings()


@pytest.mark.parametrize("data", [(1, 2), [3], 4])
def test_data_of_another_kind_are_refused_by_kind(data: object):
    with pytest.raises(UserError, match=r"Dataset\.from_arrays"):
        read_config({"data": data})
