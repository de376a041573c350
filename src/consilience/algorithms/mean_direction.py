"""What GIANT and DONE share: clients turn the mean gradient into Newton directions, which are averaged."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from consilience import sweeping, tree
from consilience.algorithm import Algorithm, Conditions, Inbox, Phase
from consilience.client import Client
from consilience.method import GRADIENT
from consilience.rules.by_data import ByData, Weighting
from consilience.types import Params, State

DIRECTION = "direction"
"""The group that holds a direction."""


class MeanDirection(Algorithm):
    """A round of two exchanges: the mean gradient g, then the mean p of directions; w <- w - lr p.

    Clients look at their whole data, in training mode and with the same batches and masks for all products.
    Statistics of batch normalisation move by the pass of the gradient and are averaged. No local steps are
    taken: `solver` and `local.epochs` do not apply, `local.batch_size` only cuts passes into pieces.
    """

    lr: float
    iterations: int
    weighting: Weighting

    def quick(self) -> Algorithm:
        return sweeping.replace(self, {"iterations": 1})

    @abstractmethod
    def direction(self, client: Client, model: State, gradient: Params) -> Params:
        """A client's direction p_k, an approximate solution of H_k p_k = g; the server goes against it."""

    def init_hub(self, model: State) -> State:
        return {**model, GRADIENT: tree.zeros_like(model["params"])}

    def phases(self) -> tuple[Phase, ...]:
        # Buffers have moved in between, so they are sent again.
        return (
            Phase(_model, _gradient, self._listen),
            Phase(_model_and_gradient, self._solve, self.step, known=frozenset({"params"})),
        )

    def _listen(self, hub: State, inbox: Inbox) -> State:
        return {**hub, GRADIENT: inbox.mean(GRADIENT, self.shares(inbox)), "buffers": inbox.buffers()}

    def _solve(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        return {DIRECTION: self.direction(client, down, down[GRADIENT])}, memory

    def step(self, hub: State, inbox: Inbox) -> State:
        """The hub after it has heard the directions."""
        direction = inbox.mean(DIRECTION, self.shares(inbox))
        return {**hub, "params": tree.sub(hub["params"], tree.scale(self.lr, direction))}

    def shares(self, inbox: Inbox) -> Tensor:
        """[messages] how much each message counts, in every exchange."""
        return ByData(self.weighting).shares(inbox)

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.graph:
            return "neighbours' gradients belong to other models, so it is not defined on a graph"
        return None


def _model(hub: State) -> State:
    return {"params": hub["params"], "buffers": hub["buffers"]}


def _model_and_gradient(hub: State) -> State:
    return {**_model(hub), GRADIENT: hub[GRADIENT]}


def _gradient(client: Client, down: State, memory: State) -> tuple[State, State]:
    gradient = client.grad(down)
    return {GRADIENT: gradient.params, "buffers": gradient.buffers}, memory
