"""FedMA: hidden units of clients are matched layer by layer, and those that belong together are averaged.

Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni: Federated Learning with Matched Averaging (ICLR 2020). Hidden
units have no order, so the i-th unit of one client need not be that of another. A round is a pass over the
model, an exchange for each of its layers. In exchange l

    the hub sends layer l - 1 as it was fused (in the first exchange the whole model),
    a client freezes all layers before l, trains the others (`local` says for how long), and sends layer l,
    the hub matches the units of layer l (`fedma_matching`) and fuses it: the mean of the matched units.

The client puts layer l's columns into the order of the fused layer before; columns of units that it has not
are 0. The last layer's units are classes: row c is the mean of the clients', weighted by their numbers of
samples of class c, or uniform where nobody has any. A client sends as many bytes as in FedAvg, and hears the
model twice, once as a whole and once as it comes. What it trained stays with it during a round.

A unit that is like none becomes a new one: layers grow. `max_growth` says by how many units a layer may in a
round (0: never; None: up to `max_units`), and matching wants a permutation then.

    mean   the mean of the matched units (the paper's 1/J sum, where all have the unit; default)
    map    the posterior mean, as released: it shrinks towards 0 by c / (c + sigma^2 / sigma0^2)

Who is matched to which unit differs between clients, and hubs speak to all of them alike: clients send a
random tag, and find their own row by it in a table that goes to all. One whose message was lost in an
exchange is left out until the next round.

Deviations: clients are matched in the order of their data, most first, not in a random one, so that nothing
depends on draws or on who is called first; kappa is 2, as in the paper (the release has 1). With MOON's loss
on clients (`contrastive`, its weight, as SWA's tables have it) the global model is that of the round's start,
and a client's earlier ones are those of first exchanges, before any layer was fused: later ones have the
hub's features. States change their shapes, so seeds and swept numbers run one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from consilience import aggregate, tree
from consilience.algorithm import Algorithm, Conditions, Family, Inbox, Phase
from consilience.algorithms.desa_anchors import class_rows
from consilience.algorithms.fedma_matching import Prior, match, sources, sums
from consilience.client import Client
from consilience.errors import UserError
from consilience.learning.chain import NEEDS_CHAIN, reordered
from consilience.objectives.base import Objective
from consilience.objectives.contrastive import Contrastive
from consilience.sweeping import check_non_negative, is_swept, is_zero
from consilience.types import Floats, Params, State

OWN, START = "own", "start"
"""Groups of a client's memory during a round: what it trained so far, and the model from which all began."""
SENDERS, SOURCES = "senders", "sources"
"""Groups of the hub during a round: the tags of those whom it heard, and by hidden layer which of its own
units every one of them has where the fused layer has a unit, [senders, units]."""


@dataclass(frozen=True)
class FedMA(Algorithm):
    """Layer after layer, clients' hidden units are matched and averaged; layers may grow.

    Attributes:
        max_growth: The most units that a layer gains in a round; None: as many as are wanted.
        max_units: The most units of a layer that grows.
        fused: What a common unit is: the mean of those matched, or their posterior mean.
        gamma: The mass of the Beta-Bernoulli process: the larger, the more new units.
        sigma: The spread of clients' units around the common one.
        sigma0: The spread of common units around 0.
        kappa: The weight of a unit's popularity among clients.
        sweeps: How often every client is matched anew.
        contrastive: The weight of MOON's loss on the clients; None: they train as in FedAvg.
    """

    name: ClassVar[str] = "fedma"
    paper: ClassVar[str] = "Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni, ICLR 2020"
    family: ClassVar[Family] = "matching"
    formula: ClassVar[str] = (
        "layer by layer: W_l = mean over clients of the units that Pi_k says are the same"
    )
    choose: ClassVar[str] = (
        "When clients' hidden units may have drifted into other orders, and layers may grow."
    )
    max_growth: int | None = None
    max_units: int = 700
    fused: Literal["mean", "map"] = "mean"
    gamma: float = 7.0
    sigma: float = 1.0
    sigma0: float = 1.0
    kappa: float = 2.0
    sweeps: int = 5
    contrastive: float | None = None

    def __post_init__(self) -> None:
        check_non_negative(self, "max_units", "kappa", "sweeps")
        for name in ("max_growth", "contrastive"):
            if getattr(self, name) is not None:
                check_non_negative(self, name)
        for name in ("gamma", "sigma", "sigma0"):
            value = getattr(self, name)
            if not is_swept(value) and not value > 0:
                raise UserError(f"fedma: {name} must be above 0, not {value}")

    @property
    def layers(self) -> int:
        """How many layers the model has, which the engine tells by `for_model` before there is any state."""
        return 1

    def for_model(self, model: State, l2: float = 0.0) -> Algorithm:
        return _OnModel(**{**vars(self), "known": len(tree.weight_layers(model["params"]))})

    def reshapes(self) -> bool:
        return True

    def init_hub(self, model: State) -> State:
        return {**model, **_nobody(model["params"])}

    def init_memory(self, model: State) -> State:
        objective = self._objective()
        start = {START: _blank(model["params"])} if _keeps_start(objective) else {}
        return {OWN: _blank(model["params"]), **start, **objective.init_memory(model)}

    def phases(self) -> tuple[Phase, ...]:
        return tuple(self._exchange(layer) for layer in range(self.layers))

    def _exchange(self, layer: int) -> Phase:
        return Phase(
            partial(self._broadcast, layer),
            partial(self._local, layer),
            partial(self._combine, layer),
            ordinary=True,
        )

    def _objective(self) -> Objective:
        if self.contrastive is None or is_zero(self.contrastive):
            return Objective()
        return Contrastive(mu=self.contrastive)

    def _broadcast(self, layer: int, hub: State) -> State:
        """The whole model, or the layer before this one and who has which of its units."""
        if layer == 0:
            return {"params": hub["params"], "buffers": hub["buffers"]}
        fused = _name(hub["params"], layer - 1)
        table = {SENDERS: hub[SENDERS], SOURCES: {fused: hub[SOURCES][fused]}}
        return {"params": _layer(hub["params"], layer - 1), **table}

    def _local(self, layer: int, client: Client, down: State, memory: State) -> tuple[State, State]:
        """A client trains this layer and those after it, and sends this one."""
        objective, last = self._objective(), layer == self.layers - 1
        model = down["params"] if layer == 0 else _continued(layer, memory[OWN], down, client.key)
        start = down["params"] if layer == 0 else memory.get(START, {})
        given = {"params": start, "buffers": {}}
        frozen = {name: value for i in range(layer) for name, value in _layer(model, i).items()}
        free = {name: value for name, value in model.items() if name not in frozen}
        # To a step of training what stays as it is is a buffer.
        context = objective.context(client, given, memory)
        trained = client.train({"params": free, "buffers": frozen}, objective, context)
        whole = {name: trained.model["params"].get(name, value) for name, value in model.items()}
        upload = {"params": _layer(whole, layer), SENDERS: {"tag": client.key}}
        if last:
            upload["classes"] = {"rows": class_rows(client, len(_weight(whole, layer)))}
        kept = objective.finish(client, given, trained, memory)[1] if layer == 0 else {}
        memory = {**memory, **kept, OWN: _blank(whole) if last else whole}
        if START in memory:
            memory[START] = _blank(whole) if last else start
        return upload, memory

    def _combine(self, layer: int, hub: State, inbox: Inbox) -> State:
        """The hub with this layer fused, and with who was matched to which of its units."""
        params = hub["params"]
        hub = {**hub, **_nobody(params)} if layer == 0 else hub
        heard = _heard(inbox, None if layer == 0 else hub[SENDERS]["tag"])
        if not len(heard):
            return hub
        messages = tree.index(inbox.messages, heard)
        if layer == self.layers - 1:
            fused = _by_class(messages["params"], messages["classes"]["rows"])
            return {**hub, "params": {**params, **fused}, **_nobody(params)}
        units = _units(messages["params"])
        width = len(units[0])
        prior = Prior(self.sigma, self.sigma0, self.gamma, self.kappa)
        places, count = match(units, prior, self._most(width), self.sweeps)
        fused = _layer_of(self._mean(*sums(units, places, count)), messages["params"])
        # Should nobody be heard of the next layer, the hub's own goes with the units that are new.
        name, following = (_name(params, one) for one in (layer, layer + 1))
        own = torch.arange(count, device=heard.device).clamp(max=width)
        table = torch.from_numpy(sources(places, count)).to(heard.device)
        return {
            **hub,
            "params": {**params, **fused, following: reordered(params[following], width, own)},
            SENDERS: messages[SENDERS],
            SOURCES: {**hub[SOURCES], name: table},
        }

    def _most(self, units: int) -> int:
        """How many units a layer may have that has some now."""
        most = max(units, self.max_units)
        return most if self.max_growth is None else min(most, units + self.max_growth)

    def _mean(self, totals: Floats, counts: Floats) -> Floats:
        """[units, size] common units, from the sums and numbers of those that were matched."""
        shrinkage = 0.0 if self.fused == "mean" else self.sigma**2 / self.sigma0**2
        return totals / (counts + shrinkage)[:, None]

    def refuse(self, conditions: Conditions) -> str | None:
        objective = self._objective()
        if conditions.graph:
            return "its hub matches clients with each other layer by layer, which takes a server"
        if conditions.unmatchable:
            return f"{NEEDS_CHAIN}, and the model has {conditions.unmatchable}"
        if not conditions.problem.has_classes:
            return f"its last layer is averaged by class, and {conditions.problem.name} has none"
        if self.max_growth != 0 and _keeps_start(objective):
            return "contrastive compares features of one width, and layers grow: set max_growth to 0"
        return objective.refuse(conditions)


@final
@dataclass(frozen=True)
class _OnModel(FedMA):
    """FedMA once it is known how many layers the model has."""

    known: int = 1

    @property
    def layers(self) -> int:
        return self.known


def _keeps_start(objective: Objective) -> bool:
    """Whether clients train with the model from the start of the round at hand."""
    return isinstance(objective, Contrastive)


def _name(params: Params, layer: int) -> str:
    """The name of a layer's weight."""
    return next(name for name in tree.weight_layers(params)[layer] if params[name].ndim > 1)


def _weight(params: Params, layer: int) -> Tensor:
    return params[_name(params, layer)]


def _layer(params: Params, layer: int) -> Params:
    """One layer of a model: its weight, and its bias where it has one."""
    return {name: params[name] for name in tree.weight_layers(params)[layer]}


def _blank(params: Params) -> Params:
    """What stands for a model between rounds: its names, and no numbers."""
    return {name: value.new_zeros([0] * value.ndim) for name, value in params.items()}


def _nobody(params: Params) -> State:
    """What a hub knows of senders before it heard any."""
    device = next(iter(params.values())).device
    none = torch.zeros(0, dtype=torch.int64, device=device)
    hidden = range(len(tree.weight_layers(params)) - 1)
    return {SENDERS: {"tag": none}, SOURCES: {_name(params, layer): none[:, None] for layer in hidden}}


def _continued(layer: int, own: Params, down: State, tag: Tensor) -> Params:
    """A client's own model with the layer before this one as it was fused, and this one's columns so."""
    fused, name = down["params"], _name(own, layer)
    units, width = len(_weight(own, layer - 1)), len(_weight(fused, 0))
    (table,) = down[SOURCES].values()
    own_units = torch.arange(width, device=tag.device).clamp(max=units)
    if len(table):
        mine = down[SENDERS]["tag"] == tag
        own_units = torch.where(mine.any(), (mine[:, None] * table).sum(0), own_units)
    return {**own, **fused, name: reordered(own[name], units, own_units)}


def _heard(inbox: Inbox, known: Tensor | None) -> Tensor:
    """The messages to combine, most data first: of senders that were heard since the round began."""
    order = inbox.weights.argsort(descending=True, stable=True)
    counts = inbox.weights[order] > 0
    if known is not None:
        counts &= torch.isin(inbox[SENDERS]["tag"][order], known)
    return order[counts]


def _units(stacked: Params) -> Sequence[Floats]:
    """[units, size] of every message: the incoming weights of each unit, and its bias, in float64."""
    rows = torch.cat(
        [value.flatten(2) if value.ndim > 2 else value[..., None] for value in stacked.values()], 2
    )
    return [np.asarray(one) for one in rows.double().cpu().numpy()]


def _layer_of(units: Floats, like: Params) -> Params:
    """A layer of some units: the inverse of `_units`, with the names and types of stacked layers."""
    values = torch.from_numpy(units)
    sizes = [value[0, 0].numel() for value in like.values()]
    parts = zip(like.items(), torch.split(values, sizes, 1), strict=True)
    return {name: part.reshape(-1, *value.shape[2:]).to(value).contiguous() for (name, value), part in parts}


def _by_class(stacked: Params, rows: Tensor) -> Params:
    """The last layer: the mean of every class's row, by [messages, classes] numbers of its samples."""
    total = rows.double().sum(0)
    shares = torch.where(total > 0, rows.double() / total.clamp(min=1), 1 / len(rows))
    fused: Params = {}
    for name, value in stacked.items():
        means = [aggregate.weighted_sum(value[:, c], shares[:, c]) for c in range(value.shape[1])]
        fused[name] = torch.stack(means).to(value.dtype)
    return fused
