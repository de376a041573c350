"""FedNL: Newton steps with a Hessian that is learned from compressed differences.

Safaryan, Islamov, Qian, Richtarik: FedNL: Making Newton-Type Methods Applicable to Federated Learning (ICML
2022). f = mean_i f_i + (l2/2) |x|^2. At the hub's model x a client sends its gradient and

    S_i = C(hess f_i(x) - H_i),   l_i = |hess f_i(x) - H_i|_F,   then H_i <- H_i + alpha S_i.

The hub steps with H as it was, then H <- H + (alpha/n) sum_i S_i:

    floor (Option 1)  x <- x - [H + l2 I]_mu^-1 g,           [.]_mu raises eigenvalues to at least mu,
    shift (Option 2)  x <- x - (H + l2 I + mean_i l_i I)^-1 g.

`line_search` (FedNL-LS) is a second exchange, in which clients say what their losses are along the step; the
longest of 1, 1/2, 1/4, ... is taken for which f falls by at least 0.49 of what its slope promises.
`partial` (FedNL-PP) is for cohorts: with w_i the last model that client i saw, and H_i, l_i after its update,
the hub keeps H, l and t = mean_i (H_i + l_i I) w_i - grad f_i(w_i), by changes, and
x <- (H + (l + l2) I)^-1 t.

Compressors: `rank` sends R eigenpairs, found by subspace iteration (5 products with the difference; exact
where its rank is at most R + 8); `power_sgd` two matrices of R columns; `top_k` and `rand_k` single entries
of the upper triangle with their positions. alpha is 1, for `rand_k` its share of all entries.

From H_i = 0, `floor` begins with gradient steps of rate 1/mu, which need a line search; `initial: exact`
sends the Hessian at the first model, once, and `leading` as much of it as fills half of a client's places.

What differs from the paper: the l2 term is known and not learned, so that H_i = 0 stands for l2 I. A client
keeps at most `capacity` numbers for each row of H_i, the hub eight times as much: with d parameters nothing
of the method changes while a client has sent no more than capacity directions (capacity/2 x d entries). After
that it learns within these (see `hessian_compressors`). `initial: exact` needs a capacity of d.
Exact Hessians are there for models of one linear layer; `shift` and `top_k` compute all of it, block by
block, the others only products. As in FedSGD, `solver` and `local.epochs` do not apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from consilience import tree
from consilience.algorithm import Conditions, Family, Inbox, Phase
from consilience.algorithms.exact_hessian import (
    ExactHessian,
    LearnsHessians,
    data_gradient,
    dense,
    losses_along,
)
from consilience.algorithms.hessian_compressors import Compressor, PowerSGD, RankR
from consilience.algorithms.hessian_entries import RandK, SomeEntries, TopK
from consilience.client import Client
from consilience.errors import UserError
from consilience.learning.linear_hessian import LinearLayer, hessian_memory
from consilience.learning.symmetric_entries import mirrored
from consilience.sweeping import check_non_negative, is_swept
from consilience.types import Params, State

HESSIAN, LEARNED = "hessian", "learned"
"""The groups that hold what a hub has learned (and what is sent of it), and what a client has."""
SHORTENED = 24
"""How many steps a line search tries, each half of the one before."""
ENOUGH = 0.49
"""The share of the decrease that a slope promises with which a line search is content."""


@final
@dataclass(frozen=True)
class FedNL(LearnsHessians):
    """Clients send gradients and compressed changes of their Hessians; the server takes Newton steps."""

    name: ClassVar[str] = "fednl"
    paper: ClassVar[str] = "Safaryan, Islamov, Qian, Richtarik, ICML 2022"
    family: ClassVar[Family] = "curvature and statistics"
    formula: ClassVar[str] = "H_i <- H_i + C(hess f_i(w) - H_i); w <- w - (mean_i H_i + l2 I + l I)^-1 g"
    choose: ClassVar[str] = "When logistic regression should reach its optimum in few rounds of few bytes."
    compressor: Literal["rank", "top_k", "power_sgd", "rand_k"] = "rank"
    rank: int = 1
    entries: int | None = None
    option: Literal["floor", "shift"] = "shift"
    initial: Literal["zero", "leading", "exact"] = "zero"
    line_search: bool = False
    partial: bool = False
    l2: float | None = None
    """The weight of the l2 term; None: that of the run's losses, or 1e-3 where they have none."""
    mu: float | None = None
    alpha: float | None = None
    capacity: int = 128

    def __post_init__(self) -> None:
        given = [name for name in ("l2", "mu", "alpha") if getattr(self, name) is not None]
        check_non_negative(self, *given)
        if not is_swept(self._floor) and not self._floor > 0:
            raise UserError("fednl: l2 or mu must be above 0, or a Newton step may have no end")
        if self.rank < 1 or (self.entries is not None and self.entries < 1):
            raise UserError("fednl: rank and entries must be at least 1")
        if self.capacity < 2 * self.rank:
            raise UserError(f"fednl: capacity must be at least 2 rank, not {self.capacity}")
        if self.mu is not None and self.option == "shift":
            raise UserError("fednl: mu is for option floor; shift adds what the Hessians are off by")
        if self.entries is not None and self.compressor in ("rank", "power_sgd"):
            raise UserError(f"fednl: entries are for top_k and rand_k, not for {self.compressor}")
        if self.partial and (self.line_search or self.option != "shift"):
            raise UserError("fednl: with partial the step is that of option shift, without a line search")

    def _compressor(self, layer: LinearLayer) -> Compressor:
        if self.compressor == "rank":
            return RankR(min(self.rank, layer.size), self.capacity)
        if self.compressor == "power_sgd":
            return PowerSGD(min(self.rank, layer.size), self.capacity)
        count = layer.size if self.entries is None else self.entries
        kind = TopK if self.compressor == "top_k" else RandK
        return kind(layer.size, count, self.capacity)

    def init_hub(self, model: State) -> State:
        layer, like = self._layer(model), next(iter(model["params"].values()))
        self._check_size(layer, model["params"])
        zero, vector = like.new_zeros(()), like.new_zeros(layer.size)
        hub = {**model, HESSIAN: self._compressor(layer).init_hub(layer.size, like)}
        if self.partial:
            return {**hub, "shift": {"mean": zero}, "target": {"mean": vector}}
        return {**hub, "step": {"direction": vector, "slope": zero}} if self.line_search else hub

    def _check_size(self, layer: LinearLayer, params: Params) -> None:
        compressor = self._compressor(layer)
        if isinstance(compressor, SomeEntries):
            compressor.check(self.name)
        needed = layer.size + isinstance(compressor, SomeEntries)  # half of size + 1 entries for each row
        if self.initial == "exact" and needed > self.capacity:
            raise UserError(
                f"fednl: initial exact keeps all of each client's Hessian of {layer.size:,} parameters, "
                f"{hessian_memory(params)} a client; it takes a capacity of {needed}, not {self.capacity}"
            )

    def init_memory(self, model: State) -> State:
        layer, like = self._layer(model), next(iter(model["params"].values()))
        memory = {LEARNED: self._compressor(layer).init(layer.size, like)}
        if not self.partial:
            return memory
        return {**memory, "own": {"shift": like.new_zeros(()), "target": like.new_zeros(layer.size)}}

    def setup(self) -> tuple[Phase, ...]:
        needed = self.partial or self.initial != "zero"
        return (Phase(self.broadcast, self._begin, self._begun),) if needed else ()

    def phases(self) -> tuple[Phase, ...]:
        if self.partial:
            return (Phase(self.broadcast, self._local_change, self._combine_changes),)
        first = Phase(self.broadcast, self._local, self._combine)
        if not self.line_search:
            return (first,)
        known = frozenset({"params", "buffers"})
        return (first, Phase(self._announce, self._try, self._search, known=known))

    def broadcast(self, hub: State) -> State:
        """What the hub sends: its model."""
        return {"params": hub["params"], "buffers": hub["buffers"]}

    # A round of all clients

    def _local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        layer = self._layer(down)
        compressor, truth = self._compressor(layer), ExactHessian(client, layer, down)
        learned = memory[LEARNED]
        upload: State = {"gradient": data_gradient(client, down)}
        if self.option == "shift":
            upload["shift"] = {"error": compressor.error(truth, learned)}
        message, after = compressor.learn(truth, learned, self.alpha, client)
        return {**upload, HESSIAN: message}, {**memory, LEARNED: after}

    def _combine(self, hub: State, inbox: Inbox) -> State:
        layer = self._layer(hub)
        compressor, model = self._compressor(layer), layer.vector(hub["params"])
        gradient = layer.vector(inbox.mean("gradient", inbox.uniform)) + self._term * model
        if self.option == "shift":
            shift = inbox.mean("shift", inbox.uniform)["error"]
            direction = compressor.matrix(hub[HESSIAN], self._term + shift).solve(gradient)
        else:
            direction = compressor.matrix(hub[HESSIAN], self._term).floored(self._floor).solve(gradient)
        learned = compressor.add(hub[HESSIAN], inbox[HESSIAN], _shares(inbox), self.alpha)
        if self.line_search:
            step = {"direction": direction, "slope": gradient @ direction}
            return {**hub, HESSIAN: learned, "step": step}
        return {**hub, HESSIAN: learned, "params": layer.params(model - direction)}

    # The line search

    def _announce(self, hub: State) -> State:
        return {**self.broadcast(hub), "step": {"direction": hub["step"]["direction"]}}

    def _try(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        direction = self._layer(down).params(down["step"]["direction"])
        return {"losses": {"along": losses_along(client, down, direction, _lengths())}}, memory

    def _search(self, hub: State, inbox: Inbox) -> State:
        layer = self._layer(hub)
        model, direction = layer.vector(hub["params"]), hub["step"]["direction"]
        lengths = torch.tensor(_lengths(), dtype=torch.float64, device=model.device)
        places = (model - lengths.to(model.dtype)[:, None] * direction).double()
        losses = inbox.mean("losses", inbox.uniform)["along"] + self._term / 2 * places.square().sum(1)
        promised = ENOUGH * lengths * hub["step"]["slope"].double()
        # Near the optimum the decrease drowns in rounding: then the whole step is the right one.
        slack = 10 * torch.finfo(model.dtype).eps * losses[0].abs()
        good = (losses <= losses[0] - promised + slack)[1:]
        chosen = torch.where(good.any(), good.int().argmax(), SHORTENED - 1)
        length = lengths[1:].gather(0, chosen[None])[0].to(model.dtype)
        return {**hub, "params": layer.params(model - length * direction)}

    # Before the first round, and rounds of some clients

    def _begin(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        layer = self._layer(down)
        compressor, truth = self._compressor(layer), ExactHessian(client, layer, down)
        upload: State = {}
        if self.initial == "exact":
            matrix = dense(truth, client.samples)
            matrix = (matrix + matrix.mT) / 2
            rows, columns = torch.triu_indices(layer.size, layer.size, device=matrix.device)
            upload["upper"] = {"entries": matrix[rows, columns]}
            memory = {**memory, LEARNED: compressor.known(matrix)}
        if self.initial == "leading":
            leading = compressor.leading(layer.size)
            upload[HESSIAN], after = leading.learn(truth, memory[LEARNED], 1.0, client)
            memory = {**memory, LEARNED: after}
        if not self.partial:
            return upload, memory
        changes, memory = self._changes(client, down, truth, memory)
        return {**upload, **changes}, memory

    def _begun(self, hub: State, inbox: Inbox) -> State:
        layer = self._layer(hub)
        if self.initial == "exact":
            entries = inbox.mean("upper", inbox.uniform)["entries"]
            rows, columns = torch.triu_indices(layer.size, layer.size, device=entries.device)
            upper = entries.new_zeros(layer.size**2).scatter(0, rows * layer.size + columns, entries)
            matrix = mirrored(upper.reshape(layer.size, layer.size))
            hub = {**hub, HESSIAN: self._compressor(layer).hub_known(matrix)}
        if self.initial == "leading":
            leading = self._compressor(layer).leading(layer.size)
            hub = {**hub, HESSIAN: leading.add(hub[HESSIAN], inbox[HESSIAN], _shares(inbox), 1.0)}
        return self._moved(hub, inbox) if self.partial else hub

    def _local_change(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        layer = self._layer(down)
        truth = ExactHessian(client, layer, down)
        message, after = self._compressor(layer).learn(truth, memory[LEARNED], self.alpha, client)
        changes, memory = self._changes(client, down, truth, {**memory, LEARNED: after})
        return {**changes, HESSIAN: message}, memory

    def _changes(
        self, client: Client, down: State, truth: ExactHessian, memory: State
    ) -> tuple[State, State]:
        """How the client's part of the hub's linear system changes, and the memory of what it is now."""
        layer = truth.layer
        compressor, model = self._compressor(layer), layer.vector(down["params"])
        shift = compressor.error(truth, memory[LEARNED])
        # The l2 term is in the Hessian and in the gradient, and so in neither here.
        curved = compressor.times(memory[LEARNED], model) + shift * model
        own: Params = {"shift": shift, "target": curved - layer.vector(data_gradient(client, down))}
        change = tree.sub(own, memory["own"])
        upload = {"shift": {"change": change["shift"]}, "target": {"change": change["target"]}}
        return upload, {**memory, "own": own}

    def _combine_changes(self, hub: State, inbox: Inbox) -> State:
        compressor = self._compressor(self._layer(hub))
        learned = compressor.add(hub[HESSIAN], inbox[HESSIAN], _shares(inbox), self.alpha)
        return self._moved({**hub, HESSIAN: learned}, inbox)

    def _moved(self, hub: State, inbox: Inbox) -> State:
        """The hub after changes of its linear system: its model is the solution."""
        layer = self._layer(hub)
        shift, target = (
            hub[group]["mean"] + inbox.mean(group, _shares(inbox))["change"] for group in ("shift", "target")
        )
        model = self._compressor(layer).matrix(hub[HESSIAN], self._term + shift).solve(target)
        return {**hub, "shift": {"mean": shift}, "target": {"mean": target}, "params": layer.params(model)}

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.graph:
            return "neighbours' Hessians belong to other models, so it is not defined on a graph"
        if conditions.unreliable and not self.partial:
            return "every client's Hessian counts in every step; for cohorts of some clients set partial"
        return conditions.problem.refuse_curvature("ggn")


def _shares(inbox: Inbox) -> Tensor:
    """[messages] what a change counts, of those of all clients: who is not heard has not changed."""
    return inbox.heard / inbox.population


def _lengths() -> tuple[float, ...]:
    """The lengths that a line search tries, after none at all."""
    return (0.0, *(0.5**power for power in range(SHORTENED)))
