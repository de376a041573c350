"""A whole run: every method in every setting, with its files, its checkpoints and its summary."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import torch

from consilience import tree
from consilience.config import Config
from consilience.engine.build import simulate, simulate_elsewhere
from consilience.engine.choosing import at_worker
from consilience.engine.determinism import repeatable
from consilience.engine.memory import bounded, read_size
from consilience.engine.rounds.pending import Pending
from consilience.engine.rounds.simulation import Simulation
from consilience.engine.spread.journey import Journey
from consilience.errors import Paused
from consilience.experiment.checkpoint import Checkpoint
from consilience.experiment.early import Early, pace_of, reach_clusters
from consilience.experiment.folder import (
    CLIENTS,
    METRICS,
    PARTITIONS,
    PLAN,
    SUMMARY,
    Existing,
    RunFolder,
)
from consilience.experiment.lines import finite_line, jsonl
from consilience.experiment.planning import Arm, aims_of, idle_schedules, plan, roundings
from consilience.experiment.progress import NotebookDisplay, in_notebook
from consilience.experiment.records import (
    client_line,
    config_digest,
    digest_of,
    environment_of,
    manifests,
    metrics_line,
    models_digest,
    of_longer_run,
    outline,
    rounds_of,
)
from consilience.experiment.result import Listener, Result
from consilience.experiment.sealing import digest_of_bytes
from consilience.experiment.stopping import (
    Functions,
    OnRound,
    Pause,
    Stopped,
    asked_to_stop,
    check_stopping,
    every_model,
    final_clients,
    final_models,
    kept_of,
    never,
    read_functions,
    reason_to_stop,
    state_of,
    taken_apart,
)
from consilience.experiment.tracking import tracked
from consilience.experiment.weights import save_weights
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
    on_round: Functions = (),
    pause: Pause = never,
) -> Result:
    """Carry out a run; with a folder, its files are written and it can be resumed.

    `pause` is asked after every round: where it says so, the state is saved and `Paused` raised.
    """
    listener = listener or (NotebookDisplay() if in_notebook() else Listener())
    functions = read_functions(on_round)
    config = config.resolved()
    arms = plan(config)  # before anything is written: a mistake must not leave a folder behind
    for line in (*roundings(arms), *idle_schedules(arms)):
        LOG.warning(line)
    for arm in arms:
        if arm.config.stop_when:
            check_stopping(arm.config.stop_when, arm.scene)
    memory = None if config.memory is None else read_size(config.memory)
    with repeatable(config.torch_device, config.precision), bounded(config.torch_device, memory):
        if folder is None:
            return _execute(config, arms, None, listener, functions, pause)
        if existing != "resume":  # one that cannot be reached must not cost what was there before
            reach_clusters(arms)
        with folder.locked(), folder.advised():
            folder.prepare(config.written(), existing)
            return _execute(config, arms, folder, listener, functions, pause)


def _execute(
    config: Config,
    arms: list[Arm],
    folder: RunFolder | None,
    listener: Listener,
    functions: tuple[OnRound, ...],
    pause: Pause,
) -> Result:
    if not config.tracking:
        return _Run(config, arms, folder, listener, functions, pause).execute()
    with tracked(config, folder, listener) as told:
        result = _Run(config, arms, folder, told, functions, pause).execute()
        told.conclude(result)
        return result


class _Run:
    """A run in progress."""

    def __init__(
        self,
        config: Config,
        arms: list[Arm],
        folder: RunFolder | None,
        listener: Listener,
        functions: Sequence[OnRound],
        pause: Pause,
    ) -> None:
        self.config, self.arms, self.folder, self.listener = config, arms, folder, listener
        self.functions, self.pause = functions, pause
        self.base = 0
        self.records: list[dict[str, Any]] = []
        self.history: defaultdict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
        """The records by setting, method and seed."""
        self.clients: list[dict[str, Any]] = []
        self.models: dict[str, State] = {}
        self.config_digest = config_digest(config)
        self.model_digest = models_digest(arms) if folder else ""
        self._saved = time.monotonic()
        self.early = Early(arms, folder, self._sealed, watched=bool(functions))

    def execute(self) -> Result:
        checkpoint = self._recover()
        first = checkpoint.arm if checkpoint else 0
        if self.folder and first < len(self.arms):
            self.folder.check_writable()
        if self.folder:
            self.folder.settle(PARTITIONS, manifests(self.arms), checkpoint)
        if self.folder and not self.folder.read_only:
            self.folder.write_json(PLAN, outline(self.arms))
        self.listener.start(self.arms)
        for arm, lines in rounds_of(self.records, self.arms):
            self.listener.resumed(arm, lines)
        if checkpoint and checkpoint.state:
            self.early.forget(first)  # a kill may have come before
        with closing(self.early):
            try:
                for number in range(first, len(self.arms)):
                    self._run_arm(number, checkpoint.state if checkpoint and number == first else {})
            finally:
                self.listener.finish()
        return self._conclude()

    @contextmanager
    def _begun(
        self, arm: Arm, state: dict[str, torch.Tensor], journey: Journey | None = None
    ) -> Iterator[tuple[Simulation, dict[int, Stopped]]]:
        """An arm's simulation in some state (where there is none, at its beginning), and who has stopped."""
        if journey:
            simulation = simulate_elsewhere(arm.scene, arm.variants, journey)
        else:
            memories = self.folder.memories(arm.name) if self.folder else None
            simulation = simulate(arm.scene, arm.variants, memories)
        rest, stopped = taken_apart(tree.unflatten(state), simulation.world.device)
        with ExitStack() as stack:
            # Its processes hold the folder, even after an interrupt.
            stack.enter_context(closing(simulation.world.executor))
            if journey:
                stack.enter_context(closing(journey))
            elif state:
                simulation.restore(rest)
            yield simulation, stopped

    def _beginning(self, number: int) -> dict[str, torch.Tensor]:
        """The state that an arm begins with; nothing where that is its method's own beginning."""
        if self.folder is None or not self.base:
            return {}
        return self.folder.load_state(self.arms[number].name, self.base)

    def _recover(self) -> Checkpoint | None:
        """Go back to the last checkpoint; lines written after it are dropped and will be written again."""
        if self.folder is None:
            return None
        checkpoint = self.folder.load_checkpoint()
        if checkpoint is None:
            self.folder.truncate(METRICS, 0)
            self.folder.truncate(CLIENTS, 0)
            return None
        self.folder.check_origin(checkpoint, self.config_digest, self.model_digest)
        self.folder.check_memories(checkpoint.name, checkpoint.state)  # rather than hours later
        self.folder.recall(checkpoint)
        self.base = checkpoint.base
        self.records = self.folder.truncate(METRICS, checkpoint.metrics, checkpoint.files[METRICS])
        self._remember(self.records)
        self.clients = self.folder.truncate(CLIENTS, checkpoint.clients, checkpoint.files[CLIENTS])
        for arm in self.arms[: checkpoint.arm]:
            state = self.folder.load_state(arm.name, self.config.length)
            alone = replace(arm, scene=at_worker(arm.scene))  # nobody else is needed to look at its models
            with self._begun(alone, state) as (simulation, stopped):
                self.models[arm.name] = final_models(simulation, stopped)
        return checkpoint

    def _run_arm(self, number: int, state: dict[str, torch.Tensor]) -> None:
        arm = self.arms[number]
        config, pace = arm.config, pace_of(arm)
        journey, state = self._caught_up(number, state)
        with self._begun(arm, state, journey) as (simulation, stopped):
            if simulation.round == 0 and simulation.algorithm.setup():
                self.listener.setting_up(arm)
            # A GPU works on a round while the host looks at the one before, unless that may be the last one.
            watched = config.stop_when is not None or bool(self.functions)
            ahead = int(simulation.world.device.type == "cuda" and not watched)
            begun, end = list[Pending](), config.rounds
            while simulation.round < end and len(stopped) < len(simulation.world.replicas):
                if journey:
                    self.early.go_on(number, self._beginning)
                evaluate = pace.evaluates(simulation.round + 1)
                begun.append(simulation.advance(evaluate=evaluate, trained=pace.trained))
                if simulation.round < end == config.rounds and self.pause():
                    end = simulation.halt()
                pausing = simulation.round == end < config.rounds
                # Workers that run whole replicas keep states by the pace alone.
                overdue = journey is None and self._overdue(config.checkpoint.minutes)
                stop = pausing or overdue or pace.keeps(simulation.round)
                while len(begun) > (0 if stop else ahead):
                    self._note(arm, simulation, begun.pop(0), stopped)
                if stop and simulation.round < config.rounds:
                    self._checkpoint(number, tree.flatten({**simulation.snapshot(), **kept_of(stopped)}))
                    simulation.confirm()
                if pausing:
                    raise Paused
            if config.evaluate.clients:
                self.listener.evaluating_clients(arm)
                scores = [client_line(arm, line) for line in final_clients(simulation, stopped)]
                self._append(CLIENTS, self.clients, scores)
            self.models[arm.name] = final_models(simulation, stopped)
            if self.folder:
                save_weights(self.folder.path, arm, simulation.world.task, every_model(simulation, stopped))
                whole = tree.flatten({**simulation.snapshot(), **kept_of(stopped)})
                self.folder.save_state(arm.name, self.config.length, whole)
        self._checkpoint(number + 1, {})

    def _caught_up(
        self, number: int, state: dict[str, torch.Tensor]
    ) -> tuple[Journey | None, dict[str, torch.Tensor]]:
        """The journey of an arm that is at workers, and its state; what it did before its turn is written."""
        journey, done = self.early.turn(number)
        if done.kept:
            self._write_down(number, done.lines[: done.kept])
            self._checkpoint(number, done.state)
        if journey:
            self._write_down(number, done.lines[done.kept :])
        self.early.forget(number)
        state = state or done.state or self._beginning(number)
        if journey is None and self.early.is_whole(number):
            start = taken_apart(tree.unflatten(state), torch.device("cpu"))[0] if state else None
            journey = self.early.journey(number, start)
        return journey, state

    def _write_down(self, number: int, lines: list[dict[str, Any]]) -> None:
        """Write down rounds of an arm that were over before its turn."""
        self._append(METRICS, self.records, lines)
        self._remember(lines)
        for arm, some in rounds_of(lines, self.arms):
            self.listener.round(arm, some)

    def _note(self, arm: Arm, simulation: Simulation, pending: Pending, stopped: dict[int, Stopped]) -> None:
        """Write down how a round went, and who stops after it."""
        records = [record for record in pending.records() if record.replica not in stopped]
        lines = [metrics_line(arm, record) for record in records]
        for record, line in zip(records, lines, strict=True):
            why = self._verdict(arm, simulation, record.replica, line)
            if why:
                if not record.scores:
                    line.update(finite_line(simulation.evaluate()[record.replica]))
                line["stopped"] = why
                clients = arm.config.evaluate.clients
                stopped[record.replica] = Stopped.of(simulation, record.replica, clients=clients)
        self._append(METRICS, self.records, lines)
        self._remember(lines)
        self.listener.round(arm, lines)

    def _verdict(self, arm: Arm, simulation: Simulation, replica: int, line: dict[str, Any]) -> str | None:
        """Why a replica stops after a round; None where it goes on."""
        rule, why = arm.config.stop_when, None
        if rule:
            own = self.history[line["setting"], line["method"], line["seed"]]
            why = reason_to_stop(rule, arm.scene, [*own, line], arm.config.evaluate.every)
        if self.functions and asked_to_stop(self.functions, state_of(arm, simulation, replica, line)):
            why = why or "on_round said so"
        return why

    def _remember(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            self.history[line["setting"], line["method"], line["seed"]].append(line)

    def _append(self, name: str, kept: list[dict[str, Any]], lines: list[dict[str, Any]]) -> None:
        kept += lines
        if self.folder:
            self.folder.append(name, lines)

    def _checkpoint(
        self, arm: int, state: dict[str, torch.Tensor], soon: Mapping[str, str] | None = None
    ) -> None:
        """Save where the run stands; `soon`: digests of files of lines that are about to be replaced."""
        if self.folder:
            files = self.folder.digests()
            for name, digest in (soon or {}).items():
                files[name].append(digest)
            self.folder.save_checkpoint(replace(self._sealed(arm, len(self.records), state), files=files))
            self._saved = time.monotonic()

    def _overdue(self, minutes: float) -> bool:
        """Whether the last checkpoint was made, or the run begun, so long ago."""
        return self.folder is not None and time.monotonic() - self._saved > 60 * minutes

    def _sealed(self, arm: int, metrics: int, state: dict[str, torch.Tensor]) -> Checkpoint:
        """A checkpoint that counts on no files yet."""
        return Checkpoint(
            arm,
            metrics,
            len(self.clients),
            state,
            self.config_digest,
            self.model_digest,
            self.config.length,
            self.base,
            self.arms[arm].name if state else "",
        )

    def _conclude(self) -> Result:
        writes = self.folder is not None and not self.folder.read_only
        if self.folder and writes:
            if self.base:
                self.records = of_longer_run(self.records, self.arms)
                soon = digest_of_bytes(jsonl(self.records))
                self._checkpoint(len(self.arms), {}, {METRICS: soon})
                self.folder.replace_lines(METRICS, self.records)
                self.folder.forget_states(self.config.length)
                self._checkpoint(len(self.arms), {})
            # Once more, so that the one before it, too, fits the files as they are; and it takes less space.
            self._checkpoint(len(self.arms), {})
        if any(arm.config.evaluate.coordinates for arm in self.arms) and not has_coordinates(self.records):
            LOG.warning("evaluate.coordinates: no method sent curvature of these parameters")
        problem = self.arms[0].scene.task_problem  # all arms have one metric
        metric = problem.metric
        targets, goals = aims_of(self.config, self.arms[0].scene)
        others = problem.named_scores()[1:]
        summaries = summarise(self.records, targets, metric, others=others, goals=goals, clients=self.clients)
        digest = digest_of(self.records, self.clients, self.models)
        if self.folder and writes:
            from consilience.experiment.drawing import draw  # matplotlib is slow to import

            draw(self.records, self.arms, metric, self.folder.path, self.config.name)
            summary = {
                "name": self.config.name,
                "metric": metric.name,
                "note": self.config.note,
                "digest": digest,
                "methods": [summary.to_json() for summary in summaries],
                "environment": environment_of(self.config),
                "files": self.folder.final_digests(),
            }
            self.folder.write_sealed(SUMMARY, finite_line(summary))
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
            goals,
        )
