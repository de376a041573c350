"""Go further than the mean where the clients disagree.

Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation (ICLR 2023). Local
training is read as a projection onto the client's own optima, all from the same w. With D_k = w_k - w, the
shares p_k of the mean, and D = sum_k p_k D_k

    rate = max(1, sum_k p_k ||D_k||^2 / (2 (||D||^2 + epsilon))),   w <- w + rate D

over trainable parameters. The last iterate oscillates, so the mean of the last two is evaluated; training
goes on from the last. Buffers are the newest.

The epsilon is that of the paper; the authors' release multiplies it by the number of clients and shrinks it
with the squared local learning rate. A good epsilon is small against ||D||^2, which grows with that square.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from consilience import tree
from consilience.rules.by_data import ByData
from consilience.server_steps.base import ServerStep
from consilience.sweeping import check_non_negative
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox
    from consilience.objectives.base import Objective
    from consilience.rules.base import Rule

PREVIOUS = "previous"
"""The group that holds the parameters before the last step."""


@final
@dataclass(frozen=True)
class Extrapolate(ServerStep):
    """`w <- w + rate (mean - w)`, where the rate grows with the disagreement of the clients.

    Attributes:
        epsilon: Keeps the rate low where the mean hardly moves.
        average_last_two: Whether the mean of the last two models is evaluated instead of the last.
    """

    name: ClassVar[str] = "extrapolate"
    epsilon: float = 1e-3
    average_last_two: bool = True

    def __post_init__(self) -> None:
        check_non_negative(self, "epsilon")

    def init(self, params: Params) -> State:
        if not self.average_last_two:
            return {}
        return {PREVIOUS: {name: value.clone() for name, value in params.items()}}

    def rate(self, old: Params, merged: Params, inbox: Inbox) -> Tensor:
        """0-d, how many times the mean update the hub goes; at least 1.

        Args:
            old: The hub's parameters.
            merged: The mean of the clients'.
            inbox: The uploads, with the shares of that mean as weights.
        """
        apart = inbox.total(lambda messages: {"apart": _sq_norms(messages["params"], old)})["apart"]
        together = _sq_norms({name: value[None] for name, value in merged.items()}, old)[0]
        bottom = 2 * (together + self.epsilon)
        return torch.where(bottom > 0, apart / bottom, 1.0).clamp(min=1)

    def apply(self, hub: State, merged: Params, inbox: Inbox) -> tuple[Params, State]:
        old = hub["params"]
        further = self.rate(old, merged, inbox) - 1  # from the mean on: a rate of 1 is the mean itself
        params = {name: (v + further * (v - old[name])).to(v.dtype) for name, v in merged.items()}
        return params, {PREVIOUS: old} if self.average_last_two else {}

    def evaluated(self, hub: State) -> Params:
        if not self.average_last_two:
            return hub["params"]
        return tree.scale(0.5, tree.add(hub["params"], hub[PREVIOUS]))

    def refuse_parts(self, objective: Objective, rule: Rule) -> str | None:
        if isinstance(rule, ByData):
            return None
        return "the rate is derived for the mean of the updates: use the rule by_data"

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.graph:
            return "neighbours train from other models, so how far theirs are apart says nothing on a graph"
        return super().refuse(conditions)


def _sq_norms(stacked: Params, old: Params) -> Tensor:
    """[messages] the squared distances from the old parameters, in float64."""
    norms = [
        torch.linalg.vector_norm((value - old[name]).reshape(len(value), -1), dim=1, dtype=torch.float64)
        for name, value in stacked.items()
    ]
    return torch.stack(norms).square().sum(0)
