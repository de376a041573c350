"""The JAX program of jax_federation.py, timed as benchmarks/gpu.py times ours.

`python benchmarks/peers/peer_jax.py --setting NAME [--precision P] [--alternatives] [--out FILE]` trains one
of gpu.py's settings: the median of three rounds after a warm-up round (which compiles), each with an
evaluation; `pfl` is a whole run with its start-up. `--alternatives` times all choices that may matter and
keeps the fastest. `--quick` has few random images, for a machine without a GPU. `--check` compares one round
of small settings (or one of them) with our sequential executor, from the same weights with the same batches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

# Ours may hold memory of the same GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
from gpu import RACES
from jax import random
from jax_federation import Choice, Federation, Models, Program, layers_of, translated
from torch import nn

from consilience.config.config import read_config
from consilience.data.dataset import Dataset
from consilience.data.normalising import normalisation
from consilience.engine.build import adjacency_of, simulate
from consilience.engine.rounds.simulation import Simulation
from consilience.engine.scene import Scene
from consilience.exchange.cohort import sample_clients
from consilience.experiment import plan
from consilience.experiment.planning import Arm
from consilience.learning.randomness import Purpose, torch_seed

CHOSEN = {
    "mlp": Choice(unroll=4),
    "dirichlet": Choice(unroll=4, buckets=5),
    "graph": Choice(buckets=5),
    "cifar": Choice(),
    "pfl": Choice(),
}
"""The choice for each setting: what `--alternatives` finds to be the fastest belongs here."""
CONVOLUTIONS = [
    {"convolution": "grouped"},
    {"convolution": "patches"},
    {"convolution": "taps"},
    {"pool": "slices"},
    {"pool": "window"},
    {"unroll": 4},
]
ALTERNATIVES: dict[str, list[dict[str, Any]]] = {
    "mlp": [{"unroll": 1}, {"unroll": 4}, {"unroll": 16}],
    "dirichlet": [{"buckets": count, "unroll": unroll} for count in (1, 5, 10) for unroll in (1, 4)],
    "graph": [*CONVOLUTIONS, {"buckets": 1}, {"buckets": 10}, {"random": "threefry2x32"}],
    "cifar": CONVOLUTIONS,
    "pfl": [*CONVOLUTIONS, {"random": "threefry2x32"}],
}
PRECISIONS = {"fp32": "float32", "tf32": "tensorfloat32", "bf16": "tensorfloat32"}
CLOSE = 1e-4


def arm_of(name: str, *, quick: bool) -> Arm:
    """The setting as our own configuration reads it, with its partitions."""
    method, settings = RACES[name]
    settings = {"rounds": 1, **settings, "method": method, "device": "cpu", "compile": "never"}
    if quick:
        settings |= {
            "data": _random_images(settings["data"]),
            "seeds": [0, 1][: len(settings.get("seeds", [0]))],
        }
        settings["clients"] = min(settings["clients"], 12)
        settings["solver"] = {**settings["solver"], "lr": 0.1}  # one round must change something
        if "participation" in settings:
            settings |= {"participation": 5, "rounds": min(20, settings["rounds"])}
        if "topology" in settings:
            settings["topology"] = {"name": "erdos_renyi", "p": 0.4}
    return plan(read_config(settings, "benchmark"))[0]


def _random_images(name: str) -> Dataset:
    """A few random images of a data set's size; with a class each, so that partitions differ."""
    random = np.random.default_rng(0)
    shape = (3, 32, 32) if name == "cifar10" else (1, 28, 28)
    inputs, targets = random.integers(0, 256, (700, *shape), dtype=np.uint8), np.arange(700) % 10
    return Dataset.from_arrays("random", inputs[:500], targets[:500], inputs[500:], targets[500:])


def federation_of(arm: Arm, precision: str) -> Federation:
    """The federation of an arm, with clients of all seeds in one list, the largest first."""
    scene = arm.scene
    solver: Any = arm.variants[0][1]
    assert scene.work.epochs is not None
    data, population = scene.dataset, scene.population
    shards = [shard for part in scene.partitions.values() for shard in part.shards]
    sampled = scene.participation < population
    sizes = np.array([len(shard) for shard in shards])
    order = np.argsort(-sizes, kind="stable")
    graph = adjacency_of(scene, scene.seeds[0])
    if graph is None:
        start = np.repeat(np.arange(len(scene.seeds)), population)
        mix = (start == np.arange(len(scene.seeds))[:, None]) * sizes
    else:
        assert len(scene.seeds) == 1
        start, mix = np.arange(population), (graph | np.eye(population, dtype=bool)) * sizes
    shift, scale = (value.numpy().reshape(-1) for value in normalisation(data, scene.normalize))
    return Federation(
        layers=tuple(layers_of(scene.build(), data.shape)),
        inputs=data.inputs.permute(0, 2, 3, 1).contiguous().numpy(),
        targets=data.targets.numpy(),
        test_inputs=data.test_inputs.permute(0, 2, 3, 1).contiguous().numpy(),
        test_targets=data.test_targets.numpy(),
        shift=shift,
        scale=scale,
        shards=tuple(np.asarray(shards[i]) for i in order),
        start=start[order],
        mix=(mix / mix.sum(1, keepdims=True))[:, order],
        cohort=scene.participation if sampled else None,
        epochs=scene.work.epochs,
        batch_size=scene.work.batch_size,
        lr=solver.lr,
        momentum=solver.momentum,
        weight_decay=solver.weight_decay,
        low=precision == "bf16",
    )


def initial_models(arm: Arm, federation: Federation) -> Models:
    """The models before the first round, one for every seed, or for every node of a graph."""
    built = []
    for number in range(len(federation.mix)):
        with torch_seed(number, Purpose.INITIAL_WEIGHTS, 0):
            built.append(dict(arm.scene.build().named_parameters()))
    stacked = {name: np.stack([model[name].detach().numpy() for model in built]) for name in built[0]}
    return translated(federation.layers, stacked, arm.scene.dataset.shape)


def rounds_of(arm: Arm, precision: str, choice: Choice, rounds: int) -> dict[str, Any]:
    """The speed of whole rounds in samples per second, as `ours` of gpu.py gives it."""
    federation = federation_of(arm, precision)
    data, models = federation.on_device(), initial_models(arm, federation)
    run = Program(federation, choice).compiled()
    seconds, accuracy = [], 0.0
    with jax.default_matmul_precision(PRECISIONS[precision]):
        for number in range(rounds + 1):
            keys = random.split(random.key(number, impl=choice.random), 1)
            jax.block_until_ready((models, data, keys))
            start = time.perf_counter()
            models, scores = jax.block_until_ready(run(models, data, keys))
            accuracy = float(scores[0].mean())
            seconds.append(time.perf_counter() - start)
    return {
        "samples_per_s": round(federation.samples / statistics.median(seconds[1:])),
        "round_s": seconds[1:],
        "first_round_s": seconds[0],
        "accuracy": accuracy,
    }


def whole_run(name: str, precision: str, choice: Choice, *, quick: bool) -> dict[str, Any]:
    """The seconds of a whole run with its start-up, evaluated as often as the configuration says."""
    start = time.perf_counter()
    arm = arm_of(name, quick=quick)
    federation = federation_of(arm, precision)
    data, models = federation.on_device(), initial_models(arm, federation)
    every = arm.config.evaluate.every
    run = Program(federation, choice).compiled(every)
    first, accuracies = 0.0, []
    with jax.default_matmul_precision(PRECISIONS[precision]):
        for number in range(arm.config.rounds // every):
            keys = random.split(random.key(number, impl=choice.random), every)
            models, scores = run(models, data, keys)
            accuracies.append(float(scores[0].mean()))
            first = first or time.perf_counter() - start
    return {
        "seconds": time.perf_counter() - start,
        "first_evaluation_s": first,
        "accuracy": accuracies[-1],
    }


def measured(name: str, precision: str, choice: Choice, options: argparse.Namespace) -> dict[str, Any]:
    """The speed of one choice, with the memory of the device at its peak where that is known."""
    if name == "pfl":
        found = whole_run(name, precision, choice, quick=options.quick)
    else:
        found = rounds_of(arm_of(name, quick=options.quick), precision, choice, options.rounds)
    memory = jax.devices()[0].memory_stats() or {}
    found["peak_gb"] = memory.get("peak_bytes_in_use", 0) / 1e9
    return {"precision": precision, "choice": asdict(choice), **found}


def fastest(name: str, precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """The fastest of all alternatives, with what each of them gave."""
    found = []
    for changes in ALTERNATIVES[name]:
        try:
            found.append(measured(name, precision, replace(CHOSEN[name], **changes), options))
        except (jax.errors.JaxRuntimeError, NotImplementedError) as error:  # e.g. out of memory
            print(name, changes, "failed:", str(error).splitlines()[0][:200], flush=True)
            continue
        speed = found[-1].get("samples_per_s", found[-1].get("seconds"))
        print(name, precision, changes, speed, flush=True)
    best = min(
        found, key=lambda one: statistics.median(one["round_s"]) if "round_s" in one else one["seconds"]
    )
    return {**best, "alternatives": found}


def check(name: str, choice: Choice) -> float:
    """The largest difference between our weights and JAX's after one round of a small setting."""
    arm = arm_of(name, quick=True)
    scene = replace(arm.scene, executor="sequential", build=lambda: _without_dropout(arm.scene))
    simulation = simulate(scene, arm.variants)
    federation = federation_of(replace(arm, scene=scene), "fp32")
    program, data = Program(federation, choice), federation.on_device()
    rows, mix, start = _same_batches(simulation, federation)
    before = _models_of(simulation, federation)
    key = random.key(0, impl=choice.random)
    with jax.default_matmul_precision("float32"):
        after = jax.jit(program.exchange)(data, before, rows, key, mix, start)
        loss = float(program.scores(data, after)[1].mean())
    records = simulation.step(trained=False)
    ours = _models_of(simulation, federation)
    assert _difference(before, ours) > 10 * CLOSE, "hardly anything was learned, so hardly anything compared"
    assert abs(np.mean([record.scores["test_loss"] for record in records]) - loss) < CLOSE
    _check_shuffling(program, data)
    return _difference(after, ours)


def _without_dropout(scene: Scene) -> nn.Module:
    """The model, with dropout that drops nothing: its masks are the only randomness of a step."""
    model = scene.build()
    for layer in model.modules():
        if isinstance(layer, nn.Dropout | nn.Dropout2d):
            layer.p = 0.0
    return model


def _models_of(simulation: Simulation, federation: Federation) -> Models:
    """What all hubs hold, as JAX has it."""
    world = simulation.world
    axes = len(world.hub_shape)
    params = simulation.hub["params"]
    stacked = {name: value.numpy().reshape(-1, *value.shape[axes:]) for name, value in params.items()}
    return translated(federation.layers, stacked, tuple(world.pool.inputs.shape[1:]))


def _same_batches(
    simulation: Simulation, federation: Federation
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows that our clients visit in the first round, their weights in averages and where they start."""
    world = simulation.world
    sizes = world.sizes().reshape(-1)
    chosen, mix, start = np.argsort(-sizes, kind="stable"), federation.mix, federation.start
    if federation.cohort is not None:
        chosen = sample_clients(world.replicas[0].seed, 0, world.replicas[0].available, federation.cohort)
        mix, start = sizes[None, chosen] / sizes[chosen].sum(), np.zeros(len(chosen), np.int64)
    jobs = [divmod(int(client), world.population) for client in chosen]
    batches = world.cohort(jobs, 0).plan("train")
    rows = np.full((max(batches.steps), len(jobs), batches.rows.shape[1]), -1, np.int32)
    for job in range(len(jobs)):
        for number, step in enumerate(batches.of_job(job)):
            size = batches.sizes[step]
            rows[number, job, :size] = batches.rows[step, :size]
    return rows, mix.astype(np.float32), start


def _check_shuffling(program: Program, data: dict[str, jax.Array]) -> None:
    """Every client visits each of its rows once an epoch, in another order each time."""
    federation = program.federation
    rows = np.asarray(program.shuffled(random.key(1), data["rows"], data["sizes"]))
    for client, shard in enumerate(federation.shards):
        visited = rows[:, client][rows[:, client] >= 0].reshape(federation.epochs, -1)
        assert all((np.sort(epoch) == np.sort(shard)).all() for epoch in visited)
        assert len(shard) < 5 or all((epoch != shard).any() for epoch in visited)


def _difference(one: Models, other: Models) -> float:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(abs(a - b).max()) for a, b in pairs)


def check_all(names: Sequence[str]) -> None:
    """Print the differences of some settings with all their choices; fail if one is too large."""
    for name in names:
        for changes in [{}, *ALTERNATIVES[name]]:
            difference = check(name, replace(CHOSEN[name], **changes))
            print(f"{name} {changes or 'as chosen'}: {difference:.1e}", flush=True)
            assert difference < CLOSE


def main() -> None:
    """Measure one setting, or check all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=RACES)
    parser.add_argument("--precision", choices=PRECISIONS, default="tf32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alternatives", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.check:
        check_all([options.setting] if options.setting else list(RACES))
        return
    if options.setting is None:
        parser.error("say which --setting, or --check")
    name, precision = options.setting, options.precision
    if options.alternatives:
        found = fastest(name, precision, options)
    else:
        found = measured(name, precision, CHOSEN[name], options)
    found["versions"] = {"jax": jax.__version__, "device": jax.devices()[0].device_kind}
    print(json.dumps(found, indent=1), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
