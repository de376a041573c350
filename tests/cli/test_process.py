"""Real processes: what a shell sees; what kill -9 leaves behind is check 1 of the scorecard."""

from __future__ import annotations

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
