"""Sweeps as a whole: what runs, what does not run again, what failure and death leave behind."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from consilience.config import read_config
from consilience.errors import UserError
from consilience.experiment import run as run_alone
from consilience.sweep import Cell, Here, Study, read_study, run
from consilience.sweep.places import Progress, Watcher

Reader = Callable[..., Study]


def digests(study: Study) -> dict[str, str]:
    found = {cell.name: cell.outcome() for cell in study.cells}
    return {name: one["digest"] for name, one in found.items() if one}


def test_a_cell_is_the_run_of_its_configuration(study: Reader, noting: Callable[[], Any]):
    sweep, notes = study(grid={"model.hidden": [[4], [6]]}, base={"seeds": [0, 1]}), noting()
    findings = run(sweep, watcher=notes)
    assert notes.news == [(word, f"model.hidden={n}") for n in (4, 6) for word in ("began", "finished")]
    assert [(one.rounds, one.of) for one in notes.rounds] == [(1, 2), (2, 2)] * 2
    for cell, row in zip(sweep.cells, findings.rows, strict=True):
        alone = run_alone(read_config(cell.values))
        assert digests(sweep)[cell.name] == alone.digest
        assert row.spread("final") == (alone.summaries[0].final_mean, alone.summaries[0].final_std)
        assert row.spread("best") == (alone.summaries[0].best_mean, alone.summaries[0].best_std)
        assert json.loads((cell.path / "summary.json").read_text())["digest"] == alone.digest


def test_what_is_finished_never_runs_again(study: Reader, noting: Callable[[], Any]):
    run(study(grid={"clients": [2, 3]}))
    notes = noting()
    findings = run(study(grid={"clients": [3, 4, 2]}), watcher=notes)
    assert notes.news == [("began", "clients=4"), ("finished", "clients=4")]
    assert [row.varied for row in findings.rows] == [{"clients": n} for n in (3, 4, 2)]


def test_a_sweep_that_pauses_goes_on_to_the_same_bits(study: Reader, noting: Callable[[], Any]):
    keys = {"grid": {"clients": [2, 3]}, "base": {"rounds": 4, "checkpoint": {"every": 100}}}
    whole = study(**keys, name="whole")
    run(whole)
    asked = iter([False, False, True])  # before the first cell, and after each of two rounds
    paused = study(**keys)
    findings = run(paused, place=Here(lambda: next(asked)))
    assert [(stage, why) for _, stage, why in findings.cells] == [("begun", ""), ("new", "")]
    notes = noting()
    run(paused, watcher=notes)
    assert [one.rounds for one in notes.rounds] == [3, 4, 1, 2, 3, 4]
    assert digests(paused) == digests(whole)


def test_a_finished_cell_of_another_configuration_is_refused_unless_it_may_go(
    study: Reader, noting: Callable[[], Any]
):
    first = study(grid={"clients": [2, 3]})
    run(first)
    before = digests(first)
    changed = study(grid={"clients": [2, 3]}, base={"local": {"steps": 2, "batch_size": 4}})
    with pytest.raises(UserError, match=r"cell clients=2 .* \(local.steps was 1, now it is 2\)"):
        run(changed)
    assert digests(first) == before
    notes = noting()
    run(changed, watcher=notes, overwrite=True)
    assert [name for word, name in notes.news if word == "began"] == ["clients=2", "clients=3"]
    for cell in changed.cells:
        assert digests(changed)[cell.name] == run_alone(cell.config()).digest != before[cell.name]
    # What changes nothing about results, such as a note, is no other configuration.
    run(study(grid={"clients": [2, 3]}, base={"local": {"steps": 2, "batch_size": 4}, "note": "so"}))


def test_a_run_that_is_none_of_the_sweep_is_left_alone(study: Reader):
    sweep = study(grid={"clients": [2]})
    sweep.cells[0].path.mkdir(parents=True)
    (sweep.cells[0].path / "config.yaml").write_text("{}")
    with pytest.raises(UserError, match="holds a run that is none of this sweep"):
        run(sweep, overwrite=True)


class _Interrupt(Watcher):
    """Stops everything in the first round of a cell that is told."""

    def __init__(self, name: str) -> None:
        self.name = name

    def progress(self, cell: Cell, progress: Progress) -> None:
        if cell.name == self.name and progress.rounds == 3:
            raise KeyboardInterrupt


def test_an_interrupted_sweep_goes_on_inside_its_cell(study: Reader, noting: Callable[[], Any]):
    base = {"rounds": 4, "method": "scaffold", "checkpoint": {"every": 1}}
    whole = study("name=whole", grid={"clients": [2, 3]}, base=base)
    run(whole)
    sweep = study(grid={"clients": [2, 3]}, base=base)
    with pytest.raises(KeyboardInterrupt):
        run(sweep, watcher=_Interrupt("clients=3"))
    assert [cell.stage for cell in sweep.cells] == ["finished", "begun"]
    assert json.loads((sweep.path / "sweep.json").read_text())["cells"][1]["state"] == "begun"
    notes = noting()
    run(sweep, watcher=notes)
    assert notes.news == [("began", "clients=3"), ("finished", "clients=3")]
    assert [one.rounds for one in notes.rounds] == [3, 4]  # the first two are those of the checkpoint
    assert digests(sweep) == digests(whole)


def test_a_killed_sweep_goes_on_with_the_same_command(
    sweep_file: Callable[..., Path], deadly: Callable[..., dict[str, Any]], tmp_path: Path
):
    file = sweep_file(grid={"clients": [2, 3]}, base=deadly(last=7))  # in the third round of the second cell
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = ":".join(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "consilience", "sweep", str(file)]
    killed = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    sweep = read_study(file)
    assert [cell.stage for cell in sweep.cells] == ["finished", "begun"]
    assert run(sweep).failed == {}
    assert (tmp_path / "tally").stat().st_size == 9  # four rounds of each, and the one that was deadly
    whole = read_study(file, ["name=whole", "metrics.0.last=0"])
    run(whole)
    assert digests(sweep) == digests(whole)


def test_a_cell_that_fails_says_why_and_the_others_go_on(study: Reader, noting: Callable[[], Any]):
    sweep, notes = study(grid={"method": ["cfa", "fedavg"]}), noting()
    findings = run(sweep, watcher=notes)
    (why,) = findings.failed.values()
    assert "defined on a graph of peers" in why
    assert notes.news[1:] == [(why, "method=cfa"), ("began", "method=fedavg"), ("finished", "method=fedavg")]
    assert [row.method for row in findings.rows] == ["fedavg"]
    assert "Traceback" in (sweep.cells[0].path / "error.txt").read_text()
    # Once the mistake is mended it runs; what had failed before its first round is no other run.
    mended = run(study(grid={"method": ["cfa", "fedavg"]}, base={"topology": "ring"}), overwrite=True)
    assert (mended.failed, [row.method for row in mended.rows]) == ({}, ["cfa", "fedavg"])


def test_a_score_that_raises_fails_its_cell_alone(study: Reader, deadly: Callable[..., dict[str, Any]]):
    base = deadly(tally="/nowhere/at/all")
    sweep = study(base=base, grid={"metrics": [base["metrics"], []]})
    findings = run(sweep)
    assert list(findings.failed) == [sweep.cells[0].name]
    assert "/nowhere/at/all" in findings.failed[sweep.cells[0].name]
    assert len(findings.rows) == 1


def test_two_processes_cannot_work_on_one_sweep(study: Reader):
    class Second(Watcher):
        def began(self, cell: Cell) -> None:
            with pytest.raises(UserError, match="another process is working on"):
                run(sweep)

    sweep = study(grid={"clients": [2]})
    assert len(run(sweep, watcher=Second()).rows) == 1


def test_values_that_share_a_run_and_seeds_apart_are_rows_all_the_same(study: Reader):
    grid = {"solver.lr": [0.1, 0.5], "seeds": [0, 1], "clients": [3]}
    together = run(study("name=together", grid=grid))
    apart = run(study("name=apart", grid=grid, apart=True))
    assert (len(together.cells), len(apart.cells)) == (1, 4)
    for findings in (together, apart):
        assert [(row.varied, row.method) for row in findings.rows] == [
            ({"solver.lr": lr, "clients": 3}, "fedavg") for lr in (0.1, 0.5)
        ]
        for row in findings.rows:
            finals = [row.seeds[seed]["final"] for seed in ("0", "1")]
            assert row.spread("final")[1] == pytest.approx(stdev(finals))


def test_the_tables_on_disk_and_on_the_screen(study: Reader):
    sweep = study(grid={"model.hidden": [[4], [6]], "method": [["fedavg", "fedprox"], "cfa"]})
    findings = run(sweep)
    rows = list(csv.DictReader((sweep.path / "sweep.csv").read_text().splitlines()))
    assert [(row["model.hidden"], row["method"]) for row in rows] == [
        *((hidden, method) for hidden in ("[4]", "[6]") for method in ("fedavg", "fedprox")),
        *((hidden, "cfa") for hidden in ("[4]", "[6]")),
    ]
    assert [float(row["final_mean"]) for row in rows[:4]] == [row.spread("final")[0] for row in findings.rows]
    assert all("graph of peers" in row["error"] for row in rows[4:])
    whole = json.loads((sweep.path / "sweep.json").read_text())
    assert [one["state"] for one in whole["cells"]] == ["finished", "failed"] * 2
    assert whole["rows"] == [row.to_json() for row in findings.rows]
    table = findings.table()
    assert [str(column.header).split("\n")[0] for column in table.columns] == [
        *("hidden", "method", "accuracy", "best", "seeds", "rounds"),
    ]
    assert [str(cell) for cell in table.columns[2].cells][4:] == ["failed", "failed"]


def test_cells_with_unlike_scores_stand_in_one_table(study: Reader):
    findings = run(study(cells=[{"clients": 2}, {"label": "many", "problem": "multi_label"}]))
    # Labels of digits are no rows of 0 and 1: that cell fails, and says so.
    assert list(findings.failed) == ["many"]
    assert findings.table().row_count == 2
