"""Pull a client's features towards the global model's and away from those of its own earlier models.

Li, He, Song: Model-Contrastive Federated Learning (CVPR 2021). To a batch's mean loss a client adds mu times
the mean over its rows of

    l_con = -log( e^(cos(z, z_glob)/T) / (e^(cos(z, z_glob)/T) + sum_prev e^(cos(z, z_prev)/T)) )

z are the features of the pass in training, which the output layer reads (a projection, in models that have
one). z_glob and z_prev are those of the model that the hub sent and of the client's last `pool` local models:
frozen, in evaluation mode, on the same batch. An earlier model that does not exist yet is left out, so that a
client's first loss is 0, as in the authors' release. A client that was not sampled for long keeps its old
models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience.errors import UserError
from consilience.learning.task import Output, mean_loss
from consilience.objectives.base import Objective, Pass
from consilience.sweeping import check_non_negative, is_swept, is_zero
from consilience.types import State

if TYPE_CHECKING:
    from consilience.algorithm import Conditions
    from consilience.client import Client, Trained

WEIGHTS = ("params", "buffers")
"""The groups of a model."""
EARLIER = "previous"
"""The group that counts the earlier models; the latest of them is `previous0_params`, `previous0_buffers`."""
EPSILON = 1e-8
"""The least norm that features are divided by."""


@final
@dataclass(frozen=True)
class Contrastive(Objective):
    """Adds `mu` times a loss that is small where features are the global model's, not earlier local ones'."""

    name: ClassVar[str] = "contrastive"
    mu: float = 5.0
    temperature: float = 0.5
    pool: int = 1

    def __post_init__(self) -> None:
        check_non_negative(self, "mu")
        if not is_swept(self.temperature) and not self.temperature > 0:
            raise UserError(f"{self.name}: temperature must be above 0, not {self.temperature}")
        if self.pool < 1:
            raise UserError(f"{self.name}: pool must be at least 1, not {self.pool}")

    def init_memory(self, model: State) -> State:
        if is_zero(self.mu):
            return {}
        device = next(iter(model["params"].values())).device
        count = {"count": torch.zeros((), dtype=torch.int64, device=device)}
        # What stands in a free slot does not matter, as long as its features are finite.
        free = {_group(slot, kind): model[kind] for slot in range(self.pool) for kind in WEIGHTS}
        return {**free, EARLIER: count}

    def context(self, client: Client, down: State, memory: State) -> State:
        if is_zero(self.mu):
            return {}
        earlier = {_group(slot, kind) for slot in range(self.pool) for kind in WEIGHTS}
        return {
            **{f"global_{kind}": down[kind] for kind in WEIGHTS},
            **{group: memory[group] for group in sorted(earlier | {EARLIER})},
        }

    def penalty(self, at: Pass, context: State) -> Tensor | None:
        if is_zero(self.mu):
            return None

        def frozen(model: str) -> Tensor:
            weights = {kind: context[f"{model}_{kind}"] for kind in WEIGHTS}
            return _directions(at.task.forward(weights, at.batch, training=False)).detach()

        own, pull = _directions(at.output), frozen("global")
        gaps = torch.stack([(own * (frozen(f"{EARLIER}{slot}") - pull)).sum(-1) for slot in range(self.pool)])
        exists = torch.arange(self.pool, device=gaps.device) < context[EARLIER]["count"]
        exponents = torch.where(exists[:, None], gaps / self.temperature, -torch.inf)
        losses = torch.cat((torch.zeros_like(gaps[:1]), exponents)).logsumexp(0)
        return self.mu * mean_loss(losses, at.batch.weight)

    def finish(self, client: Client, down: State, trained: Trained, memory: State) -> tuple[State, State]:
        if is_zero(self.mu):
            return {}, {}
        first = {_group(0, kind): trained.model[kind] for kind in WEIGHTS}
        others = {
            _group(slot, kind): memory[_group(slot - 1, kind)]
            for slot in range(1, self.pool)
            for kind in WEIGHTS
        }
        return {}, {**first, **others, EARLIER: {"count": memory[EARLIER]["count"] + 1}}

    def refuse(self, conditions: Conditions) -> str | None:
        if not is_zero(self.mu) and not conditions.problem.has_classes:
            return f"contrastive compares features of classes, and {conditions.problem.name} has none"
        if not is_zero(self.mu) and not conditions.features:
            return (
                "contrastive needs a model that tells its features from its logits "
                "(a Classifier, as all of `consilience models` are)"
            )
        return super().refuse(conditions)


def _group(slot: int, kind: str) -> str:
    return f"{EARLIER}{slot}_{kind}"


def _directions(output: Output) -> Tensor:
    """[batch, features] the features, scaled to length 1 so that inner products are cosines."""
    return F.normalize(output.features.flatten(1), dim=-1, eps=EPSILON)
