"""The comparison table that ends a run: one line for each method, readable at 80 columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from consilience.report.summary import MethodSummary, RoundsTo, target_key
from consilience.report.units import human_bytes, scaled

NOTHING = "–"


def comparison_table(summaries: Sequence[MethodSummary], targets: Sequence[float]) -> Table:
    """Methods side by side, the best final accuracy of each setting in bold.

    `own` is the accuracy of clients' own models on their own data, where a method has such models.

    Args:
        summaries: one for each row; those of one setting are shown together.
        targets: accuracies that the summaries were made with, one column each.
    """
    settings = list(dict.fromkeys(summary.setting for summary in summaries))
    labels = ["setting", "method"] if len(settings) > 1 else ["method"]
    # Many columns move closer together, and "12.3 (2/3)" breaks in two, to leave room for the labels.
    crowded = len(labels) + len(targets) > 3
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0 if crowded else 1, 0, 0)
    )
    for label in labels:
        table.add_column(label, overflow="fold")
    personal = any(summary.personal_accuracy_mean is not None for summary in summaries)
    for heading in ("accuracy\n%", "best\n%", *(["own\n%"] if personal else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for target in targets:
        heading = f"rounds\nto {100 * target:.4g}%"
        table.add_column(heading, justify="right", overflow="fold", width=6 if crowded else None)
    for heading in ("up", "down", "samples\nper s"):
        table.add_column(heading, justify="right", no_wrap=True)

    for setting in settings:
        rows = [summary for summary in summaries if summary.setting == setting]
        best = max(map(_ranked, rows))
        for row in rows:
            numbers = [
                _percent(row.best_accuracy_mean),
                *([_percent(row.personal_accuracy_mean)] if personal else []),
                *(_rounds(row.rounds_to[target_key(target)]) for target in targets),
                human_bytes(row.bytes_up),
                human_bytes(row.bytes_down),
                NOTHING if row.samples_per_s is None else scaled(row.samples_per_s, ("", "k", "M", "G")),
            ]
            table.add_row(
                # Labels are the user's: as `Text` their brackets are not taken for markup.
                *(Text(text) for text in (setting, row.method)[-len(labels) :]),
                Text(_accuracy(row), style="bold" if _ranked(row) == best > -math.inf else ""),
                *numbers,
            )
        table.add_section()
    return table


def _ranked(summary: MethodSummary) -> float:
    """The final accuracy to compare by: nothing is below everything."""
    return -math.inf if summary.final_accuracy_mean is None else summary.final_accuracy_mean


def _accuracy(summary: MethodSummary) -> str:
    """The final accuracy with its spread, which one seed does not have."""
    mean, std = summary.final_accuracy_mean, summary.final_accuracy_std
    return _percent(mean) if std is None or summary.seeds == 1 else f"{_percent(mean)} ± {100 * std:.2f}"


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.2f}"


def _rounds(target: RoundsTo) -> str:
    if target["mean"] is None:
        return NOTHING
    some = "" if target["reached"] == target["seeds"] else f" ({target['reached']}/{target['seeds']})"
    return f"{target['mean']:.1f}{some}"
