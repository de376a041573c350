"""The comparison table that ends a run: one line for each method, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from consilience.problems import Metric
from consilience.report.summary import MethodSummary, RoundsTo, target_key
from consilience.report.units import human_bytes, scaled

NOTHING = "–"


def comparison_table(summaries: Sequence[MethodSummary], targets: Sequence[float], metric: Metric) -> Table:
    """Methods side by side, the best final score of each setting in bold.

    `own` is the score of clients' own models on their own data, where a method has such models.

    Args:
        summaries: one for each row; those of one setting are shown together.
        targets: values that the summaries were made with, one column each.
        metric: the score that the summaries were made with.
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
    personal = any(summary.personal_mean is not None for summary in summaries)
    for heading in (metric.name, "best", *(["own"] if personal else [])):
        table.add_column(f"{heading}\n{metric.unit}".rstrip(), justify="right", no_wrap=True)
    for target in targets:
        heading = f"rounds\nto {metric.scale * target:.4g}{metric.unit}"
        table.add_column(heading, justify="right", overflow="fold", width=6 if crowded else None)
    for heading in ("up", "down", "samples\nper s"):
        table.add_column(heading, justify="right", no_wrap=True)

    for setting in settings:
        rows = [summary for summary in summaries if summary.setting == setting]
        best = metric.best(row.final_mean for row in rows if row.final_mean is not None)
        for row in rows:
            numbers = [
                _shown(row.best_mean, metric),
                *([_shown(row.personal_mean, metric)] if personal else []),
                *(_rounds(row.rounds_to[target_key(target)]) for target in targets),
                human_bytes(row.bytes_up),
                human_bytes(row.bytes_down),
                NOTHING if row.samples_per_s is None else scaled(row.samples_per_s, ("", "k", "M", "G")),
            ]
            table.add_row(
                # Labels are the user's: as `Text` their brackets are not taken for markup.
                *(Text(text) for text in (setting, row.method)[-len(labels) :]),
                Text(_final(row, metric), style="bold" if row.final_mean == best else ""),
                *numbers,
            )
        table.add_section()
    return table


def _final(summary: MethodSummary, metric: Metric) -> str:
    """The final score with its spread, which one seed does not have."""
    mean, std = _shown(summary.final_mean, metric), summary.final_std
    return mean if std is None or summary.seeds == 1 else f"{mean} ± {metric.shown_spread(std)}"


def _shown(value: float | None, metric: Metric) -> str:
    return NOTHING if value is None else metric.shown(value)


def _rounds(target: RoundsTo) -> str:
    if target["mean"] is None:
        return NOTHING
    some = "" if target["reached"] == target["seeds"] else f" ({target['reached']}/{target['seeds']})"
    return f"{target['mean']:.1f}{some}"
