"""Processes that are started quickly, killed at any instant, and asked what they said."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PATIENCE = 90.0
"""Seconds after which something that should happen is not waited for any longer."""


def until(happened: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait until something has happened."""
    end = time.monotonic() + patience
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError(f"it has not happened within {patience:g} s")
        time.sleep(0.02)


@dataclass(frozen=True)
class Process:
    """A process that was started."""

    number: int
    out: Path
    err: Path
    code_file: Path

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return Path(f"/proc/{self.number}").exists()

    def send(self, signal_number: int) -> None:
        """Send it a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.number, signal_number)

    def ended(self) -> int | None:
        """The exit code, once it has ended; None where it was killed."""
        until(lambda: not self.running, 4 * PATIENCE)
        text = self.code_file.read_text() if self.code_file.exists() else ""
        return int(text) if text else None


class Launcher:
    """Starts processes by forking one that has imported everything.

    Args:
        process: That one.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._started: list[Process] = []

    def start(self, kind: str, job: Sequence[Any], log: Path, harm: Sequence[Any] | None = None) -> Process:
        """Start a process.

        Args:
            kind: What it does: `words` of a command line, `nodes` over Zenoh, a `federation` with a hub.
            job: With what.
            log: Where its output goes; errors go beside it, for commands, and its exit code.
            harm: What it suffers: `die writing` or `disk full`, and how; None: nothing.
        """
        err = log.with_suffix(".err") if kind == "words" else log
        found = Process(0, log, err, log.with_suffix(".code"))
        found.code_file.unlink(missing_ok=True)
        log.touch()  # so that it can be read before there is anything in it
        err.touch()
        order = {"kind": kind, "job": job, "out": str(log), "err": str(err), "harm": harm}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**order, "code": str(found.code_file)}) + "\n")
        self._process.stdin.flush()
        started = Process(int(self._process.stdout.readline()), found.out, found.err, found.code_file)
        self._started.append(started)
        return started

    def stop(self) -> None:
        """Kill whatever was started and has not ended."""
        for process in self._started:
            process.send(signal.SIGKILL)
        until(lambda: not any(process.running for process in self._started))
        self._started.clear()


def _close(process: subprocess.Popen[str]) -> None:
    """Let the launcher end, and all that it has started with it."""
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


@cache
def launcher() -> Launcher:
    """The launcher of this process, which ends with it."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-m", "scorecard.launcher"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        start_new_session=True,  # it ends what it has started with one signal, once nobody writes to it
    )
    atexit.register(_close, process)
    return Launcher(process)


def stop_with_parent() -> None:
    """End this process in order, and what it has started, once it is told to or its parent is gone."""
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
