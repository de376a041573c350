"""Data of one's own in a configuration file: `data: package.module:function`, with options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import consilience as cs
from consilience.config import load_config
from consilience.experiment import run
from consilience.experiment.folder import RunFolder

HOSPITALS = """
import numpy as np
import consilience as cs

def load(rows=20, *, noise: float = 1.0):
    random = np.random.default_rng(0)
    def part(count):
        return (noise * random.normal(size=(count, 4))).astype(np.float32), np.arange(count) % 3
    return {name: (*part(rows), *part(6)) for name in ("Basel", "Bern")}

def ready():
    return cs.Dataset.from_clients(load(), "ready")

def wrong():
    return 3

def failing():
    return {}["Basel"]

def missing():
    return np.load("scans.npy")

"""
FILE = "{{method: fedavg, data: {data}, rounds: 1, model: {{name: mlp, hidden: [4]}}}}"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which there is a module of hospitals."""
    (tmp_path / "hospitals_of_a_test.py").write_text(HOSPITALS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(place: Path, data: str, *overrides: str) -> Any:
    (place / "run.yaml").write_text(FILE.format(data=data))
    return load_config(place / "run.yaml", overrides)


def test_a_function_gives_the_data(place: Path):
    config = read(place, "'hospitals_of_a_test:load'")
    assert (config.population, config.partition.name) == (2, "by_client")
    result = run(config)
    assert [line["name"] for line in result.clients] == ["Basel", "Bern"]
    assert run(read(place, "'hospitals_of_a_test:ready'")).digest == result.digest


@pytest.mark.parametrize(
    ("data", "overrides"),
    [
        ("{name: 'hospitals_of_a_test:load', rows: 9, noise: 0.1, normalize: none}", ()),
        ("{name: 'hospitals_of_a_test:load', options: {rows: 9, noise: 0.1}, normalize: none}", ()),
        ("{name: 'hospitals_of_a_test:load', rows: 5, normalize: none}", ("data.rows=9", "data.noise=0.1")),
    ],
)
def test_it_takes_options(place: Path, data: str, overrides: tuple[str, ...]):
    config = read(place, data, *overrides)
    assert len(config.data.own.targets) == 18
    written = config.written()["data"]
    assert (written["name"], written["normalize"]) == ("hospitals_of_a_test:load", "none")
    assert written["options"] == {"rows": 9, "noise": 0.1}


def test_a_run_is_resumed_with_it(place: Path):
    config = read(place, "{name: 'hospitals_of_a_test:load', rows: 9}")
    first = run(config, folder=RunFolder(place / "runs"))
    assert cs.resume(place / "runs").digest == first.digest


def test_settings_may_differ_in_options(place: Path):
    (place / "run.yaml").write_text(
        "{data: {name: 'hospitals_of_a_test:load', rows: 9}, rounds: 1, compare: [{label: few}, "
        "{label: many, data: {name: 'hospitals_of_a_test:load', rows: 30}}]}"
    )
    few, many = run(load_config(place / "run.yaml")).clients[::2]
    assert (few["samples"], many["samples"]) == (9, 30)


def test_constructors_of_this_library_can_be_named(place: Path):
    (place / "table.csv").write_text("a,b\n" + "\n".join(f"{n},{n % 2}" for n in range(20)))
    config = read(place, "{name: 'consilience:Dataset.from_table', table: table.csv, target: b}")
    assert config.data.own.outputs == 2


REFUSED = [
    ("'hospitals_of_a_tst:load'", "No module named 'hospitals_of_a_tst'"),
    ("'hospitals_of_a_test:laod'", "unknown name in hospitals_of_a_test 'laod'; did you mean 'load'?"),
    ("{name: 'hospitals_of_a_test:load', rowz: 3}", "hospitals_of_a_test:load 'rowz'; did you mean 'rows'?"),
    ("'hospitals_of_a_test:wrong'", "gives an int, not a Dataset or arrays by client"),
    ("'hospitals_of_a_test:failing'", "failing fails in hospitals_of_a_test.py, line 18: KeyError: 'Basel'"),
    ("'hospitals_of_a_test:missing'", "fails in hospitals_of_a_test.py, line 21: FileNotFoundError: "),
]


@pytest.mark.parametrize(("data", "message"), REFUSED)
def test_what_is_wrong_is_said_in_a_line(place: Path, data: str, message: str):
    with pytest.raises(cs.UserError) as caught:
        read(place, data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
