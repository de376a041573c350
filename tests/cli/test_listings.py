"""Listings of methods, models and data sets, and the inventory of which they are made."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from consilience.algorithms import METHODS
from consilience.cli.inventory import PARTS, make_inventory
from consilience.cli.listings import dataset_table, method_table, model_table, read_inventory
from consilience.data.sets import SOURCES
from consilience.models import MODELS


@pytest.fixture
def entries() -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in read_inventory()["methods"]}


def test_the_inventory_is_current():
    assert read_inventory() == make_inventory(), "make it anew: make listings"


QUIET = """
import sys
from consilience.cli.app import main
sys.argv = ["consilience", *sys.argv[1:]]
try:
    main()
except SystemExit as stopped:
    assert not stopped.code
slow = {"torch", "numpy", "scipy", "matplotlib", "networkx"} & sys.modules.keys()
assert not slow, slow
"""


@pytest.mark.parametrize(
    "words",
    [["methods"], ["methods", "--json"], ["methods", "--markdown"], ["models"], ["--help"]],
    ids=" ".join,
)
def test_a_listing_loads_nothing_slow(words: list[str]):
    done = subprocess.run([sys.executable, "-c", QUIET, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) > 10


def test_every_method_is_listed(entries: dict[str, dict[str, Any]]):
    assert entries.keys() == METHODS.keys()
    for entry in entries.values():
        assert entry["summary"]
        assert entry["paper"]
        assert entry["formula"]
        assert entry["choose"].endswith((".", ")"))
        assert entry["bytes_up"] >= 0 <= entry["bytes_down"]


def test_parameters_with_their_defaults(entries: dict[str, dict[str, Any]]):
    assert entries["fedprox"]["parameters"]["mu"]["default"] == 0.1
    assert entries["hwa"]["parameters"]["layers"]["default"] == "output"
    assert entries["dechw"]["parameters"]["normalize"]["default"] is None
    assert entries["local"]["parameters"] == {}
    assert all(facts["type"] for entry in entries.values() for facts in entry["parameters"].values())


PARAMETERS, OUTPUT_LAYER, FLOAT = 199_210, 2_010, 4


def test_bytes_of_a_round(entries: dict[str, dict[str, Any]]):
    up = {name: entry["bytes_up"] for name, entry in entries.items()}
    down = {name: entry["bytes_down"] for name, entry in entries.items()}
    header = up["fedavg"] - PARAMETERS * FLOAT
    assert 0 < header < 1000
    assert up["local"] == down["local"] == 0
    assert up["fedavg"] == down["fedavg"]
    assert {up[name] for name in ("fedprox", "swa")} == {up["fedavg"]}
    assert {down[name] for name in ("fedprox", "swa", "hwa", "dechw", "dechw*")} == {down["fedavg"]}
    # The curvature of the output layer, or of everything, and some more header.
    assert 0 < up["hwa"] - up["fedavg"] - OUTPUT_LAYER * FLOAT < header
    assert 0 < up["dechw"] - up["fedavg"] - PARAMETERS * FLOAT < header
    assert up["dechw*"] == up["dechw"]
    assert 0 <= up["scaffold"] - 2 * PARAMETERS * FLOAT - header < header
    assert 0 < up["fagh"] - 2 * PARAMETERS * FLOAT < 2 * header


def test_where_methods_run(entries: dict[str, dict[str, Any]]):
    only_graph = {"cfa", "cfa-ge", "decdiff", "decdiff-vt", "desa", "dpsgd", "gradient-tracking"}
    assert {name for name, entry in entries.items() if not entry["star"]} == only_graph
    refused = {name for name, entry in entries.items() if not entry["graph"]}
    assert refused >= {"fedsgd", "fedcurv", "scaffold", "fagh", "fednova", "feddc", "feddyn", "fedexp"}
    assert refused >= {"fedga", "fedlin"}
    assert not refused & {"fedavg", "hwa", "swa", "moon", "pfedme", "fedavgm", "dechw", "local"}


def test_aliases(entries: dict[str, dict[str, Any]]):
    assert entries["fedavg"]["aliases"] == ["dechetero", "dechomo"]
    assert all(not entry["aliases"] for name, entry in entries.items() if name != "fedavg")


def shown(table: Table) -> str:
    console = Console(width=400)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_tables_show_every_name():
    inventory = read_inventory()
    methods = shown(method_table(inventory))
    assert all(f" {name} " in methods or f" {name}," in methods for name in METHODS)
    assert all(kind in methods for kind in PARTS)
    assert all(f" {name} " in methods for parts in PARTS.values() for name in parts)
    assert all(f" {name} " in shown(model_table(inventory)) for name in MODELS)
    datasets = shown(dataset_table())
    assert all(f" {name} " in datasets for name in SOURCES)
    assert "6,000 + 1,000" in datasets
