"""What came out of a run, and who is told while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consilience.errors import UserError
from consilience.experiment.planning import Arm
from consilience.problems import Metric
from consilience.report.summary import Goals, MethodSummary
from consilience.types import State


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

    def __repr__(self) -> str:
        finals = ", ".join(f"{s.setting} {s.method}: {s.final_mean}" for s in self.summaries)
        return f"Result({finals}; digest {self.digest[:12]})"

    @property
    def score(self) -> float | None:
        """The first method's mean final metric on the test set; None where it diverged."""
        return self.summaries[0].final_mean

    @property
    def scores(self) -> dict[str, float | None]:
        """The first method's mean final scores on the test set: the metric and those asked for beside it."""
        first = self.summaries[0]
        return {self.metric.name: first.final_mean, **{k: one["mean"] for k, one in first.scores.items()}}

    @property
    def accuracy(self) -> float | None:
        """The score of a run about classification."""
        if self.metric.name != "accuracy":
            raise UserError(f"this run was about {self.metric.name}, not accuracy: ask for result.score")
        return self.score


class Listener:
    """Told what happens; the base class keeps quiet."""

    def start(self, arms: list[Arm]) -> None:
        """The run begins."""

    def setting_up(self, arm: Arm) -> None:
        """An arm's method has exchanges before its first round, which may take longer than a round."""

    def round(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        """A round of an arm is complete; a line for every replica."""

    def evaluating_clients(self, arm: Arm) -> None:
        """The rounds of an arm are complete; every client is now evaluated on its own data."""

    def finish(self) -> None:
        """The run ends, or is interrupted."""
