"""MLflow: a run with the configuration and the table, and under it one for every curve."""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from consilience.tracking.base import Curve, Session, TrackedRun, Tracker, flat, markdown

KEY, PARENT, NAME = "consilience.key", "mlflow.parentRunId", "mlflow.runName"
"""Tags: what tells runs apart, also after a resume; and those of MLflow itself."""
BATCH, LONGEST = 100, 500
"""How many parameters MLflow takes at once, and how long one may be."""
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""How long a server is waited for unless the environment says otherwise: MLflow would hold a run up."""


@final
@dataclass(frozen=True)
class MLflow(Tracker):
    """Runs of an experiment, at `uri`: a server, a database or a folder; by default where MLflow looks."""

    name: ClassVar[str] = "mlflow"
    library: ClassVar[str] = "mlflow"
    uri: str | None = None
    experiment: str = "consilience"

    def session(self, run: TrackedRun) -> Session[str]:
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        if self.uri is not None and (":" not in self.uri or self.uri.startswith("file:")):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # it was asked for in so many words
        module: Any = importlib.import_module("mlflow")
        return _Runs(run, module, module.MlflowClient(tracking_uri=self.uri), self.experiment)


class _Runs(Session[str]):
    """Runs, each known by its id."""

    def __init__(self, run: TrackedRun, module: Any, client: Any, experiment: str) -> None:
        super().__init__(run)
        self._module, self._client = module, client
        known = client.get_experiment_by_name(experiment)
        self._experiment = known.experiment_id if known else client.create_experiment(experiment)
        self._parent = self._run(run.name, {})
        self._params(self._parent, dict(flat(run.config)))
        client.log_text(self._parent, run.config_text, "config.yaml")

    def begin(self, curve: Curve, number: int) -> str:
        own = self._run(str(curve), {PARENT: self._parent})
        self._params(own, curve._asdict())
        return own

    def write(self, place: str, number: int, scores: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metric = self._module.entities.Metric
        found = [metric(_allowed(name), value, now, number) for name, value in scores.items()]
        self._client.log_batch(place, metrics=found)

    def end(self, place: str) -> None:
        self._client.set_terminated(place)

    def conclude(self, table: Sequence[Mapping[str, Any]]) -> None:
        self._client.log_text(self._parent, markdown(table), "table.md")

    def close(self) -> None:
        super().close()
        self._client.set_terminated(self._parent)

    def _run(self, name: str, tags: Mapping[str, str]) -> str:
        """The id of the run of a name within ours; it is made where there is none yet."""
        key, client = self.run.id_of(name), self._client
        found = client.search_runs([self._experiment], f"tags.`{KEY}` = '{key}'", max_results=1)
        if not found:
            made = client.create_run(self._experiment, tags={**tags, NAME: name, KEY: key})
            return str(made.info.run_id)
        client.update_run(found[0].info.run_id, status="RUNNING")
        return str(found[0].info.run_id)

    def _params(self, own: str, values: Mapping[str, object]) -> None:
        """Log parameters; MLflow lets none change, so that a new value (more rounds) is a tag."""
        param, tag = self._module.entities.Param, self._module.entities.RunTag
        there = self._client.get_run(own).data.params
        said = {_allowed(key): str(value)[:LONGEST] for key, value in values.items()}
        found = [param(key, value) for key, value in said.items() if key not in there]
        for begin in range(0, len(found), BATCH):
            self._client.log_batch(own, params=found[begin : begin + BATCH])
        changed = [tag(key, value) for key, value in said.items() if there.get(key, value) != value]
        self._client.log_batch(own, tags=changed)


def _allowed(name: str) -> str:
    """A name in the characters that MLflow takes."""
    return re.sub(r"[^\w\-. /]", "_", name)
