"""The folder of a member of a real federation, a hub or a node, and federations put together from members."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from consilience.deploy.journal import AUDIT, METRICS, STATUS
from consilience.monitor.placing import in_circle, placed
from consilience.monitor.shown import (
    NODES,
    POINTS,
    REFUSALS,
    Line,
    Member,
    Panel,
    Place,
    Refusal,
    Score,
    count,
    names,
    number,
    text,
)
from consilience.monitor.simulations import ROWS, guessed
from consilience.monitor.tail import Tail, read_json, written
from consilience.report.page.curves import thinned

HUB = "hub"
KINDS = ("personal", "own", "train")
"""The scores of sites at the end, what says most of them first."""


class MemberFolder:
    """A member's folder, read as it grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metrics, self._audit = Tail(path / METRICS), Tail(path / AUDIT)
        self._forget()

    @staticmethod
    def fits(path: Path) -> bool:
        """Whether a folder is a member's."""
        return any((path / name).is_file() for name in (STATUS, AUDIT))

    def member(self) -> Member:
        """The member, as it is now."""
        if self._metrics.restarted or self._audit.restarted:
            self._forget()
        for line in self._metrics.read():
            self._take(line)
        for line in self._audit.read():
            self._take_refusal(line)
        status = read_json(self.path / STATUS)
        metric, told = self._known(status), {**self._who, **self._last, **status}
        scores = [value for value in self._scores.values() if value is not None]
        links = {name: _mapping(one) for name, one in _mapping(told.get("neighbours")).items()}
        ages = [age for one in links.values() if (age := number(one.get("staleness"))) is not None]
        return Member(
            run=text(told.get("run")),
            member=text(told.get("member") or self.path.name),
            metric=metric,
            time=number(told.get("time")) or written(self.path / STATUS),
            round=max(count(self._last.get("round")), count(status.get("round"))),
            rounds=count(told.get("rounds")),
            done=bool(status.get("done")),
            samples=number(told.get("samples")),
            score=number(told.get(self._key or "")),
            best=(max if metric.higher_is_better else min)(scores, default=None),
            seconds=self._seconds or None,
            bytes_up=count(told.get("bytes_up")),
            bytes_down=count(told.get("bytes_down")),
            curve=thinned([(at, score, score, score) for at, score in sorted(self._scores.items())], POINTS),
            neighbours=names(told.get("neighbours")),
            away=[text(name) for name, one in links.items() if one.get("alive") is False][:NODES],
            staleness=max(ages, default=None),
            sites=dict(list(_mapping(told.get("sites")).items())[:NODES]),
            asked=names(told.get("asked")),
            heard=names(told.get("heard")),
            unheard=dict(list(_mapping(told.get("refused")).items())[:NODES]),
            scores=self._ends,
            refusals=list(self._refusals),
            refused=dict(self._refused.most_common(NODES)),
        )

    @property
    def damaged(self) -> int:
        """How many lines could not be read."""
        return self._metrics.damaged + self._audit.damaged

    def _forget(self) -> None:
        self._metrics.forget()
        self._audit.forget()
        self._metric: Score | None = None
        self._key: str | None = None
        self._who: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._scores: dict[int, float | None] = {}
        self._seconds = 0.0
        self._ends: dict[str, float | None] = {}
        self._refusals: deque[Refusal] = deque(maxlen=REFUSALS)
        self._refused: Counter[str] = Counter()

    def _take(self, line: dict[str, Any]) -> None:
        metric = self._known(line)
        self._seconds += number(line.get("seconds")) or 0.0
        final = _mapping(line.get("final"))
        if not final:
            self._last = line
            if self._key in line:
                self._scores[count(line.get("round"))] = number(line[self._key])
        else:
            by_site = next((_mapping(final[kind]) for kind in KINDS if final.get(kind)), {})
            self._ends = {
                text(site): number(_mapping(one).get(metric.name))
                for site, one in list(by_site.items())[:NODES]
            }

    def _known(self, line: Mapping[str, Any]) -> Score:
        """The score that is shown, and from now on the same one."""
        if self._metric is None:
            self._metric = guessed(line)
        if self._key is None and self._metric:
            self._key = _key(self._metric, line)
        return self._metric or Score()

    def _take_refusal(self, line: Mapping[str, Any]) -> None:
        sender = text(line.get("from"))
        self._who = {key: line[key] for key in ("run", "member") if key in line}
        self._refusals.appendleft(
            Refusal(
                time=number(line.get("time")),
                # People count rounds from 1; a site does not know of which round something was to be.
                round=0 if line.get("round") is None else count(line.get("round")) + 1,
                at=text(line.get("member")),
                sender=sender,
                reason=text(line.get("reason")),
            )
        )
        if sender in self._refused or len(self._refused) < NODES:
            self._refused[sender] += 1


def _key(metric: Score, line: Mapping[str, Any]) -> str | None:
    """What a line calls the score; None where it has none."""
    return next((key for rows in ROWS if (key := f"{rows}_{metric.name}") in line), None)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def federations(members: Sequence[Member]) -> list[Panel]:
    """A panel for every run that members are of."""
    runs: dict[str, dict[str, Member]] = {}
    for member in members:
        known = runs.setdefault(member.run, {})
        before = known.get(member.member)
        if before is None or (member.time or 0) >= (before.time or 0):  # offered twice: the newer one
            known[member.member] = member
    return [_panel(run, list(found.values())) for run, found in runs.items()]


def _panel(run: str, members: Sequence[Member]) -> Panel:
    hub = next((member for member in members if member.member == HUB), None)
    others = sorted((member for member in members if member is not hub), key=lambda one: _order(one.member))
    refused: Counter[str] = Counter()
    for member in members:
        refused.update(member.refused)
    places = _places(hub, others, refused)
    if not hub:
        places = [_seen(place, others) for place in places]
    index = {place.name: number_ for number_, place in enumerate(places)}
    edges = sorted(
        {
            (min(pair), max(pair))
            for one in others
            for other in one.neighbours
            if {one.member, other} <= index.keys() and len(pair := {index[one.member], index[other]}) == 2
        }
        if not hub
        else ()
    )
    spots = placed(len(places), edges) if edges else in_circle(len(places))
    refusals = sorted(
        (refusal for member in members for refusal in member.refusals), key=lambda one: -(one.time or 0)
    )
    times = [member.time for member in members if member.time is not None]
    scores = {one.member: one.score for one in others} | (hub.scores if hub else {})
    nodes = [scores.get(place.name) for place in places]
    return Panel(
        title=f"federation {run}" if run else "federation",
        kind="federation",
        metric=(hub or others[0]).metric,
        time=max(times, default=None),
        lines=[_hub_line(hub, nodes) if hub else _common_line(others, nodes)],
        hub=hub is not None,
        places=[
            place.model_copy(update={"x": x, "y": y}) for place, (x, y) in zip(places, spots, strict=True)
        ],
        edges=edges,
        refusals=refusals[:REFUSALS],
        refused=refused.total(),
    )


def _order(name: str) -> tuple[int, int, str]:
    """Numbers by their value, before names."""
    return (0, int(name), "") if name.isdecimal() and len(name) < 10 else (1, 0, name)


def _places(hub: Member | None, members: Sequence[Member], refused: Mapping[str, int]) -> list[Place]:
    """Everybody of whom there is word."""
    found = {member.member: member for member in members}
    heard_of = [other for member in members for other in member.neighbours]
    everybody = sorted({*found, *heard_of, *(hub.sites if hub else ())}, key=_order)[:NODES]
    return [_place(name, hub, found.get(name), refused.get(name, 0)) for name in everybody]


def _seen(place: Place, members: Sequence[Member]) -> Place:
    """The node, with what its neighbours say of it."""
    blind = [member.member for member in members if place.name in member.away]
    if not blind:
        return place
    every = all(member.member in blind for member in members if place.name in member.neighbours)
    state = "away: no neighbour sees it" if every else f"not seen by {', '.join(blind)}"
    return place.model_copy(update={"state": state, "trouble": True})


def _place(name: str, hub: Member | None, member: Member | None, refused: int) -> Place:
    state, trouble = ("", False)
    if hub is not None:
        state, trouble = _at_hub(name, hub)
    elif member is None:
        state, trouble = "known from neighbours only", True
    else:
        state, trouble = ("done" if member.done else "there"), False
        if member.unheard:
            state, trouble = f"did not take what came from {', '.join(member.unheard)}", True
    node = None if hub else member  # rounds and bytes of sites are counted at their hub
    return Place(
        name=name,
        state=state,
        trouble=trouble,
        round=node.round if node else None,
        samples=member.samples if member and member.samples is not None else hub and hub.sites.get(name),
        bytes_up=node.bytes_up if node else None,
        bytes_down=node.bytes_down if node else None,
        staleness=member.staleness if member else None,
        refused=refused,
        time=member.time if member else None,
    )


def _at_hub(name: str, hub: Member) -> tuple[str, bool]:
    """What a hub says of a site in its last exchange, and whether that is trouble."""
    if name in hub.unheard:
        return f"refused: {hub.unheard[name]}", True
    if name in hub.heard:
        return "heard", False
    if name in hub.asked:
        return "asked, no answer", True
    return ("enrolled", False) if name in hub.sites else ("unknown to the hub", True)


def _hub_line(hub: Member, nodes: list[float | None]) -> Line:
    return Line(
        label=HUB,
        state="done" if hub.done else "running" if hub.round else "waiting",
        round=hub.round,
        rounds=hub.rounds,
        score=hub.score,
        best=hub.best,
        bytes_up=hub.bytes_up,
        bytes_down=hub.bytes_down,
        seconds=hub.seconds,
        curve=hub.curve,
        nodes=nodes,
    )


def _common_line(members: Sequence[Member], nodes: list[float | None]) -> Line:
    """All nodes together: what they score in the mean, from the worst to the best one."""
    curve = []
    curves = [{at: score for at, score, _, _ in member.curve if score is not None} for member in members]
    latest: dict[int, float] = {}  # a node that is behind counts by what it had last
    for at in sorted({at for one in curves for at in one}):
        latest |= {node: one[at] for node, one in enumerate(curves) if at in one}
        found = latest.values()
        curve.append((at, statistics.fmean(found), min(found), max(found)))
    known = [score for score in nodes if score is not None]
    means = [mean for _, mean, _, _ in curve]
    return Line(
        label="all nodes",
        state="done" if all(one.done for one in members) else "running",
        round=min(member.round for member in members),
        rounds=max(member.rounds for member in members),
        score=statistics.fmean(known) if known else None,
        spread=statistics.stdev(known) if len(known) > 1 else None,
        best=(max if members[0].metric.higher_is_better else min)(means, default=None),
        bytes_up=sum(member.bytes_up for member in members),
        bytes_down=sum(member.bytes_down for member in members),
        seconds=max((member.seconds or 0 for member in members), default=0) or None,
        curve=thinned(curve, POINTS),
        nodes=nodes,
    )
