"""Train on one's own data with the help of anchors: images of all classes that all clients have.

Huang, Srinivas, Zhang, Li: Overcoming Data and Model Heterogeneities in Decentralized Federated Learning via
Synthetic Anchors (ICML 2024). With z the logits of the anchors and t the teacher's, the loss of a step is

    lambda_ori CE + lambda_kd L_KD + lambda_reg L_REG
    L_KD = (1 - a) CE(anchors) + a T^2 KL(softmax(t / T) || softmax(z / T)),   a = 0.9, T = 20
    L_REG = supervised contrastive loss over the features of the batch and, detached, of the anchors

CE is that of the client's data and the anchors together: as the authors' release draws batches from both, so
here each counts by its number of rows. L_KD is skipped where there is no teacher. Anchors pass through the
model in training mode, apart from the batch; running statistics of batch normalisation follow the data alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience.learning.randomness import keyed_bits
from consilience.learning.task import Task, mean_loss
from consilience.objectives.base import Objective, Pass
from consilience.sweeping import is_zero
from consilience.types import Batch, Number, State

Reduction = Literal["batchmean", "released"]
"""How the divergence of an anchor is reduced: to the sum over classes, or to their mean as in the release."""

_STREAM = 1 << 22  # far from other uses of a batch's key


@final
@dataclass(frozen=True)
class SyntheticAnchors(Objective):
    """Adds distillation on anchors and a contrast with them; their images and teacher come in the context.

    Attributes:
        lambda_ori: The weight of the cross-entropy.
        lambda_kd: The weight of the distillation.
        lambda_reg: The weight of the contrast.
        train_on_anchors: Whether the cross-entropy is that of anchors too.
        anchors_per_step: How many anchors a step draws; None: it takes all.
        kl: How the divergence is reduced.
        temperature: The temperature of the distillation.
        distil_weight: The divergence's share in the distillation.
        contrast_temperature: The temperature of the contrast.
    """

    name: ClassVar[str] = "synthetic_anchors"
    lambda_ori: Number
    lambda_kd: Number
    lambda_reg: Number
    train_on_anchors: bool
    anchors_per_step: int | None
    kl: Reduction
    temperature: Number
    distil_weight: Number
    contrast_temperature: Number

    def fit(self, task: Task, logits: Tensor, targets: Tensor) -> Tensor:
        loss = super().fit(task, logits, targets)
        return loss if is_zero(self.lambda_ori - 1) else self.lambda_ori * loss

    def penalty(self, at: Pass, context: State) -> Tensor | None:
        if is_zero(self.lambda_kd) and is_zero(self.lambda_reg) and not self.train_on_anchors:
            return None
        teacher = context["teacher"]
        batch, chosen = self._anchors(context["anchors"]["images"], teacher["logits"].shape[-1], at.batch.key)
        model = {"params": at.params, "buffers": at.output.buffers}
        output = at.task.forward(model, batch, training=True)
        hard = at.task.loss(output.prediction, batch.targets).mean()
        terms: list[Tensor] = []
        if self.train_on_anchors and not is_zero(self.lambda_ori):
            own = mean_loss(at.task.loss(at.output.prediction, at.batch.targets), at.batch.weight)
            terms.append(self.lambda_ori * context["anchors"]["share"] * (hard - own))
        if not is_zero(self.lambda_kd):
            soft = divergence(teacher["logits"][chosen], output.prediction, self.temperature, self.kl)
            distilled = (1 - self.distil_weight) * hard + self.distil_weight * self.temperature**2 * soft
            terms.append(self.lambda_kd * teacher["heard"] * distilled)
        if not is_zero(self.lambda_reg):
            contrast = supervised_contrast(
                torch.cat([at.output.features.flatten(1), output.features.flatten(1).detach()]),
                torch.cat([at.batch.targets, batch.targets]),
                torch.cat([at.batch.weight, batch.weight]),
                self.contrast_temperature,
            )
            terms.append(self.lambda_reg * contrast)
        return torch.stack(terms).sum() if terms else None

    def _anchors(self, images: Tensor, classes: int, key: Tensor) -> tuple[Batch, Tensor]:
        """The anchors of a step, as a batch, and which they are."""
        count, device = len(images), images.device
        chosen = torch.arange(count, device=device)
        if self.anchors_per_step is not None and self.anchors_per_step < count:
            order = keyed_bits(key, _STREAM, (count,), device).argsort(stable=True)
            chosen = order[: self.anchors_per_step]
        labels = chosen // (count // classes)
        # Another key than the batch's own: dropout of anchors is not that of the data.
        return Batch(images[chosen], labels, images.new_ones(len(chosen)), key ^ (1 << 31)), chosen


def divergence(teacher: Tensor, student: Tensor, temperature: Number, kl: Reduction) -> Tensor:
    """0-d, the mean over rows of `KL(softmax(teacher / T) || softmax(student / T))`.

    Args:
        teacher: [rows, classes] the teacher's logits.
        student: [rows, classes] the student's.
        temperature: T, by which both are divided.
        kl: How the divergence of a row is reduced over classes.
    """
    target, given = (F.log_softmax(logits / temperature, -1) for logits in (teacher, student))
    each = target.exp() * (target - given)
    return each.mean() if kl == "released" else each.sum(-1).mean()


def supervised_contrast(features: Tensor, labels: Tensor, weight: Tensor, temperature: Number) -> Tensor:
    """0-d, Khosla et al.'s loss, small where features of a class point one way and all others elsewhere.

    Args:
        features: [rows, features], at least two rows that count.
        labels: [rows] the class of every row.
        weight: [rows] 0 for rows that do not count.
        temperature: What cosines are divided by.
    """
    directions = F.normalize(features, dim=-1)
    cosines = directions @ directions.T / temperature
    others = (weight > 0) & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    logs = cosines - torch.where(others, cosines, -torch.inf).logsumexp(-1, keepdim=True)
    same = others & (labels == labels[:, None])
    losses = -torch.where(same, logs, 0.0).sum(-1) / same.sum(-1).clamp(min=1)
    return mean_loss(losses, weight)
