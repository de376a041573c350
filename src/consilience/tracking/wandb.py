"""Weights & Biases: a run for every curve, in a group that has the name of our run, and one for the table."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

from consilience.tracking.base import Curve, Session, TrackedRun, Tracker, columns

PATIENCE = 30.0
"""How many seconds the start of a run may take before tracking is given up."""


@final
@dataclass(frozen=True)
class WandB(Tracker):
    """Runs of a project; `mode: offline` keeps them in the run's folder, for `wandb sync`."""

    name: ClassVar[str] = "wandb"
    library: ClassVar[str] = "wandb"
    project: str = "consilience"
    entity: str | None = None
    mode: Literal["online", "offline"] | None = None

    def session(self, run: TrackedRun) -> Session[Any]:
        return _Runs(run, importlib.import_module("wandb"), self)


class _Runs(Session[Any]):
    """Runs of one group, several of which may be open at a time."""

    def __init__(self, run: TrackedRun, module: Any, options: WandB) -> None:
        super().__init__(run)
        self._module, self._options = module, options

    def begin(self, curve: Curve, number: int) -> Any:
        return self._init(str(curve), curve._asdict(), "curve")

    def write(self, place: Any, number: int, scores: Mapping[str, float]) -> None:
        place.log(dict(scores), step=number)

    def end(self, place: Any) -> None:
        place.finish()

    def conclude(self, table: Sequence[Mapping[str, Any]]) -> None:
        names = columns(table)
        rows = [[row.get(name) for name in names] for row in table]
        own = self._init("table", {}, "table")
        own.log({"table": self._module.Table(columns=names, data=rows)})
        own.finish()

    def _init(self, name: str, facts: Mapping[str, Any], kind: str) -> Any:
        """A run that is known by its name within ours, so that a resumed one goes on."""
        options, run = self._options, self.run
        run.path.mkdir(parents=True, exist_ok=True)
        return self._module.init(
            project=options.project,
            entity=options.entity,
            mode=options.mode,
            dir=str(run.path),
            group=run.name,
            job_type=kind,
            name=f"{run.name} {name}",
            id=run.id_of(name),
            resume="allow",
            reinit="create_new",
            config={**run.config, **facts},
            settings=self._module.Settings(silent=True, console="off", init_timeout=PATIENCE),
        )
