"""What the file of a sweep stands for, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from consilience.errors import UserError
from consilience.sweep import Study, read_study

Reader = Callable[..., Study]


def names(study: Study) -> list[str]:
    return [cell.name for cell in study.cells]


def test_every_combination_is_a_cell_and_further_ones_follow(study: Reader, tmp_path: Path):
    found = study(
        grid={"model.hidden": [[8], [8, 4]], "partition.name": ["iid", "shards"]},
        cells=[{"clients": 9, "participation": 0.5}, {"label": "many", "clients": 50}],
    )
    assert names(found) == [
        "model.hidden=8,partition.name=iid",
        "model.hidden=8,partition.name=shards",
        "model.hidden=8-4,partition.name=iid",
        "model.hidden=8-4,partition.name=shards",
        "clients=9,participation=0.5",
        "many",
    ]
    assert found.path == tmp_path / "runs" / "study"
    config = found.cells[3].config()
    assert (config.model.hidden, config.partition.name, config.clients) == ((8, 4), "shards", 3)
    assert config.out / config.name == found.cells[3].path


def test_the_base_may_be_a_file_beside_it(sweep_file: Callable[..., Path], tmp_path: Path):
    (tmp_path / "base.yaml").write_text("{name: other, rounds: 7, clients: 2}")
    (cell,) = read_study(sweep_file(base="base.yaml", grid={"clients": [5]})).cells
    assert (cell.config().rounds, cell.config().clients, cell.config().name) == (7, 5, "clients=5")


@pytest.mark.parametrize(
    ("grid", "cells", "variants"),
    [
        ({"solver.lr": [0.1, "1e-2"]}, ["solver.lr=0.1-1e-2"], 2),
        ({"seeds": [0, 1], "clients": [2, 3]}, ["clients=2,seeds=0-1", "clients=3,seeds=0-1"], 1),
        ({"method": [{"name": "fedprox"}], "method.mu": [0.1, 1]}, ["method=fedprox,method.mu=0.1-1"], 2),
        # Numbers of the setting and of training are no lanes, nor is a method's name or whole number.
        ({"clients": [2, 3]}, ["clients=2", "clients=3"], 1),
        ({"local.steps": [1, 2]}, ["local.steps=1", "local.steps=2"], 1),
        ({"method": ["fedavg", "fedprox"]}, ["method=fedavg", "method=fedprox"], 1),
        (
            {"method": [{"rule": "krum"}], "method.rule.f": [0, 1]},
            ["method=rule=krum,method.rule.f=0", "method=rule=krum,method.rule.f=1"],
            1,
        ),
    ],
)
def test_what_lanes_can_carry_is_one_cell(
    study: Reader, grid: dict[str, Any], cells: list[str], variants: int
):
    found = study(grid=grid)
    assert names(found) == cells
    config = found.cells[0].config()
    assert len(config.method[0].sweep.variants) * len(config.solver.variants) == variants


def test_apart_makes_a_run_of_every_value(study: Reader):
    assert names(study(grid={"solver.lr": [0.1, 0.2]}, apart=True)) == ["solver.lr=0.1", "solver.lr=0.2"]


def test_names_do_not_depend_on_the_order_of_keys(study: Reader):
    one, other = ({"clients": [2, 3], "rounds": [1, 2]}, {"rounds": [1, 2], "clients": [2, 3]})
    assert sorted(names(study(grid=one))) == sorted(names(study(grid=other)))


def test_a_part_is_set_before_its_options(study: Reader):
    (cell,) = study(cells=[{"partition.alpha": 0.5, "partition": "dirichlet_class"}]).cells
    assert cell.config().partition.alpha == 0.5


def test_overrides_change_the_base_and_where_it_goes(study: Reader, tmp_path: Path):
    found = study("rounds=9", f"out={tmp_path}/other", "name=7", grid={"clients": [2]})
    assert found.cells[0].config().rounds == 9
    assert found.cells[0].path == tmp_path / "other" / "7" / "clients=2"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"grid": {"clients": 3}}, "grid.clients: expected a list of values, not 3"),
    ({"grid": {"clients": []}}, "grid.clients: expected a list of values"),
    (
        {"grid": {"clients": [*range(1, 301)], "rounds": [*range(1, 301)]}},
        "grid: 90,000 combinations, and 10,000 are the most in one sweep",
    ),
    ({"cells": [{"clients": 2}] * 10_001}, "cells: 10,001 combinations"),
    ({"grid": {"clients": [2, 2]}}, "grid.clients: [2, 2] names a value twice"),
    ({"grid": [1]}, "grid: expected lists of values by key, not a list"),
    ({"grid": {True: [1]}}, "grid: a key must be text, not True"),
    ({"grid": {"name": ["a"]}}, "grid.name: cells have folders by what they vary"),
    ({"grid": {"clientz": [2]}}, "cell clientz=2: unknown key 'clientz'; did you mean 'clients'?"),
    ({"grid": {"model.hiden": [[2]]}}, "unknown option of model mlp 'hiden'; did you mean 'hidden'?"),
    ({"grid": {"rounds.x": [2]}}, "cell rounds.x=2: override 'rounds.x=2': 'rounds' is a plain value"),
    ({"grid": {"solver.lr": [0.1, -1]}}, "solver.lr=-1: sgd: lr must be at least 0, not -1"),
    ({"grid": {"method": ["fedavg"], "method.mu": [0.1, 0.2]}}, "unknown option of method fedavg 'mu'"),
    ({"base": {"compare": [{"clients": 2}]}, "grid": {"clients": [2]}}, "has no effect"),
    ({"base": {"compare": [{"clientz": 2}]}, "grid": {"rounds": [2]}}, "compare[0]: unknown key 'clientz'"),
    ({"cells": {"clients": 2}}, "cells: expected a list, not a dict"),
    ({"cells": [{"label": "a"}]}, "cells[0]: expected keys and values"),
    ({"cells": [{"label": "../a", "clients": 2}]}, "cells[0]: label '../a' cannot be a folder's name"),
    ({"cells": [{"out": "x"}]}, "cells[0].out: cells have folders by what they vary"),
    ({"grid": {"clients": [2]}, "cells": [{"clients": 2}]}, "two cells would both be called clients=2"),
    ({"grid": {"clients": [2]}, "apart": "yes"}, "apart: true or false, not 'yes'"),
    ({"grid": {"clients": [2]}, "name": "../x"}, "name: '../x' cannot be a folder's"),
    ({"grid": {"clients": [2]}, "out": 3}, "out: expected a folder, not 3"),
    ({"grids": {"clients": [2]}}, "unknown key of a sweep 'grids'; did you mean 'grid'?"),
    ({"base": "nowhere.yaml", "grid": {"clients": [2]}}, "nowhere.yaml: No such file"),
    ({}, "there is nothing to run: give grid or cells"),
]


@pytest.mark.parametrize(("keys", "line"), REFUSED, ids=[line for _, line in REFUSED])
def test_a_mistake_is_one_line(study: Reader, keys: dict[str, Any], line: str, tmp_path: Path):
    with pytest.raises(UserError) as refused:
        study(**keys)
    assert line in str(refused.value)
    assert str(refused.value).startswith(f"{tmp_path}/study.yaml: ")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_a_base_of_another_kind_is_refused(tmp_path: Path):
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({"base": [1], "grid": {"clients": [2]}}))
    with pytest.raises(UserError, match="base: expected a path or keys of a configuration, not a list"):
        read_study(path)


@pytest.mark.parametrize(
    ("override", "grid"), [("clients=2", {"clients": [3]}), ("solver.lr=1", {"solver": ["adam"]})]
)
def test_an_override_that_cells_override_is_refused(study: Reader, override: str, grid: dict[str, Any]):
    with pytest.raises(UserError, match="has no effect: every cell sets it"):
        study(override, grid=grid)
