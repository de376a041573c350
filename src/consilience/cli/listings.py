"""Listings of what there is: methods, models, data sets.

All but that of data sets, which looks at this machine, are made from the inventory alone, without torch: a
listing is there at once.
"""

from __future__ import annotations

import json
import sys
from importlib import resources
from typing import Any, cast

from rich.table import Table

from consilience.plugins import announced
from consilience.report.units import human_bytes

INVENTORY = "inventory.json"
"""The inventory's file, beside this module."""

PAGE_HEAD = """# Methods

Made by `make listings`. Bytes are those of one client and round for the 200-200 MLP of 199,210 parameters, or
for logistic regression with 7,850 where a method is for linear models alone.

- A method is chosen by its name: `method: {name: hwa, layers: all}`.
- Other combinations of the parts at the end of this page are chosen by theirs:
  `method: {objective: {name: proximal, mu: 0.1}, rule: hessian_weighted, server: momentum}`. From Python,
  `cs.Composed(objective=..., rule=..., server=...)`.
- Messages can be changed: `method: {name: hwa, transforms: [{name: noised, sigma: 0.01}]}`. From Python,
  `cs.Noised(0.01)(cs.HWA())`.
- One method can follow another: `method: {name: hwa, then: {method: fedavg, after: 20}}`, after so many
  rounds from the start of the run. From Python, `cs.Until(cs.HWA(), 20, cs.FedAvg())`.
"""


def read_inventory() -> dict[str, Any]:
    """The inventory that comes with the package: families, methods, parts by kind, models."""
    text = (resources.files("consilience.cli") / INVENTORY).read_text(encoding="utf-8")
    return cast(dict[str, Any], json.loads(text))


def with_plugins(inventory: dict[str, Any]) -> dict[str, Any]:
    """The inventory and what plugins add to it; those that cannot be used are told on standard error."""
    if not announced():
        return inventory
    from consilience.cli.inventory import plugin_inventory  # which brings torch

    entries, faults = plugin_inventory()
    for fault in faults:
        print(f"consilience: {fault}", file=sys.stderr)
    more: dict[str, list[Any]] = {"plugins": entries}
    for key, kind in (("methods", "method"), ("models", "model")):
        more[key] = [*inventory[key], *(entry for entry in entries if entry["kind"] == kind)]
    return {**inventory, **more}


def method_table(inventory: dict[str, Any]) -> Table:
    """The methods by family, then the parts of which others can be composed, one line each."""
    table = Table(
        title="Methods (bytes per client and round for the 200-200 MLP of 199,210 parameters; "
        "*: for logistic regression with 7,850, for linear models alone)"
    )
    table.add_column("name")
    table.add_column("what it does", overflow="fold")
    table.add_column("up", justify="right")
    table.add_column("down", justify="right")
    table.add_column("runs on")
    for family in inventory["families"]:
        table.add_section()
        table.add_row("", f"[bold]{family}[/bold]")
        for entry in _of_family(inventory, family):
            names = ", ".join([entry["name"], *entry["aliases"]])
            places = " ".join(place for place in ("star", "graph") if entry[place])
            up, down = human_bytes(entry["bytes_up"]), human_bytes(entry["bytes_down"])
            mark = "*" if entry["linear"] else ""
            summary = entry["summary"] + (f" ({entry['package']})" if "package" in entry else "")
            table.add_row(names, summary, up + mark, down + mark, places)
    for kind, parts in inventory["parts"].items():
        table.add_section()
        table.add_row("", f"[bold]{kind}[/bold]")
        for part in parts:
            table.add_row(part["name"], part["summary"])
    for kind, entries in _others(inventory).items():
        table.add_section()
        table.add_row("", f"[bold]plugins: {kind}[/bold]")
        for entry in entries:
            table.add_row(entry["name"], f"{entry['summary']} ({entry['package']})")
    return table


def _others(inventory: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What plugins add besides methods, by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in inventory.get("plugins", []):
        if entry["kind"] != "method":
            found.setdefault(entry["kind"], []).append(entry)
    return found


def methods_page(inventory: dict[str, Any]) -> str:
    """docs/methods.md: of every method the paper, the formula, what it sends, and when to choose it."""
    lines = [PAGE_HEAD]
    for family in inventory["families"]:
        lines += [f"## {family.capitalize()}", ""]
        for entry in _of_family(inventory, family):
            lines += _method_section(entry)
    for kind, parts in inventory["parts"].items():
        lines += [f"## {kind.capitalize()}", "", "| name | what it does | options |", "|---|---|---|"]
        lines += [f"| `{part['name']}` | {_cell(part['summary'])} | {_options(part)} |" for part in parts]
        lines += [""]
    return "\n".join(lines)


def model_table(inventory: dict[str, Any]) -> Table:
    """The models as a table."""
    table = Table(title="Models")
    for column in ("name", "what it is", "options"):
        table.add_column(column)
    for model in inventory["models"]:
        options = ", ".join(f"{name}={facts['default']}" for name, facts in model["parameters"].items())
        table.add_row(model["name"], model["summary"], options)
    return table


def dataset_table() -> Table:
    """The data sets as a table."""
    from consilience.data import describe  # which brings torch

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


def _of_family(inventory: dict[str, Any], family: str) -> list[dict[str, Any]]:
    return [entry for entry in inventory["methods"] if entry["family"] == family]


def _method_section(entry: dict[str, Any]) -> list[str]:
    names = ", ".join(f"`{name}`" for name in [entry["name"], *entry["aliases"]])
    up, down = human_bytes(entry["bytes_up"]), human_bytes(entry["bytes_down"])
    groups = ", ".join(entry["sends"]) or "nothing"
    places = " and ".join(place for place in ("star", "graph") if entry[place])
    places += ", with linear models" if entry["linear"] else ""
    return [
        f"### {names}",
        "",
        entry["summary"],
        "",
        f"- Paper: {entry['paper']}",
        f"- Formula: `{entry['formula']}`",
        f"- Sends: {groups} ({up} up, {down} down)",
        f"- Parameters: {_options(entry) or 'none'}",
        f"- Runs on: {places}",
        f"- Choose it: {entry['choose']}",
        "",
    ]


def _options(entry: dict[str, Any]) -> str:
    return ", ".join(f"`{name}` = {_shown(facts['default'])}" for name, facts in entry["parameters"].items())


def _shown(default: object) -> str:
    return "none" if default is None else str(default)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
