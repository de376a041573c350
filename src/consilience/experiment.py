"""A whole run: every method in every setting, with its files, its checkpoints and its summary."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from consilience import tree
from consilience.algorithm import Algorithm, Init
from consilience.config import Config, load_config
from consilience.coordinate import Coordinate
from consilience.data import load
from consilience.data.dataset import Dataset
from consilience.data.partition import Partition, partition
from consilience.deploy import wire
from consilience.engine.build import Scene, adjacency_of, check, simulate
from consilience.engine.cohort import LocalWork
from consilience.engine.determinism import repeatable
from consilience.engine.simulation import Record
from consilience.errors import UserError
from consilience.methods import MethodChoice
from consilience.report.coordinate_plots import coordinates_plot, has_coordinates
from consilience.report.node_map import MAPPED, map_plot
from consilience.report.node_plots import nodes_plot
from consilience.report.node_records import Peers, settings_with_nodes
from consilience.report.plots import accuracy_plot
from consilience.report.summary import MethodSummary, summarise
from consilience.run_folder import (
    CLIENTS,
    CONFIG,
    COORDINATE_PLOT,
    MAP,
    METRICS,
    NODE_PLOT,
    PARTITIONS,
    PLOT,
    SUMMARY,
    Checkpoint,
    Existing,
    RunFolder,
    finite_line,
)
from consilience.solver import Solver
from consilience.types import State
from consilience.version import __version__

LOG = logging.getLogger("consilience")


@dataclass(frozen=True)
class Arm:
    """One method, with all variants and seeds, in one setting."""

    setting: str
    config: Config
    scene: Scene
    choice: MethodChoice
    variants: tuple[tuple[Algorithm, Solver], ...]
    labels: tuple[str, ...]
    """By variant."""

    @property
    def name(self) -> str:
        """Names the arm's files."""
        return f"{self.setting} {self.choice.label}"

    def who(self, replica: int) -> tuple[str, int]:
        """The label and the seed of a replica."""
        seeds = self.scene.seeds
        return self.labels[replica // len(seeds)], seeds[replica % len(seeds)]


@dataclass(frozen=True, repr=False)
class Result:
    """What came out of a run."""

    records: list[dict[str, Any]]
    """The lines of metrics.jsonl."""
    clients: list[dict[str, Any]]
    """The lines of clients.jsonl: every client at the end."""
    summaries: list[MethodSummary]
    models: dict[str, State]
    """By arm, the final models: stacked over variants and seeds (and nodes or clients)."""
    digest: str
    """Of all metrics (but times) and final weights: the same run gives the same digest."""
    path: Path | None

    def __repr__(self) -> str:
        finals = ", ".join(f"{s.setting} {s.method}: {s.final_accuracy_mean}" for s in self.summaries)
        return f"Result({finals}; digest {self.digest[:12]})"

    @property
    def accuracy(self) -> float | None:
        """The first method's mean final accuracy on the test set; None where it diverged."""
        return self.summaries[0].final_accuracy_mean


class Listener:
    """Told what happens; the base class keeps quiet."""

    def start(self, arms: list[Arm]) -> None:
        """The run begins."""

    def setting_up(self, arm: Arm) -> None:
        """An arm's method has exchanges before its first round, which may take longer than a round."""

    def round(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        """A round of an arm is complete; a line for every replica."""

    def evaluating_clients(self, arm: Arm) -> None:
        """The rounds of an arm are complete; every client is now evaluated on its own data."""

    def finish(self) -> None:
        """The run ends, or is interrupted."""


def plan(config: Config) -> list[Arm]:
    """The arms of a run, in order. Everything that can be refused is refused here, before the first round."""
    datasets: dict[str, Dataset] = {}
    partitions: dict[str, dict[int, Partition]] = {}
    arms = []
    for setting, one in config.settings():
        name = one.data.name
        if name not in datasets:
            datasets[name] = one.data.own or load(name)
        key = json.dumps([one.written()[k] for k in ("data", "partition", "seeds")] + [one.population])
        if key not in partitions:
            partitions[key] = split(one, datasets[name])
        scene = _scene(one, datasets[name], partitions[key])
        for choice in one.method:
            init: Init = choice.init or one.init or ("different" if one.topology.name != "star" else "common")
            own_scene = replace(scene, init=init)
            pairs = [
                ((algorithm, solver), " ".join(filter(None, (choice.label, first, second))))
                for algorithm, first in zip(choice.sweep.variants, choice.sweep.labels, strict=True)
                for solver, second in zip(one.solver.variants, one.solver.labels, strict=True)
            ]
            variants, labels = zip(*pairs, strict=True)
            arms.append(Arm(setting, one, own_scene, choice, variants, labels))
            check(own_scene, variants)
    names = [arm.name for arm in arms]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"two methods would both be called {twice!r}; give one a label")
    return arms


def split(config: Config, dataset: Dataset) -> dict[int, Partition]:
    """The partition of every seed."""
    labels = dataset.targets.numpy()
    groups = None if dataset.groups is None else dataset.groups.numpy()
    test_groups = None if dataset.test_groups is None else dataset.test_groups.numpy()
    return {
        seed: partition(
            config.partition, labels, config.population, seed, groups=groups, test_groups=test_groups
        )
        for seed in config.seeds
    }


def _scene(config: Config, dataset: Dataset, partitions: dict[int, Partition]) -> Scene:
    return Scene(
        dataset=dataset,
        build=lambda: config.model.build(dataset.shape, dataset.classes),
        partitions=partitions,
        topology=config.topology,
        work=LocalWork(**config.local.model_dump()),
        participation=config.participants,
        failure_rate=config.failure_rate,
        network=config.network.network(),
        normalize=config.data.normalize,
        executor=config.executor,
        lanes=config.lanes,
        device=config.torch_device,
        dtype=getattr(torch, config.dtype),
        precision=config.precision,
        compiled=config.compile == "always",
        coordinates=tuple(Coordinate.parse(text) for text in config.evaluate.coordinates),
    )


def run(
    config: Config,
    *,
    folder: RunFolder | None = None,
    existing: Existing = "refuse",
    listener: Listener | None = None,
) -> Result:
    """Carry out a run; with a folder, its files are written and it can be resumed."""
    listener = listener or Listener()
    config = config.resolved()
    arms = plan(config)  # before anything is written: a mistake must not leave a folder behind
    with repeatable(config.torch_device, config.precision):
        if folder is None:
            return _Run(config, arms, None, listener).execute()
        with folder.locked():
            folder.prepare(config.written(), existing)
            return _Run(config, arms, folder, listener).execute()


def resume(path: str | Path, listener: Listener | None = None) -> Result:
    """Continue a run from its last checkpoint; it ends as if it had never been interrupted."""
    path = Path(path)
    if not (path / CONFIG).exists():
        raise UserError(f"{path} does not hold a run: there is no {CONFIG}")
    return run(load_config(path / CONFIG), folder=RunFolder(path), existing="resume", listener=listener)


class _Run:
    """A run in progress."""

    def __init__(self, config: Config, arms: list[Arm], folder: RunFolder | None, listener: Listener) -> None:
        self.config, self.arms, self.folder, self.listener = config, arms, folder, listener
        self.records: list[dict[str, Any]] = []
        self.clients: list[dict[str, Any]] = []
        self.models: dict[str, State] = {}
        written = json.dumps(config.written(), sort_keys=True)
        self.config_digest = hashlib.sha256(written.encode()).hexdigest()

    def execute(self) -> Result:
        checkpoint = self._recover()
        first = checkpoint.arm if checkpoint else 0
        if self.folder:
            self.folder.settle(PARTITIONS, _manifests(self.arms), resumed=checkpoint is not None)
        self.listener.start(self.arms)
        try:
            for number in range(first, len(self.arms)):
                state = checkpoint.state if checkpoint and number == first else {}
                self._run_arm(number, state)
        finally:
            self.listener.finish()
        return self._conclude()

    def _recover(self) -> Checkpoint | None:
        """Go back to the last checkpoint; lines written after it are dropped and will be written again."""
        if self.folder is None:
            return None
        checkpoint = self.folder.load_checkpoint()
        if checkpoint and checkpoint.config != self.config_digest:
            raise UserError(f"{self.folder.path} was made with another configuration; restore its {CONFIG}")
        self.records = self.folder.truncate(METRICS, checkpoint.metrics if checkpoint else 0)
        self.clients = self.folder.truncate(CLIENTS, checkpoint.clients if checkpoint else 0)
        for arm in self.arms[: checkpoint.arm if checkpoint else 0]:
            self.models[arm.name] = tree.unflatten(self.folder.load_models(arm.name), ("params", "buffers"))
        return checkpoint

    def _run_arm(self, number: int, state: dict[str, torch.Tensor]) -> None:
        arm = self.arms[number]
        config = arm.config
        simulation = simulate(arm.scene, arm.variants)
        with closing(simulation.world.executor):  # whose processes hold the folder, even after an interrupt
            if state:
                simulation.restore(tree.unflatten(state))
            if simulation.round == 0 and simulation.algorithm.setup():
                self.listener.setting_up(arm)
            while simulation.round < config.rounds:
                last = simulation.round + 1 == config.rounds
                evaluate = last or (simulation.round + 1) % config.evaluate.every == 0
                lines = [
                    _line(arm, record)
                    for record in simulation.step(evaluate=evaluate, trained=config.evaluate.trained)
                ]
                self._append(METRICS, self.records, lines)
                self.listener.round(arm, lines)
                if not last and simulation.round % config.checkpoint.every == 0:
                    self._checkpoint(number, tree.flatten(simulation.snapshot()))
            if config.evaluate.clients:
                self.listener.evaluating_clients(arm)
                scores = [_client_line(arm, line) for line in simulation.clients()]
                self._append(CLIENTS, self.clients, scores)
            self.models[arm.name] = simulation.models(simulation.evaluated())
        if self.folder:
            self.folder.save_models(arm.name, tree.flatten(self.models[arm.name]))
        self._checkpoint(number + 1, {})

    def _append(self, name: str, kept: list[dict[str, Any]], lines: list[dict[str, Any]]) -> None:
        kept += lines
        if self.folder:
            self.folder.append(name, lines)

    def _checkpoint(self, arm: int, state: dict[str, torch.Tensor]) -> None:
        if self.folder:
            self.folder.save_checkpoint(
                Checkpoint(arm, len(self.records), len(self.clients), state, self.config_digest)
            )

    def _conclude(self) -> Result:
        if any(arm.config.evaluate.coordinates for arm in self.arms) and not has_coordinates(self.records):
            LOG.warning("evaluate.coordinates: no method sent curvature of these parameters")
        summaries = summarise(self.records, self.config.targets)
        digest = _digest(self.records, self.clients, self.models)
        if self.folder:
            accuracy_plot(self.records, self.folder.path / PLOT, self.config.name)
            self._draw_nodes(self.folder.path)
            summary = {
                "name": self.config.name,
                "digest": digest,
                "methods": [summary.to_json() for summary in summaries],
                "environment": _environment(self.config),
            }
            self.folder.write_json(SUMMARY, finite_line(summary))
        path = self.folder.path if self.folder else None
        return Result(self.records, self.clients, summaries, self.models, digest, path)

    def _draw_nodes(self, path: Path) -> None:
        """Plots of what is recorded about the nodes of graphs, if there are any."""
        arms = {arm.setting: arm for arm in self.arms}
        drawn = {setting: _peers(arms[setting]) for setting in settings_with_nodes(self.records)}
        peers = {setting: graph for setting, graph in drawn.items() if graph is not None}
        mapped = {setting: graph for setting, graph in peers.items() if len(graph.sizes) <= MAPPED}
        if peers:
            nodes_plot(self.records, peers, path / NODE_PLOT, self.config.name)
        if mapped:
            map_plot(self.records, mapped, path / MAP, self.config.name)
        if peers and has_coordinates(self.records):
            coordinates_plot(self.records, peers, path / COORDINATE_PLOT, self.config.name)


def _peers(arm: Arm) -> Peers | None:
    """The graph of the first seed in the last round."""
    scene, seed = arm.scene, arm.scene.seeds[0]
    drawing = scene.network.drawing(arm.config.rounds - 1)
    graph = adjacency_of(scene, seed, drawing) if drawing else adjacency_of(scene, seed)
    sizes = tuple(len(rows) for rows in scene.partitions[seed].shards)
    return None if graph is None else Peers(seed, graph, sizes)


def _line(arm: Arm, record: Record) -> dict[str, Any]:
    """One line of the metrics."""
    label, seed = arm.who(record.replica)
    return finite_line(
        {
            "setting": arm.setting,
            "method": label,
            "seed": seed,
            "round": record.round,
            **record.scores,
            "train_loss": record.train_loss,
            "bytes_up": sum(record.bytes_up.values()),
            "bytes_down": sum(record.bytes_down.values()),
            "traffic": {"up": record.bytes_up, "down": record.bytes_down},
            "messages": record.messages,
            "samples": record.samples,
            "seconds": round(record.seconds / len(arm.variants), 6),  # a variant's share
            "dropped": list(record.dropped),
            **({"nodes": _rounded(record.nodes)} if record.nodes and arm.config.evaluate.nodes else {}),
        }
    )


def _rounded(nodes: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """To six digits: thousands of lines have such lists."""
    return {name: [float(f"{value:.6g}") for value in values] for name, values in nodes.items()}


def _client_line(arm: Arm, result: Mapping[str, float | int]) -> dict[str, Any]:
    label, seed = arm.who(int(result["replica"]))
    rest = {key: value for key, value in result.items() if key != "replica"}
    return finite_line({"setting": arm.setting, "method": label, "seed": seed, **rest})


def _manifests(arms: list[Arm]) -> dict[str, Any]:
    """By setting, a digest of the data, and by seed how they were split and a digest of the graph."""
    scenes = {arm.setting: arm.scene for arm in arms}
    digests = {id(scene.dataset): scene.dataset.digest() for scene in scenes.values()}
    return {
        setting: {
            "data": digests[id(scene.dataset)],
            "seeds": {str(seed): part.manifest() for seed, part in scene.partitions.items()},
            **({"graphs": graphs} if (graphs := _graphs(scene)) else {}),
        }
        for setting, scene in scenes.items()
    }


def _graphs(scene: Scene) -> dict[str, str]:
    """By seed, a digest of the graph; nothing for a star."""
    drawn = {str(seed): adjacency_of(scene, seed) for seed in scene.seeds}
    return {
        seed: hashlib.sha256(graph.tobytes()).hexdigest()
        for seed, graph in drawn.items()
        if graph is not None
    }


def _digest(records: list[dict[str, Any]], clients: list[dict[str, Any]], models: dict[str, State]) -> str:
    whole = hashlib.sha256()
    for line in [*records, *clients]:
        timeless = {key: value for key, value in line.items() if key != "seconds"}
        whole.update(json.dumps(timeless, sort_keys=True).encode())
    for name in sorted(models):
        whole.update(wire.encode_tensors(tree.flatten(models[name]), {"label": name}))
    return whole.hexdigest()


def _environment(config: Config) -> dict[str, Any]:
    device = config.torch_device
    return {
        "consilience": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
    }
