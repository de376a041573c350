"""Runs as their files tell of them, and which of their methods can stand side by side."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from consilience.errors import UserError
from consilience.problems import Metric
from consilience.report.summary import MethodSummary, Record, finals_by_seed, runs_by_method, summarise

BySeed = Mapping[int, Mapping[int, Record]]
"""The records of a method by seed and round."""

ASIDE = frozenset(
    {"name", "label", "out", "note", "targets", "metrics", "evaluate", "tracking", "checkpoint", "compare"}
    | {"deploy", "device", "memory", "memories", "executor", "workers", "cluster", "lanes", "precision"}
    | {"compile"}
)
"""Keys that change nothing about what is learned, but for rounding."""
OF_TRAINING = frozenset(
    {"method", "seeds", "rounds", "local", "solver", "schedule", "l2", "stop_when", "init", "dtype"}
)
"""Keys in which methods may differ that are compared."""


@dataclass(frozen=True)
class Run:
    """What the files of a run say."""

    name: str
    path: Path
    config: Mapping[str, Any]
    """The configuration with every default written out."""
    metric: Metric
    targets: tuple[float, ...]
    records: Sequence[Record]
    clients: Sequence[Record]
    plan: Mapping[str, Any] = field(default_factory=dict)
    partitions: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Nothing until the run has ended."""
    written: float | None = None
    """When its newest results were written, in seconds since 1970."""

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return bool(self.summary)

    @property
    def digest(self) -> str:
        """The digest of all that came out; empty until the run has ended."""
        return str(self.summary.get("digest", ""))

    @property
    def rounds(self) -> tuple[int, int]:
        """How many rounds were done, and how many there are to be, of all methods and seeds together."""
        done = len(self.records)
        if self.finished:
            return done, done
        methods = [
            one for setting in self.plan.get("settings", {}).values() for one in setting["methods"].values()
        ]
        return done, max(done, sum(one["rounds"] * len(one["seeds"]) for one in methods))

    @property
    def state(self) -> str:
        """How far it is, in words."""
        done, planned = self.rounds
        return "finished" if self.finished else f"unfinished ({100 * done // max(1, planned)} %)"

    def section(self, setting: str) -> Mapping[str, Any]:
        """The configuration of a setting: an item of `compare`, or all of it."""
        items = {str(one.get("label", "")): one for one in self.config.get("compare") or ()}
        fitting = [label for label in items if f"{setting} ".startswith(f"{label} ")]
        return items[max(fitting, key=len)] if fitting else self.config

    @cached_property
    def rows(self) -> Mapping[tuple[str, str], BySeed]:
        """Its records by setting and method, seed and round."""
        return runs_by_method(self.records)

    @cached_property
    def members(self) -> Mapping[tuple[str, str], Sequence[Record]]:
        """The results of its clients by setting and method."""
        found: dict[tuple[str, str], list[Record]] = {}
        for line in self.clients:
            found.setdefault((str(line["setting"]), str(line["method"])), []).append(line)
        return found


@dataclass(frozen=True)
class Entry:
    """A method in a group."""

    label: str
    """What tells it from others of the group."""
    method: str
    """What its run calls it."""
    runs: tuple[str, ...]
    """The names of the runs that it is from: several where these have seeds of their own."""
    by_seed: BySeed
    clients: Sequence[Record]
    summary: MethodSummary
    section: Mapping[str, Any]
    finished: bool


@dataclass(frozen=True)
class Group:
    """Methods that had the same problem to solve: data, their split, the model, clients and the network."""

    title: str
    setting: str
    metric: Metric
    targets: tuple[float, ...]
    entries: tuple[Entry, ...]
    source: Run
    """The run from which the rest is known: who holds what, and who hears whom."""

    def summaries(self) -> list[MethodSummary]:
        """The lines of the group's table, with its title for a setting."""
        return [replace(one.summary, setting=self.title, method=one.label) for one in self.entries]

    @property
    def best(self) -> int:
        """Which of its methods has the best final score; the first where none has any."""
        means = [one.summary.final_mean for one in self.entries]
        known = [mean for mean in means if mean is not None]
        return means.index(self.metric.best(known)) if known else 0

    def finals(self) -> list[dict[int, float]]:
        """The final scores of every method by seed; NaN where a seed has none."""
        return [finals_by_seed(one.by_seed, f"test_{self.metric.name}") for one in self.entries]

    def differences(self) -> dict[str, dict[str, Any]]:
        """What of training differs between the group's runs: values by dotted key and run."""
        return _differences(self.entries)


def grouped(runs: Sequence[Run], targets: Sequence[float] | None = None) -> list[Group]:
    """The methods of all runs, in groups that can be compared; nothing else ever shares a group.

    Settings of one run are groups of their own. Those of several runs are one group where they are called
    alike and have the same data, split, model, clients and network; methods are then named with their runs
    where these differ in how they train, or two are called alike. Runs that differ in nothing but seeds are
    put together.

    Args:
        runs: The runs, with names that tell them apart.
        targets: Values of the metric to look for; by default those of the runs.
    """
    parts: dict[str, list[tuple[Run, str, str]]] = {}
    for run in runs:
        for setting, method in run.rows:
            parts.setdefault(_problem(run, setting), []).append((run, setting, method))
    titles = [members[0][1] for members in parts.values()]
    groups = []
    for members in parts.values():
        source, setting, _ = members[0]
        wanted = [target for run, *_ in members for target in run.targets] if targets is None else targets
        aims = tuple(sorted(dict.fromkeys(wanted), reverse=not source.metric.higher_is_better))
        title = setting if titles.count(setting) == 1 else f"{setting} ({source.name})"
        entries = _entries(members, source.metric, aims)
        groups.append(Group(title, setting, source.metric, aims, entries, source))
    return groups


def _entries(
    members: Sequence[tuple[Run, str, str]], metric: Metric, targets: Sequence[float]
) -> tuple[Entry, ...]:
    """The methods of a group; those of runs that differ in seeds alone are one."""
    alike: dict[str, list[tuple[Run, str, str]]] = {}
    for run, setting, method in members:
        key = _key(run.section(setting), ASIDE | {"seeds"}, method)
        alike.setdefault(key, []).append((run, setting, method))
    entries = []
    for parts in alike.values():
        seeds = [seed for run, setting, method in parts for seed in run.rows[setting, method]]
        apart = [parts] if len(set(seeds)) == len(seeds) else [[one] for one in parts]
        entries += [_entry(some, metric, targets) for some in apart]
    labels = [one.label for one in entries]
    if len(set(labels)) == len(labels) and not _differences(entries):
        return tuple(entries)
    return tuple(replace(one, label=f"{one.label} ({', '.join(one.runs)})") for one in entries)


def _entry(parts: Sequence[tuple[Run, str, str]], metric: Metric, targets: Sequence[float]) -> Entry:
    first, setting, method = parts[0]
    by_seed = {seed: lines for run, *who in parts for seed, lines in run.rows[who[0], who[1]].items()}
    clients = [line for run, *who in parts for line in run.members.get((who[0], who[1]), ())]
    records = [line for lines in by_seed.values() for line in lines.values()]
    try:
        (summary,) = summarise(records, targets, metric, clients=clients)
    except UserError as error:
        raise UserError(f"{first.path}: {error}") from None
    return Entry(
        label=method,
        method=method,
        runs=tuple(run.name for run, *_ in parts),
        by_seed=by_seed,
        clients=clients,
        summary=summary,
        section=first.section(setting),
        finished=all(run.finished for run, *_ in parts),
    )


def _differences(entries: Sequence[Entry]) -> dict[str, dict[str, Any]]:
    told = OF_TRAINING - {"method"}
    flat = {one.runs[0]: _flat({k: v for k, v in one.section.items() if k in told}) for one in entries}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    by_key = {key: {run: values.get(key) for run, values in flat.items()} for key in keys}
    return {key: by_run for key, by_run in by_key.items() if len(set(map(json.dumps, by_run.values()))) > 1}


def _problem(run: Run, setting: str) -> str:
    """What two settings must have in common to be compared."""
    data = run.partitions.get(setting, {}).get("data")
    return _key(run.section(setting), ASIDE | OF_TRAINING, [setting, run.metric, data])


def _key(section: Mapping[str, Any], without: frozenset[str], *more: object) -> str:
    kept = {key: value for key, value in section.items() if key not in without}
    return hashlib.sha256(json.dumps([kept, more], sort_keys=True, default=str).encode()).hexdigest()


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def distinct(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of paths that tell all of them apart.

    >>> distinct([Path("a/x"), Path("b/x"), Path("b/y")])
    ['a/x', 'b/x', 'y']
    """
    found = []
    for path in paths:
        others = [one for one in paths if one != path]
        lengths = range(1, len(path.parts) + 1)
        ends = (Path(*path.parts[-length:]) for length in lengths)
        apart = (end for end in ends if not any(one.parts[-len(end.parts) :] == end.parts for one in others))
        found.append(str(next(apart, path)))
    return found
