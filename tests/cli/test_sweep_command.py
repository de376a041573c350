"""`consilience sweep` as a user types it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from consilience.cli.sweep_display import LiveTable
from consilience.sweep import Here, read_study
from consilience.sweep.places import Progress

GRID = """
base: tiny.yaml
grid: {clients: [2, 3], method: [fedavg, cfa]}
"""


@pytest.fixture
def grid(tiny: Path, unpainted: None) -> Path:
    path = tiny.parent / "grid.yaml"
    path.write_text(GRID)
    return path


def test_cells_are_listed_run_and_not_run_again(grid: Path, out: Path, command: Callable[..., Any]):
    listed = command("sweep", grid, "--dry-run")
    assert (listed.code, listed.err) == (0, "")
    assert listed.out.splitlines() == [
        *(f"new       clients={n},method={method}" for n in (2, 3) for method in ("fedavg", "cfa")),
        f"4 cells, 0 finished; folder: {out}/grid",
    ]
    assert not out.exists()

    ran = command("sweep", grid)
    assert ran.code == 1
    assert [line.split(": ")[:2] for line in ran.err.splitlines()] == [
        ["consilience", f"cell clients={n},method=cfa failed"] for n in (2, 3)
    ]
    said = ran.out.splitlines()
    assert said[:2] == ["4 cells: none begun", "clients=2,method=fedavg  begins"]
    assert said[2].startswith("clients=2,method=fedavg  finished  accuracy ")
    assert said[-1] == f"results: {out}/grid"
    assert sum("failed  cfa: " in line for line in said) == 2

    again = command("sweep", grid)
    assert again.code == 1
    assert "method=fedavg  begins" not in again.out
    assert again.out.splitlines()[0] == "4 cells: 2 finished, 2 failed"
    listed = command("sweep", grid, "rounds=3", "--dry-run").out.splitlines()
    assert listed[0] == "changed   clients=2,method=fedavg (rounds was 2, now it is 3)"
    assert listed[1] == "failed    clients=2,method=cfa"

    fine = command("sweep", grid, "topology=ring", "name=other")
    assert (fine.code, fine.err) == (0, "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--place", "moon"], "unknown place 'moon' (known: here, ray)"),
        (["roundz=1"], "unknown key 'roundz'; did you mean 'rounds'?"),
        (["clients=2"], "override 'clients=2' has no effect: every cell sets it"),
    ],
)
def test_bad_input_is_one_line(
    grid: Path, command: Callable[..., Any], refused: Callable[..., None], words: list[str], line: str
):
    refused(command("sweep", grid, *words), line)


def test_a_changed_cell_is_refused_in_one_line(grid: Path, command: Callable[..., Any]):
    command("sweep", grid)
    answer = command("sweep", grid, "rounds=3")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert "cell clients=2,method=fedavg was made with another configuration (rounds was 2" in answer.err
    assert command("sweep", grid, "rounds=3", "topology=ring", "--overwrite").code == 0


def test_an_interrupt_says_how_to_go_on(
    grid: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Here, "run", interrupted)
    answer = command("sweep", grid)
    assert (answer.code, answer.err) == (130, "consilience: interrupted; the same command goes on\n")


def test_the_live_table_shows_what_fits_around_the_cells_that_run(grid: Path):
    grid.write_text("base: tiny.yaml\ngrid: {clients: [2, 3, 4, 5, 6, 7, 8, 9], rounds: [2, 3, 4]}")
    cells = read_study(grid).cells
    screen = Console(file=io.StringIO(), force_terminal=True, width=100, height=16)
    live = LiveTable(screen)
    live.start(cells, ["new"] * len(cells))
    live.ended(cells[0], "it went wrong")
    live.began(cells[12])
    live.progress(cells[12], Progress(1, 3, "50.00 %"))
    shown = io.StringIO()
    Console(file=shown, width=100).print(live.table())
    live.finish()
    lines = shown.getvalue().splitlines()
    (running,) = [line for line in lines if line.startswith(cells[12].name)]
    assert running.split()[:5] == [cells[12].name, "round", "1/3", "50.00", "%"]
    assert len(lines) <= 16
    assert "24 cells: 1 running, 1 failed" in lines[-1]
    live.ended(cells[12], "another time")
    assert live.states[cells[12].name].stage == "failed"
