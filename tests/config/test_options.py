"""Named parts: read, checked, swept, written and described, for all kinds alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from consilience.algorithms import METHODS
from consilience.config.entries import read_method
from consilience.config.options import admits, grid, part_schema, read_part, read_sweep, write_part
from consilience.data.partitioners import PARTITIONERS
from consilience.errors import UserError
from consilience.graphs import TOPOLOGIES
from consilience.learning.solvers import SOLVERS
from consilience.models import MODELS
from consilience.objectives import OBJECTIVES
from consilience.plugins import registry
from consilience.rules import RULES
from consilience.server_steps import SERVER_STEPS

REGISTRIES: dict[str, Mapping[str, type[Any]]] = {
    "method": METHODS,
    "objective": OBJECTIVES,
    "rule": RULES,
    "server": SERVER_STEPS,
    "solver": SOLVERS,
    "topology": TOPOLOGIES,
    "model": MODELS,
    "partition": PARTITIONERS,
}
EVERY_PART = [(kind, name) for kind, registry in REGISTRIES.items() for name in registry]


@dataclass(frozen=True)
class Tea:
    """Leaves in hot water."""

    name: ClassVar[str] = "tea"
    minutes: float = 3.0
    sugar: float | None = None
    cups: int = 1
    milk: bool = False
    sort: Literal["green", "black"] = "green"
    infusions: tuple[float, ...] = (3.0,)

    def __post_init__(self) -> None:
        if self.minutes < 0:
            raise UserError(f"tea: minutes must be at least 0, not {self.minutes}")


DRINKS = registry({"Tea": Tea}, Tea, "drink")


@pytest.mark.parametrize(("kind", "name"), EVERY_PART)
def test_every_part_reads_as_it_is_written(kind: str, name: str):
    registry = REGISTRIES[kind]
    part = read_part(kind, registry, name)
    assert type(part) is registry[name]
    written = write_part(part)
    assert written["name"] == name
    assert read_part(kind, registry, written) == part


@pytest.mark.parametrize(("kind", "name"), EVERY_PART)
def test_every_part_says_what_it_is(kind: str, name: str):
    variants = part_schema(REGISTRIES[kind])["anyOf"]
    assert isinstance(variants, list)
    (schema,) = [one for one in variants if one.get("title") == name]
    assert schema["description"] == (REGISTRIES[kind][name].__doc__ or "").splitlines()[0]
    assert schema["properties"].keys() == write_part(read_part(kind, REGISTRIES[kind], name)).keys()


READ = [
    ("tea", Tea()),
    ({"name": "tea"}, Tea()),
    ({"name": "tea", "minutes": 4}, Tea(minutes=4.0)),
    ({"name": "tea", "minutes": "4e-1"}, Tea(minutes=0.4)),  # YAML reads 4e-1 as text
    ({"name": "tea", "infusions": [1, 2]}, Tea(infusions=(1.0, 2.0))),
    ({"name": "tea", "sugar": None, "sort": "black"}, Tea(sort="black")),
]


@pytest.mark.parametrize(("value", "part"), READ)
def test_reading(value: object, part: Tea):
    assert read_part("drink", DRINKS, value) == part


REFUSED = [
    ("te", "unknown drink 'te'; did you mean 'tea'?"),
    (3, "drink: expected a name or {name: ..., option: ...}, not 3"),
    (["tea"], "drink: expected a name"),
    ({"minutes": 3}, "drink: a name is missing"),
    ({"name": 3}, "drink: a name is missing"),
    ({"name": "tea", "minute": 3}, "unknown option of drink tea 'minute'; did you mean 'minutes'?"),
    ({"name": "tea", "minutes": "long"}, "drink tea: minutes: Input should be a valid number"),
    ({"name": "tea", "minutes": [1, 2]}, "drink tea: minutes: Input should be a valid number, not [1, 2]"),
    ({"name": "tea", "minutes": -1}, "tea: minutes must be at least 0, not -1.0"),
    ({"name": "tea", "cups": 1.5}, "drink tea: cups: Input should be a valid integer"),
    ({"name": "tea", "milk": "some"}, "drink tea: milk: Input should be a valid boolean"),
    ({"name": "tea", "sort": "red"}, "drink tea: sort: Input should be 'green' or 'black', not 'red'"),
    ({"name": "tea", "infusions": [1, "x"]}, "drink tea: infusions.1: Input should be a valid number"),
    ({"name": "tea", "minutes": True}, "drink tea: minutes: "),
    ({"name": "tea", "cups": True}, "drink tea: cups: "),
]


@pytest.mark.parametrize(("value", "line"), REFUSED)
def test_refusals_are_one_line(value: object, line: str):
    for read in (read_part, read_sweep):
        if read is read_sweep and "[1, 2]" in line:
            continue
        with pytest.raises(UserError) as refused:
            read("drink", DRINKS, value)
        assert str(refused.value).startswith(line)
        assert "\n" not in str(refused.value)


SWEEPS = [
    # (options, variants, labels)
    ({}, [Tea()], [""]),
    ({"minutes": [1, 2.5]}, [Tea(1.0), Tea(2.5)], ["minutes=1", "minutes=2.5"]),
    ({"minutes": ["1e-1", "2e-1"]}, [Tea(0.1), Tea(0.2)], ["minutes=0.1", "minutes=0.2"]),
    ({"sugar": [1, 2]}, [Tea(sugar=1.0), Tea(sugar=2.0)], ["sugar=1", "sugar=2"]),
    ({"infusions": [1, 2]}, [Tea(infusions=(1.0, 2.0))], [""]),
    (
        {"minutes": [1, 2], "cups": 4, "sugar": [5, 6]},
        [Tea(m, s, 4) for m in (1.0, 2.0) for s in (5.0, 6.0)],
        ["minutes=1 sugar=5", "minutes=1 sugar=6", "minutes=2 sugar=5", "minutes=2 sugar=6"],
    ),
]


@pytest.mark.parametrize(("options", "variants", "labels"), SWEEPS)
def test_a_list_where_a_number_is_expected(options: dict[str, Any], variants: list[Tea], labels: list[str]):
    sweep = read_sweep("drink", DRINKS, {"name": "tea", **options})
    assert list(sweep.variants) == variants
    assert list(sweep.labels) == labels
    assert read_sweep("drink", DRINKS, sweep.written) == sweep


@pytest.mark.parametrize(
    ("minutes", "line"),
    [
        ([], "minutes: the list of values is empty"),
        ([1, -2], "tea: minutes must be at least 0, not -2.0"),
        ([1, "x"], "minutes: .*'x'"),
        ([1, True], "minutes: .*True"),
        ([1, None], "minutes: .*None"),
        ([1, 1], "minutes"),
        ([1, 1.0], "minutes"),
    ],
)
def test_sweeps_that_are_refused(minutes: list[object], line: str):
    with pytest.raises(UserError, match=line):
        read_sweep("drink", DRINKS, {"name": "tea", "minutes": minutes})


def test_a_sweep_of_one_is_no_sweep():
    assert read_sweep("drink", DRINKS, {"name": "tea", "minutes": [5]}) == read_sweep(
        "drink", DRINKS, {"name": "tea", "minutes": 5}
    )


def test_only_lists_for_numbers_make_a_grid():
    kinds = {"a": float, "b": float | None, "c": tuple[float, ...], "d": int}
    options = {"a": [1, 2], "b": [3], "c": [4, 5], "d": [6, 7]}
    assert list(grid(options, kinds)) == [
        ({"a": 1, "b": 3, "c": [4, 5], "d": [6, 7]}, {"a": 1}),
        ({"a": 2, "b": 3, "c": [4, 5], "d": [6, 7]}, {"a": 2}),
    ]


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        (float, True),
        (float | None, True),
        (int | float, True),
        (int, False),
        (tuple[float, ...], False),
        (str, False),
    ],
)
def test_what_can_be_swept(kind: object, verdict: bool):
    assert admits(kind, float) is verdict


METHODS_REFUSED = [
    ("fedavgg", "unknown method 'fedavgg'; did you mean 'fedavg'?"),
    ("dechettero", "unknown method 'dechettero'; did you mean 'dechetero'?"),
    ({"mu": 1}, "method: a name is missing; known: "),
    (None, "method: a name is missing"),
    ({"name": "fedavg", "label": 3}, "method: label must be text, not 3"),
    ({"name": "fedavg", "objective": "plain"}, "unknown option of method fedavg 'objective'"),
    ({"objective": "plain", "rul": "x"}, "unknown part of a composed method 'rul'; did you mean 'rule'?"),
    ({"objective": "plane"}, "unknown objective 'plane'; did you mean 'plain'?"),
    (
        {"rule": {"name": "hessian_weighted", "layer": "all"}},
        "unknown option of rule hessian_weighted 'layer'",
    ),
    ({"name": "fedprox", "mu": -1}, "proximal: mu must be at least 0, not -1"),
]


@pytest.mark.parametrize(("value", "line"), METHODS_REFUSED)
def test_methods_that_are_refused(value: object, line: str):
    with pytest.raises(UserError) as refused:
        read_method(value)
    assert str(refused.value).startswith(line)
