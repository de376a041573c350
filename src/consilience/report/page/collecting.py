"""What a page shows of runs, as plain values: whatever draws them needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import yaml

from consilience.errors import some_of
from consilience.report.choosing import worse
from consilience.report.page.curves import curves, per_curve
from consilience.report.page.members import clients_of, curvature_of, nodes_of, partition_of
from consilience.report.papers import shown_variance
from consilience.report.runs import Entry, Group, Run
from consilience.report.significance import Comparison, against, variance
from consilience.report.summary import RoundsTo, finals_by_seed, soonest, target_key
from consilience.report.table import shown_final, shown_rounds

REFERENCES = 12
"""The most methods of a group each of which the others are compared with; of more, only the best one is."""


def collect(runs: Sequence[Run], groups: Sequence[Group]) -> dict[str, Any]:
    """All that the page shows: `runs` with their configurations, `groups` of methods with their results."""
    labels = list(dict.fromkeys(one.label for group in groups for one in group.entries))
    drawn = {label for group in groups for label in _drawn(group)}
    # Those that are drawn at first have the looks that differ most.
    looks = sorted(labels, key=lambda label: label not in drawn)
    points = per_curve(sum(len(group.entries) for group in groups))
    return {
        "title": some_of([run.name for run in runs]),
        "runs": [_run(run) for run in runs],
        "labels": labels,
        "groups": [_group(group, looks, points) for group in groups],
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "state": run.state,
        "finished": run.finished,
        "digest": run.digest,
        "note": str(run.config.get("note") or ""),
        "environment": dict(run.summary.get("environment", {})),
        "written": run.written,
        "config": yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True),
    }


def _drawn(group: Group) -> list[str]:
    """The methods whose curves are drawn at first."""
    rows = {(group.title, one.label): one.by_seed for one in group.entries}
    left_out = worse(list(rows), rows, group.metric)
    return [label for setting, label in rows if (setting, label) not in left_out]


def _group(group: Group, looks: Sequence[str], points: int) -> dict[str, Any]:
    drawn = _drawn(group)
    entries = [_entry(one, group, looks, points) | {"shown": one.label in drawn} for one in group.entries]
    return {
        "title": group.title,
        "metric": {**group.metric._asdict(), "unit": group.metric.unit},
        "runs": list(dict.fromkeys(run for one in group.entries for run in one.runs)),
        "targets": list(group.targets),
        "entries": entries,
        "first": [
            soonest([one.summary.rounds_to[target_key(t)] for one in group.entries]) for t in group.targets
        ],
        "thinned": any(one["thinned"] for one in entries),
        "differences": group.differences(),
        "significance": _significance(group),
        "partition": partition_of(group),
        "clients": clients_of(group),
        "nodes": nodes_of(group),
        "curvature": curvature_of(group),
    }


def _entry(one: Entry, group: Group, looks: Sequence[str], points: int) -> dict[str, Any]:
    told = one.summary
    drawn, thinned = curves(one.by_seed, points)
    ends = finals_by_seed(one.by_seed, f"test_{group.metric.name}")
    finals = [[seed, value if math.isfinite(value) else None] for seed, value in ends.items()]
    return {
        "label": one.label,
        "style": looks.index(one.label),
        "runs": list(one.runs),
        "finished": one.finished,
        "seeds": sorted(one.by_seed),
        "rounds": told.rounds,
        "final": {"mean": told.final_mean, "shown": shown_final(told, group.metric), "seeds": finals},
        "best": told.best_mean,
        "own": told.personal_mean,
        "reached": [_reached(told.rounds_to[target_key(target)]) for target in group.targets],
        "bytes": [told.bytes_up, told.bytes_down],
        "rate": told.samples_per_s,
        "clients": {name: spread.to_json() for name, spread in told.clients.items()}.get(group.metric.name),
        "curves": drawn,
        "thinned": thinned,
    }


def _reached(one: RoundsTo) -> dict[str, Any]:
    return {**one, "shown": "never" if one["mean"] is None else shown_rounds(one)}


def _significance(group: Group) -> dict[str, Any] | None:
    """Tests between the methods of a group; None where there is but one."""
    finals = group.finals()
    found = variance(finals)
    if found is None:
        return None
    references = range(len(finals)) if len(finals) <= REFERENCES else [group.best]
    return {
        "best": group.best,
        "variance": shown_variance(found),
        "against": {one: [_compared(beside) for beside in against(one, finals)] for one in references},
    }


def _compared(one: Comparison | None) -> dict[str, Any] | None:
    return None if one is None else asdict(one)
