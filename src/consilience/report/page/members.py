"""What a page shows of clients and nodes: who holds what, how each is served, and what each knows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from consilience.problems import Metric
from consilience.report.clients import KINDS
from consilience.report.node_records import node_values
from consilience.report.page.curves import short, thinned
from consilience.report.runs import Entry, Group
from consilience.report.summary import Record

RANKS, MEMBERS, CELLS = 200, 400, 8000
"""How many clients a curve over ranks has at most, how many rows a map has, and how many cells."""


def partition_of(group: Group) -> dict[str, Any] | None:
    """Who holds how many rows of which class in the first seed; without classes, how many rows."""
    parts = group.source.partitions.get(group.setting, {}).get("seeds", {})
    nothing: dict[str, Any] = {}
    seed, first = next(iter(parts.items()), ("", nothing))
    held = group.source.plan.get("settings", {}).get(group.setting, {}).get("held")
    sizes = first.get("sizes", [])
    counts = held if held and len(held) == len(sizes) else [[size] for size in sizes]
    if not counts:
        return None
    recipe = first.get("recipe", {})
    options = {key: value for key, value in recipe.get("options", {}).items() if value not in (None, False)}
    return {
        "seed": seed,
        "recipe": " ".join(
            [str(recipe.get("name", "")), *(f"{key}={value}" for key, value in options.items())]
        ),
        "classes": held is not None,
        "counts": counts[:MEMBERS],
        "clients": len(counts),
        "names": first.get("clients", [])[:MEMBERS],
        "held_out": sum(first.get("holdout_sizes", [])),
        "dropped": first.get("dropped", 0),
        "data": group.source.partitions.get(group.setting, {}).get("data", ""),
    }


def clients_of(group: Group) -> dict[str, Any] | None:
    """The scores of clients at the end: of every client in the first seed, and ranked, over all seeds.

    Each method has those that say most: of clients' own models, on rows that they keep back, where it can.
    """
    found = [_client_scores(one, group.metric) for one in group.entries]
    rows = dict.fromkeys(one["rows"] for one in found if one)
    return {"rows": list(rows), "entries": found} if rows else None


def _client_scores(one: Entry, metric: Metric) -> dict[str, Any] | None:
    kinds = (*KINDS, ("train_", "training"))
    prefix, rows = next((kind for kind in kinds if _scored(one, kind[0] + metric.name)), ("", ""))
    if not prefix:
        return None
    score = prefix + metric.name
    seeds: dict[object, list[Record]] = {}
    for line in one.clients:
        if _finite(line.get(score)) is not None:
            seeds.setdefault(line["seed"], []).append(line)
    first = next(iter(seeds.values()))
    by_rank = [
        sorted((float(str(line[score])) for line in lines), reverse=not metric.higher_is_better)
        for lines in seeds.values()
    ]
    # Clients of different seeds hold different rows: the worst of each are compared, not those of one number.
    ranks = thinned(range(min(map(len, by_rank))), RANKS)
    columns = [[values[rank] for values in by_rank] for rank in ranks]
    return {
        "rows": rows,
        "seed": next(iter(seeds)),
        "clients": [
            [line["client"], short(float(str(line[score]))), line.get("samples")] for line in first[:MEMBERS]
        ],
        "of": len(first),
        "ranks": [rank + 1 for rank in ranks],
        "mean": [short(statistics.fmean(column)) for column in columns],
        "std": [short(statistics.stdev(column)) if len(column) > 1 else None for column in columns],
        "seeds": len(by_rank),
    }


def _scored(one: Entry, score: str) -> bool:
    """Whether some client has such a score."""
    return any(_finite(line.get(score)) is not None for line in one.clients)


def nodes_of(group: Group) -> dict[str, Any] | None:
    """The score of every node over rounds, in the first seed; None without a graph."""
    maps = [_node_scores(one, group.metric.name) for one in group.entries]
    return {"entries": maps} if any(maps) else None


def _node_scores(one: Entry, metric: str) -> dict[str, Any] | None:
    seed, run = next(iter(one.by_seed.items()))
    rows = {number: found for number, record in run.items() if len(found := node_values(record, metric))}
    if not rows:
        return None
    nodes = min(max(map(len, rows.values())), MEMBERS)
    rounds = thinned(list(rows), max(CELLS // nodes, 2))
    values = [
        [_short(rows[number][node]) if node < len(rows[number]) else None for number in rounds]
        for node in range(nodes)
    ]
    return {"seed": seed, "rounds": rounds, "values": values, "nodes": max(map(len, rows.values()))}


def curvature_of(group: Group) -> dict[str, Any] | None:
    """The curvature of each output at every client, in the first seed; None where it was not recorded."""
    maps = [_curvature(one) for one in group.entries]
    return {"entries": maps} if any(maps) else None


def _curvature(one: Entry) -> dict[str, Any] | None:
    seed = next((line["seed"] for line in one.clients), None)
    lines = [line for line in one.clients if line["seed"] == seed and isinstance(line.get("curvature"), list)]
    if not lines:
        return None
    kept = lines[: min(MEMBERS, max(CELLS // max(len(_list(lines[0])), 1), 1))]
    return {
        "seed": seed,
        "clients": [line["client"] for line in kept],
        "of": len(lines),
        "values": [[_short(value) for value in _list(line)] for line in kept],
    }


def _list(line: Record) -> Sequence[Any]:
    found = line["curvature"]
    assert isinstance(found, list)
    return found


def _short(value: object) -> float | None:
    found = _finite(value)
    return None if found is None else float(f"{found:.4g}")


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
