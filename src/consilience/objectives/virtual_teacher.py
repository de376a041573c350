"""Learn from a teacher that is always right and never quite sure.

Valerio et al.: Coordination-free Decentralised Federated Learning on Complex Networks: Overcoming
Heterogeneity (2023). The loss of a row with class y is

    (1 - alpha) CE + alpha KL(t || p),  t = beta at y, (1 - beta) / (C - 1) elsewhere

C is the number of logits, i.e. of all classes, not of those that a client has. With alpha = 1 gradients are
those of label smoothing by (1 - beta) C / (C - 1). A variant of the release that draws a beta for every
sample is left out: the loss of a row has no randomness of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience.errors import UserError
from consilience.learning.task import Task
from consilience.objectives.base import Objective
from consilience.sweeping import is_swept, is_zero
from consilience.types import Number

if TYPE_CHECKING:
    from consilience.algorithm import Conditions


@final
@dataclass(frozen=True)
class VirtualTeacher(Objective):
    """Replaces a share `alpha` of the loss by the distance to a teacher of confidence `beta`."""

    name: ClassVar[str] = "virtual_teacher"
    alpha: float = 1.0
    """The share of the teacher in the loss."""
    beta: float = 0.99
    """The probability that the teacher gives to the true class."""

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not is_swept(value) and not 0 <= value <= 1:
                raise UserError(f"virtual_teacher: {name} must be from 0 to 1, not {value}")

    def refuse(self, conditions: Conditions) -> str | None:
        if not conditions.problem.has_classes:
            return f"its teacher is about classes, and {conditions.problem.name} has none"
        return super().refuse(conditions)

    def fit(self, task: Task, logits: Tensor, targets: Tensor) -> Tensor:
        loss = super().fit(task, logits, targets)
        if is_zero(self.alpha) or is_zero(1 - self.beta):
            return loss
        others = logits.shape[-1] - 1
        doubt = (1 - self.beta) / others
        # -sum_c t_c log p_c, as a cross-entropy and a term that is the same for all classes.
        cross = (self.beta - doubt) * loss - doubt * F.log_softmax(logits, -1).sum(-1)
        divergence = cross + _x_log_x(self.beta) + others * _x_log_x(doubt)
        return (1 - self.alpha) * loss + self.alpha * divergence


def _x_log_x(number: Number) -> Number:
    if isinstance(number, Tensor):
        return torch.xlogy(number, number)
    return number * math.log(number) if number > 0 else 0.0
