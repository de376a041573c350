"""Raw results of a cell, small enough for a repository: metrics of every round, configuration, environment.

A folder RECIPE/CELL holds `config.yaml` as the run resolved it, `metrics.jsonl.gz` without lists over nodes
and the kinds of traffic, and `run.json`: whether the cell is finished, and the environment.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from consilience import sweeping
from consilience.config.config import read_config
from consilience.errors import UserError
from consilience.experiment.folder import CONFIG, METRICS, SUMMARY, RunFolder, atomic_write
from consilience.experiment.records import environment_of
from consilience.experiment.sealing import read_sealed
from consilience.plain import read_yaml
from consilience.sweep.cells import OUTCOME

RESULTS = Path("benchmarks") / "results" / "papers"
"""Where the raw results are of which RESULTS.md is made."""
PACKED, RUN = f"{METRICS}.gz", "run.json"
LEFT_OUT = frozenset({"traffic", "messages", "nodes", "dropped"})
"""What is not kept of a line of the metrics."""
DIGITS = 6
"""How many digits are kept of a score."""
SCORE = "test_accuracy"
"""The score that the papers' tables are about."""

Label = tuple[str, str, str]
"""The setting, the method and the swept numbers of a variant, in words."""
Curves = dict[int, dict[int, float | None]]
"""The score by round, by seed; None where the model had diverged."""


@dataclass(frozen=True)
class Raw:
    """What is kept of a cell."""

    config: Mapping[str, Any]
    lines: list[dict[str, Any]]
    finished: bool
    environment: Mapping[str, Any]

    @cached_property
    def curves(self) -> dict[Label, Curves]:
        """The scores of every variant that papers' tables are about."""
        return self.curves_of(SCORE)

    def curves_of(self, score: str) -> dict[Label, Curves]:
        """The scores of every variant, by the name of the score in the lines."""
        found: dict[Label, Curves] = {}
        for line in self.lines:
            if score in line:
                found.setdefault(label_of(line), {}).setdefault(line["seed"], {})[line["round"]] = line[score]
        return found

    @cached_property
    def stopped(self) -> bool:
        """Whether some ended before their last round, since they had reached what was asked for."""
        return any("stopped" in line for line in self.lines)

    @property
    def seconds(self) -> float:
        """How long the rounds took: a line has the variant's share of a round, the same for all its seeds."""
        shares = {(line["setting"], line["method"], line["round"], line["seconds"]) for line in self.lines}
        return float(sum(share[-1] for share in shares))

    @property
    def planned(self) -> int:
        """The rounds that the longest setting was to have."""
        sections = [self.config, *(self.config.get("compare") or ())]
        return max(int(section.get("rounds", self.config["rounds"])) for section in sections)


def label_of(line: Mapping[str, Any]) -> Label:
    """What tells the variant of a line from others."""
    return line["setting"], line["method"], sweeping.label_of(line.get("swept", {}))


def of_run(path: Path) -> Raw | None:
    """The raw results in the folder of a run, finished or not; None where there are none."""
    folder = RunFolder(path)
    if not (path / CONFIG).exists() or not (lines := folder.read_lines(METRICS)):
        return None
    config = read_yaml((path / CONFIG).read_text(), str(path / CONFIG))
    config.pop("out")  # a place on somebody's machine
    if (path / SUMMARY).exists():
        environment = read_sealed(path / SUMMARY)["environment"]
    else:  # it is not finished, and this is where it runs
        environment = environment_of(read_config(config, str(path)))
    return Raw(config, [*map(thinned, lines)], (path / OUTCOME).exists(), environment)


def thinned(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the metrics without what is not kept, with scores of a few digits."""
    return {
        key: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
        for key, value in line.items()
        if key not in LEFT_OUT
    }


def read_raw(path: Path) -> Raw | None:
    """The raw results that were kept in a folder; None where there are none."""
    if not (path / PACKED).exists():
        return None
    try:
        with gzip.open(path / PACKED, "rt") as file:
            lines = [json.loads(line) for line in file]
        run = json.loads((path / RUN).read_text())
        config = read_yaml((path / CONFIG).read_text(), str(path / CONFIG))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    return Raw(config, lines, bool(run["finished"]), run["environment"])


def keep(raw: Raw, path: Path) -> bool:
    """Keep raw results in a folder, unless what lies there goes further; whether they are kept."""
    there = read_raw(path)
    if there is not None and (there.finished, len(there.lines)) > (raw.finished, len(raw.lines)):
        return False
    path.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(path)
    folder.write_config(raw.config)
    folder.write_json(RUN, {"finished": raw.finished, "environment": dict(raw.environment)})
    atomic_write(path / PACKED, _packed(raw.lines))
    return True


def _packed(lines: list[dict[str, Any]]) -> bytes:
    """Lines of JSON, compressed to the same bytes whenever that is done."""
    page = io.BytesIO()
    with gzip.GzipFile(fileobj=page, mode="wb", mtime=0) as file:
        for line in lines:
            file.write((json.dumps(line) + "\n").encode())
    return page.getvalue()


def kept_cells(folder: Path) -> Iterator[tuple[str, Raw]]:
    """The cells of a recipe of which raw results are kept in its folder, by name."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (raw := read_raw(path)) is not None:
            yield path.name, raw
