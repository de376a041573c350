"""What came out of a sweep: a line for every method of every cell, over all seeds, in three forms."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from consilience import sweeping
from consilience.experiment.folder import RunFolder, atomic_write
from consilience.problems import Metric
from consilience.report.summary import mean_and_spread
from consilience.report.table import NOTHING
from consilience.sweep.cells import Cell, Stage
from consilience.sweep.reading import Study

CSV, JSON = "sweep.csv", "sweep.json"
APART = ("seeds", "method")
"""Keys that have columns anyway."""


@dataclass(frozen=True)
class Row:
    """A method of a setting in a cell, or in cells that differ in their seeds alone."""

    varied: dict[str, object]
    """The values that tell the cell from others, by dotted key."""
    setting: str
    method: str
    swept: dict[str, object]
    """The numbers that differ between lanes of the cell's run."""
    metric: Metric
    rounds: int
    seeds: dict[str, dict[str, Any]]
    """The final and the best score, whether it diverged, and the bytes, by seed."""

    def spread(self, kind: str) -> tuple[float | None, float | None]:
        """Mean and standard deviation of the `final` or `best` score; none where a seed has none."""
        found = [one[kind] for one in self.seeds.values()]
        return mean_and_spread([math.nan if value is None else value for value in found])

    @property
    def diverged(self) -> int:
        """How many seeds diverged."""
        return sum(one["diverged"] for one in self.seeds.values())

    def mean(self, kind: str) -> float:
        """The mean over seeds of what every seed has."""
        return fmean(one[kind] for one in self.seeds.values())

    def to_json(self) -> dict[str, Any]:
        """The row as plain values."""
        kinds = {
            kind: dict(zip(("mean", "std"), self.spread(kind), strict=True)) for kind in ("final", "best")
        }
        return {
            "varied": self.varied,
            "setting": self.setting,
            "method": self.method,
            **({"swept": self.swept} if self.swept else {}),
            "metric": self.metric.name,
            "seeds": len(self.seeds),
            "rounds": self.rounds,
            **kinds,
            "bytes_up": self.mean("bytes_up"),
            "bytes_down": self.mean("bytes_down"),
            "diverged": self.diverged,
        }


@dataclass(frozen=True)
class Findings:
    """What came out of a sweep."""

    name: str
    path: Path
    rows: list[Row]
    cells: list[tuple[Cell, Stage, str]]
    """Every cell, how far it is, and why it failed, if it did."""

    @property
    def failed(self) -> dict[str, str]:
        """Why cells failed, by name."""
        return {cell.name: reason for cell, stage, reason in self.cells if stage == "failed"}

    @property
    def keys(self) -> list[str]:
        """The keys that cells vary, but for seeds and methods, which have columns anyway."""
        return [
            key
            for key in dict.fromkeys(k for cell, *_ in self.cells for k in cell.varied)
            if key not in APART
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        states = [
            {"cell": cell.name, "varied": cell.varied, "state": stage, **({"error": why} if why else {})}
            for cell, stage, why in self.cells
        ]
        return {"name": self.name, "cells": states, "rows": [row.to_json() for row in self.rows]}

    def to_csv(self) -> str:
        """A line for every row; cells that failed have one with the reason."""
        swept = dict.fromkeys(f"swept.{key}" for row in self.rows for key in row.swept)
        columns = list(dict.fromkeys((*self.keys, "setting", "method", *swept, *_COLUMNS)))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        for row in self.rows:
            flat = row.to_json()
            numbers = {f"{kind}_{of}": flat[kind][of] for kind in ("final", "best") for of in ("mean", "std")}
            own = {f"swept.{key}": value for key, value in row.swept.items()}
            writer.writerow({**flat, **_plain(row.varied), "method": row.method, **own, **numbers})
        for cell, stage, why in self.cells:
            if stage == "failed":
                writer.writerow({**_plain(cell.varied), "error": why})
        return text.getvalue()

    def write(self, path: Path) -> None:
        """Write both files, atomically."""
        RunFolder(path).write_json(JSON, self.to_json())
        atomic_write(path / CSV, self.to_csv().encode())

    def table(self) -> Table:
        """The rows for a terminal; the best final score is bold, and cells that are not finished say so."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        metrics = list(dict.fromkeys(row.metric for row in self.rows))
        told = [kind for kind in ("setting", "method") if len({getattr(row, kind) for row in self.rows}) > 1]
        several = ["metric"] if len(metrics) > 1 else []
        unit = metrics[0].unit if len(metrics) == 1 else ""
        heading = f"{metrics[0].name}\n{unit}".rstrip() if len(metrics) == 1 else "final"
        for column in (*_short(self.keys).values(), *told, *several):
            table.add_column(column, overflow="fold")
        for column in (heading, f"best\n{unit}".rstrip(), "seeds", "rounds"):
            table.add_column(column, justify="right", no_wrap=True)
        finals = [row.spread("final")[0] for row in self.rows] if len(metrics) == 1 else []
        best = metrics[0].best(value for value in finals if value is not None) if finals else None
        for row in self.rows:
            final = row.spread("final")
            table.add_row(
                *(Text(_word(row.varied.get(key))) for key in self.keys),
                *(Text(getattr(row, kind)) for kind in told),
                *(row.metric.name for _ in several),
                Text(_shown(row, final, row.diverged), style="bold" if final[0] == best else ""),
                _shown(row, row.spread("best"), 0),
                str(len(row.seeds)),
                str(row.rounds),
            )
        for cell, stage, _ in self.cells:
            if stage != "finished":
                words = [Text(_word(cell.varied.get(key))) for key in (*self.keys, *told, *several)]
                table.add_row(*words, stage, NOTHING, NOTHING, NOTHING)
        return table


_COLUMNS = (
    *("metric", "seeds", "rounds", "final_mean", "final_std", "best_mean", "best_std"),
    *("bytes_up", "bytes_down", "diverged", "error"),
)
"""The columns of the CSV file after those that say what a row is about."""


def findings_of(study: Study) -> Findings:
    """What the folders of a sweep's cells say."""
    cells = [(cell, cell.stage, cell.reason) for cell in study.cells]
    return Findings(study.name, study.path, list(_rows(study.cells).values()), cells)


def _rows(cells: Sequence[Cell]) -> dict[str, Row]:
    """The rows of all cells that are finished; cells that differ in nothing but their seeds share theirs."""
    rows: dict[str, Row] = {}
    for cell in cells:
        outcome = cell.outcome()
        if outcome is None:
            continue
        varied = {key: value for key, value in cell.varied.items() if key != "seeds"}
        for one in outcome["rows"]:
            lists = {key: _lane(key, one["swept"]) for key in cell.carried if key in varied}
            own = {name: one["swept"][name] for name in lists.values() if name in one["swept"]}
            told = {**varied, **{key: own[name] for key, name in lists.items() if name in own}}
            place = json.dumps([told, one["setting"], one["method"]], sort_keys=True)
            known = rows[place].seeds if place in rows else {}
            rows[place] = Row(
                told,
                one["setting"],
                sweeping.without_numbers(one["method"], own),
                {key: value for key, value in one["swept"].items() if key not in own},
                Metric(**outcome["metric"]),
                one["rounds"],
                {**known, **one["seeds"]},
            )
    return rows


def _lane(key: str, swept: Mapping[str, object]) -> str:
    """The name that a key has among the swept numbers of a run."""
    return key if key in swept else key.rpartition(".")[2]


def _short(keys: Sequence[str]) -> dict[str, str]:
    """Names of keys for a narrow table: their last words, where these tell them apart."""
    ends = [key.rpartition(".")[2] for key in keys]
    return {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}


def _word(value: object) -> str:
    """A value as YAML would have it in a line."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        named = [str(value["name"])] if "name" in value else []
        return " ".join(
            [*named, sweeping.label_of({k: _word(v) for k, v in value.items() if k != "name"})]
        ).strip()
    return ", ".join(map(_word, value)) if isinstance(value, list) else str(value)


def _plain(varied: Mapping[str, object]) -> dict[str, object]:
    """Values for a CSV file: what is no number or text is JSON."""
    return {k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in varied.items()}


def _shown(row: Row, found: tuple[float | None, float | None], diverged: int) -> str:
    """A score with its spread over seeds, which one seed does not have; or that it diverged."""
    if diverged:
        return "diverged" if diverged == len(row.seeds) else f"diverged ({diverged}/{len(row.seeds)})"
    mean, std = found
    if mean is None or std is None:
        return NOTHING
    return row.metric.shown(mean) + (f" ± {row.metric.shown_spread(std)}" if len(row.seeds) > 1 else "")


def scores_of(cell: Cell) -> str:
    """The final score of a cell in words, of several methods the best one; nothing where it has none."""
    rows = list(_rows([cell]).values())
    sound = [(mean, row) for row in rows if (mean := row.spread("final")[0]) is not None]
    if not sound:
        return "diverged" if rows else ""
    best = rows[0].metric.best(mean for mean, _ in sound)
    row = next(row for mean, row in sound if mean == best)
    said = f"{row.metric.name} {_shown(row, row.spread('final'), 0)} {row.metric.unit}".rstrip()
    lanes = {key.rpartition(".")[2]: row.varied[key] for key in cell.carried if key in row.varied}
    label = " ".join(filter(None, (row.method, sweeping.label_of(lanes))))
    return f"{said} ({label}, the best of {len(rows)})" if len(rows) > 1 else said
