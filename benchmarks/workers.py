"""What workers on a Ray cluster cost and gain on this machine: `python benchmarks/workers.py [ROW...]`.

Row `exchange`: the milliseconds and bytes of an exchange in which 10 clients of an MLP 784-200-200-10 take
one step with one sample, on two workers. Row `cores`: the seconds of a round of FedAvg with a small CNN, on
one and on two workers, beside the batched executor in one process with one and with two threads. Row
`start_up`: seconds from a command to the end of its first round, and to its own. Needs `consilience[ray]` and
MNIST.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from consilience.config.config import read_config
from consilience.data.loading import load
from consilience.engine.build import simulate
from consilience.engine.spread.executor import Spread
from consilience.engine.spread.worker import Arrays, Done, Part
from consilience.experiment import plan

METHODS = {"fedavg": "star", "scaffold": "star", "fedcurv": "star", "dechw": "ring"}
SMALL = {
    "data": "mnist-sample",
    "model": {"name": "mlp", "hidden": [200, 200]},
    "clients": 10,
    "local": {"steps": 1, "batch_size": 1},
    "rounds": 1,
}
LARGE = {
    "data": "mnist",
    "model": "mnist-cnn",
    "clients": 20,
    "local": {"epochs": 1, "batch_size": 32},
    "rounds": 1,
}
WARM = 3


class Measured:
    """Workers whose exchanges are timed and weighed."""

    def __init__(self, workers: Any) -> None:
        self._workers = workers
        self.seconds: list[float] = []
        self.sent: list[int] = []
        self.received: list[int] = []

    def there(self) -> Sequence[Hashable]:
        there: Sequence[Hashable] = self._workers.there()
        return there

    def carry_out(self, parts: Mapping[Hashable, Part], alike: dict[int, Arrays]) -> dict[Hashable, Done]:
        start = time.perf_counter()
        done: dict[Hashable, Done] = self._workers.carry_out(parts, alike)
        self.seconds.append(time.perf_counter() - start)
        own = [one for part in parts.values() for one in (*part.own.values(), *part.shared)]
        self.sent.append(sum(map(_size, [*own, *alike.values()])))
        self.received.append(sum(_size(one.uploads) + _size(one.memories) for one in done.values()))
        return done

    def close(self) -> None:
        self._workers.close()


def _size(arrays: Arrays) -> int:
    return sum(value.nbytes for params in arrays.values() for value in params.values())


def exchange(rounds: int) -> dict[str, Any]:
    """The milliseconds and bytes of an exchange with next to no work."""
    found = {}
    for method, topology in METHODS.items():
        place = {"executor": "ray", "workers": 2, "cluster": "local"}
        arm = plan(read_config({**SMALL, **place, "method": method, "topology": topology}, method))[0]
        simulation = simulate(arm.scene, arm.variants)
        executor = simulation.world.executor
        assert isinstance(executor, Spread)
        measured = executor.workers = Measured(executor.workers)
        with closing(executor):
            for _ in range(WARM + rounds):
                simulation.step(evaluate=False)
        found[method] = {
            "ms": 1000 * statistics.median(measured.seconds[WARM:]),
            "bytes_to_workers": measured.sent[-1],
            "bytes_from_workers": measured.received[-1],
        }
        print(method, found[method], flush=True)
    return found


def cores(rounds: int) -> dict[str, float]:
    """The seconds of a round with different numbers of processes."""
    kinds: dict[str, tuple[dict[str, Any], int]] = {
        "ray, 1 worker": ({"executor": "ray", "workers": 1, "cluster": "local"}, 1),
        "ray, 2 workers": ({"executor": "ray", "workers": 2, "cluster": "local"}, 1),
        "batched, 1 thread": ({"executor": "batched"}, 1),
        "batched, 2 threads": ({"executor": "batched"}, 2),
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    load("mnist")
    for turn in range(3):  # in turns: these machines are not always as fast
        for name, (place, threads) in kinds.items():
            torch.set_num_threads(threads)
            arm = plan(read_config({**LARGE, **place, "method": "fedavg"}, name))[0]
            simulation = simulate(arm.scene, arm.variants)
            with closing(simulation.world.executor):
                for number in range(1 + rounds):
                    start = time.perf_counter()
                    simulation.step(evaluate=False)
                    if number:
                        seconds[name].append(time.perf_counter() - start)
            print(turn, name, seconds[name][-rounds:], flush=True)
    return {name: statistics.median(times) for name, times in seconds.items()}


TINY = {
    "name": "tiny",
    "method": "fedavg",
    "data": "mnist-sample",
    "clients": 4,
    "rounds": 1,
    "local": {"steps": 1},
    "model": {"name": "mlp", "hidden": [9]},
}
PLACES = {"one process": ["executor=batched"], "two workers": ["executor=ray", "workers=2", "cluster=local"]}


def start_up(times: int) -> dict[str, dict[str, float]]:
    """Seconds from a command to the end of its only round, which is tiny, and to the end of the command.

    What is between the two ends is mostly a plot, and Ray that ends.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in PLACES}
    with tempfile.TemporaryDirectory() as scratch:
        file, metrics = Path(scratch, "tiny.yaml"), Path(scratch, "tiny", "metrics.jsonl")
        file.write_text(json.dumps(TINY))
        for _ in range(times):  # in turns: these machines are not always as fast
            for name, place in PLACES.items():
                options = [str(file), *place, f"out={scratch}", "--overwrite"]
                metrics.unlink(missing_ok=True)
                begun, first = time.perf_counter(), 0.0
                with subprocess.Popen(
                    [sys.executable, "-m", "consilience", "run", *options],
                    stdout=subprocess.DEVNULL,
                ) as command:
                    while command.poll() is None:
                        if not first and metrics.exists() and metrics.stat().st_size:
                            first = time.perf_counter() - begun
                        time.sleep(0.01)
                found[name].append((first, time.perf_counter() - begun))
                print(name, found[name][-1], flush=True)
    return {
        name: dict(
            zip(("first_round_s", "command_s"), map(statistics.median, zip(*own, strict=True)), strict=True)
        )
        for name, own in found.items()
    }


def main() -> None:
    """Measure, and write down what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", nargs="*", help="start_up, exchange, cores_s; by default all")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "workers.json")
    options = parser.parse_args()
    rows: dict[str, Callable[[], dict[str, Any]]] = {
        "start_up": lambda: start_up(3),
        "exchange": lambda: exchange(options.rounds),
        "cores_s": lambda: cores(min(3, options.rounds)),
    }
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    found["machine"] = f"{platform.machine()}, {torch.get_num_threads()} cores, torch {torch.__version__}"
    for row in options.row or rows:
        found[row] = rows[row]()
        options.out.write_text(json.dumps(found, indent=1) + "\n")
        print(row, json.dumps(found[row], indent=1), flush=True)


if __name__ == "__main__":
    main()
