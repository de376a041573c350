"""One run of one contestant: a process of its own, whose time is limited and whose memory is watched."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from common import STARTED
from contestants import CONTESTANTS, reason

PEERS = Path(__file__).resolve().parent
TOKEN = "BENCHMARK_TOKEN"
"""Every process of a contestant inherits this variable; that is how its memory is added up."""
SAMPLE_EVERY = 0.2
THREADING = ("OMP_", "GOMP_", "KMP_", "MKL_")


class Memory:
    """Watches the memory of one contestant's processes, and ends those that outlive it."""

    def __init__(self, root: int, token: str) -> None:
        self.peak_bytes = 0
        self._mark = f"{TOKEN}={token}".encode()
        self._known = {root}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def processes(self) -> set[int]:
        """The processes that descend from the contestant or have inherited its token."""
        alive = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
        for pid in sorted(alive - self._known):
            with contextlib.suppress(OSError, ValueError, IndexError):
                entry = Path(f"/proc/{pid}")
                parent = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
                if parent in self._known or self._mark in entry.joinpath("environ").read_bytes().split(b"\0"):
                    self._known.add(pid)
        self._known &= alive  # numbers of ended processes are given to others
        return self._known

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_EVERY):
            self.peak_bytes = max(self.peak_bytes, sum(map(_pss, self.processes())))

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._stop_leftovers()

    def _stop_leftovers(self) -> None:
        """End servers that outlive their contestant, because they would disturb the next one."""
        for order in (signal.SIGTERM, signal.SIGKILL):
            patience = time.monotonic() + 5
            while (left := {pid for pid in self.processes() if _runs(pid)}) and time.monotonic() < patience:
                time.sleep(0.1)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, order)


def _pss(pid: int) -> int:
    """The proportional set size of a process in bytes: shared pages count in parts."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def _runs(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def run(
    name: str, python: Path, setting: str, files: Path, rounds: int | None, timeout: float
) -> dict[str, Any]:
    """The result and the memory of one run of one contestant, or why there are none.

    Args:
        name: The contestant.
        python: The Python that runs it.
        setting: The name of the setting.
        files: The folder with the setting's files.
        rounds: How many rounds are timed; None: the setting's own number.
        timeout: The seconds that the run may take.
    """
    contestant = CONTESTANTS[name]
    with tempfile.TemporaryDirectory() as folder:
        out, log, token = Path(folder) / "result.json", Path(folder) / "log", uuid.uuid4().hex
        command = [python, PEERS / contestant.script, "--setting", setting, "--files", files, "--out", out]
        command += [*contestant.arguments, *([] if rounds is None else ["--rounds", str(rounds)])]
        # Nobody inherits how threads wait or how many there are: that is each contestant's own affair.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(THREADING)}
        environment = {**inherited, **contestant.environment, TOKEN: token, STARTED: repr(time.time())}
        with log.open("w") as stream:
            process = subprocess.Popen(
                command, env=environment, stdout=stream, stderr=stream, cwd=folder, start_new_session=True
            )
            with Memory(process.pid, token) as memory:
                try:
                    ending = f"ended with status {process.wait(timeout)}"
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    ending = f"not done after {timeout:g} s"
        if process.returncode or not out.exists():
            return {"failed": f"{ending}: {reason(log.read_text(errors='replace'))}"}
        return {**json.loads(out.read_text()), "peak_pss_bytes": memory.peak_bytes}
