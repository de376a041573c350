"""Runs checks, each in a process of its own, and keeps what they found."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Lock
from typing import Any

from scorecard.checks import CHECKS, Check

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "scorecard.json"
PATIENCE = 1800.0
"""Seconds after which a check is given up."""
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
            except Exception:
                one = failed(traceback.format_exc().splitlines()[-1])
        one["faults"] = [fault.replace(folder, "FOLDER") for fault in one["faults"]]
        found |= {name: one} if name else one
    return {**found, "quick": quick, "seconds": round(time.perf_counter() - begun, 1)}


def failed(reason: str) -> Record:
    """The finding of a check that did not come to its end."""
    return {"trials": 1, "passed": 0, "figures": {}, "faults": [reason[:400]]}


def apart(check: Check, *, quick: bool) -> Record:
    """What a check finds in a process of its own."""
    load = os.getloadavg()[0]
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "scorecard", "--one", str(check.number), "--results", file.name]
        command += ["--quick"] if quick else []
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=PATIENCE,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            text = Path(file.name).read_text()
            found = json.loads(text) if text else failed((done.stderr.strip() or "it died").splitlines()[-1])
        except subprocess.TimeoutExpired:
            found = failed(f"it took more than {PATIENCE:g} s")
    return {**found, **here(), "load": [round(load, 2), round(os.getloadavg()[0], 2)]}


def run(
    checks: Sequence[Check], results: Path, *, quick: bool, told: Callable[[Check, Record], None]
) -> dict[str, Record]:
    """Run checks, two at a time where no seconds are promised, and write results as they come.

    Args:
        checks: Which.
        results: A file that results are merged into.
        quick: Whether with few trials.
        told: Called with each result.
    """
    found, lock = read(results), Lock()

    def one(check: Check) -> None:
        record = apart(check, quick=quick)
        with lock:
            found[str(check.number)] = record
            results.write_text(json.dumps({"checks": _sorted(found)}, indent=1) + "\n")
            told(check, record)

    for check in checks:
        if check.alone:
            one(check)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, [check for check in checks if not check.alone]))
    return found


def read(results: Path) -> dict[str, Record]:
    """The results in a file; none where there is none."""
    return dict(json.loads(results.read_text())["checks"]) if results.is_file() else {}


def _sorted(found: dict[str, Record]) -> dict[str, Record]:
    return {number: found[number] for number in sorted(found, key=int)}


def kept(check: Check, record: Record) -> bool:
    """Whether a promise was kept: every trial passed, and figures are within their bounds."""
    within = all(record["figures"].get(name, 0.0) <= bound for name, bound in check.bounds.items())
    return within and record["passed"] == record["trials"] > 0


def here() -> Record:
    """The machine, versions, commit and date that a result belongs to."""
    with Path("/proc/cpuinfo").open() as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    machine = f"{models[0] if models else platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain") else ""),
        "machine": machine,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
    }


def _git(*command: str) -> str:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
