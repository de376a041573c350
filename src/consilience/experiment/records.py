"""The lines of a run's files: metrics, results of clients, manifests, and the digest of all."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from consilience import __version__, tree, wire
from consilience.config import Config
from consilience.data.heterogeneity import class_counts
from consilience.engine.build import adjacency_of, model_digest
from consilience.engine.rounds.pending import Record
from consilience.engine.scene import Scene
from consilience.experiment.folder import fixed_sections
from consilience.experiment.lines import finite_line
from consilience.experiment.planning import Arm
from consilience.learning.warm_start import digest_of_file
from consilience.models.own import OwnModel
from consilience.report.node_records import Peers
from consilience.types import State


def peers_of(arm: Arm) -> Peers | None:
    """The graph of the first seed in the last round."""
    scene, seed = arm.scene, arm.scene.seeds[0]
    drawing = scene.network.drawing(arm.config.rounds - 1)
    graph = adjacency_of(scene, seed, drawing) if drawing else adjacency_of(scene, seed)
    sizes = tuple(len(rows) for rows in scene.partitions[seed].shards)
    return None if graph is None else Peers(seed, graph, sizes, scene.partitions[seed].names)


def models_digest(arms: list[Arm]) -> str:
    """A digest of the models of all settings: what a checkpoint does not hold of them."""
    settings = {arm.setting: arm for arm in arms}
    found = []
    for arm in settings.values():
        model = arm.config.model
        found.append(model_digest(arm.scene, weights=isinstance(model, OwnModel) and model.fixed))
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def config_digest(config: Config) -> str:
    """A digest of a configuration but for how long a run is and where it runs, which may change."""
    fixed = [
        {key: value for key, value in section.items() if key != "rounds"}
        for section in fixed_sections(config.written())
    ]
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()


def metrics_line(arm: Arm, record: Record) -> dict[str, Any]:
    """One line of the metrics."""
    label, seed = arm.who(record.replica)
    return finite_line(
        {
            "setting": arm.setting,
            "method": label,
            "seed": seed,
            "round": record.round,
            **_swept(arm, record.replica),
            **record.scores,
            "train_loss": record.train_loss,
            "bytes_up": sum(record.bytes_up.values()),
            "bytes_down": sum(record.bytes_down.values()),
            "traffic": {"up": record.bytes_up, "down": record.bytes_down},
            "messages": record.messages,
            "samples": record.samples,
            "seconds": round(record.seconds / len(arm.variants), 6),  # a variant's share
            "dropped": list(record.dropped),
            **({"diverged": True} if record.diverged else {}),
            **({"nodes": _rounded(record.nodes)} if record.nodes and arm.config.evaluate.nodes else {}),
        }
    )


UNSCORED = frozenset(
    {"setting", "method", "seed", "round", "train_loss", "bytes_up", "bytes_down", "traffic", "messages"}
    | {"samples", "seconds", "dropped", "diverged", "swept"}
)
"""What a line of the metrics has, whether models were evaluated in its round or not."""


def of_longer_run(records: Sequence[dict[str, Any]], arms: Sequence[Arm]) -> list[dict[str, Any]]:
    """The lines of a run that was given more rounds, as one would have them that had all from the beginning.

    They stand in the order of arms, and what was once the last round was evaluated only where its turn was.
    """
    place = _places(arms)
    last = {_who(line): line["round"] for line in records}
    every = [arm.config.evaluate.every for arm in arms]
    kept = [
        line
        if line["round"] % every[place[_who(line)]] == 0 or line["round"] == last[_who(line)]
        else {key: value for key, value in line.items() if key in UNSCORED}
        for line in records
    ]
    return sorted(kept, key=lambda line: place[_who(line)])


def rounds_of(
    records: Sequence[dict[str, Any]], arms: Sequence[Arm]
) -> Iterable[tuple[Arm, list[dict[str, Any]]]]:
    """The arm and the lines of every round that there is."""
    place = _places(arms)
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for line in records:
        found.setdefault((place[_who(line)], line["round"]), []).append(line)
    return [(arms[number], lines) for (number, _), lines in found.items()]


def _places(arms: Sequence[Arm]) -> dict[tuple[str, str, int], int]:
    """The number of the arm by setting, label and seed."""
    return {
        (arm.setting, *arm.who(replica)): number
        for number, arm in enumerate(arms)
        for replica in range(len(arm.variants) * len(arm.scene.seeds))
    }


def _who(line: Mapping[str, Any]) -> tuple[str, str, int]:
    return line["setting"], line["method"], line["seed"]


def _rounded(nodes: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """The lists, rounded to six digits: thousands of lines have such lists."""
    return {name: [float(f"{value:.6g}") for value in values] for name, values in nodes.items()}


def client_line(arm: Arm, result: Mapping[str, Any]) -> dict[str, Any]:
    """One line about a client at the end."""
    label, seed = arm.who(int(result["replica"]))
    names = arm.scene.partitions[seed].names
    name = {"name": names[int(result["client"])]} if names else {}
    rest = {key: value for key, value in result.items() if key not in ("replica", "client")}
    who = {"setting": arm.setting, "method": label, "seed": seed, "client": result["client"]}
    return finite_line({**who, **name, **_swept(arm, int(result["replica"])), **rest})


def _swept(arm: Arm, replica: int) -> dict[str, Any]:
    """The swept numbers of a replica, where there are any; `any` where it holds for all values of one."""
    numbers = arm.swept(replica)
    return {"swept": numbers} if numbers else {}


def manifests(arms: list[Arm]) -> dict[str, Any]:
    """A digest of the data by setting, and by seed how they were split and a digest of the graph."""
    scenes: dict[str, Scene] = {}
    for arm in arms:  # an arm may have one of the seeds alone
        known = scenes.setdefault(arm.setting, arm.scene)
        scenes[arm.setting] = replace(known, partitions={**known.partitions, **arm.scene.partitions})
    digests = {id(scene.dataset): scene.dataset.digest() for scene in scenes.values()}
    return {
        setting: {
            "data": digests[id(scene.dataset)],
            "seeds": {str(seed): part.manifest() for seed, part in scene.partitions.items()},
            **({"graphs": graphs} if (graphs := _graphs(scene)) else {}),
            **({"init": digest_of_file(scene.start)} if scene.start else {}),
        }
        for setting, scene in scenes.items()
    }


DRAWN = 400
"""The most nodes whose links are written down for those who draw them."""
COUNTED = 10_000
"""The most pairs of a client and a class whose rows are written down."""


def outline(arms: list[Arm]) -> dict[str, Any]:
    """What a run is going to do, for those who watch it: methods, seeds, rounds, and who hears whom.

    Links are those of the first seed in the first round, and `held` is how many rows of each class each
    client has in that seed.
    """
    settings: dict[str, dict[str, Any]] = {}
    for arm in arms:
        config, scene = arm.config, arm.scene
        if arm.setting not in settings:
            graph = adjacency_of(scene, scene.seeds[0]) if scene.population <= DRAWN else None
            settings[arm.setting] = {
                "topology": scene.topology.name,
                "methods": {},
                **({} if graph is None else {"edges": np.argwhere(np.triu(graph)).tolist()}),
                **({"redrawn": config.network.redraw_every} if config.network.redraw_every else {}),
                **({"held": held} if (held := _held(scene)) else {}),
            }
        for label in arm.labels:
            planned = settings[arm.setting]["methods"].setdefault(
                label, {"rounds": config.rounds, "seeds": []}
            )
            planned["seeds"] += scene.seeds
    return {"metric": arms[0].scene.task_problem.metric._asdict(), "settings": settings}


def _held(scene: Scene) -> list[list[int]]:
    """[clients][classes] the rows of each class at each client in the first seed; nothing without classes."""
    classes = scene.dataset.outputs
    if not scene.task_problem.has_classes or scene.population * classes > COUNTED:
        return []
    counts = class_counts(
        scene.dataset.targets.cpu().numpy(), scene.partitions[scene.seeds[0]].shards, classes
    )
    return [[int(count) for count in held] for held in counts]


def _graphs(scene: Scene) -> dict[str, str]:
    """A digest of the graph, by seed; nothing for a star."""
    drawn = {str(seed): adjacency_of(scene, seed) for seed in scene.seeds}
    return {
        seed: hashlib.sha256(graph.tobytes()).hexdigest()
        for seed, graph in drawn.items()
        if graph is not None
    }


def digest_of(records: list[dict[str, Any]], clients: list[dict[str, Any]], models: dict[str, State]) -> str:
    """A digest of all metrics but times, and of all final models."""
    whole = hashlib.sha256()
    for line in [*records, *clients]:
        timeless = {key: value for key, value in line.items() if key != "seconds"}
        whole.update(json.dumps(timeless, sort_keys=True).encode())
    for name in sorted(models):
        whole.update(wire.encode_tensors(tree.flatten(models[name]), {"label": name}))
    return whole.hexdigest()


def environment_of(config: Config) -> dict[str, Any]:
    """Which software and device a run used."""
    device = config.torch_device
    return {
        "consilience": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
    }
