"""Weigh every coordinate by its client's own curvature.

Ahmad, Luo, Robles-Kelly: Robust federated learning under statistical heterogeneity via
hessian-weighted aggregation (Machine Learning 2023), eq. 4-7; with accumulation over rounds
Ahmad et al.: DecHW, eq. 4-8.

With D_k the curvature diagonal of client k at its trained weights and r_k = D_k / ||D_k||:

    normalised    P_k = r_k / sum_j r_j, per coordinate; data shares where that sum is 0 (default)
    client_split  clients with D_k = 0 keep their data share; the others divide the rest as above
    as_printed    HWA eq. 7: sum_k of r_k w_k, not normalised over clients; for study only

Eq. 7 as printed normalises within a client, so that the weights of one coordinate do not sum to 1 and
the layer shrinks 6-20 times a round; DecHW eq. 6, by the same first author, has the missing division.
The printed test of the norm is never 0 (an epsilon is added), so ||D_k|| = 0 is tested instead.

Curvature is a client's own claim, and a client that exaggerates it decides every coordinate. A `guard` g
works where curvature arrives, so that nobody can avoid it (beyond the papers):

    D_k -> 0 where it is negative or not finite;  r_k = D_k / ||D_k||;  r_k -> min(r_k, g median_j r_j)

Of n messages at least half reach the median, so that in the normalised form no client gets more than
g / (g + n/2 - 1) of a coordinate, whatever it claims: with g = 1 twice an equal share, e.g. 0.2 of ten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from consilience import aggregate, tree
from consilience.errors import UserError
from consilience.learning.curvature import Kind
from consilience.rules import robust
from consilience.rules.base import Rule
from consilience.rules.by_data import Weighting
from consilience.sweeping import check_non_negative, is_swept
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox
    from consilience.client import Client

CurvatureForm = Literal["normalised", "client_split", "as_printed"]
"""How weights come from curvature: see above."""
Scope = Literal["layer", "tensor", "model", "none"]
"""What part of a diagonal has unit norm."""
Accumulate = Literal["none", "sum", "ema"]
"""How diagonals add up over rounds: not at all, as a sum, or as an exponential moving average."""


@dataclass(frozen=True)
class HessianWeighted(Rule):
    """The mean of each coordinate, weighted by the clients' curvature diagonals; outside `layers` by data.

    Attributes:
        layers: Which layers carry curvature.
        form: How weights come from curvature.
        kind: Which curvature diagonal clients compute.
        norm_scope: What has unit norm at each client before it is sent (none: sent as it is).
        accumulate: What is sent: this round's diagonal (none), the sum over rounds (sum), or
            (1-beta) old + beta new (ema).
        beta: The factor of a new diagonal when accumulating.
        include_self: Whether a node on a graph counts itself.
        weighting: The weights of what has no curvature.
        guard: The cap on a client's curvature: so many times the median of what a receiver hears,
            coordinate by coordinate, once it has unit norm again (over the whole model where norm_scope is
            none; so accumulated curvature counts by its direction alone). 1 is recommended; none is the
            paper. Where fewer than half of the clients have curvature the median is 0, and the weights are
            those of what has none: a coordinate about which few claim to know something is safe, not sharp.
    """

    name: ClassVar[str] = "hessian_weighted"
    layers: tree.Layers = "output"
    form: CurvatureForm = "normalised"
    kind: Kind = "per_sample_sum"
    norm_scope: Scope = "layer"
    accumulate: Accumulate = "none"
    beta: float = 1.0
    include_self: bool = True
    weighting: Weighting = "samples"
    guard: float | None = None

    def __post_init__(self) -> None:
        check_non_negative(self, "beta")
        if self.guard is not None:
            check_non_negative(self, "guard")
        if self.accumulate == "none" and self.beta != 1:
            raise UserError(f"hessian_weighted: beta {self.beta} does nothing without accumulate")
        if self.accumulate == "ema" and not is_swept(self.beta) and self.beta > 1:
            raise UserError(f"hessian_weighted: an average needs a beta of at most 1, not {self.beta}")

    def refuse(self, conditions: Conditions) -> str | None:
        return conditions.problem.refuse_curvature(self.kind)

    def init_memory(self, model: State) -> State:
        if self.accumulate == "none":
            return {}
        params = model["params"]
        chosen = [name for layer in tree.select_layers(params, self.layers) for name in layer]
        clock = {"rounds": torch.zeros((), dtype=torch.int64, device=params[chosen[0]].device)}
        return {
            "importance": {name: torch.zeros_like(params[name]) for name in chosen},
            "importance_clock": clock,
        }

    def evidence(self, client: Client, model: State, memory: State) -> tuple[State, State]:
        layers = tree.select_layers(model["params"], self.layers)
        names = tuple(name for layer in layers for name in layer)
        diagonal = _unit(client.squared_gradients(model, names, self.kind), layers, self.norm_scope)
        if self.accumulate == "none":
            return {"importance": diagonal}, {}
        rounds = memory["importance_clock"]["rounds"]
        keep = 1.0 if self.accumulate == "sum" else 1 - self.beta
        later = tree.axpy(keep, memory["importance"], tree.scale(self.beta, diagonal))
        trend = {name: torch.where(rounds == 0, diagonal[name], later[name]) for name in names}
        return {"importance": trend}, {"importance": trend, "importance_clock": {"rounds": rounds + 1}}

    def shares(self, inbox: Inbox) -> Tensor:
        if not self.include_self and inbox.own is not None:
            return _without_self(inbox, self.weighting)
        return inbox.weights if self.weighting == "samples" else inbox.uniform

    def merge(self, old: Params, inbox: Inbox) -> Params:
        shares = self.shares(inbox)
        merged = inbox.mean("params", shares)
        if self.form == "normalised" and self.guard is None:
            return merged | inbox.importance_mean(inbox["importance"], _importance, shares)
        importance = inbox["importance"]
        if self.guard is not None:
            importance = _believable(importance, self.norm_scope)
        return merged | {name: self._weigh(name, inbox, importance, shares) for name in importance}

    def contributors(self, inbox: Inbox) -> Tensor | None:
        if self.form != "normalised" or self.guard is not None:
            return None
        return aggregate.importance_number(inbox["params"], inbox["importance"], self.shares(inbox))

    def _weigh(self, name: str, inbox: Inbox, importance: Params, shares: Tensor) -> Tensor:
        """The merged value of one parameter."""
        value, guard = inbox["params"][name], self.guard
        form: Callable[[Tensor, Tensor], Tensor]
        if self.form == "normalised":
            form = partial(_normalised, shares)
        else:
            dead = (_layer_maxima(importance, name) == 0) & (shares > 0)
            form = partial(_client_split if self.form == "client_split" else _as_printed, shares, dead)
        if guard is None:
            return form(value, importance[name])

        def guarded(values: Tensor, evidence: Tensor) -> Tensor:
            most = guard * robust.median(evidence, shares > 0)
            return form(values, evidence.minimum(most))

        return robust.by_blocks(guarded, inbox, value, importance[name])


def _importance(messages: State, name: str) -> Tensor:
    """Stacked curvature of a parameter."""
    return messages["importance"][name]


def _believable(importance: Params, scope: Scope) -> Params:
    """Stacked curvature as honest clients send it: finite, not negative, of unit norm; in float64."""
    layers = tree.layers(importance)
    finite = {
        name: torch.where(value.isfinite() & (value > 0), value, 0.0).double()
        for name, value in importance.items()
    }
    unit = partial(_unit, layers=layers, scope="model" if scope == "none" else scope)
    return torch.func.vmap(unit)(finite)


def _unit(diagonal: Params, layers: tuple[tuple[str, ...], ...], scope: Scope) -> Params:
    """The diagonal, scaled to unit norm per layer, per tensor or over all chosen layers."""
    if scope == "none":
        return diagonal
    groups = {"layer": layers, "tensor": tuple((name,) for name in diagonal), "model": (tuple(diagonal),)}
    scaled: Params = {}
    for names in groups[scope]:
        scaled |= tree.unit({name: diagonal[name] for name in names})
    return scaled


def _without_self(inbox: Inbox, weighting: Weighting) -> Tensor:
    """[messages] the weights of the neighbours alone; a node that hears nobody keeps its own model."""
    alone = inbox.peers.sum() == 0
    others = inbox.peers
    if weighting == "uniform":
        others = (others > 0).to(others.dtype) / (others > 0).sum().clamp(min=1)
    return torch.where(alone, inbox.weights, others)


def _layer_maxima(importance: Params, name: str) -> Tensor:
    """[messages] the largest curvature of the layer that a parameter belongs to; 0 for a dead layer."""
    layer = next(names for names in tree.layers(importance) if name in names)
    return torch.stack([importance[n].reshape(len(importance[n]), -1).amax(1) for n in layer]).amax(0)


def _normalised(weights: Tensor, value: Tensor, evidence: Tensor) -> Tensor:
    """The mean of each coordinate, weighted by curvature; by data where there is none."""
    return aggregate.importance_mean({"": value}, {"": evidence}, weights)[""]


def _client_split(weights: Tensor, dead: Tensor, value: Tensor, evidence: Tensor) -> Tensor:
    """The mean in which clients without any curvature in a layer keep their data share there."""
    rest = weights * ~dead
    weighed = aggregate.importance_mean(
        {"": value}, {"": evidence}, rest / rest.sum().clamp(min=1e-300), factors=rest > 0
    )[""]
    kept = aggregate.weighted_sum(value, weights * dead)
    return (kept + rest.sum() * weighed).to(value.dtype)


def _as_printed(weights: Tensor, dead: Tensor, value: Tensor, evidence: Tensor) -> Tensor:
    """HWA eq. 7: `sum_k r_k w_k`, with the data share for clients whose layer is dead."""
    evident = aggregate.weighted_sum(evidence.double() * value, (weights > 0).double())
    return (evident + aggregate.weighted_sum(value, weights * dead)).to(value.dtype)
