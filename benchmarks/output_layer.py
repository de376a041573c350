"""What HWA does to the output layer in the long run: `python benchmarks/output_layer.py`.

A fifth of Fashion-MNIST, two classes a client, HWA's setting with five times its learning rate, so that a
round moves as far as with all data; 160 rounds, a quarter of an hour on two cores. For FedAvg, HWA, and HWA
that gives way to FedAvg after 20 rounds: accuracy and losses, and the norm of the output layer's rows less
their mean, which softmax does not see.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import consilience as cs
from consilience.data import load

RESULTS = Path(__file__).parent / "results" / "output_layer.json"
FRACTION, ROUNDS, SEEDS = 5, 160, (0, 1, 2)
EVERY, LOOKED_AT = 5, (5, 10, 20, 40, 80, 120, 160)
METHODS: dict[str, Any] = {
    "fedavg": "fedavg",
    "hwa": "hwa",
    "hwa, then fedavg": {"name": "hwa", "then": {"method": "fedavg", "after": 20}},
}
SETTING: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [200, 200]},
    "partition": "shards_two_classes",
    "clients": 10,
    "local": {"epochs": 5, "batch_size": 32},
    "solver": {"name": "sgd", "lr": 0.005, "momentum": 0.9, "weight_decay": 0.001},
}


def fraction() -> cs.Dataset:
    """Some of the training images, and all test images."""
    whole = load("fashion-mnist")
    chosen = torch.randperm(len(whole.targets), generator=torch.Generator().manual_seed(0))
    chosen = chosen[: len(chosen) // FRACTION]
    inputs, tests = (torch.as_tensor(images) for images in (whole.inputs, whole.test_inputs))
    return cs.Dataset.from_arrays(
        "fraction", inputs[chosen], whole.targets[chosen], tests, whole.test_targets
    )


def course(data: cs.Dataset, method: Any) -> list[dict[str, float]]:
    """What is looked at, by seed and round."""
    found = []

    def look(state: Any) -> None:
        metrics, params = state.metrics, state.models["params"]
        if metrics["round"] in LOOKED_AT:
            # A model has an axis of nodes in front, of which a server's has one.
            layer = torch.cat([params["head.weight"][0], params["head.bias"][0, :, None]], dim=1)
            kept = ("seed", "round", "test_accuracy", "test_loss", "train_loss")
            line = {key: metrics[key] for key in kept}
            found.append(line | {"output_layer": float((layer - layer.mean(0)).norm())})

    own = {"name": "fraction", "own": data, "normalize": "unit"}
    looked = {"clients": False, "every": EVERY}
    cs.run(method, data=own, rounds=ROUNDS, seeds=list(SEEDS), evaluate=looked, on_round=look, **SETTING)
    return found


def main() -> None:
    """Run all methods and keep what was seen."""
    data, found = fraction(), {}
    for name, method in METHODS.items():
        found[name] = course(data, method)
        for line in found[name]:
            print(name, {key: round(value, 4) for key, value in line.items()}, flush=True)
    RESULTS.write_text(json.dumps({"setting": SETTING, "courses": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
