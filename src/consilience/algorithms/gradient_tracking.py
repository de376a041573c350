"""Gradient tracking: every node follows an estimate of the whole graph's gradient.

Nedic, Olshevsky, Shi: Achieving Geometric Convergence for Distributed Optimization over Time-Varying Graphs
(SIAM Journal on Optimization 2017), DIGing; in the other order Di Lorenzo, Scutari: NEXT: In-Network
Nonconvex Optimization (IEEE Transactions on Signal and Information Processing over Networks 2016). With
Metropolis-Hastings weights W and y_i^0 = grad F_i(x_i^0):

    combine_then_adapt  x_i^{t+1} = sum_j W_ij x_j^t - lr y_i^t,    DIGing as printed
    adapt_then_combine  x_i^{t+1} = sum_j W_ij (x_j^t - lr y_j^t),  which stands several times longer steps

    y_i^{t+1} = sum_j W_ij y_j^t + grad F_i(x_i^{t+1}) - grad F_i(x_i^t)

The mean of all y_i always is the mean of all gradients, so with a constant lr nodes converge to the minimiser
of the mean of all F_i, where D-PSGD stays at a distance. Every node counts the same, whatever its samples.

One exchange a round: a node computes its gradient where it stands, completes y_i with it, and sends x_i and
y_i; then both are mixed. Gradients are full ones, in training mode, and buffers are averaged by data. No
local steps are taken: `solver` and `local.epochs` do not apply, `local.batch_size` only cuts the pass into
pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience import tree
from consilience.algorithm import Conditions, Family, Inbox, SingleExchange
from consilience.algorithms.dpsgd import Order
from consilience.client import Client
from consilience.sweeping import check_non_negative
from consilience.types import State

TRACKER, LAST = "tracker", "last_gradient"
"""The groups that hold y_i and the gradient that a node computed last."""


@final
@dataclass(frozen=True)
class GradientTracking(SingleExchange):
    """Gossip on models and on gradients: one step a round along the tracked mean gradient."""

    name: ClassVar[str] = "gradient-tracking"
    paper: ClassVar[str] = "Nedic, Olshevsky, Shi, SIAM Journal on Optimization 2017"
    family: ClassVar[Family] = "drift correction"
    formula: ClassVar[str] = "x_i <- sum_j W_ij (x_j - lr y_j); y_i <- sum_j W_ij y_j + change of grad F_i"
    choose: ClassVar[str] = "As the exact reference on a graph, however data differ (beyond the papers)"
    lr: float = 0.1
    order: Order = "adapt_then_combine"

    def __post_init__(self) -> None:
        check_non_negative(self, "lr")

    def init_hub(self, model: State) -> State:
        return {**model, TRACKER: tree.zeros_like(model["params"])}

    def init_memory(self, model: State) -> State:
        return {LAST: tree.zeros_like(model["params"])}

    def broadcast(self, hub: State) -> State:
        return {**super().broadcast(hub), TRACKER: hub[TRACKER]}

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        gradient = client.grad(down)
        tracker = tree.add(down[TRACKER], tree.sub(gradient.params, memory[LAST]))
        params = down["params"]
        if self.order == "adapt_then_combine":
            params = tree.axpy(-self.lr, tracker, params)
        upload = {"params": params, "buffers": gradient.buffers, TRACKER: tracker}
        return upload, {**memory, LAST: gradient.params}

    def combine(self, hub: State, inbox: Inbox) -> State:
        assert inbox.own is not None  # at a server it is refused
        params, tracker = (inbox.mean(group, inbox.mixing) for group in ("params", TRACKER))
        if self.order == "combine_then_adapt":
            params = tree.axpy(-self.lr, inbox.own[TRACKER], params)
        return {**hub, "params": params, "buffers": inbox.buffers(), TRACKER: tracker}

    def refuse(self, conditions: Conditions) -> str | None:
        if not conditions.graph:
            return "gradient tracking is defined on a graph of peers: set topology"
        if conditions.unreliable:
            return "the tracked gradients must add up, so every node takes part and no message may be missing"
        return None
