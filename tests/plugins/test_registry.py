"""Parts of others are found where they are, or as they are announced; a bad one is one line that names it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from consilience import plugins
from consilience.cli import inventory
from consilience.config import read_config
from consilience.errors import UserError
from consilience.learning.solvers import SGD, SOLVERS
from consilience.plugins import GROUP, is_reference, load, name_of
from consilience.rules import RULES, ByData

MODULE = '''
from dataclasses import dataclass
from consilience.rules import ByData, Rule
from consilience.learning.solvers import Solver

@dataclass(frozen=True)
class Mine(ByData):
    """Mine."""
    name = "mine"
    strength: float = 1.0

@dataclass(frozen=True)
class Median(ByData):
    name = "median"

class Thawed(Rule):
    def merge(self, old, inbox):
        return old
    name = "thawed"

@dataclass(frozen=True)
class Half(Solver):
    name = "half"

class Nameless(ByData):
    name = ""

class Outer:
    Inner = Mine

def function():
    pass
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of somebody else's, in the working directory."""
    (tmp_path / "elsewhere.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "leaving.py").write_text("import sys; sys.exit(3)\n")
    (tmp_path / "lacking.py").write_text("import not_installed_anywhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    yield "elsewhere"
    for name in ("elsewhere", "broken", "leaving", "lacking"):
        sys.modules.pop(name, None)


@pytest.fixture
def announce(module: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Announces plugins as installed packages do."""

    def install(**values: str) -> None:
        found = [EntryPoint(name.replace("_", "-"), value, GROUP) for name, value in values.items()]
        monkeypatch.setattr(
            plugins, "announced", lambda name=None: [one for one in found if name in (None, one.name)]
        )
        monkeypatch.setattr(inventory, "announced", plugins.announced)

    return install


def test_a_part_is_found_where_it_is(module: str):
    mine = RULES["elsewhere:Mine"]
    assert mine.name == "mine"
    assert RULES["elsewhere:Outer.Inner"] is mine
    assert "mine" not in RULES


def test_a_part_that_is_announced_is_found_by_its_name(announce: Callable[..., None]):
    announce(mine="elsewhere:Mine")
    assert RULES["mine"] is RULES["elsewhere:Mine"]
    assert list(RULES) == [*RULES.builtin, "mine"]
    assert list(SOLVERS) == list(SOLVERS.builtin)
    assert SOLVERS["sgd"] is SGD


def test_what_is_written_is_found_again(announce: Callable[..., None]):
    entry = {"rule": {"name": "elsewhere:Mine", "strength": [1, 2]}}
    config = read_config({"method": entry})
    assert [choice.label for choice in config.method] == ["mine"]
    written = config.written()["method"][0]["rule"]
    assert (written["name"], written["strength"]) == ("elsewhere:Mine", [1, 2])
    assert read_config(config.written()) == config
    announce(mine="elsewhere:Mine")
    again = read_config({"method": entry}).written()["method"][0]["rule"]
    assert again["name"] == "mine"


def test_an_object_is_written_as_it_can_be_found(module: str):
    mine = RULES["elsewhere:Mine"]()
    assert name_of(mine) == "elsewhere:Mine"
    assert name_of(ByData()) == "by_data"

    class Local(ByData):
        name = "local"

    assert name_of(Local()) == "local"  # nobody finds a class within a function


@pytest.mark.parametrize(
    ("reference", "line"),
    [
        ("nowhere:Mine", r"rule nowhere:Mine: cannot import nowhere \(ModuleNotFoundError: No module named"),
        ("broken:Mine", r"cannot import broken \(ZeroDivisionError: division by zero\)"),
        ("leaving:Mine", r"cannot import leaving \(SystemExit: 3\)"),
        ("lacking:Mine", r"cannot import lacking \(ModuleNotFoundError: No module named 'not_installed_any"),
        ("elsewhere:Min", "rule elsewhere:Min: unknown name in elsewhere 'Min'; did you mean 'Mine'?"),
        ("elsewhere:function", "rule elsewhere:function: a function is no rule"),
        ("elsewhere:Half", "rule elsewhere:Half: Half is no rule"),
        (
            "elsewhere:Thawed",
            "rule elsewhere:Thawed: Thawed must be a frozen dataclass",
        ),
        ("elsewhere:Nameless", "Nameless has no name"),
    ],
)
def test_a_bad_reference_is_one_line(module: str, reference: str, line: str):
    with pytest.raises(UserError, match=line) as refused:
        read_config({"method": {"rule": reference}})
    assert "\n" not in str(refused.value)


def test_a_class_that_is_not_whole_says_what_is_missing(module: str):
    with pytest.raises(UserError, match="solver elsewhere:Half: Half does not define init, update"):
        read_config({"solver": "elsewhere:Half"})


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("mine", "broken:Mine", r"plugin mine of unknown \(broken:Mine\): cannot import broken \(ZeroDiv"),
        ("mine", "elsewhere:function", r"plugin mine of unknown \(elsewhere:function\): a function is no "),
        ("mine", "elsewhere:Median", "Median is called 'median': its entry point must have the same name"),
        (
            "median",
            "elsewhere:Median",
            "plugin median .*: the name is taken, rule median comes with",
        ),
        ("half", "elsewhere:Half", "plugin half .*: Half does"),
    ],
)
def test_a_bad_plugin_is_one_line_that_names_it(
    announce: Callable[..., None], name: str, value: str, line: str
):
    announce(**{name: value})
    kind = "solver" if name == "half" else "rule"
    entry = {"solver": name} if kind == "solver" else {"method": {"rule": name}}
    with pytest.raises(UserError, match=line) as refused:
        read_config(entry)
    assert "\n" not in str(refused.value)
    read_config({})  # others are not touched
    assert "mine" not in list(RULES)
    entries, faults = inventory.plugin_inventory()
    assert entries == []
    assert len(faults) == 1
    assert f"plugin {name} of " in faults[0]


def test_two_plugins_of_one_name(announce: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    both = [EntryPoint("mine", value, GROUP) for value in ("elsewhere:Mine", "elsewhere:Outer.Inner")]
    monkeypatch.setattr(plugins, "announced", lambda name=None: both if name in (None, "mine") else [])
    with pytest.raises(
        UserError, match=r"plugin mine .*: the name is taken by mine of unknown \(elsewhere:O"
    ):
        RULES["mine"]


def test_a_plugin_of_another_kind_takes_no_name(announce: Callable[..., None]):
    announce(sgd="elsewhere:Mine")
    assert SOLVERS["sgd"] is SGD


def test_what_is_a_reference():
    assert is_reference("a.b_c:D.e")
    assert not any(map(is_reference, ("fedavg", "dechw*", "a:", ":b", "a b:c", "http://x", 3, None)))
    assert load("consilience.rules:ByData", "rule") is ByData
