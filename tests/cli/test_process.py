"""Real processes: what a shell sees, and what kill -9 leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consilience import __version__
from consilience.experiment.folder import RunFolder

FRAGILE = """
name: fragile
method: [scaffold, local]
model: {name: mlp, hidden: [8]}
clients: 4
participation: 3
failure_rate: 0.2
rounds: 30
seeds: [0, 1]
local: {steps: 2, batch_size: 8}
checkpoint: {every: 5}
evaluate: {every: 10}
out: OUT
"""


@pytest.fixture
def fragile(tmp_path: Path, out: Path) -> Path:
    path = tmp_path / "fragile.yaml"
    path.write_text(FRAGILE.replace("OUT", str(out)))
    return path


def harvest(path: Path) -> dict[str, Any]:
    """Everything a run leaves behind, but times."""
    found: dict[str, Any] = {
        p.name: p.read_bytes() for p in sorted((path / "weights").rglob("*.safetensors"))
    }
    for name in ("metrics.jsonl", "clients.jsonl"):
        records = [json.loads(line) for line in (path / name).read_text().splitlines()]
        found[name] = [{key: value for key, value in one.items() if key != "seconds"} for one in records]
    found["digest"] = json.loads((path / "summary.json").read_text())["digest"]
    return found


@pytest.mark.parametrize(
    ("before", "given", "found"),
    [
        ("", None, "PASSIVE"),
        ("", "ACTIVE", "ACTIVE"),
        ("import torch", None, "None"),
        ("import torch", "ACTIVE", "ACTIVE"),
    ],
)
def test_waiting_threads_sleep_unless_somebody_wants_otherwise_or_torch_was_there_first(before, given, found):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if given is not None:
        environment["OMP_WAIT_POLICY"] = given
    told = "print(os.environ.get('OMP_WAIT_POLICY'), 'torch' in sys.modules)"
    code = f"{before}\nimport os, sys, consilience\n{told}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [found, str(bool(before))]


def kill_after(process: subprocess.Popen[str], rounds: int) -> list[str]:
    """Kill a run as soon as it has reported some rounds; all lines that it wrote."""
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(rounds)]
    process.kill()
    said += process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == -signal.SIGKILL
    return said


def test_killed_and_resumed_until_it_is_done(
    fragile: Path, out: Path, start: Callable[..., subprocess.Popen[str]], process: Callable[..., Any]
):
    """Killed before the first checkpoint, while one is written, and in the second method."""
    whole = process("run", fragile, "name=whole")
    assert (whole.code, whole.err) == (0, "")
    assert sum("round " in line and "loss" in line for line in whole.out.splitlines()) == 60
    path = out / "fragile"
    said = kill_after(start("run", fragile), 2)
    assert "scaffold  round 1/30" in said[0]
    for rounds in (5, 35):
        said = kill_after(start("resume", path), rounds)
        assert not (path / "summary.json").exists()
    with (path / "metrics.jsonl").open("a") as handle:
        handle.write('{"setting": "sta')  # a line that the kill tore
    said = kill_after(start("resume", path), 5)
    assert "scaffold" not in said[0]  # the first method is complete
    assert not (path / "summary.json").exists()
    ended = process("resume", path)
    assert (ended.code, ended.err) == (0, "")
    assert harvest(path) == harvest(out / "whole")
    assert ended.out.splitlines()[-1] == whole.out.splitlines()[-1]  # the digest


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_an_interrupted_run_says_how_to_go_on(
    number: signal.Signals,
    code: int,
    word: str,
    fragile: Path,
    out: Path,
    start: Callable[..., subprocess.Popen[str]],
):
    run = start("run", fragile, "rounds=2000", OMP_NUM_THREADS="2")  # with worker processes
    assert run.stdout is not None
    run.stdout.readline()
    run.send_signal(number)
    _, said = run.communicate(timeout=60)
    assert run.returncode == code
    assert said == f"consilience: {word}; go on with `consilience resume {out / 'fragile'}`\n"
    RunFolder(out / "fragile").load_checkpoint()  # whole, or not there yet


def test_a_reader_that_goes_away(fragile: Path, start: Callable[..., subprocess.Popen[str]]):
    """`consilience run ... | head -1` ends without a word."""
    run = start("run", fragile, "rounds=2000")
    assert run.stdout is not None
    run.stdout.readline()
    run.stdout.close()
    run.wait(timeout=60)
    assert run.stderr is not None
    assert run.stderr.read() == ""


def test_bad_input_is_one_line_and_exit_code_2(
    tiny: Path, out: Path, process: Callable[..., Any], tmp_path: Path
):
    answer = process("run", tiny, "data=cifar10", CONSILIENCE_DATA=str(tmp_path / "nothing"))
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.startswith("consilience: cifar10 is not here: expected ")
    assert not out.exists()


def test_the_console_script():
    script = Path(sys.executable).with_name("consilience")
    answer = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"consilience {__version__}\n", "")
