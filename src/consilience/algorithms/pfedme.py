"""pFedMe: every client's own model, tied to the common one by a Moreau envelope.

T. Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes (NeurIPS 2020). With
lambda = `strength`, client k starts from w_k = w and, for every batch of its local training,

    theta_k ~ argmin_theta loss(theta; batch) + lambda/2 ||theta - w_k||^2
                               by `inner_steps` gradient steps with rate `personal_lr`
    w_k <- w_k - lr lambda (w_k - theta_k)

where lr is the solver's. The server takes w <- (1 - beta) w + beta sum_k p_k w_k over the clients it heard.
A client keeps theta_k, its own model, and starts the next search from it (the authors' release starts from w
in every round, trains all clients where only some are averaged, and adds weight decay to the search). Batch
normalisation follows theta, the model that is passed forward. Stable where lr lambda <= 1 and
personal_lr (lambda + L) < 2, L the smoothness of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from consilience import sweeping, tree
from consilience.algorithm import Conditions, Evaluated, Family, Inbox, SingleExchange
from consilience.client import Client, Step
from consilience.errors import UserError
from consilience.learning.solvers import SGD, Solver
from consilience.learning.task import Task, mean_loss
from consilience.server_steps.relax import Relax
from consilience.sweeping import check_non_negative, is_zero
from consilience.types import Batch, Number, Params, State

PERSONAL = "personal"
"""The group that holds a client's own model."""


@final
@dataclass(frozen=True)
class PFedMe(SingleExchange):
    """A personal model for every client, near a common one."""

    name: ClassVar[str] = "pfedme"
    paper: ClassVar[str] = "T. Dinh, Tran, Nguyen, NeurIPS 2020"
    family: ClassVar[Family] = "personalisation"
    formula: ClassVar[str] = (
        "theta_k ~ argmin loss + (lambda/2) ||theta - w_k||^2; w_k <- w_k - lr lambda (w_k - theta_k)"
    )
    choose: ClassVar[str] = "When every client should have a model that fits its own data."
    strength: float = 15.0
    """The paper's lambda: how strongly a personal model is tied to the common one."""
    personal_lr: float = 0.09
    """The learning rate of the search for the personal model."""
    inner_steps: int = 5
    """How many steps the search takes on every batch."""
    beta: float = 1.0
    """How far the server goes towards the mean of the clients' models."""

    def __post_init__(self) -> None:
        check_non_negative(self, "strength", "personal_lr", "beta")
        if self.inner_steps < 1:
            raise UserError(f"pfedme: inner_steps must be at least 1, not {self.inner_steps}")

    def evaluated(self) -> Evaluated:
        return "both"

    def init_memory(self, model: State) -> State:
        return {PERSONAL: model["params"]}

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        method, method_numbers = sweeping.split(self)
        solver, solver_numbers = sweeping.split(client.solver)
        step = MoreauStep(client.task, method, solver, client.clip)
        zero = client.samples.new_zeros(())
        carry = {
            "params": down["params"],
            "buffers": down["buffers"],
            PERSONAL: memory[PERSONAL],
            **client.solver.init(down["params"]),  # nothing but a clock
            "tally": {"loss": zero, "rows": zero},
        }
        after = client.fold(step, carry, {"method": method_numbers, "solver": solver_numbers}, "train")
        upload = {"params": after["params"], "buffers": after["buffers"]}
        return upload, {**memory, PERSONAL: after[PERSONAL]}

    def combine(self, hub: State, inbox: Inbox) -> State:
        params, _ = Relax(self.beta).apply(hub, inbox.mean("params"), inbox)
        return {**hub, "params": params, "buffers": inbox.buffers()}

    def personal_model(self, hub: State, memory: State) -> State:
        return {"params": memory[PERSONAL], "buffers": hub["buffers"]}

    def refuse(self, conditions: Conditions) -> str | None:
        solver = conditions.solver
        if isinstance(solver, SGD) and is_zero(solver.momentum) and is_zero(solver.weight_decay):
            return None
        return "its steps use a learning rate alone: set solver sgd, with momentum and weight_decay 0"


@final
@dataclass(frozen=True)
class MoreauStep(Step):
    """One batch: the personal model searches its optimum near the local copy, which then follows.

    The carry, i.e. the state that goes from batch to batch, holds both.
    """

    task: Task
    method: PFedMe
    solver: Solver
    clip: float | None = None

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        """The personal model after its search, and the loss before it."""
        method = sweeping.join(self.method, extras["method"])
        model = {"params": carry[PERSONAL], "buffers": carry["buffers"]}
        losses: list[Tensor] = []
        for _ in range(method.inner_steps):
            grads, loss, buffers = self._gradient(model, batch)
            losses.append(loss)
            if not is_zero(method.strength):
                grads = tree.axpy(method.strength, tree.sub(model["params"], carry["params"]), grads)
            if self.clip is not None:
                grads = tree.shorten(grads, self.clip)
            model = {"params": tree.axpy(-method.personal_lr, grads, model["params"]), "buffers": buffers}
        rows = batch.weight.sum()
        tally = {"loss": losses[0] * rows, "rows": rows}
        return {PERSONAL: model["params"], "buffers": model["buffers"], "tally": tally}

    def advance(self, carry: State, found: State, extras: State) -> State:
        """The carry after the local copy has followed the personal model."""
        solver, pull = self._pull(carry, extras)
        params = {
            name: value - pull * (value - found[PERSONAL][name]) for name, value in carry["params"].items()
        }
        tally = tree.add(carry["tally"], found["tally"])
        return {**found, "params": params, **solver.later(carry), "tally": tally}

    def advance_in_place(self, carry: State, found: State, extras: State) -> None:
        solver, pull = self._pull(carry, extras)
        for name, value in carry["params"].items():
            value.sub_(pull * (value - found[PERSONAL][name]))
            carry[PERSONAL][name].copy_(found[PERSONAL][name])
        for group, values in solver.later(carry).items():
            for name, number in values.items():
                carry[group][name].copy_(number)
        super().advance_in_place({group: carry[group] for group in ("buffers", "tally")}, found, extras)

    def stackable(self, extras: State) -> bool:
        """Whether no number differs between clients: such would not line up with the stacked tensors."""
        return not extras["method"] and not extras["solver"]

    def _pull(self, carry: State, extras: State) -> tuple[Solver, Number]:
        """The solver, and how far a step goes towards the personal model."""
        method = sweeping.join(self.method, extras["method"])
        solver = sweeping.join(self.solver, extras["solver"])
        return solver, solver.rate(carry) * method.strength

    def _gradient(self, model: State, batch: Batch) -> tuple[Params, Tensor, Params]:
        """The gradient of the batch's mean loss, that loss, and the buffers after the pass."""

        def loss(params: Params) -> tuple[Tensor, tuple[Tensor, Params]]:
            output = self.task.forward({**model, "params": params}, batch, training=True)
            fit = mean_loss(self.task.loss(output.prediction, batch.targets), batch.weight)
            return self.task.regularised(fit, params), (fit, output.buffers)

        grads, (fit, buffers) = torch.func.grad(loss, has_aux=True)(model["params"])
        return grads, fit, buffers
