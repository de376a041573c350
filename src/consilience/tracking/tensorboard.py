"""TensorBoard: files that `tensorboard --logdir RUN/tensorboard` shows."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final
from urllib.parse import quote

from consilience.tracking.base import Curve, Session, TrackedRun, Tracker, markdown

FOLDER = "tensorboard"
"""The folder within that of a run."""


@final
@dataclass(frozen=True)
class TensorBoard(Tracker):
    """Event files in the run's folder, or in `folder`."""

    name: ClassVar[str] = "tensorboard"
    library: ClassVar[str] = "tensorboard"
    folder: str | None = None

    def session(self, run: TrackedRun) -> Session[Any]:
        return _Files(run, Path(self.folder) / run.name if self.folder else run.path / FOLDER)


class _Files(Session[Any]):
    """A folder of event files for every curve, and one for the configuration and the table."""

    def __init__(self, run: TrackedRun, folder: Path) -> None:
        super().__init__(run)
        self._module: Any = importlib.import_module("torch.utils.tensorboard")
        self._folder = folder
        self._text("config", f"```yaml\n{run.config_text}```")

    def begin(self, curve: Curve, number: int) -> Any:
        folder = self._folder.joinpath(*(quote(str(part), safe=" =,+") for part in curve))
        # Rounds that were written before an interruption are written again: the old ones are not shown.
        return self._module.SummaryWriter(str(folder), purge_step=number)

    def write(self, place: Any, number: int, scores: Mapping[str, float]) -> None:
        for name, value in scores.items():
            place.add_scalar(name, value, number)
        place.flush()

    def end(self, place: Any) -> None:
        place.close()

    def conclude(self, table: Sequence[Mapping[str, Any]]) -> None:
        self._text("table", markdown(table))

    def _text(self, name: str, text: str) -> None:
        with self._module.SummaryWriter(str(self._folder)) as writer:
            writer.add_text(name, text)
