"""Runs checks, each in a process of its own, and keeps what they found."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Lock
from typing import Any

from consilience.experiment.folder import atomic_write
from scorecard.checks import CHECKS, Check
from scorecard.finding import reason

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "scorecard.json"
SOURCES = ("src", "scorecard")
"""What a result depends on: nothing else of the repository makes it old."""
PATIENCE = 1800.0
"""Seconds after which a check is given up."""
MERCY = 30.0
"""Seconds that a check has to end what it has started."""
PACKAGES = ("torch", "eclipse-zenoh", "flwr", "safetensors", "pydantic")

Record = dict[str, Any]
"""What is known of a check: finding, when and where it was found, and whether the promise was kept."""


def attacked(number: int, *, quick: bool) -> Record:
    """What a check finds in this process; an error is a finding, too."""
    check = next(one for one in CHECKS if one.number == number)
    trials = check.quick if quick else check.trials
    begun, found = time.perf_counter(), dict[str, Any]()
    for name, attack in {"": check.run, **({"flower": check.run_flower} if check.flower else {})}.items():
        # A process that was just killed may still have something to write there.
        with tempfile.TemporaryDirectory(prefix="scorecard-", ignore_cleanup_errors=True) as folder:
            try:
                one = attack(trials, Path(folder)).written()
            except Exception as error:
                one = failed(reason(error))
        one["faults"] = [fault.replace(folder, "FOLDER") for fault in one["faults"]]
        found |= {name: one} if name else one
    return {**found, "quick": quick, "seconds": round(time.perf_counter() - begun, 1)}


def failed(why: str) -> Record:
    """The finding of a check that did not come to its end."""
    return {"trials": 1, "passed": 0, "figures": {}, "faults": [why[:400]]}


class Running:
    """The processes of checks that run, all of which can be ended at once."""

    def __init__(self) -> None:
        self._processes, self._lock = set[subprocess.Popen[str]](), Lock()
        self.stopped = False

    @contextlib.contextmanager
    def process(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """A process, which has ended when it is left."""
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for this process, which then ends that one
        )
        with self._lock:
            self._processes.add(process)
            if self.stopped:
                process.terminate()
        try:
            yield process
        finally:
            if process.poll() is None:
                _end(process)
            with self._lock:
                self._processes.discard(process)

    def stop(self) -> None:
        """Ask all to end, also those that are about to be started."""
        with self._lock:
            self.stopped = True
            for process in self._processes:
                process.terminate()


def _end(process: subprocess.Popen[str]) -> None:
    """Let a process clean up and end; it is killed where it does not."""
    process.terminate()
    try:
        process.communicate(timeout=MERCY)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def apart(check: Check, *, quick: bool, running: Running) -> Record:
    """What a check finds in a process of its own."""
    load = os.getloadavg()[0]
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "scorecard", "--one", str(check.number), "--results", file.name]
        with running.process(*command, *["--quick"] * quick) as process:
            try:
                _, said = process.communicate(timeout=PATIENCE)
                text = Path(file.name).read_text()
                found = json.loads(text) if text else failed((said.strip() or "it died").splitlines()[-1])
            except subprocess.TimeoutExpired:
                found = failed(f"it took more than {PATIENCE:g} s")
    # What has died knows neither; what has ended says it again.
    known = {"quick": quick, "seconds": PATIENCE}
    return {**known, **found, **here(), "load": [round(load, 2), round(os.getloadavg()[0], 2)]}


def run(
    checks: Sequence[Check],
    results: Path | None,
    *,
    quick: bool,
    told: Callable[[Check, Record], None],
) -> dict[str, Record]:
    """Run checks, two at a time where no seconds are promised, and write results as they come.

    Whoever interrupts it finds there what was found before, and nothing that was started goes on.

    Args:
        checks: Which.
        results: A file that results are merged into; None: they are written nowhere.
        quick: Whether with few trials.
        told: Called with each result.

    Returns:
        The results of these checks.
    """
    known, found, lock = read(results) if results else {}, dict[str, Record](), Lock()
    running = Running()

    def one(check: Check) -> None:
        record = apart(check, quick=quick, running=running)
        with lock:
            if running.stopped:
                return  # it was ended, and has found nothing
            found[str(check.number)] = record
            if results:
                whole = {"checks": _sorted({**known, **found})}
                atomic_write(results, (json.dumps(whole, indent=1) + "\n").encode())
            told(check, record)

    for width, alone in ((1, True), (2, False)):
        with ThreadPoolExecutor(width) as pool:
            try:
                for done in as_completed(pool.submit(one, check) for check in checks if check.alone is alone):
                    done.result()
            except BaseException:
                running.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return found


def read(results: Path) -> dict[str, Record]:
    """The results in a file; none where there is none."""
    return dict(json.loads(results.read_text())["checks"]) if results.is_file() else {}


def missing(found: Mapping[str, Record]) -> list[int]:
    """The checks without a whole result of the sources as they are."""
    now = sources()
    return [
        check.number
        for check in CHECKS
        if (record := found.get(str(check.number))) is None or record["quick"] or record["commit"] != now
    ]


def _sorted(found: dict[str, Record]) -> dict[str, Record]:
    return {number: found[number] for number in sorted(found, key=int)}


def kept(check: Check, record: Record) -> bool:
    """Whether a promise was kept: every trial passed, and figures are within their bounds."""
    return record["passed"] == record["trials"] > 0 and not exceeded(check, record)


def exceeded(check: Check, record: Record) -> list[str]:
    """Figures that are larger than was promised, or were not measured, in words."""
    found = {name: record["figures"].get(name) for name in check.bounds}
    return [
        f"{name}: {'no value' if value is None else f'{value:.3g}'}, and {check.bounds[name]:g} is promised"
        for name, value in found.items()
        if value is None or not value <= check.bounds[name]
    ]


def here() -> Record:
    """The machine, versions, commit and date that a result belongs to."""
    with Path("/proc/cpuinfo").open() as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    machine = f"{models[0] if models else platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": sources(),
        "machine": machine,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
    }


def sources() -> str:
    """The last commit that has changed what is measured; with a plus where that has changed since."""
    changed = _git("status", "--porcelain", "--", *SOURCES)
    return _git("log", "-1", "--format=%h", "--", *SOURCES) + ("+" if changed else "")


def _git(*command: str) -> str:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
