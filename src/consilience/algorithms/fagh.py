"""FAGH: a Newton-like server step with a rank-one Hessian built from one of its rows.

Sen, Qin, Krishna Mohan: FAGH: Accelerating Federated Learning with Approximated Global Hessian. Clients
send the gradient g_i and one row v_i of the Hessian at the hub's model; no local steps. With moving
averages G, V of both (bias-corrected) and r the row's own coordinate, H = V V' / V[r] and

    w <- w - lr (H + rho I)^-1 G,   (H + rho I)^-1 G = (G - V (V.G) / (rho V[r] + V.V)) / rho

by Sherman and Morrison (the printed forms lose a rho; this one matches a dense solve and never divides by
V[r]). A negative V[r] would turn the step uphill along V: `curvature = "abs"` uses max(|V[r]|, 1e-12).

Row 0 is the weight of one corner pixel: always 0 on data with a black border that is not normalised, and
then FAGH is momentum descent with rate lr/rho. `row_index` may name another coordinate, the first bias, or
the coordinate with the largest curvature, which the clients vote on once before round 0; only then does the
server tell which it is, with every model.
As in FedSGD, `solver` and `local.epochs` do not apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from consilience import tree
from consilience.algorithm import Conditions, Family, Inbox, Phase, SingleExchange
from consilience.client import Client
from consilience.errors import UserError
from consilience.sweeping import check_non_negative, is_swept
from consilience.types import Params, State


@final
@dataclass(frozen=True)
class FAGH(SingleExchange):
    """Clients send a gradient and one Hessian row; the server solves a rank-one Newton system."""

    name: ClassVar[str] = "fagh"
    paper: ClassVar[str] = "Sen, Qin, Krishna Mohan, FAGH"
    family: ClassVar[Family] = "curvature and statistics"
    formula: ClassVar[str] = "w <- w - lr (V V'/V[0] + rho I)^-1 G, G mean gradient, V mean Hessian row"
    choose: ClassVar[str] = "When clients can do one gradient a round and curvature should speed it up."
    lr: float = 0.1
    rho: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    curvature: Literal["abs", "as_printed"] = "abs"
    row_index: int | Literal["bias0", "max_diag"] = 0

    def __post_init__(self) -> None:
        check_non_negative(self, "lr")
        if not is_swept(self.rho) and not self.rho > 0:
            raise UserError(f"fagh: rho must be above 0, not {self.rho}")
        for beta in (self.beta1, self.beta2):
            if not is_swept(beta) and not 0 <= beta < 1:
                raise UserError(f"fagh: beta1 and beta2 must be in [0, 1), not {beta}")

    def init_hub(self, model: State) -> State:
        params = model["params"]
        zeros = tree.zeros_like(params)
        device = next(iter(params.values())).device
        clock = {"rounds": torch.zeros((), dtype=torch.int64, device=device)}
        hub = {**model, "gradient": zeros, "row": zeros, "clock": clock}
        if self._voted:
            return {**hub, "pivot": {"index": torch.zeros((), dtype=torch.int64, device=device)}}
        _position(params, self.row_index)  # refuses one outside the model
        return hub

    @property
    def _voted(self) -> bool:
        """Whether clients choose the row; else everybody knows it from the method."""
        return self.row_index == "max_diag"

    def _unit(self, params: Params, state: State) -> Params:
        """The unit vector of the row's own coordinate; where clients voted, `state` says which that is."""
        index = state["pivot"]["index"] if self._voted else _position(params, self.row_index)
        return _one_hot(params, index)

    def broadcast(self, hub: State) -> State:
        model = super().broadcast(hub)
        return {**model, "pivot": hub["pivot"]} if self._voted else model

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        gradient = client.grad(down)
        row = client.hvp(down, self._unit(down["params"], down))
        return {"gradient": gradient.params, "row": row, "buffers": gradient.buffers}, memory

    def combine(self, hub: State, inbox: Inbox) -> State:
        rounds = hub["clock"]["rounds"] + 1
        gradient = tree.axpy(self.beta1, hub["gradient"], tree.scale(1 - self.beta1, inbox.mean("gradient")))
        row = tree.axpy(self.beta2, hub["row"], tree.scale(1 - self.beta2, inbox.mean("row")))
        elapsed = rounds.to(next(iter(row.values())).dtype)
        unbiased_gradient = tree.scale(1 / (1 - self.beta1**elapsed), gradient)
        unbiased_row = tree.scale(1 / (1 - self.beta2**elapsed), row)
        pivot = tree.dot(unbiased_row, self._unit(unbiased_row, hub))
        if self.curvature == "abs":
            pivot = pivot.abs().clamp(min=1e-12)
        step = newton_step(unbiased_gradient, unbiased_row, pivot, self.rho)
        return {
            **hub,
            "params": tree.sub(hub["params"], tree.scale(self.lr, step)),
            "buffers": inbox.buffers(),
            "gradient": gradient,
            "row": row,
            "clock": {"rounds": rounds},
        }

    def setup(self) -> tuple[Phase, ...]:
        return (Phase(super().broadcast, _diagonal, _choose_pivot),) if self._voted else ()

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.graph:
            return "neighbours' gradients belong to other models, so it is not defined on a graph"
        return None


def newton_step(gradient: Params, row: Params, pivot: Tensor, rho: float | Tensor) -> Params:
    """`(row row' / pivot + rho I)^-1 gradient`, without dividing by the pivot.

    Args:
        gradient: The mean gradient.
        row: One row of the mean Hessian.
        pivot: 0-d, the entry of that row on the diagonal.
        rho: What is added to the diagonal, above 0.
    """
    denominator = rho * pivot + tree.sq_norm(row)
    degenerate = denominator.abs() <= torch.finfo(denominator.dtype).tiny
    share = torch.where(degenerate, 0.0, tree.dot(row, gradient) / torch.where(degenerate, 1.0, denominator))
    return tree.scale(1 / rho, tree.axpy(-share, row, gradient))


def _position(params: Params, row_index: int | str) -> int:
    """The place of a named row's own coordinate in the concatenation of all parameters."""
    sizes = [value.numel() for value in params.values()]
    if isinstance(row_index, int):
        if not 0 <= row_index < sum(sizes):
            raise UserError(f"fagh: row_index {row_index} is outside the model's {sum(sizes)} parameters")
        return row_index
    first = next((i for i, name in enumerate(params) if name.endswith("bias")), None)
    if first is None:
        raise UserError("fagh: row_index bias0 needs a model with a bias")
    return sum(sizes[:first])


def _one_hot(params: Params, index: Tensor | int) -> Params:
    """The unit vector of one position in the concatenation of all parameters."""
    chosen: Params = {}
    start = 0
    for name, value in params.items():
        positions = torch.arange(start, start + value.numel(), device=value.device).reshape(value.shape)
        chosen[name] = (positions == index).to(value.dtype)
        start += value.numel()
    return chosen


def _diagonal(client: Client, down: State, memory: State) -> tuple[State, State]:
    return {"diagonal": client.squared_gradients(down, kind="per_sample_mean")}, memory


def _choose_pivot(hub: State, inbox: Inbox) -> State:
    diagonal = torch.cat([value.flatten() for value in inbox.mean("diagonal").values()])
    return {**hub, "pivot": {"index": diagonal.argmax()}}
