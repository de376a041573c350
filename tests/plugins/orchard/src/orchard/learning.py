"""A solver, a model and a problem."""

from dataclasses import dataclass
from math import prod

import torch
from torch import nn

import consilience as cs
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
