"""Divide every client's update by its effective number of steps, so that more work does not mean more say.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization (NeurIPS 2020), FedNova. With a_k the distance, in units of lr, that tau_k local steps along a
constant unit gradient go, and p_k the shares,

    w <- w - tau_eff sum_k p_k (w - w_k) / a_k,   tau_eff = sum_k p_k a_k (of steps without the pull)

    plain SGD         a = tau
    momentum rho      a = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)
    proximal pull mu  a <- (1 - lr mu) a + 1 at every step

Momentum and pull together: the authors' release adds both counters one after the other, which counts the
steps twice, and takes tau_eff = sum_k p_k tau_k; here a_k is what these local steps really do. Weight decay
and clipping are part of the gradient, as in the release. The learning rate is constant within a round and
momentum starts anew every round, as this needs. Buffers are averaged as usual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from consilience import aggregate
from consilience.learning.solvers import SGD
from consilience.objectives.proximal import Proximal
from consilience.rules.base import Rule
from consilience.rules.by_data import Weighting
from consilience.sweeping import check_non_negative, is_swept, is_zero
from consilience.types import Number, Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox
    from consilience.client import Client
    from consilience.objectives.base import Objective

MOST_STEPS_BITS = 24
"""Steps are counted up to 2 to this power, the largest whole number that is safe in float32."""


@final
@dataclass(frozen=True)
class NormalisedSteps(Rule):
    """The mean of updates per effective step, times the mean effective number of steps (FedNova).

    Attributes:
        mu: The strength of the objective's proximal pull; 0 where there is none.
        weighting: The weights of the updates.
    """

    name: ClassVar[str] = "normalised_steps"
    mu: float = 0.0
    weighting: Weighting = "samples"

    def __post_init__(self) -> None:
        check_non_negative(self, "mu")

    def evidence(self, client: Client, model: State, memory: State) -> tuple[State, State]:
        assert isinstance(client.solver, SGD)  # others are refused
        momentum = client.solver.momentum
        free = effective_steps(client.steps, momentum)
        effort = {"steps": free.to(client.steps.dtype)}
        if not is_zero(self.mu):
            pulled = effective_steps(client.steps, momentum, client.solver.lr * self.mu)
            effort["pulled_steps"] = pulled.to(client.steps.dtype)
        return {"effort": effort}, {}

    def shares(self, inbox: Inbox) -> Tensor:
        return inbox.weights if self.weighting == "samples" else inbox.uniform

    def merge(self, old: Params, inbox: Inbox) -> Params:
        effort, shares = inbox["effort"], self.shares(inbox)
        free = effort["steps"].double()
        own = effort.get("pulled_steps", free).double()
        # A client without steps sends what it received: its update is 0, whatever it is divided by.
        length = (shares * free).sum() * shares / torch.where(own > 0, own, 1.0)
        rest = 1 - length.sum()
        return {
            name: (aggregate.weighted_sum(value, length) + rest * old[name].double()).to(value.dtype)
            for name, value in inbox["params"].items()
        }

    def refuse_objective(self, objective: Objective) -> str | None:
        mu = objective.mu if isinstance(objective, Proximal) else 0.0
        if not is_swept(mu) and not is_swept(self.mu) and mu != self.mu:
            return f"the objective pulls with mu {mu}, but the rule reckons with {self.mu}: make them equal"
        return None

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.graph:
            return "neighbours' updates start from other models, so it is not defined on a graph"
        solver = conditions.solver
        if not isinstance(solver, SGD) or solver.nesterov:
            return (
                "it knows the effective steps of SGD, plain or with momentum: choose that, without nesterov"
            )
        if solver.lr * self.mu >= 1:
            return f"lr times mu must be below 1, not {solver.lr * self.mu:g}: lower solver.lr or mu"
        return None


def effective_steps(steps: Tensor, momentum: Number = 0.0, pull: Number = 0.0) -> Tensor:
    """How far steps along a constant unit gradient go, in units of the learning rate; 0-d float64.

    Args:
        steps: 0-d, how many.
        momentum: Of SGD.
        pull: The learning rate times the strength of the pull back to the start.
    """
    steps = steps.double()
    if is_zero(pull):
        if is_zero(momentum):
            return steps
        return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    # One step maps (distance, velocity, 1) linearly; its power is taken by repeated squaring, because
    # the eigenvalues, and with them any closed form, are complex for usual momentum and pull.
    zero, one = torch.zeros_like(steps), torch.ones_like(steps)
    kept, drag = zero + momentum, zero + pull
    rows = ((1 - drag, kept, one), (-drag, kept, one), (zero, zero, one))
    power = torch.stack([torch.stack(row) for row in rows])
    state = torch.stack([zero, zero, one])
    count = steps.round().long()
    for bit in range(MOST_STEPS_BITS):
        state = torch.where((count >> bit) & 1 == 1, power @ state, state)
        power = power @ power
    return state[0]
