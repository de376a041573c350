"""Control variates estimate each client's gradient bias and cancel it at every local step.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning (ICML 2020). Local steps y <- y - lr (g(y) - c_k + c); then the client's control becomes

    option I:   c_k+ = gradient of the client's loss at the hub's model (one more pass over its data)
    option II:  c_k+ = c_k - c + (w - y) / (K lr),  K the steps really taken

and the hub's control moves by the mean change over all clients. Controls cover trainable parameters
only. Option II assumes plain SGD: with momentum, weight decay or another solver (w - y)/(K lr) is not
the mean gradient, so it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

from consilience import tree
from consilience.learning.solvers import SGD
from consilience.objectives.base import Objective
from consilience.rules.by_data import ByData
from consilience.sweeping import is_zero
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox
    from consilience.client import Client, Trained
    from consilience.rules.base import Rule

CONTROL, CHANGE = "control", "control_change"
"""The groups that hold a control (c at the hub, c_k at a client) and, in an upload, the change of c_k."""


@final
@dataclass(frozen=True)
class ControlVariates(Objective):
    """Adds `c - c_k` to every gradient."""

    name: ClassVar[str] = "control_variates"
    option: Literal["I", "II"] = "II"
    """How a client's control is renewed: see above."""
    update: bool = True
    """Whether controls move at all; off, they stay 0 and this is the plain objective."""

    def init_hub(self, model: State) -> State:
        return {CONTROL: tree.zeros_like(model["params"])}

    def init_memory(self, model: State) -> State:
        return self.init_hub(model)

    def download(self, hub: State) -> State:
        return {CONTROL: hub[CONTROL]}

    def context(self, client: Client, down: State, memory: State) -> State:
        return {"correction": tree.sub(down[CONTROL], memory[CONTROL])}

    def correct(self, grads: Params, context: State) -> Params:
        return tree.add(grads, context["correction"]) if self.update else grads

    def finish(self, client: Client, down: State, trained: Trained, memory: State) -> tuple[State, State]:
        if not self.update:
            return {CHANGE: tree.zeros_like(memory[CONTROL])}, {}
        if self.option == "I":
            control = client.grad(down).params
        else:
            moved = tree.sub(down["params"], trained.model["params"])
            mean_gradient = tree.scale(1 / trained.length(client.solver), moved)
            control = tree.add(tree.sub(memory[CONTROL], down[CONTROL]), mean_gradient)
        return {CHANGE: tree.sub(control, memory[CONTROL])}, {CONTROL: control}

    def absorb(self, hub: State, inbox: Inbox) -> State:
        return {CONTROL: tree.axpy(1 / inbox.population, inbox.sum(CHANGE), hub[CONTROL])}

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.graph:
            return "its control is a mean over the whole population, so it is not defined on a graph"
        solver = conditions.solver
        plain = isinstance(solver, SGD) and is_zero(solver.momentum) and is_zero(solver.weight_decay)
        if self.option == "II" and not plain:
            return "option II needs plain SGD: set solver.momentum and solver.weight_decay to 0, or option I"
        if self.option == "II" and conditions.clip:
            return "option II needs gradients as they are: take local.clip away, or set option I"
        if self.option == "II" and is_zero(solver.lr):
            return "option II divides by the learning rate: set solver.lr above 0"
        return super().refuse(conditions)

    def refuse_rule(self, rule: Rule) -> str | None:
        if isinstance(rule, ByData) and rule.weighting == "samples":
            return (
                "controls are averaged uniformly, so models must be too: set the rule's weighting to uniform"
            )
        return None
