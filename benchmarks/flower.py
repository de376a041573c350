"""Seconds an exchange and bytes inside Flower: a federation of ours beside Flower's own FedAvg.

Both run on one SuperLink with three SuperNodes on this machine, with the same model and data and as many
steps. Flower starts a process for every message; its own FedAvg then imports torch, loads data and
trains there, ours hands bytes to a resident site. Needs `consilience[flower]`.

    python benchmarks/flower.py [--rounds 5] [--hidden "200 200"] [--out results/flower.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from cpu import environment

from consilience.config.config import read_config
from consilience.deploy.agreeing import agree
from consilience.deploy.flower.writing import write_app
from consilience.deploy.journal import read_lines
from scorecard.flower_processes import BIN, Place, opened, status, until

SITES = 3

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "plain"
version = "1.0.0"
dependencies = ["flwr>=1.41"]
[tool.hatch.build.targets.wheel]
packages = ["plain"]
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "plain.apps:server"
clientapp = "plain.apps:client"
[tool.flwr.app.config]
rounds = 1
hidden = "200 200"
out = ""
"""

APPS = """
import json, time
from pathlib import Path
import torch
from torch import nn
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()


def net(hidden):
    sizes = [784, *map(int, hidden.split())]
    layers = [layer for pair in zip(sizes, sizes[1:]) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(sizes[-1], 10))


@client.train()
def train(message, context):
    from consilience.data import load
    model = net(context.run_config["hidden"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = load("mnist-sample")
    rows = torch.arange(context.node_config["number"], 6000, 3)
    inputs, targets = data.inputs[rows].float() / 127.5 - 1, data.targets[rows]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch in torch.randperm(len(rows)).split(32)[:STEPS]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(rows)})
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


@server.main()
def main(grid, context):
    times, sizes = [], []

    def note(number, arrays):
        times.append(time.perf_counter())
        sizes.append(sum(len(one.data) for one in arrays.values()))

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    arrays = ArrayRecord(net(context.run_config["hidden"]).state_dict())
    strategy.start(grid, arrays, num_rounds=context.run_config["rounds"], evaluate_fn=note)
    seconds = [later - sooner for sooner, later in zip(times, times[1:])]
    Path(context.run_config["out"]).write_text(json.dumps({"seconds": seconds, "bytes": sizes[-1]}))
"""
STEPS = 10


def plain(place: Place, rounds: int, hidden: str) -> tuple[list[float], int]:
    """Seconds of every exchange and bytes of a message, of Flower's own FedAvg."""
    app, out = place.folder / "plain-app", place.folder / "plain.json"
    (app / "plain").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "plain" / "__init__.py").write_text("")
    (app / "plain" / "apps.py").write_text(textwrap.dedent(APPS).replace("STEPS", str(STEPS)))
    place.flwr("run", "plain-app", "trial", "--run-config", f'rounds={rounds} hidden="{hidden}" out="{out}"')
    until(out.exists, "the plain app ends", lambda: place.said("link"), 900.0)
    found = json.loads(out.read_text())
    return found["seconds"], found["bytes"]


def ours(place: Place, rounds: int, hidden: str, method: str) -> tuple[list[float], int]:
    """The same of a method of ours."""
    config = read_config(
        {
            "method": method,
            "data": {"name": "mnist-sample", "normalize": "half"},
            "model": {"name": "mlp", "hidden": [int(size) for size in hidden.split()]},
            "clients": SITES,
            "rounds": rounds,
            "local": {"steps": STEPS, "batch_size": 32},
            "solver": {"name": "sgd", "lr": 0.05},
            "evaluate": {"every": rounds, "clients": False},
        }
    )
    write_app(agree(config), place.folder / f"{method}-app")
    for number in range(SITES):
        words = [f"{method}-app/federation/federation.yaml", "--client", str(number)]
        words += ["--socket", f"{number}.sock", "--out", f"{method}-{number}"]
        place.start(f"site{number}", str(BIN / "python"), "-m", "consilience", "site", *words)
    hub = place.folder / f"{method}-hub"
    place.flwr("run", f"{method}-app", "trial", "--run-config", f'out="{hub}"')
    until(lambda: status(hub).get("done"), "the federation ends", lambda: place.said("link"), 900.0)
    lines = read_lines(hub / "metrics.jsonl")
    for number in range(SITES):
        place.kill(f"site{number}")
    return [line["seconds"] for line in lines[1:]], lines[-1]["bytes_up"] // (rounds * SITES)


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hidden", default="200 200")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "flower.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as place:
        place.superlink()
        for number in range(SITES):
            place.supernode(f"node{number}", f'number={number} socket="{folder}/{number}.sock"')
        results = {"flower fedavg": plain(place, options.rounds, options.hidden)}
        for method in ("fedavg", "hwa"):
            results[f"consilience {method}"] = ours(place, options.rounds + 1, options.hidden, method)
    rows = {name: summary(*found) for name, found in results.items()}
    base = rows["flower fedavg"]
    for name, row in rows.items():
        row["seconds_ratio"] = round(row["seconds"] / base["seconds"], 2)
        row["bytes_ratio"] = round(row["bytes"] / base["bytes"], 4)
        took = f"{row['seconds']:6.1f} s an exchange ({row['least']:.1f} to {row['most']:.1f})"
        size = f"{row['bytes']:,} bytes a message"
        print(f"{name:20} {took}, {row['seconds_ratio']:.2f} times; {size}, {row['bytes_ratio']:.4f} times")
    settings = {"sites": SITES, "hidden": options.hidden, "steps": STEPS, "exchanges": options.rounds}
    found = {"environment": environment(), "settings": settings, "results": rows}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


def summary(seconds: list[float], size: int) -> dict[str, float]:
    """What exchanges took in the median, at least and at most, and how large a message was."""
    return {"seconds": statistics.median(seconds), "least": min(seconds), "most": max(seconds), "bytes": size}


if __name__ == "__main__":
    main()
