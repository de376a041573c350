"""What a cell computes: which of its settings are not those of the recipe, and the best numbers of a grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from consilience.errors import abridged
from consilience.reproduce.raw import Raw, label_of

COMPUTED = (
    *("data", "augment", "l2", "partition", "model", "clients", "participation", "failure_rate", "network"),
    *("rounds", "local", "solver", "schedule", "topology", "init", "method", "stop_when"),
)
"""The keys of a configuration that say what is computed; others say where, and what is looked at."""
ASIDE = frozenset({"label", "resident"})
"""Keys inside of these that change nothing about what comes out."""
SEARCHED = ("method", "solver", "schedule")
"""The parts in which a grid has lists of numbers."""


def differences(was: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """In which settings one written configuration is another computation than a second, in words.

    Seeds do not count: there may be fewer. Nor do keys that only one of them knows: versions differ in these.
    """
    pairs = [(was, wanted), *zip(was.get("compare") or (), wanted.get("compare") or (), strict=False)]
    found = [
        f"{path} {abridged(one)} instead of {abridged(other)}"
        for mine, theirs in pairs
        for path, one, other in _unlike(_computed(mine), _computed(theirs))
    ]
    settings = [len(one.get("compare") or ()) for one in (was, wanted)]
    if settings[0] != settings[1]:
        found.append(f"{settings[0]} settings instead of {settings[1]}")
    return [*dict.fromkeys(found)]


def _computed(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: section[key] for key in COMPUTED if key in section}


def _unlike(was: object, wanted: object, path: str = "") -> Iterator[tuple[str, object, object]]:
    """The places where two values differ that both have, with what stands there."""
    if isinstance(was, Mapping) and isinstance(wanted, Mapping):
        for key in (key for key in was if key in wanted and key not in ASIDE):
            yield from _unlike(was[key], wanted[key], f"{path}.{key}" if path else key)
    elif isinstance(was, list) and isinstance(wanted, list) and len(was) == len(wanted):
        for number, pair in enumerate(zip(was, wanted, strict=True)):
            yield from _unlike(*pair, f"{path}[{number}]")
    elif was != wanted:
        yield path, was, wanted


def small_grid(setting: Mapping[str, Any]) -> dict[str, Any]:
    """A setting whose grid has the first two of the numbers that it is searched for."""
    return {key: _few(part) if key in SEARCHED else part for key, part in setting.items()}


def _few(part: object) -> object:
    if not isinstance(part, Mapping):
        return part
    return {key: value[:2] if _is_grid(value) else value for key, value in part.items()}


def _is_grid(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, int | float) for one in value)


def best_of(compare: Sequence[Mapping[str, Any]], grid: Raw) -> list[dict[str, Any]]:
    """The settings of a grid that was searched, with the numbers of the best variant in place of lists.

    The best of a setting is the one with the highest mean score after the last round.
    """
    return [_settled(setting, _best(str(setting["label"]), grid)) for setting in compare]


def _best(setting: str, grid: Raw) -> Mapping[str, Any]:
    """The numbers of a setting's best variant."""
    ends: dict[str, float] = {}
    for label, curves in grid.curves.items():
        if label[0] == setting:
            last = [curve[max(curve)] for curve in curves.values()]
            ends[label[2]] = fmean(-1.0 if score is None else score for score in last)
    best = max(ends, key=lambda words: ends[words])
    line = next(one for one in grid.lines if label_of(one)[::2] == (setting, best))
    found: Mapping[str, Any] = line.get("swept", {})
    return found


def _settled(setting: Mapping[str, Any], numbers: Mapping[str, Any]) -> dict[str, Any]:
    """A setting with numbers in place of lists; one that two parts have is called by its part's name, too."""
    found = dict(setting)
    for part in SEARCHED:
        options = setting.get(part)
        if isinstance(options, Mapping):
            found[part] = {
                key: _chosen(value, numbers.get(f"{part}.{key}", numbers.get(key)))
                for key, value in options.items()
            }
    return found


def _chosen(given: object, number: object) -> object:
    """The number in place of a list; a list of one value makes no variants that could be told apart."""
    if not isinstance(given, list):
        return given
    return given[0] if number is None else number
