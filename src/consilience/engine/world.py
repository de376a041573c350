"""What stays the same over a simulation: the task, the data, who holds what and who hears whom."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from consilience import tree
from consilience.algorithm import Algorithm
from consilience.engine.executors.base import Executor
from consilience.engine.memory import Resident
from consilience.engine.network import Network
from consilience.exchange.cohort import Cohort, Job, LocalWork, Population
from consilience.graphs.base import Adjacency
from consilience.learning.batches import Pool
from consilience.learning.coordinate import Coordinate
from consilience.learning.solvers import Solver
from consilience.learning.task import Task
from consilience.metrics import Whole
from consilience.types import Booleans, IntArray, Params, State

COHORTS = 4
"""How many cohorts are kept with their plans: those of this and the next round, and of evaluations."""
MODELS_AT_A_TIME = 100
"""How many models are evaluated at once."""


@dataclass(frozen=True)
class Replica:
    """One seed of one variant: an independent federation that shares the computation with the others.

    Variants of a method differ in floats only.
    """

    seed: int
    variant: int
    shards: tuple[IntArray, ...]
    """The rows of the data that each client trains on."""
    holdouts: tuple[IntArray, ...]
    """The rows that each client keeps back for evaluation."""
    adjacency: Adjacency | None
    """[nodes, nodes] who hears whom in the first round; None for a star."""
    names: tuple[str, ...] = ()
    """What clients are called, where they have names."""

    def name(self, client: int) -> str:
        """What a client is called."""
        return self.names[client] if self.names else f"client {client}"

    @cached_property
    def available(self) -> IntArray:
        """The clients that have data."""
        return np.array([client for client, shard in enumerate(self.shards) if len(shard)], dtype=np.int64)


@dataclass(frozen=True)
class World:
    """A setting in which algorithms are compared."""

    task: Task
    pool: Pool
    executor: Executor
    replicas: tuple[Replica, ...]
    solver: Solver
    """The local optimiser, with holes (`sweeping.Hole`) where variants differ."""
    numbers: State
    """`method` and `solver`: [replicas] tensors for the holes of either; `replica`: the index of each."""
    work: LocalWork
    participation: int
    """How many clients a cohort has, at most."""
    failure_rate: float
    initial: dict[int, State]
    """The initial models, by seed: stacked over clients, [1, ...] where they share one."""
    test: IntArray
    """Rows of the global test set in the pool."""
    network: Network
    """How the graph behaves over time."""
    memory: int
    """How many bytes of the device may be used."""
    redraw: Callable[[int, int], Adjacency | None]
    """Gives the graph of a seed after some number of drawings."""
    resident: Resident = "auto"
    """Whether what clients remember is held in memory."""
    coordinates: tuple[Coordinate, ...] = ()
    """Parameters about which nodes' records say more."""
    curvature: bool = False
    """Whether clients' results have their curvature, output by output."""
    whole: tuple[Whole, ...] = ()
    """Scores that need all rows of a model at once; the task has the others."""
    _cohorts: OrderedDict[Hashable, Cohort] = field(default_factory=OrderedDict, repr=False, compare=False)
    """The last cohorts, with their plans, the oldest use first."""

    def adjacency(self, replica: int, round_number: int) -> Adjacency:
        """[nodes, nodes] who hears whom in a round."""
        which = self.replicas[replica]
        drawing = self.network.drawing(round_number)
        adjacency = self.redraw(which.seed, drawing) if drawing else which.adjacency
        assert adjacency is not None
        return adjacency

    def there(self, replica: int, round_number: int) -> Booleans:
        """[clients] who is there and awake in a round."""
        seed, network = self.replicas[replica].seed, self.network
        if not self.graph:
            return np.ones(self.population, dtype=np.bool_)
        present = network.present(seed, self.population, round_number)
        return present & network.awake(seed, self.population, round_number)

    @cached_property
    def blank_tally(self) -> Params:
        """The problem's sums over no rows, from which a model's scores are counted up."""
        first = torch.zeros(1, dtype=torch.int64, device=self.device)
        weight = torch.ones(1, dtype=self.pool.dtype, device=self.device)
        model = tree.index(self.initial_models(np.zeros(1, dtype=np.int64)), 0)
        return self.task.blank_tally(self.pool.batch(first, weight, first[0]), model)

    @property
    def population(self) -> int:
        """The number of clients of one replica."""
        return len(self.replicas[0].shards)

    def sizes(self) -> IntArray:
        """[replicas, clients] how many training samples each client has."""
        return self._sizes

    @cached_property
    def _sizes(self) -> IntArray:
        return np.array([[len(shard) for shard in replica.shards] for replica in self.replicas])

    @cached_property
    def populations(self) -> torch.Tensor:
        """[replicas] how many clients have data."""
        counts = [float(len(replica.available)) for replica in self.replicas]
        return torch.tensor(counts, dtype=self.pool.dtype, device=self.device)

    @cached_property
    def hub_replicas(self) -> torch.Tensor:
        """The replica that each hub belongs to."""
        return torch.from_numpy(self.hub_rows // self.population).to(self.device)

    @cached_property
    def hub_populations(self) -> torch.Tensor:
        """[hubs] how many clients of a hub's replica have data."""
        return self.populations[self.hub_replicas]

    @cached_property
    def hub_numbers(self) -> State:
        """The swept numbers of each hub's replica."""
        return self.numbers_of(self.hub_replicas)

    @property
    def graph(self) -> bool:
        """Whether clients are peers on a graph."""
        return self.replicas[0].adjacency is not None

    @property
    def device(self) -> torch.device:
        """Where the computation happens."""
        return self.pool.targets.device

    @property
    def hub_shape(self) -> tuple[int, ...]:
        """The leading axes of hubs: [replicas] servers, or [replicas, nodes]."""
        return (len(self.replicas), self.population) if self.graph else (len(self.replicas),)

    @property
    def hub_rows(self) -> IntArray:
        """The client (replica * population + client) whose initial model each hub starts from."""
        rows = np.arange(len(self.replicas) * self.population, dtype=np.int64)
        return rows if self.graph else rows[:: self.population]

    def initial_models(self, rows: IntArray) -> State:
        """The initial models of some clients (replica * population + client), stacked."""
        models = []
        for row in rows.tolist():
            stacked = self.initial[self.replicas[row // self.population].seed]
            shared = len(next(iter(stacked["params"].values()))) == 1
            models.append((stacked, 0 if shared else row % self.population))
        return {
            group: {name: torch.stack([stacked[group][name][i] for stacked, i in models]) for name in params}
            for group, params in models[0][0].items()
        }

    def cohort(
        self, jobs: Sequence[tuple[int, int]], round_number: int, hosts: Sequence[int] | None = None
    ) -> Cohort:
        """The work of some (replica, client) pairs in a round; `hosts`: whom each of them answers."""
        name = (tuple(jobs), round_number, None if hosts is None else tuple(hosts))
        cohort = self._cohorts.pop(name, None) or self._make_cohort(jobs, round_number, hosts)
        if len(self._cohorts) == COHORTS:
            self._cohorts.popitem(last=False)
        self._cohorts[name] = cohort
        return cohort

    def _make_cohort(
        self, jobs: Sequence[tuple[int, int]], round_number: int, hosts: Sequence[int] | None
    ) -> Cohort:
        to = [None] * len(jobs) if hosts is None else hosts
        listed = [
            Job(r, one.seed, client, one.shards[client], one.holdouts[client], host)
            for (r, client), host in zip(jobs, to, strict=True)
            for one in (self.replicas[r],)
        ]
        return Cohort(tuple(listed), round_number, self.work, self.device, self.test, self.holdings)

    @cached_property
    def holdings(self) -> Population:
        """What all clients of all replicas hold."""
        held = [
            (len(replica.shards[client]), len(replica.holdouts[client]))
            for replica in self.replicas
            for client in replica.available.tolist()
        ]
        samples, holdouts = np.array(held, dtype=np.int64).reshape(-1, 2).T
        taking_part = sum(min(self.participation, len(replica.available)) for replica in self.replicas)
        models = len(held) if self.graph else len(self.replicas)
        return Population(samples, holdouts, taking_part / max(1, len(held)), min(models, MODELS_AT_A_TIME))

    def name_of(self, algorithm: Algorithm, round_number: int | None) -> Hashable:
        """What tells the algorithm in force in a round from those that do other things.

        None where that cannot be told: numbers that are swept and change from round to round are not seen.
        """
        in_force = algorithm if round_number is None else algorithm.at(round_number)
        return in_force if in_force is algorithm or not self.numbers["method"] else None

    def numbers_of(self, replicas: torch.Tensor) -> State:
        """The swept numbers of some replicas, one row each."""
        return {
            group: {name: v[replicas] for name, v in params.items()} for group, params in self.numbers.items()
        }


def numbers_state(method: Params, solver: Params, variants: list[int], device: torch.device) -> State:
    """[replicas] swept numbers from [variants] ones; `variants` has the variant of each replica.

    The index makes sure that there is a tensor to map over.
    """
    chosen = torch.tensor(variants, device=device)
    return {
        "method": {path: value[chosen] for path, value in method.items()},
        "solver": {path: value[chosen] for path, value in solver.items()},
        "replica": {"index": torch.arange(len(variants), device=device)},
    }
