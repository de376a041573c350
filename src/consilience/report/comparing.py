"""Runs side by side on a terminal: the table that ends a run, for several, and tests between methods."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from consilience.report.papers import shown_variance
from consilience.report.runs import Group
from consilience.report.significance import Comparison, against, shown_p, variance
from consilience.report.table import NOTHING, comparison_table


def tables(groups: Sequence[Group]) -> list[RenderableType]:
    """What there is to print: a table for every metric with its targets, then tests within every group."""
    found: list[RenderableType] = []
    kinds = dict.fromkeys((group.metric, group.targets) for group in groups)
    for metric, targets in kinds:
        alike = [group for group in groups if (group.metric, group.targets) == (metric, targets)]
        rows = [row for group in alike for row in group.summaries()]
        if len(kinds) > 1 and len(alike) == 1:  # else a column tells the settings
            found.append(Text(alike[0].title, style="bold"))
        found += [comparison_table(rows, targets, metric), ""]
    for group in groups:
        found += _tests(group, named=len(groups) > 1)
        found += [Text(line, style="dim") for line in _remarks(group)]
    return found


def _tests(group: Group, *, named: bool) -> list[RenderableType]:
    """Every method beside the best one; of a single method there is nothing to say."""
    if len(group.entries) < 2:
        return []
    metric, finals = group.metric, group.finals()
    reference = group.best
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    about = f"{group.title}, " if named else ""
    table.add_column(f"{about}beside {group.entries[reference].label}".replace("[", r"\["), overflow="fold")
    for heading in ("difference", "p", "p (Holm)", "seeds"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("test")
    for one, found in zip(group.entries, against(reference, finals), strict=True):
        if found is not None:
            difference = NOTHING if found.difference is None else _signed(metric.shown(found.difference))
            cells = (difference, shown_p(found.p), shown_p(found.holm), str(found.seeds))
            table.add_row(Text(one.label), *cells, _told(found))
    sentence = shown_variance(variance(finals))
    return [table, Text(f"{sentence[0].upper()}{sentence[1:]}."), ""]


def _signed(shown: str) -> str:
    return shown if shown.startswith("-") else f"+{shown}"


def _told(found: Comparison) -> str:
    return found.test or f"none: {found.why}"


def _remarks(group: Group) -> list[str]:
    """What a reader must know who takes the methods of a group for comparable."""
    unfinished = [one.label for one in group.entries if not one.finished]
    lines = [f"not finished, so that scores are those so far: {', '.join(unfinished)}"] if unfinished else []
    for key, values in group.differences().items():
        lines.append(f"runs differ in {key}: {', '.join(f'{run} {value}' for run, value in values.items())}")
    return [f"{group.title}: {line}" for line in lines]
