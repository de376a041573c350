"""Clients weighed by their curvature, per round and per byte: `python benchmarks/merging.py [DATA ...]`.

HWA's setting with two classes a client (examples/merging.yaml) on MNIST with an MLP and on CIFAR-10 with a
CNN, several seeds: FedAvg, HWA, its Kronecker-factored form, and Fisher merging of all layers and of the
output layer. For every method the test accuracy and the bytes sent so far, both ways, after each round.
Results are written as they come, and what is there is not run again; `--plot` draws them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from consilience.config.config import read_config
from consilience.data.dataset import Dataset
from consilience.data.loading import load
from consilience.experiment import run

RESULTS = Path(__file__).parent / "results" / "merging.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "merging.png"
SETTING: dict[str, Any] = {
    "partition": "shards_two_classes",
    "clients": 10,
    "local": {"epochs": 5, "batch_size": 32},
    "solver": {"name": "sgd", "lr": 0.001, "momentum": 0.9, "weight_decay": 0.001},
}
MODELS: dict[str, Any] = {"mnist": {"name": "mlp", "hidden": [200, 200]}, "cifar10": "cifar-cnn"}
METHODS: dict[str, Any] = {
    "fedavg": "fedavg",
    "hwa": "hwa",
    "kfac_weighted": "kfac_weighted",
    "fisher_merge, output layer": {"name": "fisher_merge", "layers": "output"},
    "fisher_merge": "fisher_merge",
}


def course(dataset: Dataset, model: Any, method: Any, options: argparse.Namespace) -> dict[str, Any]:
    """The accuracy and the bytes after every round, by seed."""
    values = {
        **SETTING,
        "data": dataset,
        "model": model,
        "method": method,
        "seeds": list(range(options.seeds)),
        "rounds": options.rounds,
        "device": options.device,
        "precision": "tf32" if options.device != "cpu" else "fp32",
        "evaluate": {"clients": False},
    }
    config = read_config(values, "merging")
    start = time.perf_counter()
    records = run(config).records
    by_seed = [[line for line in records if line["seed"] == seed] for seed in range(options.seeds)]
    sent = [line["bytes_up"] + line["bytes_down"] for line in by_seed[0]]
    return {
        "accuracy": [[line["test_accuracy"] for line in lines] for lines in by_seed],
        "bytes": np.cumsum(sent).tolist(),
        "seconds": time.perf_counter() - start,
    }


def draw(found: dict[str, Any]) -> None:
    """Draw mean accuracies with the range over seeds, over rounds and over bytes, a row for each data set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8 * len(found)), layout="constrained")
    rows = figure.subplots(len(found), 2, squeeze=False)
    for axes, (data, methods) in zip(rows, found.items(), strict=True):
        for number, (method, one) in enumerate(methods.items()):
            accuracy = 100 * np.array(one["accuracy"])
            for axis, x in zip(
                axes, (np.arange(1, accuracy.shape[1] + 1), np.array(one["bytes"]) / 1e6), strict=True
            ):
                axis.plot(x, accuracy.mean(0), label=method, color=f"C{number}")
                axis.fill_between(x, accuracy.min(0), accuracy.max(0), color=f"C{number}", alpha=0.15, lw=0)
        for axis, label in zip(axes, ("rounds", "MB sent, both ways, all clients"), strict=True):
            axis.set(xlabel=label, ylabel="test accuracy, %", title=f"{data}, two classes a client")
            axis.grid(alpha=0.3)
        axes[0].legend(fontsize=8, title="mean and range over seeds")
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    """Run what is asked for and not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", default=[], help=f"of {', '.join(MODELS)}; by default all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--plot", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.data) - MODELS.keys():
        parser.error(f"unknown data {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.plot:
        draw(found)
        return
    for data in options.data or MODELS:
        dataset = load(data)
        own = found.setdefault(dataset.name, {})
        for label, method in METHODS.items():
            if label in own:
                continue
            own[label] = course(dataset, MODELS[data], method, options)
            options.out.write_text(json.dumps(found, indent=1) + "\n")
            last = [100 * seed[-1] for seed in own[label]["accuracy"]]
            spread = statistics.stdev(last) if len(last) > 1 else 0.0
            print(
                f"{dataset.name:14} {label:28} {statistics.mean(last):6.2f} +- {spread:.2f} %, "
                f"{own[label]['bytes'][-1] / 1e6:.0f} MB, {own[label]['seconds']:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
