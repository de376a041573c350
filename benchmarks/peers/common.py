"""What every contestant shares: the settings, their files, and the form of a result. Needs NumPy only.

A contestant is a script that is called with `--setting NAME --files DIRECTORY --out FILE [--rounds N]`. Every
contestant runs one warm-up round that does not count, goes back to the initial weights, and then runs the
timed rounds; a round is training and aggregation. Only the final model is evaluated, after the clock stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np

STARTED = "BENCHMARK_STARTED"
"""The environment variable with time.time() of when the driver started the process."""


@dataclass(frozen=True)
class Setting:
    """A federation in which everybody trains one epoch a round; averages are weighted by data size."""

    name: str
    model: Literal["mlp", "cnn"]
    clients: int
    participants: int
    batch_size: int
    rounds: int
    lr: float
    momentum: float
    weight_decay: float = 0.0
    graph: bool = False


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("silo-mlp", "mlp", 10, 10, 32, rounds=5, lr=0.01, momentum=0.9, weight_decay=0.001),
        Setting("device-cnn", "cnn", 100, 10, 10, rounds=20, lr=0.01, momentum=0.5),
        Setting("graph-cnn", "cnn", 50, 50, 100, rounds=3, lr=0.001, momentum=0.5, graph=True),
    )
}


@dataclass(frozen=True)
class Task:
    """A setting with everything that was drawn for it."""

    setting: Setting
    rounds: int
    images: np.ndarray
    """[rows, 1, 28, 28] uint8, the training images."""
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    shards: tuple[np.ndarray, ...]
    """The rows of each client."""
    cohorts: np.ndarray
    """[rounds, participants] the clients that train in each round."""
    weights: tuple[np.ndarray, ...]
    """The initial parameters, in the model's order."""
    adjacency: np.ndarray
    """[nodes, nodes] who hears whom, without oneself; empty without a graph."""

    def samples(self, number: int) -> int:
        """How many samples a round (counted from 0) trains on."""
        return sum(len(self.shards[client]) for client in self.cohorts[number])

    def seed(self, number: int, client: int) -> int:
        """The seed for the order in which a client sees its data in a round."""
        return number * self.setting.clients + int(client)

    def mixing(self) -> np.ndarray:
        """[nodes, nodes] float32, the weights with which nodes average themselves and their neighbours."""
        sizes = np.array([len(shard) for shard in self.shards], dtype=np.float64)
        heard = (self.adjacency | np.eye(len(sizes), dtype=bool)) * sizes
        return (heard / heard.sum(1, keepdims=True)).astype(np.float32)


def save(task: Task, directory: Path) -> None:
    """Write the files of a task."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("images", "labels", "test_images", "test_labels", "cohorts", "adjacency"):
        np.save(directory / f"{name}.npy", getattr(task, name))
    for name, arrays in (("shards", task.shards), ("weights", task.weights)):
        np.savez(directory / f"{name}.npz", **{f"{i:04d}": array for i, array in enumerate(arrays)})


def load(directory: Path, name: str, rounds: int | None = None) -> Task:
    """The task whose files are in a directory.

    Args:
        directory: The folder that `save` wrote.
        name: The name of the setting.
        rounds: How many rounds are timed; by default the setting's own number.
    """

    def one(file: str) -> np.ndarray:
        return np.load(directory / f"{file}.npy")

    def many(file: str) -> tuple[np.ndarray, ...]:
        with np.load(directory / f"{file}.npz") as archive:
            return tuple(archive[key] for key in sorted(archive.files))

    setting = SETTINGS[name]
    return Task(
        setting,
        rounds or setting.rounds,
        one("images"),
        one("labels"),
        one("test_images"),
        one("test_labels"),
        many("shards"),
        one("cohorts"),
        many("weights"),
        one("adjacency"),
    )


def parser() -> argparse.ArgumentParser:
    """The parser of the arguments that every contestant takes."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--setting", choices=SETTINGS, required=True)
    arguments.add_argument("--files", type=Path, required=True)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--rounds", type=int)
    return arguments


def since_start() -> float:
    """The seconds since the driver started this contestant."""
    return time.time() - float(os.environ[STARTED])


def report(
    out: Path, task: Task, startup: float, seconds: Sequence[float], accuracy: float, packages: Sequence[str]
) -> None:
    """Write a contestant's result.

    Args:
        out: The file.
        task: What was done.
        startup: `since_start()` when the first timed round began.
        seconds: The seconds of each timed round.
        accuracy: The accuracy of the final model on the test set; on a graph the mean over nodes.
        packages: The distributions whose versions matter.
    """
    samples = [task.samples(number) for number in range(task.rounds)]
    result: Mapping[str, object] = {
        "startup_s": startup,
        "round_s": list(seconds),
        "samples": samples,
        "samples_per_s": sum(samples) / sum(seconds),
        "accuracy": accuracy,
        "versions": {package: metadata.version(package) for package in packages},
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
