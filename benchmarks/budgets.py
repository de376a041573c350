"""Every method under memory budgets: `python benchmarks/budgets.py [ROW ...] [--budgets 8,16]`.

Row `methods` (the default): each method in its paper's setting (paper_settings.py), three warm-up rounds and
three more, under budgets of 8, 16 and 80 GB. A budget is told to the configuration (`memory`, where there is
such a key) and made real: the process cannot reserve more. Rows `fagh` and `fedavg`: 100 rounds of FAGH's
setting on Fashion-MNIST, with the seconds and the memory of every round. Results are written as they come;
what is there is not measured again. `--device cpu --quick` runs everything with few small clients, without
evaluation (a batch of which is too much for a CPU and a large model), and checks that the whole settings are
valid.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu import environment
from paper_settings import FAGH, SETTINGS, SHAPES, Images, Setting, sgd

from consilience.algorithms import METHODS
from consilience.config.config import Config, read_config
from consilience.data.dataset import Dataset
from consilience.data.loading import load
from consilience.engine.build import simulate
from consilience.engine.determinism import repeatable
from consilience.engine.rounds.simulation import Simulation
from consilience.errors import UserError
from consilience.experiment import plan

TEST_ROWS = 2000
"""How much of a test set is kept: memory does not depend on it, time does."""
GB = 10**9
BUDGETS = (8, 16, 80)
LONG = 100
"""The rounds of the rows that look at every round."""


@functools.cache
def data_of(name: str | Images) -> Dataset:
    """A data set with a short test set; random images where it is not on this machine."""
    if isinstance(name, str):
        try:
            whole = load(name)
        except UserError:
            if name not in SHAPES:
                raise
            return random_images(SHAPES[name])
        groups = None if whole.test_groups is None else whole.test_groups[:TEST_ROWS]
        inputs, targets = whole.test_inputs[:TEST_ROWS], whole.test_targets[:TEST_ROWS]
        return replace(whole, test_inputs=inputs, test_targets=targets, test_groups=groups)
    return random_images(name)


def random_images(like: Images, test_rows: int = TEST_ROWS, writers: int | None = None) -> Dataset:
    """Random images of a shape, whose classes take turns."""
    random = np.random.default_rng(0)
    inputs = random.integers(0, 256, (like.rows + test_rows, *like.shape), dtype=np.uint8)
    targets, numbers = np.arange(len(inputs)) % like.classes, np.arange(len(inputs))
    rows = like.rows
    return Dataset.from_arrays(
        "random",
        inputs[:rows],
        targets[:rows],
        inputs[rows:],
        targets[rows:],
        classes=like.classes,
        groups=None if writers is None else numbers[:rows] % writers,
        test_groups=None if writers is None else numbers[rows:] % writers,
    )


def small(setting: Setting) -> Setting:
    """The setting with a few clients that have a few images and take one step."""
    config = dict(setting.config)
    clients = config["clients"] = 7 if config.get("topology") == "ring" else 4
    if "topology" in config and config["topology"] != "ring":
        config["topology"] = "complete"
    if "participation" in config:
        config["participation"] = 2
    if "seeds" in config:
        config["seeds"] = [0, 1]
    if config["partition"] not in ("by_writer", "iid"):
        config["partition"] = "iid"  # a few rows cannot be dealt as in the paper
    config["local"] = {**config["local"], "batch_size": 4}
    if "steps" in config["local"]:
        config["local"]["steps"] = 2
    if isinstance(config.get("method"), dict) and config["method"]["name"] == "desa":
        config["method"] = {**config["method"], "ipc": 2}
    whole = data_of(setting.data)
    shape = (whole.shape[0], whole.shape[1], whole.shape[2])
    like = Images(shape, whole.outputs, 8 * clients)
    return replace(setting, data=random_images(like, 10, clients), config=config)  # type: ignore[arg-type]


def config_of(method: str, setting: Setting, options: argparse.Namespace, budget: int, rounds: int) -> Config:
    """The configuration of a method in its setting, under a budget."""
    on_gpu = options.device != "cpu"
    values: dict[str, Any] = {"method": method, **setting.config, "device": options.device, "rounds": rounds}
    values["data"] = setting.data if isinstance(setting.data, Dataset) else data_of(setting.data)
    values |= {
        "precision": "tf32" if on_gpu else "fp32",
        "compile": "always" if options.compile else "never",
    }
    if "memory" in Config.model_fields:
        values["memory"] = f"{budget}GB"
    return read_config(values, method)


@contextmanager
def limited(device: str, budget: int) -> Iterator[None]:
    """Within it, torch reserves no more than a budget of the GPU's memory."""
    if device == "cpu":
        yield
        return
    clear()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, budget * GB / total))
    torch.cuda.reset_peak_memory_stats()
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def clear() -> None:
    """Give back what an earlier measurement left."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def memory(device: str) -> dict[str, float]:
    """The peaks of the GPU's memory in GB since they were last reset."""
    if device == "cpu":
        return {}
    return {
        "reserved_gb": torch.cuda.max_memory_reserved() / GB,
        "allocated_gb": torch.cuda.max_memory_allocated() / GB,
    }


def timed(simulation: Simulation, options: argparse.Namespace) -> tuple[float, int, dict[str, float]]:
    """The seconds of one round, its samples and its scores."""
    start = time.perf_counter()
    records = simulation.step(evaluate=not options.quick, trained=False)
    if options.device != "cpu":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    print(f"  a round: {seconds:.1f} s", flush=True)
    return seconds, sum(record.samples for record in records), records[0].scores


def cell(method: str, setting: Setting, options: argparse.Namespace, budget: int) -> dict[str, Any]:
    """How a method fared under a budget: its speed and memory, or the line with which it ended."""
    start = time.perf_counter()
    found: dict[str, Any] = {"source": setting.source, "instead": setting.instead}
    with limited(options.device, budget):
        try:
            found |= {"ended": True, **speed(method, setting, options, budget)}
        except (UserError, RuntimeError) as error:  # torch's being out of memory is a RuntimeError
            found |= {
                "ended": False,
                "error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            }
        found |= memory(options.device)
    return {**found, "wall_s": time.perf_counter() - start}


def speed(method: str, setting: Setting, options: argparse.Namespace, budget: int) -> dict[str, Any]:
    """Milliseconds a round and samples a second, after some that warm up."""
    config = config_of(method, setting, options, budget, options.rounds + options.warm)
    with running(config) as simulation:
        first, *_ = [timed(simulation, options)[0] for _ in range(options.warm)]
        rounds = [timed(simulation, options) for _ in range(options.rounds)]
        lanes = getattr(simulation.world.executor, "lanes", None)
    seconds = statistics.median(seconds for seconds, _, _ in rounds)
    samples = statistics.median(samples for _, samples, _ in rounds)
    return {
        "data": config.data.name,
        "first_ms": 1000 * first,
        "round_ms": 1000 * seconds,
        "samples_per_s": round(samples / seconds) if samples else None,  # where optimiser steps are taken
        "lanes": lanes,
        "warm": options.warm,
        "timed": options.rounds,
    }


@contextmanager
def running(config: Config) -> Iterator[Simulation]:
    """A simulation of a configuration's one method, before its first round."""
    with repeatable(config.torch_device, config.precision):
        arm = plan(config)[0]
        simulation = simulate(arm.scene, arm.variants)
        with closing(simulation.world.executor):
            yield simulation


def methods(options: argparse.Namespace, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All methods under all budgets, after each of them."""
    for method in options.methods:
        setting = SETTINGS[method]
        if options.quick:
            plan(config_of(method, setting, options, options.budgets[0], 1))  # refuses what is not valid
            setting = small(setting)
        for budget in options.budgets:
            own = found.setdefault(method, {})
            if f"{budget} GB" in own:
                continue
            own[f"{budget} GB"] = cell(method, setting, options, budget)
            print(line(method, budget, own[f"{budget} GB"]), flush=True)
            yield found


def line(method: str, budget: int, one: dict[str, Any]) -> str:
    """One line of the table."""
    speed = f"{one['samples_per_s']:>10,} samples/s" if one.get("samples_per_s") else ""
    told = one.get("error") or f"{one['round_ms']:8.1f} ms a round, lanes {one['lanes']} {speed}"
    used = f"{one['reserved_gb']:5.1f} GB reserved" if "reserved_gb" in one else ""
    return f"{method:18} {budget:3} GB {one['wall_s']:5.1f} s {used} {told}"


def long(
    name: str, values: dict[str, Any], options: argparse.Namespace, found: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """A hundred rounds of FAGH's setting under every budget, round by round."""
    setting = Setting(SETTINGS["fagh"].source, "fashion-mnist", {**FAGH, **values})
    rounds = LONG
    if options.quick:
        setting, rounds = small(setting), 3
    for budget in options.budgets:
        label = f"{name}, {budget} GB"
        if label in found:
            continue
        lines: list[dict[str, Any]] = []
        found[label] = {"rounds": lines}
        with limited(options.device, budget):
            try:
                with running(config_of("fedavg", setting, options, budget, rounds)) as simulation:
                    for _ in range(rounds):
                        if options.device != "cpu":
                            torch.cuda.reset_peak_memory_stats()  # each round has a peak of its own
                        seconds, _, scores = timed(simulation, options)
                        lines.append({"seconds": seconds, **scores, **memory(options.device)})
            except (UserError, RuntimeError) as error:
                found[label]["error"] = " ".join(str(error).split())[:300]
        last = lines[-1] if lines else {}
        print(label, len(lines), "rounds", last, found[label].get("error", ""), flush=True)
        yield found


def fagh(options: argparse.Namespace, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """FAGH in its own setting."""
    yield from long("fagh", {"method": "fagh"}, options, found)


def fedavg(options: argparse.Namespace, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """FedAvg in FAGH's setting, with two learning rates."""
    for lr in (0.01, 0.1):
        yield from long(f"fedavg, lr {lr}", {"method": "fedavg", "solver": sgd(lr)}, options, found)


Row = Callable[[argparse.Namespace, dict[str, Any]], Iterator[dict[str, Any]]]
ROWS: dict[str, Row] = {row.__name__: row for row in (methods, fagh, fedavg)}


def options_of(command_line: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(ROWS)}; by default methods")
    parser.add_argument("--budgets", type=_numbers, default=list(BUDGETS), help="in GB, e.g. 8,16")
    parser.add_argument("--methods", type=_methods, default=list(SETTINGS), help="e.g. hwa,fedavg")
    parser.add_argument("--rounds", type=int, default=3, help="how many are timed, after some that are not")
    parser.add_argument("--warm", type=int, default=3, help="rounds before, which capture steps")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--commit", help="the code that is measured, where git cannot tell")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "budgets.json")
    options = parser.parse_args(command_line)
    for row in options.rows:
        if row not in ROWS:
            parser.error(f"unknown row {row!r}; there are {', '.join(ROWS)}")
    return options


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _methods(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in SETTINGS:
            raise argparse.ArgumentTypeError(f"unknown method {name!r}; there are {', '.join(SETTINGS)}")
    return names


def main() -> None:
    """Measure what is asked for and not there yet."""
    options = options_of()
    if missing := METHODS.keys() - SETTINGS.keys():
        raise SystemExit(f"no setting of {', '.join(sorted(missing))}: add it to paper_settings.py")
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in options.rows or ["methods"]:
        row = found.setdefault(name, {"environment": {}, "results": {}})
        if options.device != "cpu":
            row["environment"] = environment(options.commit)
        for _ in ROWS[name](options, row["results"]):
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
