"""Clients remember how far they have drifted from the hub's models, and are pulled back by it.

h_k is the sum of all moves theta_k - w that client k has made; the hub keeps its mean over all clients, heard
or not. Two methods train with it:

Dynamic regularisation. Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on
Dynamic Regularization (ICLR 2021). The paper has lambda_k = -alpha h_k and the client's loss

    F_k(v) - <lambda_k, v> + alpha/2 ||v - w||^2 = F_k(v) + alpha/2 ||v - (w - h_k)||^2 + constant

Drift variable. Gao, Fu, Li, Chen, Xu, Xu: FedDC: Federated Learning with Non-IID Data via Local Drift
Decoupling and Correction (CVPR 2022). The same loss, and <v, c - c_k> with SCAFFOLD's controls: after K steps

    c_k <- c_k - c + (w - theta_k) / (K lr),   c <- c + (1/N) sum_{k heard} (change of c_k)

K are the steps really taken (the release uses the configured number). (w - theta_k) / (K lr) is the mean of
what SGD followed, and weight decay and clipping belong to it, as in the release, which clips at 10 (the
option local.clip); with momentum or another solver it is not, so these are refused. The release's division
of alpha and c by n_k / mean n is left out: clients do not know the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from consilience import tree
from consilience.errors import UserError
from consilience.learning.solvers import SGD
from consilience.objectives.base import Objective, Pass
from consilience.rules.by_data import ByData
from consilience.sweeping import check_non_negative, is_zero
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox
    from consilience.client import Client, Trained
    from consilience.rules.base import Rule

DRIFT, CONTROL, CHANGE = "drift", "control", "control_change"
"""The groups that hold h, SCAFFOLD's controls and, in an upload, the change of a client's control."""


@dataclass(frozen=True)
class Drift(Objective):
    """Adds `alpha/2 ||v - (w - h_k)||^2` to the loss: what the two objectives below have in common."""

    alpha: float = 0.01

    def __post_init__(self) -> None:
        check_non_negative(self, "alpha")

    def init_hub(self, model: State) -> State:
        return {DRIFT: tree.zeros_like(model["params"])}

    def init_memory(self, model: State) -> State:
        return self.init_hub(model)

    def context(self, client: Client, down: State, memory: State) -> State:
        return {"anchor": tree.sub(down["params"], memory[DRIFT])}

    def penalty(self, at: Pass, context: State) -> Tensor | None:
        if is_zero(self.alpha):
            return None
        return 0.5 * self.alpha * tree.sq_norm(tree.sub(at.params, context["anchor"]))

    def finish(self, client: Client, down: State, trained: Trained, memory: State) -> tuple[State, State]:
        moved = tree.sub(trained.model["params"], down["params"])
        return {}, {DRIFT: tree.add(memory[DRIFT], moved)}

    def absorb(self, hub: State, inbox: Inbox) -> State:
        moved = tree.sub(inbox.mean("params", inbox.uniform), hub["params"])
        return {DRIFT: tree.axpy(inbox.heard.sum() / inbox.population, moved, hub[DRIFT])}

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.graph:
            return "it needs the mean drift of the whole population, so it is not defined on a graph"
        return super().refuse(conditions)

    def refuse_rule(self, rule: Rule) -> str | None:
        if isinstance(rule, ByData) and rule.weighting == "samples":
            return "drifts are averaged uniformly, so models must be too: set the rule's weighting to uniform"
        return None


@final
@dataclass(frozen=True)
class DynamicRegulariser(Drift):
    """Adds `alpha/2 ||v - w||^2 - <lambda_k, v>` to the loss; lambda_k gathers the client's moves."""

    name: ClassVar[str] = "dynamic_regulariser"

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_zero(self.alpha):
            raise UserError(
                "dynamic_regulariser: alpha must be above 0: without it nothing holds clients together"
            )


@final
@dataclass(frozen=True)
class DriftVariable(Drift):
    """Adds `alpha/2 ||v - (w - h_k)||^2` to the loss, h_k the drift, and `c - c_k` to every gradient."""

    name: ClassVar[str] = "drift_variable"

    def init_hub(self, model: State) -> State:
        return {**super().init_hub(model), CONTROL: tree.zeros_like(model["params"])}

    def download(self, hub: State) -> State:
        return {CONTROL: hub[CONTROL]}

    def context(self, client: Client, down: State, memory: State) -> State:
        correction = tree.sub(down[CONTROL], memory[CONTROL])
        return {**super().context(client, down, memory), "correction": correction}

    def correct(self, grads: Params, context: State) -> Params:
        return tree.add(grads, context["correction"])

    def finish(self, client: Client, down: State, trained: Trained, memory: State) -> tuple[State, State]:
        extra, kept = super().finish(client, down, trained, memory)
        moved = tree.sub(down["params"], trained.model["params"])
        length = torch.where(trained.steps > 0, trained.length(client.solver), 1.0)
        per_step = tree.scale(1 / length, moved)
        found = tree.sub(per_step, down[CONTROL])
        change = {name: torch.where(trained.steps > 0, value, 0.0) for name, value in found.items()}
        return {**extra, CHANGE: change}, {**kept, CONTROL: tree.add(memory[CONTROL], change)}

    def absorb(self, hub: State, inbox: Inbox) -> State:
        control = tree.axpy(1 / inbox.population, inbox.sum(CHANGE), hub[CONTROL])
        return {**super().absorb(hub, inbox), CONTROL: control}

    def refuse(self, conditions: Conditions) -> str | None:
        solver = conditions.solver
        if not isinstance(solver, SGD) or not is_zero(solver.momentum):
            return "its controls need SGD without momentum: choose sgd and set solver.momentum to 0"
        if is_zero(solver.lr):
            return "its controls divide by the learning rate: set solver.lr above 0"
        return super().refuse(conditions)
