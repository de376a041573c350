"""Commands about runs that are there: the page, the table, the list."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import consilience as cs


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended."""
    settings = {"clients": 3, "rounds": 2, "model": {"name": "mlp", "hidden": [8]}, "seeds": [0, 1, 2]}
    settings |= {
        "local": {"steps": 2, "batch_size": 8},
        "targets": [0.1, 0.99],
        "evaluate": {"curvature": True},
    }
    return cs.run(["fedavg", "hwa"], out=tmp_path_factory.mktemp("runs"), name="tiny", **settings).folder


@pytest.fixture
def run(ended: Path, out: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(ended, out / "tiny"))


def test_a_run_becomes_a_page(command: Callable[..., Any], run: Path, tiny: Path):
    answer = command("report", run)
    assert (answer.code, answer.out, answer.err) == (0, f"report: {run / 'report.html'}\n", "")
    page = (run / "report.html").read_text()
    held = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert held is not None
    (group,) = json.loads(held[1])["groups"]
    assert [len(line) for line in group["curvature"]["entries"][1]["values"]] == [10, 10, 10]
    assert [len(line) for line in group["partition"]["counts"]] == [10, 10, 10]
    assert sum(map(sum, group["partition"]["counts"])) == 6000
    assert command("run", tiny, "--overwrite", "rounds=1").code == 0
    assert not (run / "report.html").exists()


def test_runs_side_by_side(command: Callable[..., Any], run: Path, tiny: Path, refused: Callable[..., None]):
    assert command("run", tiny, "name=other", "method=swa", "seeds=[0]", "solver.lr=0.5").code == 0
    answer = command("compare", run, run.parent / "other", "--target", "0.05")
    assert (answer.code, answer.err) == (0, "")
    for line in (
        "fedavg (tiny)",
        "swa (other)",
        "rounds",
        "to 5%",
        "none: fewer than 3 seeds",
    ):
        assert line in answer.out
    assert "star: runs differ in solver.lr: tiny 0.01, other 0.5" in answer.out
    assert "One-way ANOVA over 3 methods: none (fewer than 3 seeds)." in answer.out
    assert "One-way ANOVA over 2 methods" in command("compare", run).out
    table = command("compare", run, "--csv").out.splitlines()
    assert (len(table), table[0].split(",")[:2]) == (3, ["setting", "method"])
    assert r"\begin{tabular}" in command("compare", run, "--latex").out
    refused(command("compare", run, "--latex", "--csv"), "choose --csv or --latex")
    refused(command("compare", run.parent / "nothing"), "nothing is no folder")


def test_nothing_is_left_out_on_a_narrow_terminal(
    command: Callable[..., Any], run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "40")
    for words in (("compare", run), ("list", run.parent)):
        answer = command(*words)
        assert answer.code == 0
        assert "fedavg" in answer.out
        assert "…" not in answer.out


def test_runs_are_listed(command: Callable[..., Any], run: Path, refused: Callable[..., None]):
    answer = command("list", run.parent)
    assert re.search(
        r"tiny\s+fedavg, hwa\s+2\s+3\s+accuracy .*\d{4}-\d\d-\d\d \d\d:\d\d\s+\w{12}\s+finished",
        answer.out,
    )
    (run / "summary.json").unlink()
    assert "unfinished (100 %)" in command("list", run.parent).out
    (run / "metrics.jsonl").write_text("{\n")
    listed, told = command("list", run.parent), command("report", run)
    assert "damaged" in listed.out
    refused(told, "metrics.jsonl is damaged")
    refused(command("list", run / "weights"), "there are no runs in")
