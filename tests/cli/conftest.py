"""Commands as a user types them: their exit code and what they print."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from consilience.cli import app as cli

TINY = """
name: tiny
method: fedavg
model: {name: mlp, hidden: [8]}
clients: 3
rounds: 2
local: {steps: 2, batch_size: 8}
out: OUT
"""


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs the console script's own function in this process: a process of its own costs seconds."""

    def run(*words: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["consilience", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capfd.readouterr()
        assert isinstance(stopped.value.code, int)
        return Answer(stopped.value.code, said.out, said.err)

    return run


@pytest.fixture
def refused() -> Callable[[Answer, str], None]:
    """Asserts that there is one line on standard error, and nothing else."""

    def check(answer: Answer, line: str) -> None:
        assert answer.code == 2
        assert answer.err.startswith("consilience: ")
        assert answer.err.count("\n") == 1
        assert line in answer.err
        assert answer.out == ""

    return check


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where runs go."""
    return tmp_path / "out"


@pytest.fixture
def tiny(tmp_path: Path, out: Path) -> Path:
    """A configuration file."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.replace("OUT", str(out)))
    return path


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts real processes; those that are still there at the end of the test are killed.

    A shell may have interrupts ignored here, which processes would inherit; a user's terminal has not.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    begun: list[subprocess.Popen[str]] = []

    def popen(*words: object, **environment: str) -> subprocess.Popen[str]:
        begun.append(
            subprocess.Popen(
                [sys.executable, "-m", "consilience", *map(str, words)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            )
        )
        return begun[-1]

    yield popen
    signal.signal(signal.SIGINT, before)
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=60)


@pytest.fixture
def process(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., Answer]:
    """A command in a process of its own, from its start to its end."""

    def run(*words: object, **environment: str) -> Answer:
        begun = start(*words, **environment)
        said = begun.communicate(timeout=120)
        return Answer(begun.returncode, *said)

    return run
