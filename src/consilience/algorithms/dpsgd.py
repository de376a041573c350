"""D-PSGD: decentralised parallel SGD, gossip with doubly stochastic weights.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu: Can Decentralized Algorithms Outperform Centralized Algorithms?
(NeurIPS 2017). W are the Metropolis-Hastings weights of the graph, g_i a stochastic gradient:

    combine_then_adapt   x_i <- sum_j W_ij x_j - lr g_i(x_i), as printed
    adapt_then_combine   x_i <- sum_j W_ij (x_j - lr g_j(x_j))

They are these with `local.steps: 1`; with more, the move of a node's whole local training takes the place of
-lr g_i. Either way one model travels over an edge: in the printed order that from which a node started, and
its move stays with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from consilience import tree
from consilience.algorithm import Family, Inbox, Phase
from consilience.client import Client
from consilience.method import Method, Parts
from consilience.rules.by_data import ByData
from consilience.types import State

Order = Literal["adapt_then_combine", "combine_then_adapt"]
"""Whether a node moves before it hears its neighbours, or from where they all were."""

MOVE = "move"
"""The group that holds how far a node moved in its own training."""


@final
@dataclass(frozen=True)
class DPSGD(Method):
    """Local steps, and averages with symmetric weights that favour no node."""

    name: ClassVar[str] = "dpsgd"
    paper: ClassVar[str] = "Lian et al., NeurIPS 2017"
    family: ClassVar[Family] = "averaging"
    formula: ClassVar[str] = "x_i <- sum_j W_ij (x_j - lr g_j(x_j)), W Metropolis-Hastings"
    choose: ClassVar[str] = "As the standard reference on a graph: all nodes count alike (beyond the papers)"
    order: Order = "adapt_then_combine"

    def parts(self) -> Parts:
        return Parts(rule=ByData("metropolis"))

    def phases(self) -> tuple[Phase, ...]:
        (exchange,) = super().phases()
        return (exchange._replace(private=frozenset({MOVE})),)  # a node's move is for itself

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        upload, memory = super().local(client, down, memory)
        if self.order == "combine_then_adapt":
            move = tree.sub(upload["params"], down["params"])
            upload = {**upload, "params": down["params"], MOVE: move}
        return upload, memory

    def combine(self, hub: State, inbox: Inbox) -> State:
        mixed = super().combine(hub, inbox)
        if self.order == "adapt_then_combine":
            return mixed
        assert inbox.own is not None  # at a server it is refused
        return {**mixed, "params": tree.add(mixed["params"], inbox.own[MOVE])}
