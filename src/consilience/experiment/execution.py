"""A whole run: every method in every setting, with its files, its checkpoints and its summary."""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from consilience import tree
from consilience.config import Config, load_config
from consilience.engine.build import simulate
from consilience.engine.determinism import repeatable
from consilience.engine.memory import bounded, read_size
from consilience.engine.rounds.pending import Pending
from consilience.errors import UserError
from consilience.experiment.folder import (
    CLIENTS,
    CONFIG,
    METRICS,
    PARTITIONS,
    SUMMARY,
    Checkpoint,
    Existing,
    RunFolder,
    finite_line,
)
from consilience.experiment.planning import Arm, plan
from consilience.experiment.records import (
    client_line,
    digest_of,
    environment_of,
    manifests,
    metrics_line,
    models_digest,
)
from consilience.experiment.result import Listener, Result
from consilience.report.node_records import has_coordinates
from consilience.report.summary import summarise
from consilience.types import State

LOG = logging.getLogger("consilience")


def run(
    config: Config,
    *,
    folder: RunFolder | None = None,
    existing: Existing = "refuse",
    listener: Listener | None = None,
) -> Result:
    """Carry out a run; with a folder, its files are written and it can be resumed."""
    listener = listener or Listener()
    config = config.resolved()
    arms = plan(config)  # before anything is written: a mistake must not leave a folder behind
    memory = None if config.memory is None else read_size(config.memory)
    with repeatable(config.torch_device, config.precision), bounded(config.torch_device, memory):
        if folder is None:
            return _Run(config, arms, None, listener).execute()
        with folder.locked():
            folder.prepare(config.written(), existing)
            return _Run(config, arms, folder, listener).execute()


def resume(path: str | Path, listener: Listener | None = None) -> Result:
    """Continue a run from its last checkpoint; it ends as if it had never been interrupted."""
    path = Path(path)
    if not (path / CONFIG).exists():
        raise UserError(f"{path} does not hold a run: there is no {CONFIG}")
    return run(load_config(path / CONFIG), folder=RunFolder(path), existing="resume", listener=listener)


class _Run:
    """A run in progress."""

    def __init__(self, config: Config, arms: list[Arm], folder: RunFolder | None, listener: Listener) -> None:
        self.config, self.arms, self.folder, self.listener = config, arms, folder, listener
        self.records: list[dict[str, Any]] = []
        self.clients: list[dict[str, Any]] = []
        self.models: dict[str, State] = {}
        written = json.dumps(config.written(), sort_keys=True)
        self.config_digest = hashlib.sha256(written.encode()).hexdigest()
        self.model_digest = models_digest(arms) if folder else ""

    def execute(self) -> Result:
        checkpoint = self._recover()
        first = checkpoint.arm if checkpoint else 0
        if self.folder:
            self.folder.settle(PARTITIONS, manifests(self.arms), resumed=checkpoint is not None)
        self.listener.start(self.arms)
        try:
            for number in range(first, len(self.arms)):
                state = checkpoint.state if checkpoint and number == first else {}
                self._run_arm(number, state)
        finally:
            self.listener.finish()
        return self._conclude()

    def _recover(self) -> Checkpoint | None:
        """Go back to the last checkpoint; lines written after it are dropped and will be written again."""
        if self.folder is None:
            return None
        checkpoint = self.folder.load_checkpoint()
        if checkpoint and checkpoint.config != self.config_digest:
            raise UserError(f"{self.folder.path} was made with another configuration; restore its {CONFIG}")
        if checkpoint and checkpoint.model != self.model_digest:
            raise UserError(
                f"{self.folder.path} was made with another model: its layers, or the weights that are not "
                "trained, differ from this one's"
            )
        self.records = self.folder.truncate(METRICS, checkpoint.metrics if checkpoint else 0)
        self.clients = self.folder.truncate(CLIENTS, checkpoint.clients if checkpoint else 0)
        for arm in self.arms[: checkpoint.arm if checkpoint else 0]:
            self.models[arm.name] = tree.unflatten(self.folder.load_models(arm.name), ("params", "buffers"))
        return checkpoint

    def _run_arm(self, number: int, state: dict[str, torch.Tensor]) -> None:
        arm = self.arms[number]
        config = arm.config
        simulation = simulate(arm.scene, arm.variants)
        with closing(simulation.world.executor):  # whose processes hold the folder, even after an interrupt
            if state:
                simulation.restore(tree.unflatten(state))
            if simulation.round == 0 and simulation.algorithm.setup():
                self.listener.setting_up(arm)
            # A GPU works on a round while the host looks at the one before.
            ahead, begun = int(simulation.world.device.type == "cuda"), list[Pending]()
            while simulation.round < config.rounds:
                last = simulation.round + 1 == config.rounds
                evaluate = last or (simulation.round + 1) % config.evaluate.every == 0
                begun.append(simulation.advance(evaluate=evaluate, trained=config.evaluate.trained))
                stop = last or simulation.round % config.checkpoint.every == 0
                while len(begun) > (0 if stop else ahead):
                    self._note(arm, begun.pop(0))
                if stop and not last:
                    self._checkpoint(number, tree.flatten(simulation.snapshot()))
            if config.evaluate.clients:
                self.listener.evaluating_clients(arm)
                scores = [client_line(arm, line) for line in simulation.clients()]
                self._append(CLIENTS, self.clients, scores)
            self.models[arm.name] = simulation.models(simulation.evaluated())
        if self.folder:
            self.folder.save_models(arm.name, tree.flatten(self.models[arm.name]))
        self._checkpoint(number + 1, {})

    def _note(self, arm: Arm, pending: Pending) -> None:
        """Write down how a round went."""
        lines = [metrics_line(arm, record) for record in pending.records()]
        self._append(METRICS, self.records, lines)
        self.listener.round(arm, lines)

    def _append(self, name: str, kept: list[dict[str, Any]], lines: list[dict[str, Any]]) -> None:
        kept += lines
        if self.folder:
            self.folder.append(name, lines)

    def _checkpoint(self, arm: int, state: dict[str, torch.Tensor]) -> None:
        if self.folder:
            self.folder.save_checkpoint(
                Checkpoint(
                    arm, len(self.records), len(self.clients), state, self.config_digest, self.model_digest
                )
            )

    def _conclude(self) -> Result:
        if any(arm.config.evaluate.coordinates for arm in self.arms) and not has_coordinates(self.records):
            LOG.warning("evaluate.coordinates: no method sent curvature of these parameters")
        problem = self.arms[0].scene.task_problem  # all arms have one metric
        metric = problem.metric
        targets = problem.targets if self.config.targets is None else tuple(self.config.targets)
        summaries = summarise(self.records, targets, metric)
        digest = digest_of(self.records, self.clients, self.models)
        if self.folder:
            from consilience.experiment.drawing import draw  # matplotlib is slow to import

            draw(self.records, self.arms, metric, self.folder.path, self.config.name)
            summary = {
                "name": self.config.name,
                "metric": metric.name,
                "note": self.config.note,
                "digest": digest,
                "methods": [summary.to_json() for summary in summaries],
                "environment": environment_of(self.config),
            }
            self.folder.write_json(SUMMARY, finite_line(summary))
        path = self.folder.path if self.folder else None
        return Result(
            self.records,
            self.clients,
            summaries,
            self.models,
            metric,
            targets,
            digest,
            path,
            self.config.note,
        )
