"""How cost grows on one GPU: `python benchmarks/scaling.py [ROW ...]`; with `--plot`, the picture of it.

Rows: clients, nodes, parameters, seeds. Every point is the median of three rounds after a warm-up round,
evaluation included. The data are random images of MNIST's size, so that a client's work stays the same
when there are more of them; the data set's own memory is not counted.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu import MLP, PLAIN, measure, ours

from consilience.data.dataset import Dataset

RESULTS = Path(__file__).parent / "results" / "scaling.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "scaling.png"
ROUND = 50  # clients a round
ROWS_EACH = 60  # of a client


def images(rows: int) -> Dataset:
    """Random images in ten classes."""
    random = np.random.default_rng(0)
    inputs = random.integers(0, 256, (rows + 1000, 1, 28, 28), dtype=np.uint8)
    targets = random.integers(0, 10, rows + 1000)
    return Dataset.from_arrays("random", inputs[:rows], targets[:rows], inputs[rows:], targets[rows:])


def point(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The cost of one setting: time a sample and a round, and memory on the device and on the host."""
    torch.cuda.empty_cache()
    found = ours(method, {**settings, "compile": "never"})  # compiling so many shapes would take longer
    data = settings["data"]
    size = (data.inputs.nbytes + data.test_inputs.nbytes) / 1e9 if isinstance(data, Dataset) else 0.0
    return {
        "ns_per_sample": 1e9 / found["samples_per_s"],
        "round_s": float(np.median(found["round_s"])),
        "device_gb": found["peak_gb"] - size,
        "host_peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def clients() -> dict[str, Any]:
    """Populations of 10 to 10,000, of which at most 50 train in a round; SCAFFOLD's clients keep memories."""
    found: dict[str, Any] = {}
    for count in (10, 50, 100, 1000, 10_000):
        settings = {**MLP, **PLAIN, "data": images(count * ROWS_EACH), "partition": "iid", "seeds": [0]}
        settings |= {"clients": count, "participation": min(ROUND, count), "evaluate": {"clients": False}}
        for method in ("fedavg", "scaffold"):
            found.setdefault(method, {})[count] = point(method, settings)
    return found


def nodes() -> dict[str, Any]:
    """Graphs of 50 to 1,000 nodes with ten neighbours each on average."""
    found: dict[str, Any] = {}
    for count in (50, 100, 200, 500, 1000):
        settings = {
            "data": images(count * 600),
            "partition": "iid",
            "clients": count,
            "topology": {"name": "erdos_renyi", "p": 10 / count},
            "model": "mnist-cnn",
            "local": {"epochs": 1, "batch_size": 100},
            "solver": {"name": "sgd", "lr": 0.001, "momentum": 0.5},
        }
        for method in ("dechetero", "dechw"):
            found.setdefault(method, {})[count] = point(method, settings)
    return found


def parameters() -> dict[str, Any]:
    """Dense models of 8 thousand to 28 million parameters, ten clients."""
    found = {}
    for hidden in ((), (64, 64), (200, 200), (1000, 1000), (2000, 2000), (4900, 4900)):
        model = {"name": "mlp", "hidden": list(hidden)}
        widths = (784, *hidden, 10)
        count = sum((a + 1) * b for a, b in itertools.pairwise(widths))
        settings = {**MLP, "data": images(10 * 600), "partition": "iid", "seeds": [0], "model": model}
        found[count] = point("fedavg", settings)
    return {"fedavg": found}


def seeds() -> dict[str, Any]:
    """Repetitions of the same run with 1 to 50 seeds."""
    return {
        "fedavg": {
            count: point(
                "fedavg", {**MLP, "data": images(60_000), "partition": "iid", "seeds": list(range(count))}
            )
            for count in (1, 2, 5, 10, 20, 50)
        }
    }


def plot() -> None:
    """Draw four panels from the results that are there."""
    import matplotlib.pyplot as plt

    found = json.loads(RESULTS.read_text())
    panels = {
        "clients": ("clients (50 a round)", "ns_per_sample", "ns a sample"),
        "nodes": ("nodes of the graph", "round_s", "ms a node and round"),
        "parameters": ("parameters", "ns_per_sample", "ns a sample"),
        "seeds": ("seeds", "round_s", "seconds a round, all seeds"),
    }
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.5), layout="constrained")
    for axis, (name, (label, key, unit)) in zip(axes.flat, panels.items(), strict=True):
        for method, points in found[name]["results"].items():
            counts = [int(count) for count in points]
            values = [
                p[key] * (1e3 / n if name == "nodes" else 1)
                for n, p in zip(counts, points.values(), strict=True)
            ]
            axis.plot(counts, values, "o-", label=method)
        axis.set(xscale="log", xlabel=label, ylabel=unit)
        if name == "parameters":
            axis.set_yscale("log")
        else:
            axis.set_ylim(0, None)
        axis.grid(alpha=0.3)
        axis.legend()
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=120)


if __name__ == "__main__":
    if "--plot" in sys.argv:
        plot()
    else:
        measure({row.__name__: row for row in (clients, nodes, parameters, seeds)}, RESULTS.name, __doc__)
