"""What came out of a run, and who is told while it goes on."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from consilience import sweeping
from consilience.errors import UserError, unknown
from consilience.experiment.planning import Arm
from consilience.problems import Metric
from consilience.report.html import html_table
from consilience.report.summary import Goals, MethodSummary
from consilience.report.table import clients_table, comparison_table
from consilience.types import State

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Result:
    """What came out of a run."""

    records: list[dict[str, Any]]
    """The lines of metrics.jsonl."""
    clients: list[dict[str, Any]]
    """The lines of clients.jsonl: every client at the end."""
    summaries: list[MethodSummary]
    models: dict[str, State]
    """The final models by arm, stacked over variants and seeds (and nodes or clients).

    Where models change their shapes, each variant and seed is an arm.
    """
    metric: Metric
    """The score by which methods are compared."""
    targets: tuple[float, ...]
    """The values of it that were looked for."""
    digest: str
    """A digest of all metrics but times and of final weights, the same for the same run on a machine."""
    path: Path | None
    """Where the files of the run are; None where none were written."""
    note: str = ""
    """What the configuration says there is to see."""
    goals: Goals = field(default_factory=dict)
    """The scores beside the metric that were asked for, and the values of them that were looked for."""

    @property
    def folder(self) -> Path:
        """Where the files of the run are; an error where none were written."""
        if self.path is None:
            raise UserError("this run wrote no files: give run(..., out=...)")
        return self.path

    def __repr__(self) -> str:
        finals = ", ".join(f"{s.setting} {s.method}: {s.final_mean}" for s in self.summaries)
        return f"Result({finals}; digest {self.digest[:12]})"

    @property
    def score(self) -> float | None:
        """The first method's mean final metric on the test set; None where it diverged."""
        return self.summaries[0].final_mean

    @property
    def scores(self) -> dict[str, float | None]:
        """The first method's mean final scores on the test set: the problem's, and those asked for."""
        first = self.summaries[0]
        return {self.metric.name: first.final_mean, **{k: one["mean"] for k, one in first.scores.items()}}

    @property
    def accuracy(self) -> float | None:
        """The score of a run about classification."""
        if self.metric.name != "accuracy":
            raise UserError(f"this run was about {self.metric.name}, not accuracy: ask for result.score")
        return self.score

    def table(self) -> str:
        """The tables that end a run on the command line, as text: the comparison, and how clients are served.

        The second one is there where clients have scores of their own.
        """
        page = io.StringIO()
        Console(file=page, width=120).print(*self._tables(), sep="\n")
        return page.getvalue()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return "".join(map(html_table, self._tables())) + note

    def _tables(self) -> list[Table]:
        served = clients_table(self.summaries, self.metric)
        compared = comparison_table(self.summaries, self.targets, self.metric, self.goals)
        return [compared] if served is None else [compared, served]

    def plot(self, kind: Literal["rounds", "sweep"] | None = None, path: str | Path | None = None) -> Figure:
        """The figure of the score, which a notebook shows.

        Args:
            kind: `rounds` for the score over rounds, `sweep` for the final score over what was swept; by
                default that of a sweep where there is one.
            path: Where to write it, too: its ending (png, pdf, svg) chooses the format.
        """
        # matplotlib takes half a second.
        from consilience.report.plots import score_figure
        from consilience.report.saving import save
        from consilience.report.sweep_plots import is_sweep, sweep_figure

        if kind not in (None, "rounds", "sweep"):
            raise unknown("plot", str(kind), ("rounds", "sweep"))
        title = self.path.name if self.path else ""
        if kind == "sweep" or (kind is None and is_sweep(self.summaries)):
            figure = sweep_figure(self.summaries, self.metric, title)
        else:
            figure = score_figure(self.records, self.metric, title)
        if path is not None:
            save(figure, Path(path))
        return figure

    def report(self, path: str | Path | None = None) -> Path:
        """Write one page about the run, which a browser shows without a network, and return where it is.

        Args:
            path: The file; by default report.html in the run's folder.
        """
        from consilience.experiment.reporting import report

        return report([self.folder], None if path is None else Path(path))

    def to_pandas(self, of: Literal["rounds", "clients", "methods"] = "rounds") -> pandas.DataFrame:
        """A data frame with a row for every round, client or method; swept numbers are columns.

        Args:
            of: `rounds` for the metrics of every setting, method, seed and round, `clients` for every client
                at the end, `methods` for the lines of the table.
        """
        try:
            import pandas
        except ImportError:
            raise UserError("to_pandas needs pandas: pip install pandas") from None
        lines = {
            "rounds": self.records,
            "clients": self.clients,
            "methods": [summary.to_json() for summary in self.summaries],
        }
        if of not in lines:
            raise unknown("data frame", of, lines)
        return pandas.DataFrame([_flat(line) for line in lines[of]])


def _flat(line: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A line of a file as one row: `final_accuracy.mean`, and swept numbers by their own names."""
    row: dict[str, Any] = {}
    for key, value in line.items():
        if key in LISTS:
            continue
        if key == "swept":
            row |= sweeping.apart(row, value, "swept")
        elif isinstance(value, Mapping):
            row |= _flat(value, f"{prefix}{key}.")
        else:
            row[prefix + key] = value
    return row


LISTS = ("nodes", "traffic", "curvature")
"""What is no single number in a line of metrics, or of clients."""


class Listener:
    """Told what happens; the base class keeps quiet."""

    def start(self, arms: list[Arm]) -> None:
        """The run begins."""

    def resumed(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        """A round of an arm was complete before the run went on; a line for every replica."""

    def setting_up(self, arm: Arm) -> None:
        """An arm's method has exchanges before its first round, which may take longer than a round."""

    def round(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        """A round of an arm is complete; a line for every replica."""

    def evaluating_clients(self, arm: Arm) -> None:
        """The rounds of an arm are complete; every client is now evaluated on its own data."""

    def finish(self) -> None:
        """The run ends, or is interrupted."""
