"""Distance to the optimum on convex problems: `python benchmarks/convex.py [SETTING ...] [--methods ...]`.

Logistic regression with an l2 term on MNIST and Fashion-MNIST in float64, 10 clients, IID or with two classes
each. The optimum is found once by scipy (L-BFGS, then Newton steps, to a gradient of norm 1e-10). For every
method: how far the hub's model is from it, and its loss from the smallest, after each round and byte. Methods
that have a learning rate are run with all of a grid side by side, and that with the smallest loss at the end
is kept. Results are written as they come, and what is there is not run again; `--plot` draws it.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import closing
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor

from consilience.config.config import read_config
from consilience.data.loading import load
from consilience.data.normalising import normalisation
from consilience.engine.build import simulate
from consilience.engine.determinism import repeatable
from consilience.experiment import plan

RESULTS = Path(__file__).parent / "results" / "convex.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "convex.png"
L2 = 1e-3
CLIENTS = 10
ROUNDS = 50
SMALL = 1e-10
"""The norm of the gradient at what is taken for the optimum."""
SETTINGS = {
    f"{data}, {label}": (data, partition)
    for data in ("mnist", "fashion-mnist")
    for label, partition in (("iid", "iid"), ("two classes", "shards_two_classes"))
}
RATES = [0.01, 0.03, 0.1, 0.3]
LOCAL: dict[str, Any] = {"epochs": 1, "batch_size": 64}
WHOLE: dict[str, Any] = {"steps": 1, "batch_size": 60_000}


@dataclass(frozen=True)
class Problem:
    """Logistic regression on all of a data set, in float64: `f(w) = mean loss + L2/2 |w|^2`."""

    data: str
    device: str = "cpu"

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor]:
        """The inputs, each with a one at its end for the bias, and the classes."""
        dataset = load(self.data)
        shift, scale = normalisation(dataset, "half")
        inputs = (dataset.inputs.double() - shift) / scale
        inputs = inputs.flatten(1)
        inputs = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)], 1)
        return inputs.to(self.device), dataset.targets.to(self.device)

    def value(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss and its gradient at weights [classes, inputs and bias], flattened."""
        inputs, targets = self.rows
        weights = self._weights(flat)
        logits = inputs @ weights.T
        logs = logits.log_softmax(1)
        slopes = logs.exp()
        slopes.scatter_add_(1, targets[:, None], -torch.ones_like(logs[:, :1]))
        gradient = slopes.T @ inputs / len(targets) + L2 * weights
        fit = -logs.gather(1, targets[:, None]).mean()
        return float(fit + L2 / 2 * weights.square().sum()), gradient.flatten().cpu().numpy()

    def _weights(self, flat: np.ndarray) -> Tensor:
        return torch.from_numpy(flat).to(self.device).reshape(-1, self.rows[0].shape[1])

    def hessian(self, flat: np.ndarray) -> LinearOperator:
        """The Hessian at some weights."""
        inputs, targets = self.rows
        weights = self._weights(flat)
        chances = (inputs @ weights.T).softmax(1)

        def times(vector: np.ndarray) -> np.ndarray:
            direction = self._weights(vector)
            moved = inputs @ direction.T
            moved = chances * (moved - (chances * moved).sum(1, keepdim=True))
            return (moved.T @ inputs / len(targets) + L2 * direction).flatten().cpu().numpy()

        return LinearOperator((flat.size, flat.size), matvec=times, dtype=np.float64)

    def optimum(self, classes: int = 10) -> np.ndarray:
        """The weights at which the gradient is next to nothing."""
        start = np.zeros(classes * self.rows[0].shape[1])
        options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 0.0, "gtol": 1e-8, "maxcor": 50}
        best = minimize(self.value, start, jac=True, method="L-BFGS-B", options=options).x
        gradient = self.value(best)[1]
        while np.linalg.norm(gradient) > SMALL:
            best = best - cg(self.hessian(best), gradient, rtol=1e-6)[0]
            gradient = self.value(best)[1]
        return best


@cache
def known_optimum(data: str, device: str) -> tuple[Problem, np.ndarray]:
    """The problem of a data set with its optimum, which is kept in a file."""
    problem, file = Problem(data, device), RESULTS.parent / f"convex-{data}.npy"
    if not file.exists():
        np.save(file, problem.optimum(), allow_pickle=False)
    return problem, np.load(file, allow_pickle=False)


def flattened(params: dict[str, Tensor]) -> np.ndarray:
    """[replicas, numbers] the hub's models, with every class's bias after its weights."""
    weight, bias = params["head.weight"], params["head.bias"]
    return torch.cat([weight, bias[..., None]], -1).flatten(1).cpu().numpy()


def trained(name: str, rates: list[float] = RATES, **options: Any) -> dict[str, Any]:
    """A method whose clients train, with a grid of learning rates."""
    return {"method": {"name": name, **options}, "solver": {"name": "sgd", "lr": rates}, "local": LOCAL}


def solved(name: str, **options: Any) -> dict[str, Any]:
    """A method whose clients look at all of their data at once; numbers in lists are a grid."""
    return {"method": {"name": name, **options}, "local": WHOLE}


METHODS: dict[str, dict[str, Any]] = {
    "fedavg": trained("fedavg"),
    "hwa": trained("hwa"),
    "scaffold": trained("scaffold"),
    "fedlin": trained("fedlin", [0.1, 0.3, 1.0, 3.0]),
    "fedsso": trained("fedsso", [0.01, 0.1], server_lr=[0.1, 1.0]),
    "fagh": solved("fagh", lr=[0.1, 0.3, 1.0], rho=[1.0, 10.0]),
    "giant": solved("giant", damping=0.0, iterations=30),
    "done": solved("done", rate=[0.003, 0.01, 0.03], iterations=30),
    "dane": solved("dane", mu=[0.01, 0.1, 1.0], iterations=20, newton_steps=3),
    "feddane": trained("feddane", mu=[0.0, 0.1]),
    "fednl, rank 1": solved("fednl", rank=1, option="floor", line_search=True, initial="leading"),
    "bl1": solved("bl1", mu=[0.1, 1.0]),
}
"""What every method is run with, beside the setting."""


def course(setting: str, method: str, rounds: int, device: str) -> dict[str, Any]:
    """How a method approaches the optimum, with the best of its learning rates."""
    data, partition = SETTINGS[setting]
    problem, best = known_optimum(data, device)
    least = problem.value(best)[0]
    values = {
        "data": {"name": data, "normalize": "half"},
        "partition": partition,
        "clients": CLIENTS,
        "model": "logistic",
        "l2": L2,
        "dtype": "float64",
        "rounds": rounds,
        "device": device,
        **METHODS[method],
    }
    config = read_config(values, method)
    start = time.perf_counter()
    with repeatable(config.torch_device, config.precision):
        arm = plan(config)[0]
        simulation = simulate(arm.scene, arm.variants)
        lines: list[list[tuple[int, float, float]]] = [[] for _ in arm.variants]
        sent = [0] * len(arm.variants)
        with closing(simulation.world.executor):
            for _ in range(rounds):
                records = simulation.step(evaluate=False, trained=False)
                models = flattened(simulation.models(simulation.evaluated())["params"])
                for number, (record, model) in enumerate(zip(records, models, strict=True)):
                    sent[number] += sum(record.bytes_up.values()) + sum(record.bytes_down.values())
                    excess = problem.value(model)[0] - least if np.isfinite(model).all() else np.inf
                    lines[number].append((sent[number], float(np.linalg.norm(model - best)), excess))
    chosen = min(range(len(lines)), key=lambda number: _ordered(lines[number][-1][2]))
    bytes_sent, distances, excesses = (list(column) for column in zip(*lines[chosen], strict=True))
    return {
        "config": config.written() | {"data": data},
        "variant": repr(arm.variants[chosen]),
        "bytes": bytes_sent,
        "distance": distances,
        "excess": excesses,
        "optimum_norm": float(np.linalg.norm(best)),
        "seconds": time.perf_counter() - start,
    }


def _ordered(number: float) -> float:
    return np.inf if np.isnan(number) else number


def draw(found: dict[str, Any]) -> None:
    """Draw the excess of the loss over rounds and over bytes, a row for each setting."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    settings = [name for name in SETTINGS if name in found]
    names = list(dict.fromkeys(method for name in settings for method in found[name]))
    colours = {name: colormaps["tab20"](number % 20) for number, name in enumerate(names)}
    figure = Figure(figsize=(11, 3.6 * len(settings)), layout="constrained")
    rows = figure.subplots(len(settings), 2, squeeze=False)
    for axes, setting in zip(rows, settings, strict=True):
        for method, one in found[setting].items():
            excess = np.array(one["excess"])
            excess[~(excess < 1e3)] = np.nan  # what diverged leaves the picture
            rounds, sent = np.arange(1, len(excess) + 1), np.array(one["bytes"]) / 1e6
            for axis, x in zip(axes, (rounds, sent), strict=True):
                style = "--" if "solver" in METHODS[method] else "-"  # where clients train, and where not
                axis.plot(x, np.maximum(excess, 1e-16), style, label=method, color=colours[method], lw=1.4)
        for axis, label in zip(axes, ("rounds", "MB sent, both ways, all clients"), strict=True):
            axis.set(yscale="log", xlabel=label, ylabel="f(w) - f*", title=setting)
            axis.grid(alpha=0.3)
        axes[1].set_xscale("log")
    rows[0][1].legend(fontsize=7, ncols=2)
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    """Run what is asked for and not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", default=[], help=f"of {', '.join(SETTINGS)}; by default all")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    for setting in options.settings:
        if setting not in SETTINGS:
            parser.error(f"unknown setting {setting!r}; there are {', '.join(SETTINGS)}")
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.plot:
        draw(found)
        return
    for setting in options.settings or SETTINGS:
        for method in options.methods:
            own = found.setdefault(setting, {})
            if method in own:
                continue
            own[method] = course(setting, method, options.rounds, options.device)
            options.out.write_text(json.dumps(found, indent=1) + "\n")
            last, seconds = own[method]["excess"][-1], own[method]["seconds"]
            print(
                f"{setting:28} {method:14} f - f* {last:.2e} after {options.rounds} rounds, {seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
