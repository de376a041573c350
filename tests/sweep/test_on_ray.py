"""Cells as tasks of a real Ray cluster on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from consilience.errors import UserError
from consilience.sweep import Study, run
from consilience.sweep.on_ray import OnRay

Reader = Callable[..., Study]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of two cores, whose processes have this process' modules."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def outcomes(study: Study) -> dict[str, Any]:
    return {cell.name: (cell.outcome() or {}).get("rows") for cell in study.cells}


@pytest.mark.usefixtures("cluster")
def test_cells_come_out_as_they_do_here(study: Reader, noting: Callable[[], Any]):
    keys = {"grid": {"clients": [2, 3]}, "cells": [{"label": "wrong", "method": "cfa"}]}
    here, there = study("name=here", **keys), study("name=there", **keys)
    run(here)
    notes = noting()
    findings = run(there, place=OnRay(), watcher=notes)
    for cell in there.cells:  # cells may overlap or not, but each begins before it ends
        assert [word == "began" for word, name in notes.news if name == cell.name] == [True, False]
    assert sorted(name for word, name in notes.news if word == "finished") == ["clients=2", "clients=3"]
    assert list(findings.failed) == ["wrong"]
    assert "defined on a graph of peers" in findings.failed["wrong"]
    for name, rows in outcomes(here).items():
        found = outcomes(there)[name]
        if rows is None:
            assert found is None
            continue
        for one, other in zip(rows, found, strict=True):
            for seed, scores in one["seeds"].items():  # another process may have another number of threads
                assert other["seeds"][seed] == pytest.approx(scores, abs=2e-3)
    notes = noting()
    run(there, place=OnRay(), watcher=notes)
    assert {name for _, name in notes.news} == {"wrong"}


@pytest.mark.usefixtures("cluster")
def test_a_cell_whose_process_is_killed_goes_on_from_its_checkpoint(
    study: Reader, deadly: Callable[..., dict[str, Any]], tmp_path: Path
):
    base = deadly()
    sweep = study(base=base, grid={"clients": [2]})
    findings = run(sweep, place=OnRay())
    assert findings.failed == {}
    assert (tmp_path / "tally").stat().st_size == 5  # four rounds, and the one that was deadly
    whole = study("name=whole", "metrics.0.last=0", base=base, grid={"clients": [2]})
    run(whole, place=OnRay())
    (one,), (other,) = ([cell.outcome() for cell in found.cells] for found in (sweep, whole))
    assert one == other


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("place", "line"), [(OnRay(cpus=3), "cpus: a cell takes 3"), (OnRay(gpus=1), "gpus: a cell takes 1")]
)
def test_a_cell_that_no_node_can_take_is_refused(study: Reader, place: OnRay, line: str):
    with pytest.raises(UserError, match=line):
        run(study(grid={"clients": [2]}), place=place)
