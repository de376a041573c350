"""DANE: every client minimises its own loss, shifted so that its slope at the hub's model is the global one.

Shamir, Srebro, Zhang: Communication-Efficient Distributed Optimization using an Approximate Newton-type
Method (ICML 2014). With g = mean_k grad F_k(w) from a first exchange,

    w_k = argmin_v F_k(v) - <grad F_k(w) - eta g, v> + (mu/2) ||v - w||^2,    w <- mean_k w_k.

For quadratic losses that is w <- w - eta mean_k (H_k + mu I)^-1 g, an approximate Newton step. Local problems
are solved by Newton's method on the whole data (`solve: exact`), each step by conjugate gradients and a
search along them, or by local training from w (`solve: inexact`). `solver` and `local.epochs` are those of
`inexact`; an exact solve only cuts its passes into pieces of `local.batch_size`. Means are uniform, as in the
paper, or by data.

Where clients' data differ, mu = 0 diverges: a client's shifted loss need not even have a minimum, since the
slope of a classification loss is bounded. The paper has a few times the weight of its l2 term; there is none
here, so the default is larger. Steps that conjugate gradients find along a curvature that is not positive
still lead down, and so does the search, but a network's local minimum is one of many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import Tensor

from consilience import sweeping, tree
from consilience.algorithm import Algorithm, Conditions, Family
from consilience.client import Client
from consilience.errors import UserError
from consilience.learning.solving import newton_minimum
from consilience.method import Method, Parts
from consilience.objectives.gradient_shift import GradientShift
from consilience.rules.by_data import ByData, Weighting
from consilience.types import Params, State

Solve = Literal["exact", "inexact"]
"""How a client minimises its objective: by Newton's method, or by local training."""


class ShiftedMinimum(Method):
    """A method whose clients send (nearly) the minimum of their shifted loss: DANE and FedDANE."""

    solve: Solve
    newton_steps: int
    iterations: int

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("newton_steps", "iterations"):
            if getattr(self, field) < 1:
                raise UserError(f"{self.name}: {field} must be at least 1, not {getattr(self, field)}")

    def quick(self) -> Algorithm:
        return sweeping.replace(self, {"newton_steps": 1, "iterations": 1})

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        if self.solve == "inexact":
            return super().local(client, down, memory)
        objective = self.parts().objective
        assert isinstance(objective, GradientShift)
        context = objective.context(client, down, memory)
        shift = objective.correct(tree.zeros_like(down["params"]), context)

        def model(params: Params) -> State:
            return {"params": params, "buffers": down["buffers"]}

        def value(params: Params) -> Tensor:
            moved = tree.sub(params, down["params"])
            return client.loss(model(params)) + tree.dot(moved, tree.axpy(0.5 * objective.mu, moved, shift))

        def gradient(params: Params) -> Params:
            slopes = objective.correct(client.grad(model(params)).params, context)
            return tree.axpy(objective.mu, tree.sub(params, down["params"]), slopes)

        def product(params: Params, vector: Params) -> Params:
            return tree.axpy(objective.mu, vector, client.hvp(model(params), vector))

        found = newton_minimum(value, gradient, product, down["params"], self.newton_steps, self.iterations)
        return {"params": found, "buffers": client.grad(model(found)).buffers}, memory


@final
@dataclass(frozen=True)
class DANE(ShiftedMinimum):
    """Clients minimise their losses, shifted to the global gradient; the server averages the minima.

    Attributes:
        eta: How much of the global gradient is put in place of a client's own.
        mu: How strongly a local model is tied to the hub's.
        solve: Whether clients find the minimum by Newton's method (exact) or train (inexact).
        newton_steps: The steps of Newton's method.
        iterations: The most iterations of conjugate gradients in each, every one a pass over the data.
        weighting: How clients count in all means.
    """

    name: ClassVar[str] = "dane"
    paper: ClassVar[str] = "Shamir, Srebro, Zhang, ICML 2014"
    family: ClassVar[Family] = "curvature and statistics"
    formula: ClassVar[str] = (
        "w_k = argmin F_k(v) - <grad F_k(w) - eta g, v> + (mu/2) ||v - w||^2; w <- mean w_k"
    )
    choose: ClassVar[str] = "When the model is convex, all clients take part and their data are alike."
    eta: float = 1.0
    mu: float = 1.0
    solve: Solve = "exact"
    newton_steps: int = 3
    iterations: int = 10
    weighting: Weighting = "uniform"

    def parts(self) -> Parts:
        return Parts(GradientShift(eta=self.eta, mu=self.mu), ByData(self.weighting))

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.unreliable:
            return "its shift is by the gradient of all clients: set participation 1.0 and failure_rate 0"
        return super().refuse(conditions)
