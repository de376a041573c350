"""What of a client's surroundings a method looks at, found by a dry run and not by a list of methods."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from consilience.algorithm import Algorithm
from consilience.client import Client, Fold, Rows, Step
from consilience.exchange.cohort import LocalWork
from consilience.exchange.schemas import idle_client, rehearse
from consilience.learning.solvers import Solver
from consilience.learning.task import Task
from consilience.types import State

TRAINING = frozenset({"solver", "steps", "epochs", "clip"})
"""What a client knows of local training, and a method that never trains has no use for."""


def takes_steps(
    algorithm: Algorithm,
    task: Task,
    solver: Solver,
    work: LocalWork,
    model: State,
    *,
    rounds: int,
    peer: bool,
) -> bool:
    """Whether clients train, or a method looks at how they would: with the solver, for epochs or steps.

    One that does not, because it asks for gradients or curvature alone, gives the same result for all
    learning rates and all numbers of epochs.

    Args:
        algorithm: The method.
        task: The model's architecture and the problem.
        solver: The local optimiser.
        work: How much clients train.
        model: Some model, `params` and `buffers`.
        rounds: The length of the run, since a method may do something else after some rounds.
        peer: Whether clients are nodes of a graph.
    """
    if (
        algorithm.reshapes()
    ):  # its exchanges cannot be rehearsed one by one; such methods match trained models
        return True
    in_force = dict.fromkeys(algorithm.at(number) for number in range(rounds))
    return any(_looks(one, task, solver, work, model, peer=peer) for one in in_force)


def _looks(
    algorithm: Algorithm, task: Task, solver: Solver, work: LocalWork, model: State, *, peer: bool
) -> bool:
    """Whether clients of the method in force in some rounds look at training; see `takes_steps`."""
    device = next(iter(model["params"].values())).device
    seen: set[str] = set()
    client = watched(idle_client(task, solver, work, device, peer=peer), seen)
    for setup in (True, False):
        rehearse(algorithm.quick(), client, model, setup=setup)
    return bool(seen)


def watched(client: Client, seen: set[str]) -> Client:
    """The client, which notes in `seen` what of its training somebody looks at."""

    class Watched(Client):
        """A client that notes who asks for what."""

        def __getattribute__(self, name: str) -> Any:
            if name in TRAINING:
                seen.add(name)
            return super().__getattribute__(name)

    def fold(step: Step, carry: State, extras: State, rows: Rows, epoch: int | None = None) -> State:
        if rows == "train":
            seen.add("train")
        return inner(step, carry, extras, rows, epoch)

    inner: Fold = client.fold
    return Watched(**{one.name: getattr(client, one.name) for one in fields(client)} | {"fold": fold})
