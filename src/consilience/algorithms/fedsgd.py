"""FedSGD: synchronous distributed gradient descent, one full local gradient per client and round.

McMahan et al. (AISTATS 2017), FedAvg's limit B = infinity, E = 1: w <- w - lr sum_k (n_k / n) grad F_k(w).
The gradient is taken in training mode, and batch-normalisation statistics travel and are averaged. No local
steps are taken: `solver` and `local.epochs` do not apply, `local.batch_size` only cuts the pass into pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience import tree
from consilience.algorithm import Conditions, Family, Inbox, SingleExchange
from consilience.client import Client
from consilience.sweeping import check_non_negative
from consilience.types import State


@final
@dataclass(frozen=True)
class FedSGD(SingleExchange):
    """Every client sends one gradient, and the server takes one step down their mean."""

    name: ClassVar[str] = "fedsgd"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    family: ClassVar[Family] = "averaging"
    formula: ClassVar[str] = "w <- w - lr sum_k (n_k/n) grad F_k(w)"
    choose: ClassVar[str] = "As the reference without local steps: one exact gradient step a round."
    lr: float = 0.1

    def __post_init__(self) -> None:
        check_non_negative(self, "lr")

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        gradient = client.grad(down)
        return {"gradient": gradient.params, "buffers": gradient.buffers}, memory

    def combine(self, hub: State, inbox: Inbox) -> State:
        params = tree.sub(hub["params"], tree.scale(self.lr, inbox.mean("gradient")))
        return {**hub, "params": params, "buffers": inbox.buffers()}

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.graph:
            return "neighbours' gradients belong to other models, so it is not defined on a graph"
        return None
