"""What is recorded about the nodes of a graph of peers, and which of them are shown one by one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from consilience.errors import UserError
from consilience.graphs.base import Adjacency
from consilience.problems import Metric
from consilience.report.summary import Record, runs_by_method

Floats = npt.NDArray[np.float64]
Runs = Mapping[int, Mapping[int, Record]]
"""The records of a method in a setting, by seed and round."""

Curve = Mapping[int, float]
"""Values by round."""

CURVATURE, SHARE = "curvature ", "share "
"""Lists over nodes have such a word before the name of a coordinate."""

SHOWN = 6
"""Nodes that are drawn one by one, unless others are asked for."""


@dataclass(frozen=True)
class Peers:
    """The graph of a setting in the seed that is shown where only one can be."""

    seed: int
    adjacency: Adjacency
    """[nodes, nodes] who hears whom."""
    sizes: tuple[int, ...]
    """How many rows of data each node holds."""
    names: tuple[str, ...] = ()
    """What nodes are called, where they have names."""


@dataclass(frozen=True)
class Method:
    """A method in a setting."""

    index: int
    """The number of its look, the same as in the plot of scores."""
    runs: Runs


def settings_with_nodes(records: Iterable[Record]) -> list[str]:
    """Settings in which something is recorded about single nodes, as first seen."""
    return list(dict.fromkeys(str(record["setting"]) for record in records if record.get("nodes")))


def methods_by_setting(records: Sequence[Record], peers: Mapping[str, Peers]) -> dict[str, dict[str, Method]]:
    """The methods that have something to say about single nodes, by setting and label."""
    rows = runs_by_method(records)
    labels = list(dict.fromkeys(label for _, label in rows))
    settings: dict[str, dict[str, Method]] = {}
    for (setting, label), runs in rows.items():
        if setting in peers and any(record.get("nodes") for run in runs.values() for record in run.values()):
            settings.setdefault(setting, {})[label] = Method(labels.index(label), runs)
    if not settings:
        raise UserError(
            "no metrics records with lists over nodes to plot; run on a graph with evaluate.nodes"
        )
    return settings


def chosen_nodes(peers: Peers, nodes: Sequence[int] | None) -> list[int]:
    """The nodes to show: those asked for, by number, or some that hold least, medium and most data."""
    count = len(peers.sizes)
    if nodes is not None:
        for node in nodes:
            if not 0 <= node < count:
                raise UserError(f"there is no node {node}: nodes are numbered from 0 to {count - 1}")
        return sorted(set(nodes))
    by_size = sorted(range(count), key=lambda node: peers.sizes[node])
    # As far apart in the order of sizes as possible, in pairs, so that one odd node is seen to be odd.
    third, middle = SHOWN // 3, (count - SHOWN // 3) // 2
    places = (
        range(count) if count <= SHOWN else [*range(third), *range(middle, middle + third), *range(-third, 0)]
    )
    return [by_size[place] for place in places]


def node_names(peers: Peers, nodes: Sequence[int]) -> list[str]:
    """What such nodes are called in a legend."""
    names = peers.names or [f"node {node}" for node in range(len(peers.sizes))]
    return [f"{names[node]}, {peers.sizes[node]:,} rows" for node in nodes]


def node_lists(record: Record) -> Mapping[str, Sequence[float | None]]:
    """The lists over nodes by name; none where nothing is recorded about nodes."""
    lists = record.get("nodes") or {}
    if not isinstance(lists, Mapping):
        raise UserError(f"a metrics record has 'nodes': {lists!r}; it must hold lists by name")
    return lists


def node_values(record: Record, key: str) -> Floats:
    """[nodes] NaN where nothing is known; empty where the record has no such list."""
    values = node_lists(record).get(key, ())
    return np.array([math.nan if value is None else value for value in values], np.float64)


def pooled_values(runs: Runs, key: str) -> dict[int, Floats]:
    """What is known of nodes in any seed, by round."""
    numbers = sorted({number for run in runs.values() for number in run})
    pooled = {
        number: np.concatenate([node_values(run[number], key) for run in runs.values() if number in run])
        for number in numbers
    }
    known = {number: values[np.isfinite(values)] for number, values in pooled.items()}
    return {number: values for number, values in known.items() if len(values)}


def node_curve(run: Mapping[int, Record], key: str, node: int) -> dict[int, float]:
    """What is known of a node, by round."""
    values = {number: node_values(record, key) for number, record in run.items()}
    known = {number: float(row[node]) for number, row in values.items() if len(row) > node}
    return {number: value for number, value in known.items() if math.isfinite(value)}


def final_scores(run: Mapping[int, Record], nodes: int, score: str) -> Floats:
    """[nodes] a score at the last evaluation."""
    found = [values for record in run.values() if len(values := node_values(record, score))]
    if found and len(found[-1]) != nodes:
        raise UserError(f"a metrics record has {score} of {len(found[-1])} nodes; the graph has {nodes}")
    return found[-1] if found else np.full(nodes, math.nan)


def least_apart(metric: Metric, low: float, high: float) -> float:
    """The least difference between scores, as they are shown, that is worth seeing: one per cent."""
    return 0.01 * max(abs(low), abs(high), metric.scale)


def has_coordinates(records: Iterable[Record]) -> bool:
    """Whether something is known of single parameters at some node."""
    return any(coordinates_of(record) for record in records)


def coordinates_of(record: Record) -> list[str]:
    """The names of single parameters of which something is known at some node."""
    keys = [key for key in node_lists(record) if key.startswith((CURVATURE, SHARE))]
    return [key.partition(" ")[2] for key in keys if np.isfinite(node_values(record, key)).any()]
