"""Many clients of whom few take part: `python benchmarks/population.py [--clients N] [--out FILE]`.

Every client has five random images and, in SCAFFOLD and FedCurv, a memory of one or two models of 199,210
parameters. Each point is a process of its own: seconds until the first round, of a round (the median of those
after the first), of a checkpoint, the processor time of a round, and the most memory that was resident
there. With `--plain` memories are held; with `--workers 2` clients work on workers of a Ray cluster.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import platform
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import consilience as cs
from consilience.data.dataset import Dataset
from consilience.experiment import execution

ROWS_EACH = 5


def images(rows: int) -> Dataset:
    """Random images in ten classes."""
    random = np.random.default_rng(0)
    inputs = random.integers(0, 256, (rows + 1000, 1, 28, 28), dtype=np.uint8)
    targets = random.integers(0, 10, rows + 1000)
    return Dataset.from_arrays("random", inputs[:rows], targets[:rows], inputs[rows:], targets[rows:])


class Timed(execution.Listener):
    """Notes when rounds are over, and when the first begins."""

    def __init__(self) -> None:
        self.begun, self.rounds, self.clock, self.busy = 0.0, list[float](), 0.0, list[float]()

    def start(self, arms: Any) -> None:
        self.begun, self.clock = time.perf_counter(), _busy()

    def round(self, arm: Any, lines: Any) -> None:
        self.rounds.append(float(lines[0]["seconds"]))
        self.busy.append(_busy() - self.clock)
        self.clock = _busy()


def _busy() -> float:
    """The processor time of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def point(method: str, cohort: int, options: argparse.Namespace) -> dict[str, Any]:
    """What one setting costs."""
    logging.getLogger("consilience").setLevel(logging.ERROR)
    data, listener, saved = images(options.clients * ROWS_EACH), Timed(), list[float]()
    snapshot, checkpoint = execution.Simulation.snapshot, execution.RunFolder.save_checkpoint

    def timed_snapshot(simulation: Any) -> Any:
        saved.append(-time.perf_counter())
        return snapshot(simulation)

    def timed_checkpoint(folder: Any, state: Any) -> None:
        checkpoint(folder, state)
        if saved and saved[-1] < 0:
            saved[-1] += time.perf_counter()

    execution.Simulation.snapshot = timed_snapshot  # type: ignore[method-assign]
    execution.RunFolder.save_checkpoint = timed_checkpoint  # type: ignore[method-assign]
    before = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        cs.run(
            method,
            data=data,
            partition="iid",
            clients=options.clients,
            participation=cohort,
            rounds=options.rounds,
            model={"name": "mlp", "hidden": [200, 200]},
            solver={"name": "sgd", "lr": 0.05},
            local={"epochs": 1, "batch_size": ROWS_EACH},
            evaluate={"clients": False},
            checkpoint={"every": 2},
            memory=options.memory,
            memories={"resident": "always" if options.plain else "auto"},
            **(
                {"executor": "ray", "workers": options.workers, "cluster": "local"} if options.workers else {}
            ),
            out=scratch,
            listener=listener,
        )
        kept = sum(file.stat().st_size for file in Path(scratch).rglob("*") if file.is_file())
    return {
        "start_s": listener.begun - before,
        "round_s": float(np.median(listener.rounds[1:])),
        "processor_s": float(np.median(listener.busy[1:])),
        "checkpoint_s": [abs(seconds) for seconds in saved[:-1]],
        "files_gb": kept / 1e9,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def main() -> None:
    """Measure all points, and write them down one by one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--cohorts", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--methods", nargs="+", default=["fedavg", "scaffold", "fedcurv"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", default="4GB", help="the budget of the engine")
    parser.add_argument("--plain", action="store_true", help="memories are held")
    parser.add_argument("--workers", type=int, help="clients work on so many workers of a Ray cluster")
    parser.add_argument("--scratch", type=Path, help="where runs are written")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "population.json")
    options = parser.parse_args()
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    found["machine"] = {"processor": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__}
    for method in options.methods:
        for cohort in options.cohorts:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
                measured = alone.submit(point, method, cohort, options).result()
            place = f", {options.workers} workers" if options.workers else ""
            name = f"{method}, {cohort} of {options.clients}{', held' if options.plain else ''}{place}"
            found[name] = {"memory": options.memory, "load": os.getloadavg()[0], **measured}
            print(name, json.dumps(found[name]), flush=True)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
