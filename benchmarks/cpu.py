"""Consilience beside its peers on two CPU cores: same partition, cohorts, initial weights and steps for all.

    CONSILIENCE_DATA=DIRECTORY .venv/bin/python benchmarks/cpu.py [--settings NAME ...]
        [--contestants NAME ...] [--repeats 3] [--rounds N] [--out benchmarks/results/cpu.json]

The data directory must hold MNIST (`consilience data get mnist`). The peers are installed into virtual
environments of their own under `benchmarks/.venvs` on first use. They need PyTorch without CUDA: where the
configured package index does not offer that, set PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu.

Settings (all MNIST, inputs in [-1, 1], one epoch a round, FedAvg weighted by data size):
    silo-mlp: 10 clients with two classes each, all in every round; MLP 784-200-200-10, batch 32.
    device-cnn: 100 IID clients, 10 a round; CNN with 21,840 parameters, batch 10.
    graph-cnn: 50 nodes on a random graph, Dirichlet(0.5); the same CNN, batch 100. Every node averages itself
        and its neighbours. The peers have no graphs without a server, so only the loop and we run it.

Contestants are scripts in `peers/`, listed in its `contestants.py`; each says in its first lines what it does
and in which environment. They run one at a time, in another order in every repeat. Everybody trains one
warm-up round that does not count. Columns of the table, medians over repeats:
    samples/s: samples of the timed rounds / seconds of the timed rounds (training and aggregation).
    x loop, x peer: that, divided by the hand-written loop's and by the fastest peer library's.
    start-up: seconds from the start of the process to the first timed round, less one round of median length
        for the warm-up in between: imports, data, workers, and what only a first round costs.
    memory: the peak over the run of the proportional set size (PSS), summed over all processes.
    accuracy: of the final model; batch orders differ between contestants, so accuracies differ a little.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from consilience.errors import UserError

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
sys.path.insert(0, str(PEERS))

from common import SETTINGS, Setting, Task, save  # noqa: E402
from contestants import CONTESTANTS, InstallError, interpreter  # noqa: E402
from measuring import run  # noqa: E402

SEED = 0


def task_of(setting: Setting, rounds: int) -> Task:
    """The task of a setting: what that leaves open is drawn by Consilience's own partitioners and graphs."""
    import torch
    from training import build

    from consilience.data import load
    from consilience.data.partition import partition
    from consilience.data.partitioners import DirichletClass, Iid, ShardsTwoClasses
    from consilience.exchange.cohort import sample_clients
    from consilience.graphs.erdos_renyi import ErdosRenyi

    data = load("mnist")
    partitioner = {
        "silo-mlp": ShardsTwoClasses(),
        "device-cnn": Iid(),
        "graph-cnn": DirichletClass(alpha=0.5),
    }[setting.name]
    shards = partition(partitioner, data.targets.numpy(), setting.clients, SEED).shards
    everyone = np.arange(setting.clients)
    torch.manual_seed(SEED)
    weights = [parameter.detach().contiguous().numpy() for parameter in build(setting).parameters()]
    graph = ErdosRenyi(p=0.2).adjacency(setting.clients, np.random.default_rng(SEED))
    return Task(
        setting,
        rounds,
        data.inputs.numpy(),
        data.targets.numpy(),
        data.test_inputs.numpy(),
        data.test_targets.numpy(),
        shards,
        np.stack([sample_clients(SEED, n, everyone, setting.participants) for n in range(rounds)]),
        tuple(weights),
        graph if setting.graph else np.zeros((0, 0), dtype=bool),
    )


def rows_of(runs: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of the table: medians by setting and contestant, or why there are none."""
    for setting in dict.fromkeys(one["setting"] for one in runs):
        by_name: dict[str, list[dict[str, Any]]] = {}
        for one in runs:
            if one["setting"] == setting:
                by_name.setdefault(one["contestant"], []).append(one)
        speeds = {
            name: statistics.median(one["samples_per_s"] for one in some if "failed" not in one)
            for name, some in by_name.items()
            if any("failed" not in one for one in some)
        }
        best = max((speed for name, speed in speeds.items() if CONTESTANTS[name].peer), default=None)
        for name in sorted(by_name, key=lambda n: -speeds.get(n, 0)):
            good = [one for one in by_name[name] if "failed" not in one]
            failures = [one["failed"] for one in by_name[name] if "failed" in one]
            row = {"setting": setting, "contestant": name, "runs": len(good), "failures": failures}
            if good:
                speed = speeds[name]
                startups = [one["startup_s"] - statistics.median(one["round_s"]) for one in good]
                row |= {
                    "samples_per_s": speed,
                    "to_loop": speed / speeds["loop"] if "loop" in speeds else None,
                    "to_best_peer": speed / best if best else None,
                    "startup_s": statistics.median(startups),
                    "peak_pss_bytes": statistics.median(one["peak_pss_bytes"] for one in good),
                    "accuracy": statistics.median(one["accuracy"] for one in good),
                }
            yield row


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    heading = (
        "setting",
        "contestant",
        "samples/s",
        "x loop",
        "x peer",
        "start-up s",
        "memory MB",
        "accuracy %",
    )
    print(("{:<11} {:<14}" + " {:>10}" * 6).format(*heading))
    for row in rows:
        name = f"{row['setting']:<11} {row['contestant']:<14}"
        if "samples_per_s" in row:
            ratios = ("–" if row[key] is None else f"{row[key]:.2f}" for key in ("to_loop", "to_best_peer"))
            numbers = (
                f"{row['samples_per_s']:,.0f}",
                *ratios,
                f"{row['startup_s']:.1f}",
                f"{row['peak_pss_bytes'] / 1e6:,.0f}",
                f"{100 * row['accuracy']:.2f}",
            )
            print(name + "".join(f" {number:>10}" for number in numbers))
        for failure in row["failures"]:
            print(f"{name} {failure}")


def environment() -> dict[str, Any]:
    """What the numbers were measured on; versions of packages are in the runs."""

    def git(*command: str) -> str:
        done = subprocess.run(["git", *command], cwd=HERE, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    with Path("/proc/cpuinfo").open() as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": git("rev-parse", "HEAD"),
        "dirty": bool(git("status", "--porcelain")),
        "load": os.getloadavg(),
    }


def arguments_of(command_line: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = [name for name, contestant in CONTESTANTS.items() if contestant.default]
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=usual)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="timed rounds, in place of the setting's own number")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "cpu.json")
    parser.add_argument("--venvs", type=Path, default=HERE / ".venvs")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that one run may take")
    return parser.parse_args(command_line)


def main() -> None:
    arguments = arguments_of()
    runs: list[dict[str, Any]] = []
    measured: dict[str, Any] = {
        "environment": environment(),
        "repeats": arguments.repeats,
        "rounds": arguments.rounds,
    }
    unable = [name for name in arguments.contestants if not CONTESTANTS[name].graphs]
    graphs = [name for name in arguments.settings if SETTINGS[name].graph]
    measured["not_run"] = {name: dict.fromkeys(unable, "has no graphs without a server") for name in graphs}
    pythons, missing = {}, {}
    for name in arguments.contestants:
        try:
            pythons[name] = interpreter(CONTESTANTS[name], arguments.venvs.resolve())
        except InstallError as error:
            missing[name] = {"failed": f"not installed: {error}"}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.settings:
            setting = SETTINGS[name]
            save(task_of(setting, arguments.rounds or setting.rounds), Path(folder) / name)
        for repeat in range(arguments.repeats):
            for setting in arguments.settings:
                able = [
                    n for n in arguments.contestants if CONTESTANTS[n].graphs or not SETTINGS[setting].graph
                ]
                for name in random.Random(f"{setting} {repeat}").sample(able, len(able)):
                    result = missing.get(name) or run(
                        name,
                        pythons[name],
                        setting,
                        Path(folder) / setting,
                        arguments.rounds,
                        arguments.timeout,
                    )
                    runs.append({"setting": setting, "contestant": name, "repeat": repeat, **result})
                    speed = result.get("samples_per_s")
                    told = result["failed"] if speed is None else f"{speed:,.0f} samples/s"
                    print(f"{setting} {name} {repeat + 1}/{arguments.repeats}: {told}", flush=True)
                    # Written after every run, so that an interrupted measurement is not lost.
                    arguments.out.parent.mkdir(parents=True, exist_ok=True)
                    whole = {**measured, "summary": list(rows_of(runs)), "runs": runs}
                    arguments.out.write_text(json.dumps(whole, indent=1) + "\n")
    print()
    print_table(list(rows_of(runs)))
    for name in graphs if unable else []:
        print(f"{name} was not run by {', '.join(unable)}: no graphs without a server")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:  # e.g. a data set that is not here
        raise SystemExit(str(error)) from None
