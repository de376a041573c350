"""Speed on one GPU: `python benchmarks/gpu.py [ROW ...]`.

Every row trains from a configuration as a user would write it, end to end: batches are gathered, models
aggregated and evaluated on the full test set in every round. The first round warms up (compilation and
capture); the median of the next three counts. `loop` is a hand-written PyTorch loop over single clients,
measured in the same run. Data sets are looked up in CONSILIENCE_DATA. Results go to a JSON file as they
come; rows that are measured again replace what is there. Each row takes less than ten minutes.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from consilience.algorithms import METHODS
from consilience.config.config import read_config
from consilience.data.loading import load
from consilience.engine.build import simulate
from consilience.engine.determinism import repeatable
from consilience.engine.rounds.simulation import Simulation
from consilience.errors import UserError
from consilience.experiment import plan
from consilience.experiment import run as run_experiment

DEVICE = torch.device("cuda")
MLP: dict[str, Any] = {
    "data": "mnist",
    "partition": "shards_two_classes",
    "clients": 10,
    "model": {"name": "mlp", "hidden": [200, 200]},
    "local": {"epochs": 5, "batch_size": 32},
    "solver": {"name": "sgd", "lr": 0.001, "momentum": 0.9, "weight_decay": 0.001},
    "seeds": list(range(10)),
}
PLAIN = {"solver": {"name": "sgd", "lr": 0.001}}
SOLVERS: dict[str, dict[str, Any]] = {"momentum and decay": {}, "plain": PLAIN}
GRAPH: dict[str, Any] = {
    "data": "mnist",
    "partition": {"name": "dirichlet_class", "alpha": 0.5},
    "clients": 50,
    "topology": {"name": "erdos_renyi", "p": 0.2},
    "model": "mnist-cnn",
    "local": {"epochs": 5, "batch_size": 100},
    "solver": {"name": "sgd", "lr": 0.001, "momentum": 0.5},
}
CIFAR: dict[str, Any] = {
    "data": "cifar10",
    "partition": "iid",
    "clients": 10,
    "model": "cifar-cnn",
    "local": {"epochs": 1, "batch_size": 32},
    "solver": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
    "seeds": list(range(5)),
}
RESNET: dict[str, Any] = {**CIFAR, "model": "resnet50-cifar", "seeds": [0]}
RESNET["local"] = {"steps": 20, "batch_size": 64}
DIRICHLET = {**MLP, "partition": {"name": "dirichlet_class", "alpha": 0.1}}
PFL: dict[str, Any] = {
    "data": "cifar10",
    "partition": "iid",
    "clients": 1000,
    "participation": 50,
    "model": "pfl-cnn",
    "local": {"epochs": 1, "batch_size": 10},
    "solver": {"name": "sgd", "lr": 0.1},
    "rounds": 1500,
    "evaluate": {"every": 10, "clients": False},
}
RACES: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("fedavg", MLP),
    "dirichlet": ("fedavg", DIRICHLET),
    "graph": ("dechetero", {**GRAPH, "evaluate": {"trained": False}}),
    "cifar": ("fedavg", CIFAR),
    "pfl": ("fedavg", PFL),
}
"""What a hand-written JAX program (peers/peer_jax.py) also runs: method and settings."""
RACE_PRECISIONS = {"cifar": ("tf32", "bf16"), "pfl": ("bf16",)}
"""The precisions of races that are not run in tf32 alone."""


def ours(
    method: str, settings: dict[str, Any], *, precision: str = "tf32", rounds: int = 3
) -> dict[str, Any]:
    """The speed of whole rounds in samples per second, with the seconds and the memory that they took.

    Args:
        method: The name of the method.
        settings: Keys of a configuration.
        precision: How products take their inputs.
        rounds: How many rounds are timed, after one that warms up.
    """
    common = {"precision": precision, "device": "cuda", "compile": "always", "rounds": rounds + 1}
    config = read_config({**common, **settings, "method": method}, "benchmark")
    with repeatable(DEVICE, config.precision):
        arm = plan(config)[0]
        gc.collect()  # what an earlier measurement left
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        simulation = simulate(arm.scene, arm.variants)
        trained = config.evaluate.trained
        (first,), _ = _timed(simulation, 1, trained=trained)
        _timed(simulation, 2, trained=trained)  # what is repeated is recorded, then captured
        seconds, samples = _timed(simulation, rounds, trained=trained)
    return {
        "method": method,
        "precision": precision,
        "samples_per_s": round(sum(samples) / sum(seconds)),  # rounds overlap, so no single one says much
        "round_s": list(seconds),
        "first_round_s": first,
        "peak_gb": (torch.cuda.max_memory_allocated() - before) / 1e9,
    }


def _timed(simulation: Simulation, rounds: int, *, trained: bool) -> tuple[list[float], list[int]]:
    """The seconds and the samples of some rounds, run as a run does: one ahead of what is looked at."""
    torch.cuda.synchronize()
    seconds, samples, before = [], [], time.perf_counter()
    begun = [simulation.advance(trained=trained)]
    for number in range(rounds):
        if number + 1 < rounds:
            begun.append(simulation.advance(trained=trained))
        samples.append(sum(record.samples for record in begun.pop(0).records()))
        now = time.perf_counter()
        seconds.append(now - before)
        before = now
    return seconds, samples


def loop(
    settings: dict[str, Any], steps: int = 300, *, precision: str = "tf32", channels_last: bool = False
) -> dict[str, Any]:
    """The speed of one client after the other, as one would write it by hand, without evaluation.

    Args:
        settings: Keys of a configuration.
        steps: How many steps are timed, after 20 that warm up.
        precision: How products take their inputs.
        channels_last: Whether images and convolutions have their channels last in memory.
    """
    config = read_config({**settings, "method": "fedavg", "rounds": 1}, "benchmark")
    dataset = load(config.data.name)
    inputs, targets = dataset.inputs.to(DEVICE), dataset.targets.to(DEVICE)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = config.model.build(dataset.shape, dataset.outputs).to(DEVICE, memory_format=layout)
    solver = config.solver.variants[0]
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=solver.lr,
        momentum=getattr(solver, "momentum", 0.0),
        weight_decay=getattr(solver, "weight_decay", 0.0),
        fused=True,
    )
    size = config.local.batch_size
    order = torch.randint(0, len(targets), (steps + 20, size), device=DEVICE)
    torch.set_float32_matmul_precision("high")
    for number, rows in enumerate(order):
        if number == 20:  # after a warm-up
            torch.cuda.synchronize()
            start = time.perf_counter()
        images = (inputs[rows].float() / 127.5 - 1).contiguous(memory_format=layout)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(model(images), targets[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.cuda.synchronize()
    return {"samples_per_s": round(steps * size / (time.perf_counter() - start))}


def mlp() -> dict[str, Any]:
    """Dense models: FedAvg on two-class shards, the loop, Dirichlet 0.1, and the methods beside FedAvg."""
    return {
        "loop": loop(MLP),
        "fedavg": ours("fedavg", MLP),
        "fedavg, fp32": ours("fedavg", MLP, precision="fp32"),
        "fedavg, dirichlet 0.1": ours("fedavg", DIRICHLET),
        **{name: ours(name, MLP) for name in ("hwa", "fedprox", "fedcurv")},
        # SCAFFOLD's option II is defined for plain SGD only.
        "fedavg, plain sgd": ours("fedavg", {**MLP, **PLAIN}),
        "scaffold, plain sgd": ours("scaffold", {**MLP, **PLAIN}),
    }


def methods() -> dict[str, Any]:
    """What every method costs over FedAvg with the same solver, which is plain SGD where it has to be."""
    baselines = {name: ours("fedavg", {**MLP, **solver})["round_s"] for name, solver in SOLVERS.items()}
    found: dict[str, Any] = {}
    for name in METHODS:
        for solver, changes in SOLVERS.items():
            try:
                seconds = ours(name, {**MLP, **changes})["round_s"]
            except UserError:  # defined for plain SGD only
                continue
            cost = statistics.median(seconds) / statistics.median(baselines[solver])
            found[name] = {"solver": solver, "round_s": seconds, "cost": round(cost, 3)}
            print(name, found[name], flush=True)
            break
    return found


def graph() -> dict[str, Any]:
    """Fifty peers with DecHW's CNN; all are evaluated once a round, or before and after their training."""
    once = {**GRAPH, "evaluate": {"trained": False}}
    return {
        "loop": loop(GRAPH),
        "dechetero": ours("dechetero", once),
        "dechw": ours("dechw", once),
        "dechetero, evaluated twice": ours("dechetero", GRAPH),
        "dechw, evaluated twice": ours("dechw", GRAPH),
    }


def cifar() -> dict[str, Any]:
    """FedAvg on CIFAR-10 in three precisions."""
    return {
        "loop": loop(CIFAR),
        **{f"fedavg, {p}": ours("fedavg", CIFAR, precision=p) for p in ("fp32", "tf32", "bf16")},
    }


def resnet() -> dict[str, Any]:
    """ResNet-50 for CIFAR-10, ten clients of 20 batches, beside one model trained on as many samples."""
    found: dict[str, Any] = {}
    for precision in ("tf32", "bf16"):
        for channels_last in (False, True):
            layout = ", channels last" if channels_last else ""
            found[f"one model, {precision}{layout}"] = loop(
                RESNET, 60, precision=precision, channels_last=channels_last
            )
        found[f"fedavg, {precision}"] = ours("fedavg", RESNET, precision=precision)
    return found


def precision() -> dict[str, Any]:
    """Accuracy of FedAvg on CIFAR-10 after 15 rounds in three precisions, five seeds."""
    found = {}
    for name in ("fp32", "tf32", "bf16"):
        settings = {**CIFAR, "method": "fedavg", "precision": name, "device": "cuda", "rounds": 15}
        result = run_experiment(read_config(settings, "benchmark"))
        final = [line["test_accuracy"] for line in result.records if line["round"] == 15]
        found[name] = {"mean": statistics.mean(final), "std": statistics.stdev(final), "by seed": final}
    return found


def pfl() -> dict[str, Any]:
    """pfl-research's CIFAR-10 benchmark, the whole run."""
    config = read_config({**PFL, "method": "fedavg", "precision": "bf16", "device": "cuda"}, "benchmark")
    start = time.perf_counter()
    result = run_experiment(config)
    return {"seconds": time.perf_counter() - start, "accuracy": result.accuracy}


def jax() -> dict[str, Any]:
    """Settings that a hand-written JAX program runs too: ours, its own, and how many times faster ours is."""
    if importlib.util.find_spec("jax") is None:
        print("jax is not installed: its row is skipped")
        return {}
    found: dict[str, Any] = {}
    for name, (method, settings) in RACES.items():
        for precision in RACE_PRECISIONS.get(name, ("tf32",)):
            here = pfl() if name == "pfl" else ours(method, settings, precision=precision)
            gc.collect()
            torch.cuda.empty_cache()  # the other process needs memory, too
            there = _peer(name, precision)
            speeds = [1 / one["seconds"] if name == "pfl" else one["samples_per_s"] for one in (here, there)]
            label = f"{name}, {precision}"
            found[label] = {"ours": here, "jax": there, "ratio": speeds[0] / speeds[1]}
            print(label, found[label], flush=True)
    return found


def _peer(setting: str, precision: str) -> dict[str, Any]:
    """What the JAX program gives, in a process of its own."""
    script = Path(__file__).parent / "peers" / "peer_jax.py"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, script, "--setting", setting, "--precision", precision, "--out", out]
        subprocess.run(command, check=True)
        result: dict[str, Any] = json.loads(out.read_text())
        return result


ROWS: dict[str, Callable[[], dict[str, Any]]] = {
    row.__name__: row for row in (mlp, methods, graph, cifar, resnet, precision, pfl, jax)
}


def environment(commit: str | None) -> dict[str, Any]:
    """The machine, the versions and the commit that the figures belong to."""
    if commit is None:
        git = ["git", "-C", str(Path(__file__).parent)]
        answer = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        commit = answer.stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "commit": commit,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "copy_gb_per_s": _copy_rate(),
    }


def _copy_rate() -> float:
    """How many GB a large copy reads and writes in a second."""
    source = torch.empty(2**28, device=DEVICE)
    target = torch.empty_like(source)
    for repeats in (3, 20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            target.copy_(source)
        torch.cuda.synchronize()
    return 2 * 20 * source.nbytes / (time.perf_counter() - start) / 1e9


def main() -> None:
    """Measure the rows that are asked for."""
    measure(ROWS, "gpu.json", __doc__)


def measure(rows: dict[str, Callable[[], dict[str, Any]]], file: str, description: str | None) -> None:
    """Run the command line of a benchmark: some or all of its rows, written to a file as they come.

    Args:
        rows: The rows, by name; each gives its results.
        file: The name of the file under `results`.
        description: What the benchmark is, for its help.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(rows)}; by default all")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / file)
    parser.add_argument("--commit", help="the code that is measured, where git cannot tell")
    options = parser.parse_args()
    for name in options.rows:
        if name not in rows:
            parser.error(f"unknown row {name!r}; there are {', '.join(rows)}")
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU; for a CPU there is benchmarks/cpu.py")
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in options.rows or rows:
        found[name] = {"environment": environment(options.commit), "results": rows[name]()}
        options.out.write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps({name: found[name]["results"]}, indent=1), flush=True)


if __name__ == "__main__":
    main()
