"""Federations of objects that exchange bytes, beside the simulations that they are to equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from consilience import tree
from consilience.algorithm import Algorithm
from consilience.deploy.hub import Hub
from consilience.deploy.peer import Peer
from consilience.deploy.site import Own, Site
from consilience.deploy.terms import Terms
from consilience.engine.rounds.simulation import Simulation
from consilience.exchange.cohort import LocalWork
from consilience.graphs import Star
from consilience.graphs.base import Topology
from consilience.learning.batches import Pool
from consilience.testing import prepare
from consilience.testing.federation import SIZES, Layout, ragged_partition, simulation_of
from consilience.types import State

WORK = LocalWork(epochs=2, steps=None, batch_size=4, stragglers=0.5, lr_decay=0.9)


@dataclass(frozen=True)
class Federation:
    """A simulation before its first round, and the terms of the federation that it simulates."""

    simulation: Simulation
    terms: Terms

    def own(self, number: int) -> Own:
        """The data of a client, in memory of their own."""
        replica, pool = self.simulation.world.replicas[0], self.simulation.world.pool
        rows = np.concatenate([replica.shards[number], replica.holdouts[number]])
        chosen = torch.from_numpy(rows)
        inputs, targets = pool.inputs[chosen].clone(), pool.targets[chosen].clone()
        holdout = np.arange(len(replica.shards[number]), len(rows))
        return Own(Pool(inputs, targets, pool.shift, pool.scale, pool.dtype), holdout)

    @property
    def model(self) -> State:
        """The initial model."""
        return tree.index(self.simulation.world.initial[0], 0)

    def site(self, number: int, **options: Any) -> Site:
        """A client that answers orders."""
        return Site(self.terms, number, self.own(number), **options)

    def sites(self, folder: Path | None = None) -> dict[int, Site]:
        """All clients."""
        return {
            number: self.site(number, file=None if folder is None else folder / f"{number}.safetensors")
            for number in range(self.terms.population)
        }

    def hub(self, **options: Any) -> Hub:
        """The server."""
        return Hub(self.terms, self.model, **options)

    def peer(self, number: int, **options: Any) -> Peer:
        """A node of a graph."""
        rows = self.simulation.world.initial_models(np.array([number]))
        return Peer(self.terms, number, self.own(number), tree.index(rows, 0), **options)

    def peers(self) -> dict[int, Peer]:
        """All nodes."""
        return {number: self.peer(number) for number in range(self.terms.population)}

    def simulated(self) -> list[State]:
        """The hub, or the nodes' states, after all rounds of the simulation."""
        for _ in range(self.simulation.round, self.terms.rounds):
            self.simulation.step(evaluate=False)
        only = tree.index(self.simulation.hub, 0)
        return (
            [tree.index(only, node) for node in range(self.terms.population)] if self.terms.graph else [only]
        )


def federation_of(
    algorithm: Algorithm,
    topology: Topology | None = None,
    rounds: int = 3,
    participation: int = 100,
    sizes: Sequence[int] = SIZES,
) -> Federation:
    """The federation of an algorithm."""
    subject = prepare(algorithm)
    layout = Layout(topology or Star(), {0: ragged_partition(sizes)}, work=WORK, participation=participation)
    simulation = simulation_of(subject, layout)
    world = simulation.world
    terms = Terms(
        task=world.task,
        algorithm=algorithm.for_data((6,), 3).for_model(tree.index(world.initial[0], 0)),
        solver=subject.solver,
        work=WORK,
        seed=0,
        rounds=rounds,
        population=len(sizes),
        participation=participation,
        digest="0123456789abcdef" * 4,
        sums=world.blank_tally,
        adjacency=world.replicas[0].adjacency,
    )
    return Federation(simulation, terms)
