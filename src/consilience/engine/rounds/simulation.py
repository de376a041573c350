"""One algorithm in one world, round by round."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from consilience import sweeping, tree
from consilience.algorithm import Algorithm
from consilience.engine.executors.base import Errand, Order
from consilience.engine.rounds.cast import Cast, cohort_of, everyone
from consilience.engine.rounds.evaluation import (
    Scored,
    score_on_holdout,
    score_on_test,
    score_on_training,
    scoring,
)
from consilience.engine.rounds.exchange import Exchange, Report
from consilience.engine.rounds.listening import Heard
from consilience.engine.rounds.mailbox import Mailbox
from consilience.engine.rounds.memory_files import LINKS, for_clients, for_links, links_of
from consilience.engine.rounds.node_metrics import node_metrics
from consilience.engine.rounds.output_curvature import output_curvature
from consilience.engine.rounds.parts import comes_in_parts, run_in_parts
from consilience.engine.rounds.pending import Begun, Clock, Nodes, Pending, Record, scores_of
from consilience.engine.rounds.replies import run_replies
from consilience.engine.rounds.store import Store
from consilience.engine.rounds.told import Told
from consilience.engine.world import MODELS_AT_A_TIME, World
from consilience.exchange.address import Address
from consilience.exchange.traffic import Traffic
from consilience.problems import Metric
from consilience.transfer import to_device
from consilience.types import Floats, IntArray, State

LOG = logging.getLogger("consilience")

ClientResult = dict[str, float | int | list[float]]
"""What is said of a client at the end."""


class Simulation:
    """An algorithm's state in a world: its hubs, what clients remember, and the round.

    Args:
        world: The setting in which the algorithm runs.
        algorithm: With holes (`sweeping.Hole`) where variants differ; the world has the numbers for them.
        memories: Where files of memories lie, but for their endings; None: nowhere that lasts.
    """

    def __init__(self, world: World, algorithm: Algorithm, memories: Path | None = None) -> None:
        self.world, self.algorithm = world, algorithm
        self.round = 0
        self._clock = Clock()
        self.mailbox: Mailbox | None = None
        population = world.population
        rows = len(world.replicas) * population

        store = partial(Store, device=world.device, memory=world.memory, resident=world.resident)
        own, links = memories and for_clients(memories), memories and for_links(memories)
        self.store = store(rows, self._initial_memory, path=own, fleeting=algorithm.fleeting())
        self.links = store(rows * population, self._initial_link, path=links)
        hubs = self._map_rows(lambda whole, model: whole.init_hub(model), world.hub_rows)
        self.hub = tree.reshape_leading(hubs, 1, *world.hub_shape)

    def _initial_memory(self, rows: IntArray) -> State:
        return self._map_rows(lambda whole, model: whole.init_memory(model), rows)

    def _initial_link(self, rows: IntArray) -> State:
        clients = rows // self.world.population
        return self._map_rows(lambda whole, model: whole.init_link(model), clients)

    def _map_rows(self, function: Callable[[Algorithm, State], State], rows: IntArray) -> State:
        """`function(algorithm, initial model)` of some clients (replica * population + client), stacked."""
        swept = self.world.numbers_of(to_device(rows // self.world.population, self.world.device))

        def one(numbers_of_row: State, model: State) -> State:
            return function(self._whole(numbers_of_row), model)

        return self.world.executor.map(one, (0, 0), swept, self.world.initial_models(rows))

    @property
    def _metric(self) -> Metric:
        return self.world.task.problem.metric

    @property
    def _own_models(self) -> bool:
        """Whether every client is evaluated with a model of its own."""
        return self.algorithm.evaluated() == "client"

    @property
    def _both_models(self) -> bool:
        """Whether clients have models of their own beside the hubs'."""
        return self.algorithm.evaluated() == "both"

    def _whole(self, swept: State) -> Algorithm:
        return sweeping.join(self.algorithm, swept["method"])

    def _in_force(self, swept: State) -> Algorithm:
        """Who made what is evaluated: the algorithm of the last round."""
        return self._whole(swept).at(max(0, self.round - 1))

    def errand(self, order: Order) -> Errand:
        """What clients do where they are told to: their part of an exchange, or scoring models on rows."""
        if isinstance(order, Address):
            return Exchange(self.world, self.algorithm, order).errand()
        return scoring(self.world, order)

    def step(self, *, evaluate: bool = True, trained: bool = True) -> list[Record]:
        """Run one round, and return a record for every replica; the arguments are those of `advance`."""
        return self.advance(evaluate=evaluate, trained=trained).records()

    def advance(self, *, evaluate: bool = True, trained: bool = True) -> Pending:
        """Run one round, and return what will say how it went; a GPU may still be at work.

        Args:
            evaluate: Whether models are evaluated on the global test set.
            trained: Whether those of peers are also evaluated before they hear their neighbours.
        """
        start = time.perf_counter()
        world = self.world
        exchanges = [
            Exchange(world, self.algorithm, Address(self.round, index))
            for index in range(len(self.algorithm.at(self.round).phases()))
        ]
        self._welcome_back()
        told, traffic = self._set_up() if self.round == 0 else ([], [])
        heard: Heard | None = None
        training: Report | None = None
        drawn = 0
        for one in exchanges:
            drawn = one.address.index if one.form.resampled else drawn
            cast = cohort_of(world, self.round, drawn)
            report = self._run_replies(one, cast, heard) if one.form.replies else self._run(one, cast)
            told, traffic, heard = [*told, report.told], [*traffic, report.traffic], report.heard
            training = report if report.has_models else training  # others go: they hold many models
        self.round += 1
        self.store.end_round()
        scored = self._score(training if trained else None) if evaluate else []
        nodes = self._nodes(scored, training) if evaluate else lambda: [{} for _ in world.replicas]
        label, clock = self.algorithm.label, self._clock
        return Begun(world, label, clock, self.round, start, told, traffic, scored, nodes)

    def _plan_ahead(self, one: Exchange, cast: Cast) -> None:
        """Let the batches of the next round be listed while a GPU is at work on this one."""
        world, now = self.world, one.address.round
        if world.graph and world.device.type == "cuda":  # a server does not wait for its clients here
            upcoming = one.jobs(cohort_of(world, now + 1))
            if upcoming:
                world.cohort(upcoming, now + 1).plan_like(world.cohort(one.jobs(cast), now))

    def _set_up(self) -> tuple[list[Told], list[tuple[Traffic, ...]]]:
        """The exchanges before the first round, with everyone: what they told, and their traffic."""
        told: list[Told] = []
        traffic: list[tuple[Traffic, ...]] = []
        for index in range(len(self.algorithm.setup())):
            one = Exchange(self.world, self.algorithm, Address(0, index, setup=True))
            report = self._run(one, everyone(self.world))
            told.append(report.told)
            traffic.append(report.traffic)
        return told, traffic

    def _run(self, one: Exchange, cast: Cast) -> Report:
        if comes_in_parts(one, cast):
            report = run_in_parts(one, cast, self.hub, self.store)
            self.hub = report.hub
            return report
        ahead = partial(self._plan_ahead, one, cast)
        report = one.run(cast, self.hub, self.store, self.mailbox, ahead)
        self.hub, self.mailbox = report.hub, report.mailbox
        return report

    def _run_replies(self, one: Exchange, cast: Cast, heard: Heard | None) -> Report:
        report = run_replies(one, cast, self.hub, self.links, heard)
        self.hub = report.hub
        return report

    def _welcome_back(self) -> None:
        """Let nodes that return start anew, where the network says so."""
        world = self.world
        if not (world.graph and world.network.fresh):
            return
        nodes = world.population
        returned = [world.network.returned(r.seed, nodes, self.round) for r in world.replicas]
        rows = np.flatnonzero(np.concatenate(returned))
        if len(rows):
            chosen = to_device(rows, world.device)
            hubs = self._map_rows(lambda whole, model: whole.init_hub(model), rows)
            flat = tree.reshape_leading(self.hub, 2, len(world.hub_replicas))
            self.hub = tree.reshape_leading(tree.with_rows(flat, chosen, hubs), 1, *world.hub_shape)
            self.store.forget(rows)
            self.links.forget((rows[:, None] * nodes + np.arange(nodes)).flatten())

    def evaluated(self) -> list[tuple[int, int]]:
        """The (replica, client) pair of every model that is evaluated: one a server, or one a client."""
        if self.world.graph:
            return [
                (r, node) for r in range(len(self.world.replicas)) for node in range(self.world.population)
            ]
        if self._own_models:
            return self._everyone()
        return [(r, 0) for r in range(len(self.world.replicas))]

    def models(self, rows: list[tuple[int, int]], *, own: bool = False) -> State:
        """The models of some (replica, client) pairs, stacked; `own`: those of personalised clients."""
        hubs_of = list(dict.fromkeys(replica for replica, _ in rows))
        if len(hubs_of) < len(rows) and not (self.world.graph or self._own_models or own):
            # A server's clients share its model, and its state may be far larger: once is enough.
            shared = self.models([(replica, 0) for replica in hubs_of])
            places = to_device([hubs_of.index(replica) for replica, _ in rows], self.world.device)
            return tree.index(shared, places)
        replicas, clients = to_device(np.array(rows, dtype=np.int64).T, self.world.device)
        hubs = tree.map_leaves(lambda v: v[replicas, clients] if self.world.graph else v[replicas], self.hub)
        memory: State = {}
        if self._own_models or own:
            memory = self.store.load([r * self.world.population + client for r, client in rows])

        def model(swept: State, hub: State, memory: State) -> State:
            whole = self._in_force(swept)
            return whole.personal_model(hub, memory) if own else whole.model(hub, memory)

        name = self.world.name_of(self.algorithm, max(0, self.round - 1))
        key = name and ("model", name, own)
        numbers = self.world.numbers_of(replicas)
        return self.world.executor.map(model, (0, 0, 0), numbers, hubs, memory, key=key)

    @property
    def models_have_owners(self) -> bool:
        """Whether the models that are evaluated are clients' own, and not those of servers."""
        return self.world.graph or self._own_models

    def personal_models(self, replica: int) -> State:
        """The clients' own models of a replica, stacked, of a method that has these beside the hub's."""
        rows = [pair for pair in self._everyone() if pair[0] == replica]
        return self.models(rows, own=True) if self._both_models else {}

    def every_model(self) -> Iterator[tuple[int, int | None, State]]:
        """Every model there is: its replica, the client whose own it is (or None), and itself."""
        kinds = [(self.evaluated(), self.models_have_owners, False)]
        kinds += [(self._everyone(), True, True)] if self._both_models else []
        for rows, named, own in kinds:
            for chunk in _chunks(len(rows)):
                models = self.models(rows[chunk], own=own)
                for place, (replica, client) in enumerate(rows[chunk]):
                    yield replica, client if named else None, tree.index(models, place)

    def evaluate(self) -> list[dict[str, float]]:
        """The scores on the global test set, by replica."""
        scored = self._score(None)
        return [scores_of(scored, replica) for replica in range(len(self.world.replicas))]

    def _score(self, report: Report | None) -> list[Scored]:
        """All evaluations of a round; with a report, also of what peers had before they heard others."""
        rows = self.evaluated()
        many = self.models_have_owners
        scored = [self._on_test("", rows, lambda chosen: self.models(rows[chosen]), many=many)]
        if report is not None and report.has_models:
            uploads, rows_of_sound = report.uploads, np.flatnonzero(report.told.arrived)
            sound = to_device(rows_of_sound, self.world.device)
            trained_rows = [report.told.jobs[row] for row in rows_of_sound]
            models = {"params": uploads["params"], "buffers": uploads.get("buffers", {})}
            scored.append(
                self._on_test("trained_", trained_rows, lambda c: tree.index(models, sound[c]), many=True)
            )
        if self._both_models:
            everyone = self._everyone()
            holding = [pair for pair in everyone if self._holds_out(pair)]
            score, chosen = (score_on_holdout, holding) if holding else (score_on_training, everyone)
            found = [
                score(self.world, self.models(chosen[some], own=True), chosen[some])
                for some in _chunks(len(chosen))
            ]
            prefix = "personal_" if holding else "personal_train_"
            scored.append(Scored(prefix, chosen, found, self._metric, many=True))
        return scored

    def _on_test(
        self, prefix: str, rows: list[tuple[int, int]], models: Callable[[slice], State], *, many: bool
    ) -> Scored:
        """The scores of models on the global test set, computed some at a time."""
        found = [score_on_test(self.world, models(chunk), rows[chunk]) for chunk in _chunks(len(rows))]
        return Scored(prefix, rows, found, self._metric, many=many)

    def _nodes(self, scored: list[Scored], report: Report | None) -> Nodes:
        """What there is to say about every node of a graph, by replica."""
        if not self.world.graph:
            return lambda: [{} for _ in self.world.replicas]
        count, metric = self.world.population, self._metric.name
        stacked = {"params": self.models(self.evaluated())["params"]}
        params = tree.reshape_leading(stacked, 1, *self.world.hub_shape)["params"]
        metrics = node_metrics(self.world, self._in_force, params, report)
        return lambda: [
            {**{f"{one.prefix}{metric}": one.by_node(replica, count) for one in scored}, **others}
            for replica, others in enumerate(metrics())
        ]

    def _everyone(self) -> list[tuple[int, int]]:
        """The (replica, client) pairs of all clients that have data."""
        return [(r, int(c)) for r, replica in enumerate(self.world.replicas) for c in replica.available]

    def clients(self, replicas: Collection[int] | None = None) -> list[ClientResult]:
        """Every client's result (of some replicas), each score named by the rows on which it was taken.

        own_: those that the client keeps back; NaN where there are none. train_: those that it trains on.
        test_: the global test set, where clients have models of their own. personal_ and personal_train_:
        the rows of own_ and train_, with a personalised client's own model. curvature: that of each output,
        after training once more from the model (`output_curvature`), where the world asks for it.
        """
        everyone = [pair for pair in self._everyone() if replicas is None or pair[0] in replicas]
        results: list[ClientResult] = []
        for chunk in _chunks(len(everyone)):
            some = everyone[chunk]
            models = self.models(some)
            kinds = self._on_own_rows("", models, some)
            if self.world.graph or self._own_models:
                kinds["test_"] = score_on_test(self.world, models, some)()
            if self._both_models:
                kinds |= self._on_own_rows("personal_", self.models(some, own=True), some)
            curved = self._curvature(models, some)
            for i, (replica, client) in enumerate(some):
                which = self.world.replicas[replica]
                result: ClientResult = {
                    "replica": replica,
                    "client": client,
                    "samples": len(which.shards[client]),
                    "held_out": len(which.holdouts[client]),
                }
                for kind, scores in kinds.items():
                    result |= {f"{kind}{name}": float(values[i]) for name, values in scores.items()}
                if curved is not None:
                    result["curvature"] = [float(f"{value:.6g}") for value in curved[i]]
                results.append(result)
        return results

    def _curvature(self, models: State, pairs: list[tuple[int, int]]) -> Floats | None:
        """[clients, outputs] the clients' curvature, with the batches of the last round."""
        if not self.world.curvature:
            return None
        return output_curvature(self.world, models, pairs, max(0, self.round - 1))

    def _on_own_rows(
        self, prefix: str, models: State, pairs: list[tuple[int, int]]
    ) -> dict[str, Mapping[str, Floats]]:
        """Scores on the rows that clients train on, and on those that they keep back."""
        train = score_on_training(self.world, models, pairs)()
        holding = [place for place, pair in enumerate(pairs) if self._holds_out(pair)]
        kept = {name: np.full(len(pairs), np.nan) for name in train}
        if holding:
            chosen = tree.index(models, to_device(holding, self.world.device))
            for name, values in score_on_holdout(self.world, chosen, [pairs[i] for i in holding])().items():
                kept[name][holding] = values
        return {prefix or "own_": kept, f"{prefix}train_": train}

    def _holds_out(self, pair: tuple[int, int]) -> bool:
        """Whether a (replica, client) pair keeps rows back."""
        replica, client = pair
        return len(self.world.replicas[replica].holdouts[client]) > 0

    def snapshot(self) -> State:
        """Everything that later rounds depend on."""
        hub = {f"hub.{group}": params for group, params in self.hub.items()}
        clock = {"clock": {"round": torch.tensor(self.round)}}
        mailbox = self.mailbox.snapshot() if self.mailbox else {}
        links = {f"{LINKS}{group}": params for group, params in self.links.snapshot().items()}
        return tree.join(clock, hub, self.store.snapshot(), links, mailbox)

    def halt(self) -> int:
        """Begin no more rounds than have been begun; which of them is the last, and can be kept."""
        return self.round

    def confirm(self) -> None:
        """Let files of memories keep no more than the last snapshot needs: it is safe."""
        self.store.confirm()
        self.links.confirm()

    def restore(self, snapshot: State) -> None:
        """Continue from a snapshot."""
        self.round = int(snapshot["clock"]["round"])
        device = self.world.device
        self.hub = {
            group: {name: snapshot[f"hub.{group}"][name].to(device) for name in params}
            for group, params in self.hub.items()
        }
        self.store.restore(snapshot)
        self.links.restore(links_of(snapshot))
        self.mailbox = Mailbox.restore(snapshot, device)


def _chunks(count: int) -> list[slice]:
    """The slices of a list of models that are evaluated at a time."""
    return [slice(start, start + MODELS_AT_A_TIME) for start in range(0, count, MODELS_AT_A_TIME)]
