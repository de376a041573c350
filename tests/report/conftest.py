"""Records about nodes, graphs of them, and what can be read from a figure."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from consilience.experiment.sealing import digest_of_bytes, sealed, with_footer
from consilience.problems import Classification
from consilience.report.node_records import Peers
from consilience.report.summary import summarise


def _record(number=1, seed=0, method="dechw", setting="ring", **nodes):
    return {"setting": setting, "method": method, "seed": seed, "round": number} | (
        {"nodes": nodes} if nodes else {}
    )


@pytest.fixture
def record():
    """A metrics record with lists over nodes, if any are given."""
    return _record


@pytest.fixture
def ring():
    """So many peers in a ring, of which each holds a row more than the one before it."""

    def build(nodes: int, seed: int = 0) -> Peers:
        here = np.arange(nodes)
        adjacency = np.zeros((nodes, nodes), bool)
        adjacency[here, (here + 1) % nodes] = nodes > 1
        return Peers(seed, adjacency | adjacency.T, tuple(range(100, 100 + nodes)))

    return build


@pytest.fixture
def many(ring):
    """Records of random numbers with the graphs of their settings; coordinates for the first methods."""

    def build(settings=1, methods=1, seeds=1, rounds=5, nodes=4, curved=1, coordinates=0):
        random = np.random.default_rng(0)
        labels = [f"method {number}" for number in range(methods - 1)]
        labels.append("a rather long one mu=0.01 lr=0.1 beta=1")

        def lists(label):
            names = [f"layers.{number}.weight[{number}, 17, 2, 2]" for number in range(coordinates)]
            powers = {
                "consensus": random.uniform(-1, 1, nodes),
                **{f"curvature {name}": random.uniform(-9, 2, nodes) for name in names},
            }
            shares = ["accuracy", "trained_accuracy", "curvature", *(f"weight {name}" for name in names)]
            found = {key: random.uniform(0, 1, nodes) for key in shares} | {
                k: 10**v for k, v in powers.items()
            }
            of_all = ("accuracy", "trained_accuracy", "consensus")
            return {k: v.tolist() for k, v in found.items() if label in labels[:curved] or k in of_all}

        records = [
            _record(number, seed, label, f"setting {setting}", **lists(label))
            for setting in range(settings)
            for label in labels
            for seed in range(seeds)
            for number in range(1, rounds + 1)
        ]
        return records, {f"setting {setting}": ring(nodes) for setting in range(settings)}

    return build


@pytest.fixture
def legends():
    """Of a figure: by title, the labels."""

    def read(figure):
        found = [artist for axes in figure.axes for artist in axes.artists]
        return {one.get_title().get_text(): [text.get_text() for text in one.get_texts()] for one in found}

    return read


@pytest.fixture
def legible():
    """Asserts that nothing is cut off and that nothing lies on something else."""

    def check(figure, *headings):
        figure.draw_without_rendering()
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
        titles = [title for axes in figure.axes for title in (axes.title, axes._left_title)]
        seen = [
            *(text.get_window_extent() for text in [*titles, *headings] if text.get_text()),
            *(artist.get_window_extent() for axes in figure.axes for artist in axes.artists),
            *(axes.get_window_extent() for axes in figure.axes if axes.axison),
        ]
        assert not [pair for pair in combinations(seen, 2) if pair[0].overlaps(pair[1])]

    return check


CONFIG = {
    "name": "run",
    "method": [{"name": "fedavg", "label": "fedavg"}],
    "data": {"name": "mnist-sample"},
    "partition": {"name": "shards_two_classes", "holdout": 0.2},
    "model": {"name": "mlp", "hidden": [8]},
    "clients": 4,
    "rounds": 6,
    "solver": {"name": "sgd", "lr": 0.1},
    "topology": {"name": "star"},
    "seeds": [0, 1, 2],
    "targets": [0.5, 0.9],
    "note": "",
    "compare": [],
}
"""What tests look at of a configuration."""


def _written(
    path: Path,
    methods=("fedavg", "hwa"),
    seeds=(0, 1, 2),
    rounds=6,
    clients=4,
    *,
    setting="star",
    ended=True,
    nodes=False,
    curvature=False,
    names=(),
    metric=Classification.metric,
    values=None,
    **config,
):
    """A run's folder, in which every method has a curve that grows with its place and its seed."""
    path.mkdir(parents=True)
    score = metric.name

    def value(place, seed, number):
        if values is not None:
            return values(place, seed, number)
        return (number + place) / (rounds + len(methods)) - 0.01 * seed * (place + 1)

    who = [(place, method, seed) for place, method in enumerate(methods) for seed in seeds]
    records = [
        {"setting": setting, "method": method, "seed": seed, "round": number}
        | {f"test_{score}": value(place, seed, number), "test_loss": 1 / number, "train_loss": 2 / number}
        | {"bytes_up": 1000 * (place + 1), "bytes_down": 500, "seconds": 0.25, "samples": 100, "dropped": []}
        | ({"nodes": {score: [0.1 * number / rounds + 0.01 * n for n in range(clients)]}} if nodes else {})
        for place, method, seed in who
        for number in range(1, rounds + 1)
    ]
    members = [
        {"setting": setting, "method": method, "seed": seed, "client": client, "samples": 10 + client}
        | {"held_out": 2, f"own_{score}": 0.5 + 0.01 * client - 0.1 * seed, "own_loss": 0.5}
        | ({"curvature": [0.1 * client + output for output in range(3)]} if curvature else {})
        for _, method, seed in who
        for client in range(clients)
    ]
    plan = {"topology": setting, "held": [[5, client, 0] for client in range(clients)]}
    plan |= {"methods": {method: {"rounds": rounds, "seeds": list(seeds)} for method in methods}}
    recipe = {"name": "shards_two_classes", "options": {"holdout": 0.2}, "seed": seeds[0]}
    part = {"recipe": recipe, "sizes": [5 + client for client in range(clients)], "sha256": "ab"}
    part |= {"holdout_sizes": [2] * clients, "dropped": 0, **({"clients": list(names)} if names else {})}
    settings = CONFIG | {"clients": clients, "seeds": list(seeds), "rounds": rounds} | config
    files = {
        "config.yaml": with_footer(json.dumps(settings)).decode(),
        "plan.json": json.dumps({"metric": metric._asdict(), "settings": {setting: plan}}),
        "partitions.json": json.dumps({setting: {"data": "d", "seeds": {str(seeds[0]): part}}}),
        "metrics.jsonl": "".join(json.dumps(line) + "\n" for line in records),
        "clients.jsonl": "".join(json.dumps(line) + "\n" for line in members),
    }
    if ended:
        rows = [one.to_json() for one in summarise(records, (0.5, 0.9), metric, clients=members)]
        environment = {"consilience": "0.1.0", "torch": "2.13.0"}
        told = {"name": path.name, "metric": score, "note": "", "digest": "f00d" * 16, "methods": rows}
        digests = {name: digest_of_bytes(text.encode()) for name, text in files.items()}
        files["summary.json"] = json.dumps(sealed(told | {"environment": environment, "files": digests}))
    for name, text in files.items():
        (path / name).write_text(text)
    return path


@pytest.fixture
def written():
    """Writes the folder of a run that has been, or is still at work."""
    return _written
