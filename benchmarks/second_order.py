"""What rounds of second-order methods cost in gradients: `python benchmarks/second_order.py --device cuda`.

10 clients with 6,000 images of MNIST's size each, every pass over all of a client's data. A gradient is what
one more full-batch local step takes; a product with a Hessian counts as two (Pearlmutter 1994: the tangents
of a forward and a backward pass). For each method: milliseconds a round, those of its gradients and products
by this count, and their ratio, which is 1 where nothing but passes takes time. Medians of rounds after five
that warm up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from budgets import random_images, running
from gpu import environment
from paper_settings import Images

from consilience.config.config import read_config

CLIENTS, ROWS, WARM = 10, 6000, 5
MODELS: dict[str, Any] = {
    "logistic": "logistic",
    "mlp 200-200": {"name": "mlp", "hidden": [200, 200]},
    "mnist-cnn": "mnist-cnn",
}
METHODS: dict[str, tuple[dict[str, Any], int, int]] = {
    "giant, 10 products": (
        {"name": "giant", "iterations": 10, "tolerance": 0, "line_search": False},
        1,
        10,
    ),
    "giant, 40 products": (
        {"name": "giant", "iterations": 40, "tolerance": 0, "line_search": False},
        1,
        40,
    ),
    "done, 20 products": ({"name": "done", "iterations": 20, "rate": 0.001}, 1, 20),
    "fagh": ({"name": "fagh"}, 1, 1),
}
"""Methods with the gradients and the products with Hessians that a client computes in a round."""


def round_ms(model: Any, method: dict[str, Any], steps: int, options: argparse.Namespace) -> float:
    """The median of a method's rounds in milliseconds."""
    settings: dict[str, Any] = {
        "data": random_images(Images((1, 28, 28), 10, CLIENTS * options.rows)),
        "partition": "iid",
        "clients": CLIENTS,
        "model": model,
        "local": {"steps": steps, "batch_size": options.rows},
        "solver": {"name": "sgd", "lr": 0.001},
        "method": method,
        "rounds": WARM + options.rounds,
        "device": options.device,
        "precision": "tf32" if options.device != "cpu" else "fp32",
        "compile": "never",
    }
    config = read_config(settings, "second-order")
    seconds = []
    with running(config) as simulation:
        for _ in range(WARM + options.rounds):
            start = time.perf_counter()
            simulation.step(evaluate=False)
            if options.device != "cpu":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds[WARM:])


def main() -> None:
    """Measure all models and methods, and write what was found as it comes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--commit")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"rows": options.rows, "cells": {}}
    if options.device != "cpu":
        found["environment"] = environment(options.commit)
    for name, model in MODELS.items():
        one, many = (round_ms(model, {"name": "fedavg"}, steps, options) for steps in (1, 21))
        gradient = (many - one) / 20
        print(f"{name}: a gradient takes {gradient:.3f} ms", flush=True)
        for label, (method, gradients, products) in METHODS.items():
            took = round_ms(model, method, 1, options)
            counted = (gradients + 2 * products) * gradient
            found["cells"][f"{name}, {label}"] = {
                "gradient_ms": gradient,
                "round_ms": took,
                "counted_ms": counted,
                "ratio": took / counted,
            }
            print(f"  {label}: {took:.2f} ms, {took / counted:.2f} of its gradients", flush=True)
            if options.out:
                options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
