"""What clients know about each output of a model: the curvature of its last layer, output by output.

It is what HWA weighs by, and is shown client by client (Fig. 2 of its paper): from a model each client trains
as in a round, by the plain loss, and takes the empirical Fisher diagonal of the last layer at the trained
weights, on its own rows. So it can be had of any method's models.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from consilience import sweeping, tree
from consilience.client import Fold
from consilience.engine.executors.base import Errand
from consilience.engine.world import World
from consilience.errors import UserError
from consilience.exchange.device import client_of, facts_of
from consilience.transfer import to_device
from consilience.types import Floats, Params, State

OUTPUTS = 1000
"""The most outputs whose curvature is kept: a line of every client has a number for each."""


def check_outputs(params: Params) -> None:
    """Refuse a model whose last layer has no outputs of which this can be said, or too many."""
    last = params[tree.select_layers(params, "output")[0][0]]
    if len(last) > OUTPUTS:
        raise UserError(
            f"evaluate.curvature keeps a number for each output and client, and this model has {len(last):,} "
            f"outputs; at most {OUTPUTS:,} are kept"
        )


def output_curvature(
    world: World, models: State, jobs: Sequence[tuple[int, int]], round_number: int
) -> Floats:
    """[jobs, outputs] the mean curvature of the parameters behind each output, per row of a client's data.

    Args:
        world: The setting.
        models: Where each client begins, stacked.
        jobs: The (replica, client) pairs.
        round_number: The round whose batches and learning rate clients train with, counted from 0.
    """
    (names,) = tree.select_layers(tree.index(models, 0)["params"], "output")
    cohort = world.cohort(jobs, round_number)

    def work(fold: Fold, states: Sequence[State]) -> tuple[State, State]:
        swept, own, model = states
        solver = sweeping.join(world.solver, swept["solver"])
        client = client_of(world.task, solver, world.work, own, fold, peer=world.graph)
        trained = client.train(model).model
        return {"curvature": client.squared_gradients(trained, names, "per_sample_mean")}, {}

    replicas = to_device([replica for replica, _ in jobs], world.device)
    states = [world.numbers_of(replicas), facts_of(cohort, world.pool.dtype), models]
    found = world.executor.clients(cohort, Errand(work), states).uploads["curvature"]
    return _by_output(list(found.values())).double().cpu().numpy()


def _by_output(diagonals: Sequence[Tensor]) -> Tensor:
    """[jobs, outputs] the mean over all parameters of an output: its row of weights, and its bias."""
    return torch.cat([one.reshape(*one.shape[:2], -1) for one in diagonals], dim=2).mean(2)
