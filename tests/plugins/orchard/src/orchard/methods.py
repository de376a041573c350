"""A method, and a part of each kind of which methods are composed."""

from dataclasses import dataclass

import torch

import consilience as cs
from consilience import tree


@dataclass(frozen=True)
class UnitMoves(cs.SingleExchange):
    """The server moves by the mean of the clients' directions."""

    name = "unit-moves"
    paper = "an example"
    length: float = 1.0

    def local(self, client, down, memory):
        trained = client.train(down)
        direction = tree.unit(tree.sub(trained.model["params"], down["params"]))
        return {"direction": direction, "buffers": trained.model["buffers"]}, memory

    def combine(self, hub, inbox):
        params = tree.axpy(self.length, inbox.mean("direction", inbox.uniform), hub["params"])
        return {**hub, "params": params, "buffers": inbox.buffers()}

    def refuse(self, conditions):
        return "directions start from one common model" if conditions.graph else None


@dataclass(frozen=True)
class Agreement(cs.Rule):
    """Clients close to the mean weigh more."""

    name = "agreement"
    sharpness: float = 1.0

    def merge(self, old, inbox):
        mean = inbox.mean("params")
        distance = sum(((v - mean[n]) ** 2).flatten(1).sum(1) for n, v in inbox["params"].items())
        relative = distance / ((inbox.heard * distance).sum() / inbox.heard.sum()).clamp(min=1e-12)
        weights = inbox.weights * torch.exp(-self.sharpness * relative)
        return inbox.mean("params", weights / weights.sum())


@dataclass(frozen=True)
class Sparse(cs.Objective):
    """Adds `strength` times the sum of the parameters' sizes to the loss."""

    name = "sparse"
    strength: float = 1e-4

    def penalty(self, at, context):
        return self.strength * sum(value.abs().sum() for value in at.params.values())


@dataclass(frozen=True)
class Halfway(cs.ServerStep):
    """The new model is half the old one and half the merged one."""

    name = "halfway"

    def apply(self, hub, merged, inbox):
        return tree.scale(0.5, tree.add(hub["params"], merged)), {}


@dataclass(frozen=True)
class Halved(cs.Transform):
    """Updates are rounded to half precision."""

    name = "halved"

    def apply(self, message, memory):
        rounded = {name: value.half().to(value.dtype) for name, value in message.update.items()}
        return message.with_update(rounded), memory
