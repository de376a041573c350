"""What a monitor knows and shows, as plain values; what comes from elsewhere is checked against it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

VERSION = 1
"""The form of what monitors tell each other."""
LETTERS = 300
"""The length of a name or a reason; more is cut off."""
POINTS = 400
"""The points that a curve has at most."""
REFUSALS = 200
"""The refusals that are listed at most; all are counted."""
NODES, EDGES, MEMBERS, PANELS = 1000, 100_000, 1000, 200
"""How many of them there may be."""


def number(value: object) -> float | None:
    """The number, where it is a finite one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def count(value: object) -> int:
    """The number as a count; 0 where it is none."""
    found = number(value)
    return 0 if found is None else min(max(0, int(found)), 2**62)


def text(value: object) -> str:
    """A name or a reason, short enough to be shown."""
    whole = value if isinstance(value, str) else "" if value is None else str(value)
    return whole if len(whole) <= LETTERS else whole[: LETTERS - 1] + "…"


def names(value: object) -> list[str]:
    """The names in a list, or those by which something is held."""
    return [text(one) for one in value][:NODES] if isinstance(value, list | tuple | Mapping) else []


Text = Annotated[str, BeforeValidator(text)]
Number = Annotated[float | None, BeforeValidator(number)]
Count = Annotated[int, BeforeValidator(count)]
Names = Annotated[list[str], BeforeValidator(names)]
Point = tuple[Count, Number, Number, Number]
"""A round, and the mean, the least and the largest value in it."""
Curve = Annotated[list[Point], Field(max_length=POINTS + 1)]


class Shown(BaseModel):
    """Values that are not changed; keys that are unknown are left out."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Score(Shown):
    """The score that is shown."""

    name: Text = "accuracy"
    percent: bool = True
    higher_is_better: bool = True


class Refusal(Shown):
    """Something that was refused."""

    time: Number = None
    round: Count = 0
    """Counted from 1; 0: nobody says."""
    at: Text = ""
    """Who refused."""
    sender: Text = ""
    reason: Text = ""


State = Literal["waiting", "running", "done", "diverged"]


class Line(Shown):
    """How a method does, or a hub, or all nodes together."""

    label: Text
    state: State = "waiting"
    note: Text = ""
    """Why it stopped before its last round, where it did."""
    round: Count = 0
    rounds: Count = 0
    """How many there are to be; 0: nobody says."""
    seeds: Count = 1
    score: Number = None
    spread: Number = None
    best: Number = None
    loss: Number = None
    bytes_up: Count = 0
    bytes_down: Count = 0
    seconds: Number = None
    """How long all rounds so far took."""
    curve: Curve = Field(default_factory=list)
    nodes: Annotated[list[Number], Field(max_length=NODES)] = Field(default_factory=list)
    """The last scores of those who have a place, in their order."""


class Place(Shown):
    """A client, a site or a node, and where it is drawn, between 0 and 1."""

    name: Text
    x: Number = None
    y: Number = None
    state: Text = ""
    trouble: bool = False
    round: Number = None
    samples: Number = None
    bytes_up: Number = None
    bytes_down: Number = None
    staleness: Number = None
    """How many rounds old the oldest of its neighbours' newest messages is."""
    refused: Count = 0
    """How often others refused what it sent."""
    time: Number = None
    """When it was last heard of, in seconds since 1970."""


class Panel(Shown):
    """A federation, or a setting of a simulation."""

    title: Text
    kind: Literal["simulation", "federation"] = "simulation"
    metric: Score = Score()
    time: Number = None
    """When something was last written."""
    lines: Annotated[list[Line], Field(max_length=MEMBERS)] = Field(default_factory=list)
    hub: bool = False
    """Whether there is a server in the middle."""
    places: Annotated[list[Place], Field(max_length=NODES)] = Field(default_factory=list)
    edges: Annotated[list[tuple[Count, Count]], Field(max_length=EDGES)] = Field(default_factory=list)
    remarks: Annotated[list[Text], Field(max_length=20)] = Field(default_factory=list)
    refusals: Annotated[list[Refusal], Field(max_length=REFUSALS)] = Field(default_factory=list)
    refused: Count = 0


class Member(Shown):
    """What a member of a real federation has written down."""

    run: Text
    member: Text
    metric: Score = Score()
    time: Number = None
    round: Count = 0
    rounds: Count = 0
    done: bool = False
    samples: Number = None
    score: Number = None
    best: Number = None
    seconds: Number = None
    bytes_up: Count = 0
    bytes_down: Count = 0
    curve: Curve = Field(default_factory=list)
    neighbours: Names = Field(default_factory=list)
    away: Names = Field(default_factory=list)
    """The neighbours that it does not see."""
    staleness: Number = None
    """How many rounds old the oldest of its neighbours' newest messages is."""
    sites: Annotated[dict[Text, Number], Field(max_length=NODES)] = Field(default_factory=dict)
    """The rows of those who take part, at a hub."""
    asked: Names = Field(default_factory=list)
    heard: Names = Field(default_factory=list)
    unheard: Annotated[dict[Text, Text], Field(max_length=NODES)] = Field(default_factory=dict)
    """Why those who were refused in the last exchange were."""
    scores: Annotated[dict[Text, Number], Field(max_length=NODES)] = Field(default_factory=dict)
    """The scores of sites at the end."""
    refusals: Annotated[list[Refusal], Field(max_length=REFUSALS)] = Field(default_factory=list)
    refused: Annotated[dict[Text, Count], Field(max_length=NODES)] = Field(default_factory=dict)
    """How often each was refused."""


class Offer(Shown):
    """What a monitor tells others: members as they are, since whoever gathers several puts them together."""

    version: Literal[1] = 1
    panels: Annotated[list[Panel], Field(max_length=PANELS)] = Field(default_factory=list)
    members: Annotated[list[Member], Field(max_length=MEMBERS)] = Field(default_factory=list)
    problems: Annotated[list[Text], Field(max_length=MEMBERS)] = Field(default_factory=list)
    """What could not be read, and why."""


class Page(Shown):
    """What the page shows."""

    panels: list[Panel]
    problems: list[str]
    time: float
    """The time at this machine."""
