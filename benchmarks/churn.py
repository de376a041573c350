"""Memory over a long run with churn: `python benchmarks/churn.py [--rounds 1000] [--nodes 30]`.

Peers on a graph leave and return, links lose messages and the graph is drawn anew, so that hardly two rounds
have the same nodes. Resident memory (RSS) and the proportional share of it (PSS) of the process and its
workers are printed after every tenth of the rounds, at the end with the ratio of the last to the first:
what is kept for every new cohort would make it grow. All nodes are evaluated in every round.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from consilience.config.config import read_config
from consilience.engine.build import simulate
from consilience.engine.determinism import repeatable
from consilience.experiment import plan

CHURN: dict[str, Any] = {
    "data": "mnist-sample",
    "partition": {"name": "dirichlet_class", "alpha": 0.5},
    "topology": {"name": "erdos_renyi", "p": 0.2},
    "network": {"leave": 0.1, "come_back": 0.3, "loss": 0.1, "redraw_every": 10},
    "model": {"name": "mlp", "hidden": [16]},
    "local": {"steps": 2, "batch_size": 16},
    "device": "cpu",
}
FIELDS = {"Rss:": "rss_mb", "Pss:": "pss_mb"}


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in thread.joinpath("children").read_text().split():
                found += family(int(child))
    return found


def memory() -> dict[str, float]:
    """The memory in MB of this process and its workers: resident, and with shared pages in parts."""
    total = dict.fromkeys(FIELDS.values(), 0.0)
    for pid in family(os.getpid()):
        with suppress(OSError):  # it has ended since
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
                name, size, *_ = line.split()
                if name in FIELDS:
                    total[FIELDS[name]] += int(size) * 1024 / 1e6
    return total


def main() -> None:
    """Run the rounds and print what they leave."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=30)
    parser.add_argument("--method", default="dechetero")
    parser.add_argument("--model", help="a model's name, in place of a small dense one")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "churn.json")
    options = parser.parse_args()
    changes = {"method": options.method, "clients": options.nodes, "rounds": options.rounds}
    if options.model:
        changes["model"] = options.model
    config = read_config({**CHURN, **changes}, "churn")
    lines: list[dict[str, float]] = []
    with repeatable(config.torch_device, config.precision):
        arm = plan(config)[0]
        simulation = simulate(arm.scene, arm.variants)
        with closing(simulation.world.executor):
            start = time.perf_counter()
            for number in range(1, options.rounds + 1):
                simulation.step(trained=False)
                if number % max(1, options.rounds // 10) == 0:
                    gc.collect()
                    lines.append({"round": number, "seconds": time.perf_counter() - start, **memory()})
                    print({name: round(value, 1) for name, value in lines[-1].items()}, flush=True)
    ratios = {f"{name} ratio": lines[-1][name] / lines[0][name] for name in FIELDS.values()}
    print({name: round(value, 3) for name, value in ratios.items()})
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**changes, "lines": lines, **ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()
