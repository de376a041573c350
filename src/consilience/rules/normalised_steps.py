"""Divide every client's update by its effective number of steps, so that more work does not mean more say.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization (NeurIPS 2020), FedNova. After tau_k local steps a client has moved by
w - w_k = lr sum_s a_ks g_s, where g_s is the gradient of step s; with p_k the shares,

    w <- w - tau_eff sum_k p_k (w - w_k) / |a_k|,   |a_k| = sum_s |a_ks|,   tau_eff = sum_k p_k |a_k|

where the |a_k| in tau_eff are those of steps without the pull. The coefficients of steps 0 ... tau - 1:

    plain SGD         a_s = 1, |a| = tau
    momentum rho      a_s = (1 - rho^(tau - s)) / (1 - rho), |a| = (tau - rho a_0) / (1 - rho)
    proximal pull mu  a_s = (1 - lr mu)^(tau - 1 - s), |a| = (1 - (1 - lr mu)^tau) / (lr mu)

Momentum and pull together make a weight on a spring. A unit of gradient has moved it by h_n after n steps,

    h_0 = 0,  h_1 = 1,  h_(n+1) = (1 + rho - lr mu) h_n - rho h_(n-1),  a_s = h_(tau - s),

and where lr mu > (1 - sqrt(rho))^2 it swings: the h_n change sign. Their plain sum, which is how far a
constant gradient goes, may then be next to 0 or below; the sum of |h_n| is at least 1. It has no closed form
and is added up over as many steps as the client took. The authors' release adds the counters of momentum and
pull one after the other, which counts the steps twice, and takes tau_eff = sum_k p_k tau_k with a pull.

Weight decay and clipping are part of the gradient, as in the release. The learning rate is constant within a
round and momentum starts anew every round, as this needs. Buffers are averaged as usual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

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
        effort = {"steps": _with_momentum(client.steps, momentum).to(client.steps.dtype)}
        if not is_zero(self.mu):
            pull = client.solver.lr * self.mu
            both = not is_zero(momentum)
            pulled = _with_both(client.steps, momentum, pull) if both else _with_pull(client.steps, pull)
            effort["pulled_steps"] = pulled.to(client.steps.dtype)
        return {"effort": effort}, {}

    def shares(self, inbox: Inbox) -> Tensor:
        return inbox.weights if self.weighting == "samples" else inbox.uniform

    def merge(self, old: Params, inbox: Inbox) -> Params:
        shares = self.shares(inbox)
        inverse = inbox.total(lambda messages: {"steps": 1 / _own_steps(messages)}, shares)["steps"]
        mean = inbox.total(lambda messages: {"steps": messages["effort"]["steps"]}, shares)["steps"]
        moved = inbox.total(_per_step, shares)
        rest = 1 - mean * inverse
        return {
            name: (mean * value + rest * old[name].double()).to(old[name].dtype)
            for name, value in moved.items()
        }

    def refuse_objective(self, objective: Objective) -> str | None:
        mu = objective.mu if isinstance(objective, Proximal) else 0.0
        if not is_swept(mu) and not is_swept(self.mu) and mu != self.mu:
            return f"the objective pulls with mu {mu}, but the rule reckons with {self.mu}: make them equal"
        return None

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.graph:
            return "neighbours' updates start from other models, so it is not defined on a graph"
        if conditions.stepwise:
            return "it reckons with steps of one learning rate: set schedule.per to round"
        solver = conditions.solver
        if not isinstance(solver, SGD) or solver.nesterov:
            return (
                "it knows the effective steps of SGD, plain or with momentum: choose that, without nesterov"
            )
        if solver.lr * self.mu >= 1:
            return f"lr times mu must be below 1, not {solver.lr * self.mu:g}: lower solver.lr or mu"
        return None


def _own_steps(messages: State) -> Tensor:
    """[messages] float64, the effective steps of each client."""
    effort = messages["effort"]
    own = effort.get("pulled_steps", effort["steps"]).double()
    # A client without steps sends what it received: its update is 0, whatever it is divided by.
    return torch.where(own > 0, own, 1.0)


def _per_step(messages: State) -> Params:
    """[messages, ...] float64, the clients' models, each divided by its effective steps."""
    steps = _own_steps(messages)
    return {
        name: value.double() / steps.reshape(-1, *[1] * (value.ndim - 1))
        for name, value in messages["params"].items()
    }


def _with_momentum(steps: Tensor, momentum: Number) -> Tensor:
    """0-d float64, the sum of the coefficients of SGD's steps."""
    steps = steps.double()
    if is_zero(momentum):
        return steps
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def _with_pull(steps: Tensor, pull: Number) -> Tensor:
    """0-d float64, the sum of the coefficients of plain steps with a pull: the learning rate times mu."""
    steps = steps.double()
    pull = torch.as_tensor(pull, dtype=steps.dtype, device=steps.device)
    summed = -torch.expm1(steps * torch.log1p(-pull)) / torch.where(pull > 0, pull, 1.0)
    return torch.where(pull > 0, summed, steps)


def _with_both(steps: Tensor, momentum: Number, pull: Number) -> Tensor:
    """0-d float64, the sum of the absolute coefficients of steps with momentum and a pull."""
    zero = torch.zeros_like(steps, dtype=torch.float64)
    total: Tensor = _Swings.apply(zero + steps, zero + momentum, zero + pull)  # type: ignore[no-untyped-call]
    return total


class _Swings(torch.autograd.Function):
    """Adds up |h_1| ... |h_steps|, elementwise; leaves `vmap`, which allows no loop of unknown length."""

    @staticmethod
    def forward(steps: Tensor, momentum: Tensor, pull: Tensor) -> Tensor:
        count, kept, drag = (value.cpu().numpy() for value in (steps.round(), momentum, pull))
        now, before, total = np.ones_like(count), np.zeros_like(count), np.zeros_like(count)
        for done in range(int(count.max())):
            total = total + np.where(done < count, np.abs(now), 0.0)
            now, before = (1 + kept - drag) * now - kept * before, now
        return torch.as_tensor(total).to(steps.device)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Saves nothing, because nobody differentiates the sum."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Tensor) -> tuple[Tensor, int]:
        rows = [
            value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip(given, in_dims, strict=True)
        ]
        total: Tensor = _Swings.apply(*rows)  # type: ignore[no-untyped-call]
        return total, 0
