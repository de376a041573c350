"""The folder of a simulation, while it runs or later: a panel for every setting."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consilience.experiment.folder import CLIENTS, CONFIG, METRICS, PARTITIONS, PLAN, RunFolder
from consilience.monitor.placing import in_circle, placed
from consilience.monitor.shown import (
    EDGES,
    NODES,
    POINTS,
    REFUSALS,
    Line,
    Panel,
    Place,
    Refusal,
    Score,
    State,
    count,
    number,
    text,
)
from consilience.monitor.tail import Tail, read_json, written
from consilience.report.clients import KINDS
from consilience.report.page.curves import thinned

ROWS = ("test", "own", "train")
"""The rows that a score is about: those of all, or a member's own; what is shown where it is there, first."""
CLIENT_SCORES = (*(prefix for prefix, _ in KINDS), "train_")
"""What is said of clients at the end, what says most first."""


@dataclass
class _Track:
    """What is known of a method in a setting with a seed."""

    round: int = 0
    scores: dict[int, float | None] = field(default_factory=dict)
    """Scores by round, of evaluated rounds alone."""
    loss: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    diverged: bool = False
    stopped: str = ""
    nodes: list[float | None] = field(default_factory=list)

    def add(self, line: Mapping[str, Any], metric: str) -> None:
        """Take in a line of the metrics."""
        self.round = max(self.round, count(line.get("round")))
        if f"test_{metric}" in line:
            self.scores[self.round] = number(line[f"test_{metric}"])
        self.loss = number(line.get("train_loss"))
        self.bytes_up += count(line.get("bytes_up"))
        self.bytes_down += count(line.get("bytes_down"))
        self.seconds += number(line.get("seconds")) or 0.0
        self.diverged = bool(line.get("diverged"))
        self.stopped = text(line.get("stopped"))
        nodes = line.get("nodes")
        if isinstance(nodes, Mapping) and isinstance(nodes.get(metric), list):
            self.nodes = [number(value) for value in nodes[metric]]


Key = tuple[str, str, str]
"""A setting, a method and a seed."""


class SimulationFolder:
    """A run's folder, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metrics, self._clients = Tail(path / METRICS), Tail(path / CLIENTS)
        self._metric: Score | None = None
        self._seen: list[float | None] = []
        self._altered: list[str] = []
        self._forget()

    @staticmethod
    def fits(path: Path) -> bool:
        """Whether a folder holds a run."""
        return (path / CONFIG).is_file() and not (path / "status.json").exists()

    def panels(self) -> list[Panel]:
        """The settings of the run, as they are now."""
        if self._metrics.restarted or self._clients.restarted:
            self._forget()
        plan, parts = read_json(self.path / PLAN), read_json(self.path / PARTITIONS)
        if not self._metric:
            self._metric = _metric(plan.get("metric"))
        for line in self._metrics.read():
            self._take(line)
        for line in self._clients.read():
            self._take_client(line)
        planned = plan.get("settings")
        planned = planned if isinstance(planned, dict) else {}
        settings = list(dict.fromkeys([*planned, *parts, *(setting for setting, _, _ in self._tracks)]))
        return [self._panel(setting, planned.get(setting), parts.get(setting)) for setting in settings]

    @property
    def damaged(self) -> int:
        """How many lines could not be read."""
        return self._metrics.damaged + self._clients.damaged

    def altered(self) -> list[str]:
        """What is wrong with the files of a run that has ended; they are read when one has changed."""
        seen = [written(path) for path in sorted(self.path.glob("*.*"))]
        if seen != self._seen:
            self._seen, self._altered = seen, RunFolder(self.path).altered()
        return self._altered

    def _forget(self) -> None:
        self._metrics.forget()
        self._clients.forget()
        self._metric = None
        self._tracks: dict[Key, _Track] = {}
        self._ends: dict[Key, dict[int, float | None]] = {}
        """The scores of clients at the end."""
        self._refusals: dict[str, deque[Refusal]] = {}
        self._refused: dict[str, Counter[str]] = {}

    def _take(self, line: Mapping[str, Any]) -> None:
        setting, method, seed = (text(line.get(key)) for key in ("setting", "method", "seed"))
        if self._metric is None:
            self._metric = guessed(line)
        track = self._tracks.setdefault((setting, method, seed), _Track())
        track.add(line, (self._metric or Score()).name)
        dropped = line.get("dropped")
        for one in dropped if isinstance(dropped, list) else ():
            sender, _, reason = text(one).removesuffix(")").partition(" (")
            at = f"{method}, seed {seed}"
            refusal = Refusal(round=count(line.get("round")), at=at, sender=sender, reason=reason)
            self._refusals.setdefault(setting, deque(maxlen=REFUSALS)).appendleft(refusal)
            self._refused.setdefault(setting, Counter())[sender] += 1

    def _take_client(self, line: Mapping[str, Any]) -> None:
        key = text(line.get("setting")), text(line.get("method")), text(line.get("seed"))
        name = (self._metric or Score()).name
        found = (number(line.get(f"{prefix}{name}")) for prefix in CLIENT_SCORES)
        score = next((value for value in found if value is not None), None)
        self._ends.setdefault(key, {})[count(line.get("client"))] = score

    def _panel(self, setting: str, planned: object, parts: object) -> Panel:
        plan = planned if isinstance(planned, dict) else {}
        methods = plan.get("methods")
        methods = methods if isinstance(methods, dict) else {}
        seen = [method for name, method, _ in self._tracks if name == setting]
        labels = list(dict.fromkeys([*map(text, methods), *seen]))
        lines = [self._line(setting, label, methods.get(label)) for label in labels]
        places, edges = self._places(setting, plan, parts)
        remarks = []
        if count(plan.get("redrawn")):
            remarks.append(
                f"The graph is drawn anew every {count(plan['redrawn'])} rounds; this is the first."
            )
        if any(line.seeds > 1 for line in lines) and places:
            remarks.append(f"{'Nodes' if edges else 'Clients'} are those of the first seed.")
        metric, name = self._metric or Score(), self.path.resolve().name
        return Panel(
            title=name if setting == name else f"{name}: {setting}",
            metric=metric,
            time=written(self.path / METRICS) or written(self.path / CONFIG),
            lines=lines,
            hub=not edges and plan.get("topology", "star") == "star",
            places=places,
            edges=edges,
            remarks=remarks,
            refusals=list(self._refusals.get(setting, ())),
            refused=self._refused[setting].total() if setting in self._refused else 0,
        )

    def _line(self, setting: str, label: str, planned: object) -> Line:
        plan = planned if isinstance(planned, dict) else {}
        keys = [key for key in self._tracks if key[:2] == (setting, label)]
        tracks = [self._tracks[key] for key in keys]
        rounds, seeds = count(plan.get("rounds")), max(len(plan.get("seeds") or ()), len(keys))
        if not tracks:
            return Line(label=label, rounds=rounds, seeds=seeds)
        curve = _curve([track.scores for track in tracks])
        last = [track.scores[max(track.scores)] for track in tracks if track.scores]
        known = [value for value in last if value is not None]
        whole = bool(known) and len(known) == len(last)
        means = [mean for _, mean, _, _ in curve if mean is not None]
        higher = (self._metric or Score()).higher_is_better
        nodes = tracks[0].nodes or self._clients_of(keys[0])
        return Line(
            label=label,
            state=_state(tracks, rounds, seeds),
            note=next((track.stopped for track in tracks if track.stopped), ""),
            round=max(track.round for track in tracks),
            rounds=rounds,
            seeds=seeds,
            score=statistics.fmean(known) if whole else None,
            spread=statistics.stdev(known) if whole and len(known) > 1 else None,
            best=(max if higher else min)(means, default=None),
            loss=tracks[0].loss if len(tracks) == 1 else _mean([track.loss for track in tracks]),
            bytes_up=sum(track.bytes_up for track in tracks) // len(tracks),
            bytes_down=sum(track.bytes_down for track in tracks) // len(tracks),
            seconds=sum(track.seconds for track in tracks),
            curve=thinned(curve, POINTS),
            nodes=nodes[:NODES],
        )

    def _clients_of(self, key: Key) -> list[float | None]:
        ends = self._ends.get(key, {})
        return [ends.get(client) for client in range(max(ends, default=-1) + 1)]

    def _places(
        self, setting: str, plan: Mapping[str, Any], parts: object
    ) -> tuple[list[Place], list[tuple[int, int]]]:
        """Clients or nodes with the rows that they hold in the first seed, and who hears whom."""
        seeds = parts.get("seeds") if isinstance(parts, dict) else None
        first: dict[str, Any] = next(iter(seeds.values()), {}) if isinstance(seeds, dict) else {}
        sizes, named = first.get("sizes") or [], first.get("clients") or []
        if len(sizes) > NODES:
            return [], []
        names = [text(named[index]) if index < len(named) else str(index) for index in range(len(sizes))]
        edges = [(count(a), count(b)) for a, b in plan.get("edges") or ()][:EDGES]
        edges = [(a, b) for a, b in edges if max(a, b) < len(sizes)]
        spots = placed(len(sizes), edges) if edges else in_circle(len(sizes))
        refused = self._refused.get(setting, Counter())
        return [
            Place(
                name=name, x=x, y=y, samples=number(size), refused=refused[name] + refused[f"client {name}"]
            )
            for name, size, (x, y) in zip(names, sizes, spots, strict=True)
        ], edges


def _metric(found: object) -> Score | None:
    return Score.model_validate(found) if isinstance(found, dict) else None


def guessed(line: Mapping[str, Any]) -> Score | None:
    """The score of a line of metrics where nothing says which it is; None where there is none."""
    from consilience.problems import PROBLEMS  # with torch, which takes seconds

    known = {problem.metric.name: problem.metric for problem in PROBLEMS.values()}
    apart = (key.partition("_") for key in line)
    found = [name for prefix, _, name in apart if prefix in ROWS and name and name != "loss"]
    if not found:
        return None
    name = next((name for name in found if name in known), found[0])
    return Score.model_validate(known[name]._asdict()) if name in known else Score(name=name, percent=False)


def _curve(
    curves: Sequence[Mapping[int, float | None]],
) -> list[tuple[int, float | None, float | None, float | None]]:
    """The mean, the least and the largest value by round; a mean must not hide a value that is not finite."""
    points: list[tuple[int, float | None, float | None, float | None]] = []
    for number_ in sorted({one for curve in curves for one in curve}):
        values = [curve[number_] for curve in curves if number_ in curve]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            points.append((number_, statistics.fmean(known), min(known), max(known)))
        else:
            points.append((number_, None, None, None))
    return points


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _state(tracks: Sequence[_Track], rounds: int, seeds: int) -> State:
    if any(track.diverged for track in tracks):
        return "diverged"
    ended = [bool(track.stopped) or (rounds > 0 and track.round >= rounds) for track in tracks]
    return "done" if all(ended) and len(tracks) >= seeds else "running"
