"""A solver, a schedule, an augmentation, a model, a problem and a metric."""

from dataclasses import dataclass
from math import prod

import torch
from torch import nn

import consilience as cs
from consilience.learning.augmentations import Augmentation
from consilience.learning.randomness import normals
from consilience.learning.schedules import Schedule
from consilience.problems.base import mean_loss, row_sums


@dataclass(frozen=True)
class SignSGD(cs.Solver):
    """Every parameter moves by the same length, against the sign of its gradient."""

    name = "sign-sgd"
    lr: float = 0.001

    def init(self, params):
        return {}

    def update(self, params, grads, state):
        return {name: value - self.lr * grads[name].sign() for name, value in params.items()}, {}


@dataclass(frozen=True)
class Averaged(cs.ModelSpec):
    """A linear layer over inputs from which their own mean was taken."""

    name = "averaged"

    def build(self, shape, outputs):
        return cs.Classifier(
            nn.Sequential(nn.Flatten(), nn.LayerNorm(prod(shape))), nn.Linear(prod(shape), outputs)
        )


@dataclass(frozen=True)
class Pinball(cs.Problem):
    """A quantile of a real number, judged by the pinball loss."""

    name = "pinball"
    metric = cs.Metric("pinball", higher_is_better=False)
    quantile: float = 0.5

    def fault(self, targets, outputs):
        wanted = targets.is_floating_point() and targets.ndim == 1 and outputs == 1
        return None if wanted else "one real number a row is wanted"

    def outputs(self, targets):
        return 1

    def losses(self, outputs, targets):
        error = targets.to(outputs.dtype) - outputs[:, 0]
        return torch.maximum(self.quantile * error, (self.quantile - 1) * error)

    def tally(self, outputs, targets, weight):
        return row_sums(self.losses(outputs, targets), weight)

    def scores(self, sums):
        return {"pinball": mean_loss(sums), "loss": mean_loss(sums)}


@dataclass(frozen=True)
class Coverage(cs.Score):
    """The share of rows that are not above what was predicted."""

    name = "coverage"
    percent = True

    def tally(self, outputs, targets, weight):
        below = (targets <= outputs[:, 0]).double() * weight.double()
        return {"below": below.sum(), "rows": weight.double().sum()}

    def score(self, sums):
        return sums["below"] / sums["rows"]


@dataclass(frozen=True, kw_only=True)
class Halving(Schedule):
    """The rate is halved every round (or step)."""

    name = "halving"

    def shape(self, now, steps):
        return 0.5**now


@dataclass(frozen=True)
class Jitter(Augmentation):
    """Inputs get noise."""

    name = "jitter"
    sigma: float = 0.1

    def __call__(self, inputs, key):
        return inputs + self.sigma * normals(key, 0, inputs)
