"""The comparison table that ends a run: one line for each method, readable at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from consilience.problems import Metric
from consilience.report.summary import Goals, MethodSummary, RoundsTo, soonest, target_key
from consilience.report.units import human_bytes, scaled

NOTHING = "–"


def comparison_table(
    summaries: Sequence[MethodSummary],
    targets: Sequence[float],
    metric: Metric,
    goals: Goals | None = None,
) -> Table:
    """Methods side by side, what is best in each setting in bold; scores are on the test set.

    Best at a target is who reached it in the largest share of seeds, and then in the fewest rounds.

    `own` is the score of clients' own models on the rows that they keep back, where a method has such models.

    Args:
        summaries: one for each row; those of one setting are shown together.
        targets: values that the summaries were made with, one column each.
        metric: the score that the summaries were made with.
        goals: further scores and their targets, with which they were made.
    """
    goals = goals or {}
    aims = [(metric, target, target_key(target)) for target in targets] + [
        (one, target, target_key(target, one)) for one, values in goals.items() for target in values
    ]
    settings = list(dict.fromkeys(summary.setting for summary in summaries))
    labels = ["setting", "method"] if len(settings) > 1 else ["method"]
    # Many columns move closer together, and "12.3 (2/3)" breaks in two, to leave room for the labels.
    crowded = len(labels) + len(goals) + len(aims) > 3
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0 if crowded else 1, 0, 0)
    )
    for label in labels:
        table.add_column(label, overflow="fold")
    personal = any(summary.personal_mean is not None for summary in summaries)
    for heading in (metric.name, "best", *(["own"] if personal else [])):
        table.add_column(f"{heading}\n{metric.unit}".rstrip(), justify="right", no_wrap=True)
    for one in goals:
        table.add_column(f"{one.name}\n{one.unit}".rstrip(), justify="right", overflow="fold")
    for one, target, _ in aims:
        about = "" if one is metric else f"\n{one.name}"
        heading = f"rounds\nto {one.scale * target:.4g}{one.unit}{about}"
        table.add_column(heading, justify="right", overflow="fold", width=6 if crowded else None)
    for heading in ("up", "down", "samples\nper s"):
        table.add_column(heading, justify="right", no_wrap=True)

    for setting in settings:
        rows = [summary for summary in summaries if summary.setting == setting]
        best = metric.best(row.final_mean for row in rows if row.final_mean is not None)
        first = {key: soonest([row.rounds_to[key] for row in rows]) for _, _, key in aims}
        for place, row in enumerate(rows):
            numbers: list[Text | str] = [
                _shown(row.best_mean, metric),
                *([_shown(row.personal_mean, metric)] if personal else []),
                *(_shown(row.scores[one.name]["mean"], one) for one in goals),
                *(bold(shown_rounds(row.rounds_to[key]), when=first[key][place]) for _, _, key in aims),
                human_bytes(row.bytes_up),
                human_bytes(row.bytes_down),
                NOTHING if not row.samples_per_s else scaled(row.samples_per_s, ("", "k", "M", "G")),
            ]
            table.add_row(
                # Labels are the user's: as `Text` their brackets are not taken for markup.
                *(Text(text) for text in (setting, row.method)[-len(labels) :]),
                bold(shown_final(row, metric), when=row.final_mean == best),
                *numbers,
            )
        table.add_section()
    return table


def clients_table(summaries: Sequence[MethodSummary], metric: Metric) -> Table | None:
    """How methods serve their clients, personalised ones with clients' own models; None without any score.

    Args:
        summaries: one for each row.
        metric: the score that the summaries were made with.
    """
    if not any(metric.name in summary.clients for summary in summaries):
        return None
    settings = list(dict.fromkeys(summary.setting for summary in summaries))
    labels = ["setting", "method"] if len(settings) > 1 else ["method"]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for label in labels:
        table.add_column(label, overflow="fold")
    for heading in ("mean over\nclients", "worst\nclient", "tenth\npercentile", "spread\n(std)"):
        table.add_column(f"{heading} {metric.unit}".rstrip(), justify="right", no_wrap=True)
    table.add_column("taken on\nrows", no_wrap=True)
    for setting in settings:
        for row in (summary for summary in summaries if summary.setting == setting):
            found = row.clients.get(metric.name)
            cells = [NOTHING] * 5
            if found:
                values = [metric.shown(value) for value in (found.mean, found.worst, found.tenth)]
                values[1] += f" ({found.who})" if found.who else ""
                cells = [*values, metric.shown_spread(found.std), found.rows]
            table.add_row(*(Text(text) for text in (setting, row.method)[-len(labels) :]), *cells)
        table.add_section()
    return table


def bold(text: str, *, when: bool) -> Text:
    """A cell whose text is bold where it is the best of its kind."""
    return Text(text, style="bold" if when else "")


def shown_final(summary: MethodSummary, metric: Metric) -> str:
    """The final score with its spread, which one seed does not have; or that the method has diverged."""
    if summary.diverged:
        some = "" if summary.diverged == summary.seeds else f" ({summary.diverged}/{summary.seeds})"
        return f"diverged{some}"
    mean, std = _shown(summary.final_mean, metric), summary.final_std
    return mean if std is None or summary.seeds == 1 else f"{mean} ± {metric.shown_spread(std)}"


def _shown(value: float | None, metric: Metric) -> str:
    return NOTHING if value is None else metric.shown(value)


def shown_rounds(target: RoundsTo) -> str:
    """The mean number of rounds, with the share of seeds that got there where not all did."""
    if target["mean"] is None:
        return NOTHING
    some = "" if target["reached"] == target["seeds"] else f" ({target['reached']}/{target['seeds']})"
    return f"{target['mean']:.1f}{some}"
