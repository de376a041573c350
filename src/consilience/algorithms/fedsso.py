"""FedSSO: a quasi-Newton server for clients that train as in FedAvg.

Ma et al.: FedSSO: A Federated Server-Side Second-Order Optimization Algorithm (arXiv 2022) and its release.
With x the mean of the trained models and lr the clients' learning rate, the server takes g = (w - x) / lr for
a gradient and learns the inverse Hessian D from how it changes, D = I before the first round:

    s = sigma (w_t - w_(t-1)),   y = g_t - g_(t-1),   w <- w - server_lr D g
    dfp     D <- D + s s'/kappa - (D y)(D y)' / (y'D y)
    bfgs    D <- (I - s y'/kappa) D (I - y s'/kappa) + s s'/kappa
    lbfgs   D from the last `history` pairs (s, y) with s'y > 1e-10, by two loops (Nocedal 1980)

where kappa = s'y if that lies within (least, most), else 2 s's / (least + most); so D stays positive. The
paper speaks of BFGS, its dense release has the formula of DFP, its other one L-BFGS. Bounds are on s'y as in
the dense release, or with `bound: quotient` on s'y / s's as in the theory. The release begins with w = 0 as
the model before the first, which is no curvature at all: here D changes from the second round on. L-BFGS
scales its first step by min(1, 1 / |g|_1), as torch.optim.LBFGS does; turned off, and with server_lr = lr,
the first round is FedAvg's.

Clients send (w - w_k) / lr in place of w_k: they know their learning rate, and the bytes are the same.
`per_step` divides by their numbers of steps too, so that g has the size of a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from consilience import tree
from consilience.algorithm import Conditions, Family, Inbox, SingleExchange
from consilience.client import Client
from consilience.errors import UserError
from consilience.rules.by_data import Weighting
from consilience.sweeping import check_non_negative, is_swept, is_zero
from consilience.types import State

GRADIENT, LEARNED = "gradient", "quasi_newton"
"""The groups that hold g in an upload, and at the hub what D is made of."""
LARGEST = 5_000
"""The most parameters for which D is kept as a matrix."""
CURVED = 1e-10
"""What s'y must exceed for L-BFGS to keep a pair."""


@final
@dataclass(frozen=True)
class FedSSO(SingleExchange):
    """FedAvg with a quasi-Newton step at the server.

    Attributes:
        update: How the inverse Hessian is learned.
        server_lr: The step size.
        sigma: How much of a move of the model counts as s.
        least: The lower bound on curvature that is believed, of dfp and bfgs.
        most: The upper one.
        bound: What is bounded.
        history: How many pairs L-BFGS keeps.
        scaled_start: Whether L-BFGS shortens its first step.
        per_step: Whether g is divided by the number of local steps.
        weighting: The weights of the mean.
    """

    name: ClassVar[str] = "fedsso"
    paper: ClassVar[str] = "Ma et al., FedSSO, arXiv 2022"
    family: ClassVar[Family] = "server optimisers"
    formula: ClassVar[str] = (
        "w <- w - server_lr D g, g = (w - sum_k p_k w_k) / lr, D by (L-)BFGS or DFP from g"
    )
    choose: ClassVar[str] = (
        "When the server should use curvature and clients shall neither compute nor send anything more."
    )
    update: Literal["dfp", "bfgs", "lbfgs"] = "lbfgs"
    server_lr: float = 1.0
    sigma: float = 0.7
    least: float = 1e-4
    most: float = 1e4
    bound: Literal["product", "quotient"] = "product"
    history: int = 10
    scaled_start: bool = True
    per_step: bool = False
    weighting: Weighting = "samples"

    def __post_init__(self) -> None:
        check_non_negative(self, "server_lr", "sigma", "least", "most")
        if not is_swept(self.least) and not is_swept(self.most) and not self.least < self.most:
            raise UserError(f"fedsso: least must be below most, not {self.least} and {self.most}")
        if self.history < 1:
            raise UserError(f"fedsso: history must be at least 1, not {self.history}")

    def init_hub(self, model: State) -> State:
        some = tree.concatenated(model["params"])
        size, blank = len(some), torch.zeros_like(some)
        learned = {
            "rounds": torch.zeros((), dtype=torch.int64, device=some.device),
            "params": blank,
            GRADIENT: blank.clone(),
        }
        if self.update == "lbfgs":
            pairs = some.new_zeros(self.history, size)
            return {**model, LEARNED: {**learned, "moves": pairs, "changes": pairs.clone()}}
        if size > LARGEST:
            raise UserError(
                f"fedsso: {self.update} keeps a matrix of {size:,} x {size:,} numbers for this model; "
                f"above {LARGEST:,} parameters choose update lbfgs"
            )
        return {
            **model,
            LEARNED: {**learned, "inverse": torch.eye(size, dtype=torch.float64).to(some.device)},
        }

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        trained = client.train(down)
        moved = tree.sub(down["params"], trained.model["params"])
        length = trained.length(client.solver) if self.per_step else client.solver.lr
        return {GRADIENT: tree.scale(1 / length, moved), "buffers": trained.model["buffers"]}, memory

    def combine(self, hub: State, inbox: Inbox) -> State:
        shares = inbox.weights if self.weighting == "samples" else inbox.uniform
        params, learned = tree.concatenated(hub["params"]), hub[LEARNED]
        gradient = tree.concatenated(inbox.mean(GRADIENT, shares))
        move = self.sigma * (params.double() - learned["params"].double())
        change = gradient.double() - learned[GRADIENT].double()
        first = learned["rounds"] == 0
        learn = self._keep_pair if self.update == "lbfgs" else self._renew
        known = {
            name: torch.where(first, learned[name], value)
            for name, value in learn(learned, move, change).items()
        }
        if self.update == "lbfgs":
            step = two_loops(known["moves"], known["changes"], gradient.double())
            if self.scaled_start:
                short = 1 / gradient.abs().sum(dtype=torch.float64).clamp(min=1)
                step = torch.where(first, short, 1.0) * step
        else:
            step = known["inverse"] @ gradient.double()
        return {
            **hub,
            "params": tree.divided((params - self.server_lr * step).to(params.dtype), hub["params"]),
            "buffers": inbox.buffers(),
            LEARNED: {"rounds": learned["rounds"] + 1, "params": params, GRADIENT: gradient, **known},
        }

    def _renew(self, learned: dict[str, Tensor], move: Tensor, change: Tensor) -> dict[str, Tensor]:
        """The matrix after one more pair."""
        product, square = move @ change, move @ move
        bounded = product if self.bound == "product" else product / torch.where(square > 0, square, 1.0)
        believed = (bounded > self.least) & (bounded < self.most)
        kappa = torch.where(believed, product, 2 * square / (self.least + self.most))
        formula = dfp if self.update == "dfp" else bfgs
        return {"inverse": formula(learned["inverse"], move, change, kappa)}

    def _keep_pair(self, learned: dict[str, Tensor], move: Tensor, change: Tensor) -> dict[str, Tensor]:
        """The pairs after one more, which comes last; those of too little curvature are left out."""
        curved = move @ change > CURVED
        pairs = {"moves": move, "changes": change}
        return {
            name: torch.where(
                curved, torch.cat((learned[name][1:], new[None].to(learned[name].dtype))), learned[name]
            )
            for name, new in pairs.items()
        }

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.graph:
            return "neighbours' gradients belong to other models, so it is not defined on a graph"
        if is_zero(conditions.solver.lr):
            return "it divides by the learning rate: set solver.lr above 0"
        return None


def dfp(inverse: Tensor, move: Tensor, change: Tensor, kappa: Tensor) -> Tensor:
    """The inverse Hessian D after a pair (s, y), by Davidon, Fletcher and Powell.

    With kappa = s'y it maps y to s. A pair that says nothing leaves D as it was.

    Args:
        inverse: [size, size] D.
        move: [size] s.
        change: [size] y.
        kappa: 0-d, what s'y is taken for.
    """
    image = inverse @ change
    bend = change @ image
    usable = (kappa > 0) & (bend > 0)
    renewed = inverse + torch.outer(move, move) / _safe(kappa, usable)
    return torch.where(usable, renewed - torch.outer(image, image) / _safe(bend, usable), inverse)


def bfgs(inverse: Tensor, move: Tensor, change: Tensor, kappa: Tensor) -> Tensor:
    """The inverse Hessian D after a pair (s, y), by Broyden, Fletcher, Goldfarb and Shanno; as `dfp`."""
    image = inverse @ change
    usable = kappa > 0
    share = 1 / _safe(kappa, usable)
    cross = torch.outer(move, image)
    grown = (share + share.square() * (change @ image)) * torch.outer(move, move)
    return torch.where(usable, inverse - share * (cross + cross.T) + grown, inverse)


def two_loops(moves: Tensor, changes: Tensor, gradient: Tensor) -> Tensor:
    """[size] D g, with D of L-BFGS from pairs, the newest last; where there are none, D = I.

    Args:
        moves: [history, size] s, all 0 where there is no pair.
        changes: [history, size] y.
        gradient: [size] g, in float64.
    """
    pairs = [(move.double(), change.double()) for move, change in zip(moves, changes, strict=True)]
    products = [move @ change for move, change in pairs]
    shares = [torch.where(product > 0, 1 / _safe(product, product > 0), 0.0) for product in products]
    direction = gradient
    lengths = []
    for (move, change), share in zip(reversed(pairs), reversed(shares), strict=True):
        length = share * (move @ direction)
        direction = direction - length * change
        lengths.append(length)
    newest = pairs[-1][1]
    known = products[-1] > 0
    direction = torch.where(known, products[-1] / _safe(newest @ newest, known), 1.0) * direction
    for (move, change), share, length in zip(pairs, shares, reversed(lengths), strict=True):
        direction = direction + (length - share * (change @ direction)) * move
    return direction


def _safe(number: Tensor, usable: Tensor) -> Tensor:
    """The number where it can be divided by, else 1."""
    return torch.where(usable, number, 1.0)
