"""GIANT: the mean of local Newton directions for the global gradient.

Wang, Roosta, Xu, Mahoney: GIANT: Globally Improved Approximate Newton Method for Distributed Optimization
(NeurIPS 2018). With g = sum_k p_k grad F_k(w) from a first exchange, p_k the shares of the data and H_k the
Hessian of F_k at w, client k solves by conjugate gradients from 0, `iterations` at most,

    (H_k + damping I) s_k = g,    and then    w <- w - lr s,    s = sum_k p_k s_k:

the harmonic mean of the clients' Hessians stands for their mean. With `line_search` a third exchange sends s
to the clients, which answer with F_k(w - rate s) for the rates lr, lr/4, ..., lr/4^9, and the server takes
the largest with f(w - rate s) <= f(w) - 0.1 rate s.g, up to rounding; where none is such it stays.

Deviations: means are weighted by data (the paper's shards are equal; `weighting: uniform` is its mean), and
the residual at which conjugate gradients stop is relative to g, since near an optimum g itself is below any
absolute bound. The paper has convex losses with an l2 term, whose weight is the natural `damping`; a softmax
alone has a singular Hessian, so it must not be 0 there. Where a Hessian turns out not to be positive, the
solution so far is sent, or g where that is the first thing seen, so that s always leads down. FAGH's authors,
who compare GIANT on convolutional networks, found no setting in which it works there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

import torch

from consilience import tree
from consilience.algorithm import Family, Inbox, Phase
from consilience.algorithms.mean_direction import DIRECTION, MeanDirection
from consilience.client import Client
from consilience.errors import UserError
from consilience.learning.solving import backtracked, conjugate_gradients, damped, trial_rates
from consilience.method import GRADIENT
from consilience.rules.by_data import Weighting
from consilience.sweeping import check_non_negative
from consilience.types import Params, State

LOSSES = "losses"
"""The group that holds a client's losses: `now` at the hub's model, `trials` for each rate of the search."""


@final
@dataclass(frozen=True)
class GIANT(MeanDirection):
    """Clients solve for Newton directions by conjugate gradients; the server goes along their mean.

    Attributes:
        lr: The step along the mean direction, or the longest that the search tries.
        damping: What is added to the diagonal of every client's Hessian.
        iterations: The most iterations of conjugate gradients, each a pass over a client's data.
        tolerance: The residual, relative to the gradient, at which they stop.
        line_search: Whether a third exchange finds the step.
        weighting: How clients count in all means.
    """

    name: ClassVar[str] = "giant"
    paper: ClassVar[str] = "Wang, Roosta, Xu, Mahoney, NeurIPS 2018"
    family: ClassVar[Family] = "curvature and statistics"
    formula: ClassVar[str] = "w <- w - lr mean_k (H_k + damping I)^-1 g, g mean gradient"
    choose: ClassVar[str] = (
        "When the model is convex, clients' data are alike and rounds cost more than passes."
    )
    lr: float = 1.0
    damping: float = 0.01
    iterations: int = 10
    tolerance: float = 1e-8
    line_search: bool = True
    weighting: Weighting = "samples"

    def __post_init__(self) -> None:
        check_non_negative(self, "lr", "damping", "tolerance")
        if self.iterations < 1:
            raise UserError(f"giant: iterations must be at least 1, not {self.iterations}")

    def init_hub(self, model: State) -> State:
        hub = super().init_hub(model)
        return {**hub, DIRECTION: tree.zeros_like(model["params"])} if self.line_search else hub

    def direction(self, client: Client, model: State, gradient: Params) -> Params:
        hessian = damped(partial(client.hvp, model), self.damping)
        return conjugate_gradients(hessian, gradient, self.iterations, self.tolerance)

    def phases(self) -> tuple[Phase, ...]:
        if not self.line_search:
            return super().phases()
        search = Phase(_direction, self._try, self._choose, known=frozenset({"params", "buffers"}))
        return (*super().phases(), search)

    def step(self, hub: State, inbox: Inbox) -> State:
        if not self.line_search:
            return super().step(hub, inbox)
        return {**hub, DIRECTION: inbox.mean(DIRECTION, self.shares(inbox))}

    def _try(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        """A client sends its losses along the direction."""
        losses = [
            client.loss({**down, "params": tree.axpy(-rate, down[DIRECTION], down["params"])})
            for rate in trial_rates(self.lr, down["params"]).unbind()
        ]
        # A step so long that the loss overflows is a bad step and no reason to reject the message.
        trials = torch.stack(losses).nan_to_num(nan=ENORMOUS, posinf=ENORMOUS)
        return {LOSSES: {"now": client.loss(down), "trials": trials}}, memory

    def _choose(self, hub: State, inbox: Inbox) -> State:
        losses = inbox.mean(LOSSES, self.shares(inbox))
        rates = trial_rates(self.lr, hub["params"])
        slope = tree.dot(hub[DIRECTION], hub[GRADIENT])
        rate = backtracked(losses["now"], losses["trials"], rates, slope)
        return {**hub, "params": tree.axpy(-rate, hub[DIRECTION], hub["params"])}


ENORMOUS = 1e300
"""What stands for a loss that is not finite."""


def _direction(hub: State) -> State:
    return {group: hub[group] for group in ("params", "buffers", DIRECTION)}
