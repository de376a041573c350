"""The batched executor beside the sequential one on a CPU, for every model that the registry names.

    OMP_WAIT_POLICY=PASSIVE .venv/bin/python benchmarks/models.py [MODEL ...] [--repeats 5]
        [--clients 4] [--lanes N] [--out benchmarks/results/models.json]

Four clients train one epoch of FedAvg (SGD with momentum), the last batch of which is half full, on random
data of the kind that the model is for; nothing is evaluated. In every repeat both executors train one round,
in another order each time, after two rounds that warm up. The table has medians: the seconds of a round,
samples a second, and how many times as fast as the sequential executor the batched one is.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cpu import environment

from consilience.config.config import read_config
from consilience.data.dataset import Dataset
from consilience.engine.build import simulate
from consilience.engine.determinism import repeatable
from consilience.engine.rounds.simulation import Simulation
from consilience.experiment import plan
from consilience.models import MODELS

RESULTS = Path(__file__).resolve().parent / "results" / "models.json"
EXECUTORS = ("batched", "sequential")
WARM_UP = 2
MNIST, CIFAR, TOKENS = (1, 28, 28), (3, 32, 32), (20,)
CLASSES, VOCABULARY = 10, 90


@dataclass(frozen=True)
class Case:
    """What a model is measured on."""

    shape: tuple[int, ...] = MNIST
    batch: int = 32
    batches: int = 20
    """How many full batches a client has; one that is half full follows."""
    options: tuple[tuple[str, Any], ...] = ()


CASES = {
    "mlp": Case(batches=40),
    "logistic": Case(batches=60),
    "window-lm": Case(TOKENS),
    "cifar-cnn": Case(CIFAR, batches=6),
    "pfl-cnn": Case(CIFAR, batches=6),
    "simple-cnn": Case(CIFAR),
    "femnist-cnn": Case(batches=4),
    "pytorch-cnn": Case(batches=6),
    "vgg11": Case(CIFAR, batches=2),
    "vgg16": Case(CIFAR, batches=1),
    "resnet50-cifar": Case(CIFAR, batches=1),
}
"""Cases of models that are for other data than MNIST, or that take much more or less time."""
MORE = {
    "mlp-1000": ("mlp", Case(batches=10, options=(("hidden", [1000, 1000]),))),
    "mlp-4000": ("mlp", Case(batches=1, options=(("hidden", [4000, 4000]),))),
    "mnist-cnn-10": ("mnist-cnn", Case(batch=10, batches=40)),
    "fagh-cnn-10": ("fagh-cnn", Case(batch=10, batches=20)),
    "vgg11-plain": ("vgg11", Case(CIFAR, batches=2, options=(("batch_norm", False),))),
}
"""The same models in other sizes, with other batches, or without batch normalisation."""


def cases() -> dict[str, tuple[str, Case]]:
    """Every model of the registry, and some in other forms: its name there and what it is measured on."""
    return {**{name: (name, CASES.get(name, Case())) for name in MODELS}, **MORE}


def data_of(case: Case, clients: int) -> Dataset:
    """Random images or tokens, as many as all clients need."""
    numbers = np.random.default_rng(0)
    rows = clients * (case.batches * case.batch + case.batch // 2)
    if len(case.shape) == 1:
        tokens = numbers.integers(0, VOCABULARY, (rows + 1, case.shape[0] + 1))
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
    else:
        inputs = numbers.integers(0, 256, (rows + 1, *case.shape), dtype=np.uint8)
        targets = numbers.integers(0, CLASSES, rows + 1)
    return Dataset.from_arrays("random", inputs[:-1], targets[:-1], inputs[-1:], targets[-1:])


def simulation_of(
    model: str, case: Case, data: Dataset, executor: str, clients: int, lanes: int | None
) -> Simulation:
    """A simulation before its first round."""
    settings: dict[str, Any] = {
        "data": data,
        "partition": "iid",
        "clients": clients,
        "model": {"name": model, **dict(case.options)},
        "local": {"epochs": 1, "batch_size": case.batch},
        "solver": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
        "method": "fedavg",
        "rounds": 100,
        "executor": executor,
    }
    if lanes is not None:
        settings["lanes"] = lanes
    arm = plan(read_config(settings, "benchmark"))[0]
    return simulate(arm.scene, arm.variants)


def measure(name: str, repeats: int, clients: int, lanes: int | None = None) -> dict[str, Any]:
    """The seconds of rounds with either executor, and how they compare."""
    model, case = cases()[name]
    data = data_of(case, clients)
    with repeatable(torch.device("cpu"), "fp32"):
        both = {one: simulation_of(model, case, data, one, clients, lanes) for one in EXECUTORS}
        seconds: dict[str, list[float]] = {one: [] for one in EXECUTORS}
        for repeat in range(WARM_UP + repeats):
            for executor in random.Random(repeat).sample(EXECUTORS, len(EXECUTORS)):
                start = time.perf_counter()
                both[executor].step(evaluate=False)
                if repeat >= WARM_UP:
                    seconds[executor].append(time.perf_counter() - start)
        for one in both.values():
            one.world.executor.close()
    pairs = zip(seconds["sequential"], seconds["batched"], strict=True)
    return {
        "model": name,
        "batch": case.batch,
        "parameters": sum(p.numel() for p in both["batched"].world.task.skeleton.parameters()),
        "ratio": statistics.median(slow / fast for slow, fast in pairs),
        **{one: statistics.median(seconds[one]) for one in EXECUTORS},
        "samples_per_s": len(data.targets) / statistics.median(seconds["batched"]),
        "round_s": seconds,
    }


def arguments_of(command_line: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help=f"of {', '.join(cases())}; by default all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--lanes", type=int, help="how many clients are stacked, in place of what is chosen")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args(command_line)
    for name in chosen.models:
        if name not in cases():
            parser.error(f"unknown model {name!r}; there are {', '.join(cases())}")
    return chosen


def main() -> None:
    chosen = arguments_of()
    found = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    print(f"{'model':<16}{'batched s':>11}{'sequential s':>14}{'samples/s':>11}{'ratio':>8}")
    for name in chosen.models or cases():
        row = measure(name, chosen.repeats, chosen.clients, chosen.lanes)
        print(
            f"{name:<16}{row['batched']:>11.3f}{row['sequential']:>14.3f}"
            f"{row['samples_per_s']:>11,.0f}{row['ratio']:>8.2f}",
            flush=True,
        )
        found[name] = {"environment": {**environment(), "torch": torch.__version__}, **row}
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
