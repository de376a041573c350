"""BL1: Hessians learned in a basis of the client's own data.

Qian, Islamov, Safaryan, Richtarik: Basis Matters: Better Communication-Efficient Second Order Methods for
Federated Learning (AISTATS 2022). A client's Hessian and gradient lie in the span of its data: with V_i an
orthonormal basis of it, the coefficients h_i = V_i' hess f_i V_i say all, for every pair of classes. At z it
sends V_i' grad f_i(z) and S_i = C(h_i(z) - L_i), then L_i <- L_i + alpha S_i. The hub, [.]_mu as in FedNL,

    x = z - [H + l2 I]_mu^-1 g,   H <- H + (alpha/n) sum_i V_i S_i V_i',   v = Q(x - z),   z <- z + eta v.

g is the mean gradient in one round of `one_in`, drawn for all alike (p = 1 / one_in); else clients send none
and g = [H + l2 I]_mu (z - w) + grad f(w), w the last z with a gradient. Q keeps one coordinate of
`broadcast_one_in`, the largest; all of them by default. `basis: standard` is FedNL's Option 1.

In the first round clients send as much of their coefficients as fills half of their places, and the hub adds
it before its step (`initial: zero` begins as FedNL does, with gradient steps of rate 1/mu). What is left out
then must not exceed mu, or steps along it are too long: choose mu by the smallest eigenvalue that was sent.
The bases, [features, directions] each, travel once, in the first round, and tell the server the span of the
client's data. All have as many `directions` (by default as many as features, 0 where the data span less);
fewer are the leading ones, and learning is then confined to these. The hub adds the l2 term. How what was
learned is kept, and for which models, is as in FedNL. All clients take part in every round.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from consilience.algorithm import Algorithm, Conditions, Family, Inbox, Phase
from consilience.algorithms.exact_hessian import (
    ExactHessian,
    InBasis,
    LearnsHessians,
    data_basis,
    data_gradient,
    lifted,
)
from consilience.algorithms.hessian_compressors import Compressor, PowerSGD, RankR
from consilience.algorithms.hessian_entries import TopK
from consilience.client import Client
from consilience.errors import UserError
from consilience.learning.linear_hessian import LinearLayer
from consilience.learning.randomness import stream_bits
from consilience.learning.symmetric_entries import Entries
from consilience.sweeping import check_non_negative, is_swept
from consilience.tree import largest, spread, taken
from consilience.types import Number, Params, State

HESSIAN, LEARNED, BASIS, MOVE = "hessian", "learned", "basis", "move"
"""Groups: what a hub has learned (and what is sent of it), what a client has; its basis; the hub's move."""
_COINS = 0x0B11


@dataclass(frozen=True)
class BL1(LearnsHessians):
    """FedNL in a basis of the clients' data, with rounds without gradients and compressed models."""

    name: ClassVar[str] = "bl1"
    paper: ClassVar[str] = "Qian, Islamov, Safaryan, Richtarik, AISTATS 2022"
    family: ClassVar[Family] = "curvature and statistics"
    formula: ClassVar[str] = "L_i <- L_i + C(V_i' hess f_i V_i - L_i); w <- w - [mean_i V_i L_i V_i']_mu^-1 g"
    choose: ClassVar[str] = (
        "As FedNL, when each client's data span few directions and may be seen in outline."
    )
    compressor: Literal["rank", "top_k", "power_sgd"] = "rank"
    rank: int = 1
    entries: int | None = None
    basis: Literal["data", "standard"] = "data"
    directions: int | None = None
    one_in: int = 1
    broadcast_one_in: int = 1
    eta: float = 1.0
    l2: float | None = None
    """The weight of the l2 term; None: that of the run's losses, or 1e-3 where they have none."""
    mu: float | None = None
    alpha: float | None = None
    initial: Literal["zero", "leading"] = "leading"
    capacity: int = 128

    def __post_init__(self) -> None:
        given = [name for name in ("l2", "mu", "alpha") if getattr(self, name) is not None]
        check_non_negative(self, "eta", *given)
        if not is_swept(self._floor) and not self._floor > 0:
            raise UserError("bl1: l2 or mu must be above 0, or a Newton step may have no end")
        counts = (self.rank, self.entries, self.directions, self.one_in, self.broadcast_one_in)
        if any(count is not None and count < 1 for count in counts):
            raise UserError("bl1: rank, entries, directions, one_in and broadcast_one_in must be at least 1")
        if self.capacity < 2 * self.rank:
            raise UserError(f"bl1: capacity must be at least 2 rank, not {self.capacity}")
        if self.basis == "standard" and self.directions is not None:
            raise UserError("bl1: directions are those of basis data")

    def _directions(self, layer: LinearLayer) -> int:
        return layer.features if self.directions is None else min(self.directions, layer.features)

    def _compressor(self, size: int) -> Compressor:
        """The compressor of matrices of a size: of a client's coefficients, or of the hub's Hessian."""
        if self.compressor == "top_k":
            return TopK(size, size if self.entries is None else self.entries, self.capacity)
        kind = RankR if self.compressor == "rank" else PowerSGD
        return kind(min(self.rank, size), self.capacity)

    def _sender(self, size: int) -> tuple[Compressor, Number | None]:
        """The compressor of a round's messages, and their alpha."""
        usual = self._compressor(size)
        return (usual.leading(size), 1.0) if self._starts else (usual, self.alpha)

    @property
    def _starts(self) -> bool:
        """Whether the round's messages are those that H starts with: the hub adds them before its step."""
        return self._begins and self.initial == "leading"

    def init_hub(self, model: State) -> State:
        layer, like = self._layer(model), next(iter(model["params"].values()))
        for size in (layer.size, layer.outputs * self._directions(layer)):
            compressor = self._compressor(size)
            if isinstance(compressor, TopK):
                compressor.check(self.name)
        hub = {**model, HESSIAN: self._compressor(layer.size).init_hub(layer.size, like)}
        vector = like.new_zeros(layer.size)
        if self.one_in > 1:
            hub["anchor"] = {"model": vector, "gradient": vector}
        return {**hub, MOVE: self._packed(vector)} if self.broadcast_one_in > 1 else hub

    def init_memory(self, model: State) -> State:
        layer, like = self._layer(model), next(iter(model["params"].values()))
        size = layer.outputs * self._directions(layer)
        memory = {LEARNED: self._compressor(size).init(size, like)}
        if self.basis == "data":
            memory[BASIS] = {"vectors": like.new_zeros(layer.features, self._directions(layer))}
        return {**memory, "model": model["params"]} if self.broadcast_one_in > 1 else memory

    def at(self, round_number: int) -> Algorithm:
        if round_number == 0:
            return self
        coin = stream_bits(torch.tensor(_COINS), torch.tensor(round_number), 31) % self.one_in
        own = {field.name: getattr(self, field.name) for field in fields(BL1)}
        return LaterRound(**own, gradient=bool(coin == 0))

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(self.broadcast, self._local, self._combine),)

    @property
    def _sends_gradient(self) -> bool:
        return True

    @property
    def _begins(self) -> bool:
        return True

    def broadcast(self, hub: State) -> State:
        """What the hub sends: its model, or the move to it, packed."""
        if self.broadcast_one_in > 1:
            return {MOVE: hub[MOVE]}
        return {"params": hub["params"], "buffers": hub["buffers"]}

    def _local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        model = self._arrived(down, memory)
        layer = self._layer(model)
        truth = ExactHessian(client, layer, model)
        upload: State = {}
        kept: State = {"model": model["params"]} if self.broadcast_one_in > 1 else {}
        seen: ExactHessian | InBasis = truth
        if self.basis == "data":
            known = memory[BASIS]["vectors"]
            seen = InBasis(truth, data_basis(truth, self._directions(layer)) if self._begins else known)
            upload[BASIS] = kept[BASIS] = {"vectors": seen.basis}
        if self._sends_gradient:
            gradient = layer.vector(data_gradient(client, model))
            upload["slope"] = {"coefficients": seen.coefficients(gradient)}
        compressor, alpha = self._sender(layer.outputs * self._directions(layer))
        message, after = compressor.learn(seen, memory[LEARNED], alpha, client)
        return {**upload, HESSIAN: message}, {**memory, **kept, LEARNED: after}

    def _arrived(self, down: State, memory: State) -> State:
        """The model z that a client has after a broadcast."""
        if self.broadcast_one_in == 1:
            return down
        layer = self._layer({"params": memory["model"]})
        moved = layer.vector(memory["model"]) + self.eta * self._unpacked(down[MOVE], layer.size)
        return {"params": layer.params(moved), "buffers": {}}

    def _packed(self, vector: Tensor) -> Params:
        positions = largest(vector.abs(), -(-len(vector) // self.broadcast_one_in))
        return {"values": taken(vector, positions), "positions": positions}

    def _unpacked(self, packed: Params, size: int) -> Tensor:
        return spread(packed["values"], packed["positions"], size)

    def _combine(self, hub: State, inbox: Inbox) -> State:
        layer = self._layer(hub)
        model = layer.vector(hub["params"])
        learned = self._learned(hub[HESSIAN], inbox, layer)
        used = learned if self._starts else hub[HESSIAN]
        hessian = self._compressor(layer.size).matrix(used, self._term).floored(self._floor)
        hub = {**hub, HESSIAN: learned}
        if self._sends_gradient:
            gradient = self._mean_gradient(inbox) + self._term * model
            if self.one_in > 1:
                hub["anchor"] = {"model": model, "gradient": gradient}
        else:
            anchor = hub["anchor"]
            gradient = hessian.times(model - anchor["model"]) + anchor["gradient"]
        move = -hessian.solve(gradient)
        if self.broadcast_one_in > 1:
            hub[MOVE] = self._packed(move)
            move = self._unpacked(hub[MOVE], layer.size)
        return {**hub, "params": layer.params(model + self.eta * move)}

    def _mean_gradient(self, inbox: Inbox) -> Tensor:
        sent = inbox["slope"]["coefficients"]
        if self.basis == "data":
            sent = torch.func.vmap(lifted)(inbox[BASIS]["vectors"], sent[:, :, None])[:, :, 0]
        return (inbox.uniform @ sent.double()).to(sent.dtype)

    def _learned(self, hessian: Params, inbox: Inbox, layer: LinearLayer) -> Params:
        """What the hub has learned after the messages, each decoded with its sender's basis."""
        weights, messages = inbox.heard / inbox.population, inbox[HESSIAN]
        compressor, alpha = self._sender(layer.size)
        if self.basis == "standard":
            return compressor.add(hessian, messages, weights, alpha)
        bases = inbox[BASIS]["vectors"]
        if not isinstance(compressor, TopK):
            factors = {
                name: torch.func.vmap(lifted)(bases, value) if value.ndim == 3 else value
                for name, value in messages.items()
            }
            return compressor.add(hessian, factors, weights, alpha)
        total, size = hessian["matrix"], layer.outputs * self._directions(layer)
        for number, weight in enumerate(weights.to(total.dtype)):  # one after the other: each is a matrix
            entries = Entries(messages["positions"][number], messages["values"][number])
            half = lifted(bases[number], entries.dense(size))
            total = total + compressor.step(alpha) * weight * lifted(bases[number], half.mT)
        return {"matrix": total}

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.graph:
            return "neighbours' Hessians belong to other models, so it is not defined on a graph"
        if conditions.unreliable:
            return "the server keeps every client's basis from the first round, so nobody may be missing"
        return conditions.problem.refuse_curvature("ggn")


@final
@dataclass(frozen=True)
class LaterRound(BL1):
    """BL1 after the first round, in which bases were sent."""

    gradient: bool = True

    def phases(self) -> tuple[Phase, ...]:
        kept = frozenset({BASIS} if self.basis == "data" else ())
        return (Phase(self.broadcast, self._local, self._combine, kept=kept),)

    @property
    def _sends_gradient(self) -> bool:
        return self.gradient

    @property
    def _begins(self) -> bool:
        return False
