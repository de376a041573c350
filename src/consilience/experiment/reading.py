"""What lies in the folders of runs, read for those who look at it later; nothing is written."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from consilience.errors import UserError, described, printable
from consilience.experiment import forms
from consilience.experiment.folder import CLIENTS, CONFIG, METRICS, PARTITIONS, PLAN, SUMMARY, RunFolder
from consilience.experiment.sealing import read_sealed
from consilience.plain import read_yaml
from consilience.problems import PROBLEMS, Metric
from consilience.report.listing import Listing
from consilience.report.runs import Run, distinct
from consilience.sweeping import without_numbers

STATUS = "status.json"
"""The file by which a member of a real federation is known, whose folder is no run's."""


def read_runs(paths: Iterable[Path]) -> list[Run]:
    """The runs in some folders, or in those below, with names that tell them apart."""
    found = list(dict.fromkeys(path for given in paths for path in _given(given)))
    names = distinct([path.resolve() for path in found])
    return [read_run(path, printable(name)) for path, name in zip(found, names, strict=True)]


def _given(path: Path) -> list[Path]:
    runs = find_runs(path)
    if not runs:
        reason = "holds no run" if path.is_dir() else "is no folder"
        raise UserError(
            f"{path} {reason}: give a folder that has a {CONFIG}, or one that such folders are in"
        )
    return runs


def find_runs(folder: Path) -> list[Path]:
    """The folders of runs: this one, or those below it, in the order of their names."""
    found = []
    for place, folders, files in os.walk(folder):
        if CONFIG in files:
            folders.clear()  # of a run there are none below
            if STATUS not in files:
                found.append(Path(place))
        folders.sort()
    return found


def read_run(path: Path, name: str = "") -> Run:
    """The run in a folder, by default with the folder's name; a file that is damaged is named in one line."""
    folder = RunFolder(path)
    for reason in folder.altered():
        raise UserError(reason)
    config, plan, summary = _read_config(path / CONFIG), _read_plan(path), _read_summary(path)
    if not summary:
        folder.check_config()
    records, clients = folder.read_lines(METRICS), folder.read_lines(CLIENTS)
    partitions = read_object(path / PARTITIONS)
    forms.check_lines(path / METRICS, forms.MetricsLine, records)
    forms.check_lines(path / CLIENTS, forms.ClientLine, clients)
    forms.check_form(path / PARTITIONS, forms.Splits, partitions)
    metric = _metric(plan, summary, records)
    run = Run(
        name=name or printable(path.name),
        path=path,
        config=config,
        metric=metric,
        targets=_targets(config, metric),
        records=records,
        clients=clients,
        plan=plan,
        partitions=partitions,
        summary=summary,
        written=max(
            (path / file).stat().st_mtime for file in (SUMMARY, METRICS, CONFIG) if (path / file).exists()
        ),
    )
    try:
        _ = run.rows
    except UserError as error:
        raise UserError(f"{path / METRICS} is damaged: {error}") from None
    return run


def list_run(path: Path, name: str) -> Listing:
    """What a list says of a run; of one that has ended, its summary is enough. Damage is a part of it."""
    try:
        summary = _read_summary(path)
        if not summary:
            run = read_run(path)
            methods = _counted(run.records)
            seeds = {seed for by_seed in run.rows.values() for seed in by_seed}
            rounds = [max(lines) for by_seed in run.rows.values() for lines in by_seed.values()]
            return Listing(name, run.state, methods, max(rounds, default=0), len(seeds), written=run.written)
        rows, metric = summary["methods"], known_metric(summary["metric"])
        metric = _planned_metric(_read_plan(path)) or metric
        several = len({row["setting"] for row in rows}) > 1
        names = [f"{row['setting']}: {row['method']}" if several else row["method"] for row in rows]
        finals = [row[f"final_{metric.name}"]["mean"] for row in rows]
        best = metric.best(value for value in finals if value is not None)
        who = next((name for name, value in zip(names, finals, strict=True) if value == best), "")
        return Listing(
            name=name,
            state="finished",
            methods=_counted(rows),
            rounds=max(row["rounds"] for row in rows),
            seeds=max(row["seeds"] for row in rows),
            score=f"{metric.name} {metric.shown_with_unit(best)} ({who})" if who else "",
            written=(path / SUMMARY).stat().st_mtime,
            digest=str(summary["digest"]),
        )
    except UserError as error:
        return Listing(name, str(error))
    except (KeyError, TypeError, ValueError) as error:
        return Listing(name, f"{path / SUMMARY} is damaged: {described(error)}")


def _counted(lines: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The methods of lines, those that differ in swept numbers alone as one, with how many there are."""
    bases = {line["method"]: without_numbers(line["method"], line.get("swept", {})) for line in lines}
    counts = Counter(bases.values())
    return tuple(base if count == 1 else f"{base} ×{count}" for base, count in counts.items())


def _read_summary(path: Path) -> dict[str, Any]:
    """The summary of the run in a folder; an empty one where it has not ended."""
    if not (path / SUMMARY).exists():
        return {}
    found = read_sealed(path / SUMMARY)
    forms.check_form(path / SUMMARY, forms.Summary, found)
    return found


def _read_plan(path: Path) -> dict[str, Any]:
    """What the run in a folder was going to do; nothing where it does not say."""
    found = read_object(path / PLAN)
    forms.check_form(path / PLAN, forms.Plan, found)
    return found


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is no file."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it holds no object")
    return found


def _read_config(path: Path) -> dict[str, Any]:
    try:
        found = read_yaml(path.read_text(), str(path))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it holds no configuration")
    forms.check_form(path, forms.Configuration, found)
    return found


def _metric(
    plan: Mapping[str, Any], summary: Mapping[str, Any], records: Iterable[Mapping[str, Any]]
) -> Metric:
    """The score by which the methods of a run are compared, by what its files say."""
    if planned := _planned_metric(plan):
        return planned
    if summary:
        return known_metric(summary["metric"])
    keys = next(iter(records), {})
    fitting = [one.metric for one in PROBLEMS.values() if f"test_{one.metric.name}" in keys]
    return fitting[0] if fitting else Metric("loss", higher_is_better=False)


def _planned_metric(plan: Mapping[str, Any]) -> Metric | None:
    return Metric(**plan["metric"]) if plan.get("metric") else None


def known_metric(name: str) -> Metric:
    """The score of a problem that has this name, or one of which no more is known."""
    metrics = {problem.metric.name: problem.metric for problem in PROBLEMS.values()}
    return metrics.get(name, Metric(name))


def _targets(config: Mapping[str, Any], metric: Metric) -> tuple[float, ...]:
    """The values of the metric that a run looked for: its own, or the usual ones of its problem."""
    given = config.get("targets")
    if isinstance(given, Mapping):
        given = given.get(metric.name, ())
    if given is None:
        return next((tuple(one.targets) for one in PROBLEMS.values() if one.metric == metric), ())
    return tuple(float(target) for target in given)
