"""Listings of what there is: methods, models, data sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast, get_args

import torch
from rich.table import Table

from consilience.algorithm import Algorithm, Conditions, Family
from consilience.algorithms import ALIASES, METHODS
from consilience.data import Dataset, describe
from consilience.data.partition import Partition
from consilience.engine.build import simulate
from consilience.engine.scene import Scene
from consilience.exchange.cohort import LocalWork
from consilience.graphs.complete import Complete
from consilience.graphs.star import Star
from consilience.learning.solvers import SGD
from consilience.models import MODELS
from consilience.models.mlp import MLP
from consilience.objectives import OBJECTIVES
from consilience.report.table import human_bytes
from consilience.rules import RULES
from consilience.server_steps import SERVER_STEPS
from consilience.transforms import TRANSFORMS
from consilience.wire import HEADER

REFERENCE = MLP()
"""The model for which a listing gives the bytes of a round."""

PARTS: dict[str, Mapping[str, type]] = {
    "objectives: how a client trains": OBJECTIVES,
    "rules: how a hub weighs what it hears": RULES,
    "server steps: what a hub does with the result": SERVER_STEPS,
    "transforms: what happens to messages": TRANSFORMS,
}
"""Of which other methods can be composed."""

PAGE_HEAD = """# Methods

Made by `consilience methods --markdown > docs/methods.md`. Bytes are those of one client and round for the
200-200 MLP of 199,210 parameters.

- A method is chosen by its name: `method: {name: hwa, layers: all}`.
- Other combinations of the parts at the end of this page are chosen by theirs:
  `method: {objective: {name: proximal, mu: 0.1}, rule: hessian_weighted, server: momentum}`. From Python,
  `cs.Composed(objective=..., rule=..., server=...)`.
- Messages can be changed: `method: {name: hwa, transforms: [{name: noised, sigma: 0.01}]}`. From Python,
  `cs.Noised(0.01)(cs.HWA())`.
- One method can follow another: `method: {name: hwa, then: {method: fedavg, after: 20}}`, after so many
  rounds from the start of the run. From Python, `cs.Until(cs.HWA(), 20, cs.FedAvg())`.
"""


def list_methods() -> list[dict[str, Any]]:
    """Every method: name, paper, parameters with defaults, bytes of a round, where it runs."""
    return [_describe(name, cls) for name, cls in METHODS.items()]


def _describe(name: str, cls: type[Algorithm]) -> dict[str, Any]:
    up, down = bytes_of_a_round(cls())
    return {
        "name": name,
        "aliases": [alias for alias, target in ALIASES.items() if target.method == name],
        "family": cls.family,
        "summary": _summary(cls),
        "paper": cls.paper,
        "formula": cls.formula,
        "choose": cls.choose,
        "parameters": _parameters(cls),
        "sends": [group for group in up if group != HEADER],
        "bytes_up": sum(up.values()),
        "bytes_down": sum(down.values()),
        "star": cls().refuse(_conditions(graph=False)) is None,
        "graph": cls().refuse(_conditions(graph=True)) is None,
    }


def _summary(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0]


def _parameters(cls: type) -> dict[str, dict[str, Any]]:
    return {
        field.name: {
            "default": None if field.default is dataclasses.MISSING else field.default,
            "type": str(field.type),
        }
        for field in dataclasses.fields(cast(Any, cls))
    }


def _conditions(*, graph: bool) -> Conditions:
    return Conditions(graph, SGD(), epochs=1, holdout=True, unreliable=False)


def bytes_of_a_round(algorithm: Algorithm) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes that a client sends and receives in a round, by group, counted in one of the reference model.

    Where a method needs a graph, they are those of a node for each neighbour.
    """
    blank = torch.zeros(4, 1, 28, 28, dtype=torch.uint8)
    targets = torch.tensor([0, 1, 2, 3])
    dataset = Dataset("blank", blank, targets, blank, targets, outputs=10)
    rows = targets.numpy()
    scene = Scene(
        dataset=dataset,
        build=lambda: REFERENCE.build((1, 28, 28), 10),
        partitions={0: Partition((rows[:1], rows[1:2]), (rows[2:3], rows[3:]), {}, 0)},
        topology=Complete() if algorithm.refuse(_conditions(graph=False)) else Star(),
        work=LocalWork(1, None, 1),
        participation=2,
        executor="sequential",  # two steps are not worth a program
    )
    simulation = simulate(scene, [(algorithm.quick(), SGD())])
    simulation.step(evaluate=False)  # the first round may hold an exchange that happens once
    record = simulation.step(evaluate=False)[0]
    half = [{group: size // 2 for group, size in way.items()} for way in (record.bytes_up, record.bytes_down)]
    return half[0], half[1]


def method_table(entries: list[dict[str, Any]]) -> Table:
    """The methods by family, then the parts of which others can be composed, one line each."""
    table = Table(title="Methods (bytes per client and round for the 200-200 MLP of 199,210 parameters)")
    table.add_column("name")
    table.add_column("what it does", overflow="fold")
    table.add_column("up", justify="right")
    table.add_column("down", justify="right")
    table.add_column("runs on")
    for family in get_args(Family):
        table.add_section()
        table.add_row("", f"[bold]{family}[/bold]")
        for entry in (entry for entry in entries if entry["family"] == family):
            names = ", ".join([entry["name"], *entry["aliases"]])
            places = " ".join(place for place in ("star", "graph") if entry[place])
            up, down = human_bytes(entry["bytes_up"]), human_bytes(entry["bytes_down"])
            table.add_row(names, entry["summary"], up, down, places)
    for heading, parts in PARTS.items():
        table.add_section()
        table.add_row("", f"[bold]{heading}[/bold]")
        for name, cls in parts.items():
            table.add_row(name, _summary(cls))
    return table


def methods_page() -> str:
    """docs/methods.md: of every method the paper, the formula, what it sends, and when to choose it."""
    entries = list_methods()
    lines = [PAGE_HEAD]
    for family in get_args(Family):
        lines += [f"## {family.capitalize()}", ""]
        for entry in (entry for entry in entries if entry["family"] == family):
            lines += _method_section(entry)
    for heading, parts in PARTS.items():
        lines += [f"## {heading.capitalize()}", "", "| name | what it does | options |", "|---|---|---|"]
        lines += [f"| `{name}` | {_cell(_summary(cls))} | {_options(cls)} |" for name, cls in parts.items()]
        lines += [""]
    return "\n".join(lines)


def _method_section(entry: dict[str, Any]) -> list[str]:
    names = ", ".join(f"`{name}`" for name in [entry["name"], *entry["aliases"]])
    options = [f"`{name}` = {_shown(facts['default'])}" for name, facts in entry["parameters"].items()]
    up, down = human_bytes(entry["bytes_up"]), human_bytes(entry["bytes_down"])
    groups = ", ".join(entry["sends"]) or "nothing"
    places = " and ".join(place for place in ("star", "graph") if entry[place])
    return [
        f"### {names}",
        "",
        entry["summary"],
        "",
        f"- Paper: {entry['paper']}",
        f"- Formula: `{entry['formula']}`",
        f"- Sends: {groups} ({up} up, {down} down)",
        f"- Parameters: {', '.join(options) or 'none'}",
        f"- Runs on: {places}",
        f"- Choose it: {entry['choose']}",
        "",
    ]


def _options(cls: type) -> str:
    return ", ".join(f"`{name}` = {_shown(facts['default'])}" for name, facts in _parameters(cls).items())


def _shown(default: object) -> str:
    return "none" if default is None else str(default)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def model_table() -> Table:
    """The models as a table."""
    table = Table(title="Models")
    for column in ("name", "what it is", "options"):
        table.add_column(column)
    for name, cls in MODELS.items():
        options = ", ".join(f"{field.name}={field.default}" for field in dataclasses.fields(cast(Any, cls)))
        table.add_row(name, (cls.__doc__ or "").strip().splitlines()[0], options)
    return table


def dataset_table() -> Table:
    """The data sets as a table."""
    table = Table(title="Data sets (get one with `consilience data get NAME`)")
    for column in ("name", "what it is", "classes", "shape", "train + test", "origin", "here"):
        table.add_column(column)
    for listing in describe():
        source = listing.source
        table.add_row(
            source.name,
            source.description,
            str(source.classes),
            "x".join(map(str, source.shape)),
            f"{source.training_rows:,} + {source.test_rows:,}" if source.training_rows else "varies",
            source.licence,
            "yes" if listing.present else "no",
        )
    return table
