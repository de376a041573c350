"""Correct every local gradient by what it says at the hub's model, and divide learning rates by the steps.

Mitra, Jaafar, Pappas, Hassani: Linear Convergence in Federated Learning: Tackling Client Heterogeneity and
Sparse Gradients (NeurIPS 2021). Gradients at the hub's model w come first, and g is their mean; then client k
takes tau_k steps

    y <- y - lr_k (g_k(y) - g_k(w) + g),    lr_k = lr / tau_k.

The paper has full gradients. With mini-batches g_k(w) is the gradient on the same batch (and with the same
dropout masks) as g_k(y), as in SVRG, so that a model whose mean gradient is 0 is a fixed point there too.
Nobody may be missing: the mean gradient of some clients does not vanish at the optimum of all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from consilience import sweeping, tree
from consilience.learning.task import mean_loss
from consilience.objectives.base import Objective, Pass
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Conditions
    from consilience.client import Client


@final
@dataclass(frozen=True)
class FreshGradients(Objective):
    """Adds `g - g_k(w)` to every gradient; the learning rate is divided by the client's steps."""

    name: ClassVar[str] = "fresh_gradients"
    gradients_first: ClassVar[bool] = True
    divide_lr: bool = True
    """Whether a client's learning rate is divided by the number of its steps."""

    def prepare(self, client: Client) -> Client:
        if not self.divide_lr:
            return client
        solver = client.solver
        return replace(client, solver=sweeping.replace(solver, {"lr": solver.lr / client.steps}))

    def context(self, client: Client, down: State, memory: State) -> State:
        return {
            "anchor": down["params"],
            "anchor_buffers": down["buffers"],
            "mean_gradient": down["gradient"],
        }

    def penalty(self, at: Pass, context: State) -> Tensor | None:
        """A term that is linear in the parameters, so that its gradient is `-g_k(w)`."""

        def loss(params: Params) -> Tensor:
            # The buffers after this pass are dropped: the statistics are those of the model that trains.
            model = {"params": params, "buffers": context["anchor_buffers"]}
            logits = at.task.forward(model, at.batch, training=True).prediction
            fit = mean_loss(self.fit(at.task, logits, at.batch.targets), at.batch.weight)
            return at.task.regularised(fit, params)

        return -tree.dot(at.params, torch.func.grad(loss)(context["anchor"]))

    def correct(self, grads: Params, context: State) -> Params:
        # Only here: g_k(y) - g_k(w) is then exactly 0 where y = w, and the first step goes along g alone.
        return tree.add(grads, context["mean_gradient"])

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.unreliable:
            return "its correction is the gradient of all clients: set participation 1.0 and failure_rate 0"
        return super().refuse(conditions)
