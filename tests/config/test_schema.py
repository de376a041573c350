"""What is written reads as the same configuration, and the JSON schema accepts what can be read."""

from __future__ import annotations

import functools
import json
import operator
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from consilience.algorithms.fedprox import FedProx
from consilience.algorithms.hwa import HWA
from consilience.config import Config, read_config
from consilience.config.schema import LONG, config_schema, shared
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.learning.solvers import Adam
from consilience.method import Composed
from consilience.models import MLP
from consilience.objectives.proximal import Proximal

EXAMPLE = Path(__file__).with_name("published.yaml")
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
COMPOSED = {"objective": {"name": "proximal", "mu": 0.1}, "rule": "hessian_weighted"}
GRAPH = {"name": "erdos_renyi", "nodes": 12, "p": 0.5}
WRITTEN: dict[str, dict[str, Any]] = {
    "defaults": {},
    "example": yaml.safe_load(EXAMPLE.read_text()),
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
    "sweeps of settings": {
        "clients": [4, 8],
        "participation": [0.5, 1.0],
        "partition": {"name": "dirichlet_class", "alpha": [0.1, 1], "min_size": [1, 2]},
        "local": {"epochs": [1, 2], "batch_size": [8, 16], "clip": [1, 2]},
        "l2": [0, 0.1],
    },
    "sweeps compared": {
        "local": {"steps": [1, 2]},
        "compare": [{"clients": [2, 3]}, {"topology": {"name": "ring", "nodes": [5, 6]}}],
    },
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
        "l2": 0.5,
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
    settings, read = ([(label, one.own_values()) for label, one in c.settings()] for c in (config, again))
    assert settings == read
    assert again.written() == config.written()


def test_every_default_is_written():
    assert read_config({}).written().keys() == Config.model_fields.keys() - {"numbers"}


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
            return accepts(
                functools.reduce(operator.getitem, rule.removeprefix("#/").split("/"), root), value, root
            )
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
    "numbers of the default solver": {"solver": {"lr": 0.05, "momentum": [0.5, 0.9]}},
    "a note": {"note": "What there is to see."},
    "a sweep of what may be none": {"method": {"name": "fedcurv", "stiffness": [0.5, 1.0]}},
}
INVALID: dict[str, Any] = {
    "a key": {"roundz": 3},
    "a key of a section": {"local": {"epoch": 3}},
    "a method": {"method": "fedavgg"},
    "a method in a list": {"method": ["fedavg", {"name": "fedavgg"}]},
    "an option": {"method": {"name": "hwa", "layer": "all"}},
    "an option of the default solver": {"solver": {"beta1": 0.5}},
    "a choice": {"method": {"name": "hwa", "layers": "first"}},
    "a part": {"method": {"objective": "proxima"}},
    "a type": {"rounds": "many"},
    "a truth": {"rounds": True},
    "a limit": {"rounds": 0},
    "a list": {"seeds": []},
    "a text": {"note": 3},
    "a model": {"model": {"hidden": [8]}},
}
FROM_PYTHON = ("objects", "a composed object")
FILES = {name: values for name, values in WRITTEN.items() if name not in FROM_PYTHON}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return config_schema()


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
    assert schema["properties"].keys() == Config.model_fields.keys() - {"numbers"}
    assert "own" not in schema["$defs"]["DataSection"]["properties"]


def test_the_schema_says_nothing_at_length_twice(schema: dict[str, Any]):
    assert len(json.dumps(schema)) < len(json.dumps(Config.model_json_schema())) / 3
    assert shared(schema) == schema


def test_a_schema_means_the_same_when_its_parts_are_shared():
    tea = {"type": "object", "properties": {"sort": {"enum": ["green", "black"], "description": "x" * LONG}}}
    menu = {"properties": {"first": tea, "second": {"type": "array", "items": tea}}, "$defs": {}}
    cut = shared(menu)
    assert cut["properties"] == {
        "first": {"$ref": "#/$defs/first-1"},
        "second": {"type": "array", "items": {"$ref": "#/$defs/first-1"}},
    }
    assert cut["$defs"] == {"first-1": tea}
