"""The mean cross-entropies of many lanes and their gradients, as one operation.

On a GPU it is a Triton kernel; elsewhere, and for float64, torch computes the same.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience.kernels.lanes import for_triton


@torch.library.custom_op("consilience::classify_lanes", mutates_args=())
def classify_lanes(
    logits: Tensor, targets: Tensor, weight: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients with respect to logits, the mean losses [lanes], and the sums of weights [lanes].

    Args:
        logits: [lanes, rows, classes].
        targets: [lanes, rows]; torch's mark for rows without a class, -100, is understood.
        weight: [lanes, rows], above 0 for rows that count.
        scale: What gradients are multiplied by.
    """
    if for_triton(logits):
        from consilience.kernels import triton_classification as triton_kernels

        given = (logits.contiguous(), targets.contiguous(), weight.contiguous())
        return triton_kernels.classify(*given, scale)
    total = weight.sum(1)
    logs = logits.log_softmax(2)
    counts = (weight > 0) & (targets != -100)
    known = torch.where(targets != -100, targets, 0)[..., None]
    losses = -logs.gather(2, known)[..., 0]
    slope = torch.where(counts, (scale / total)[:, None], 0)
    grad = (logs.exp() - F.one_hot(known[..., 0], logits.shape[2])) * slope[..., None]
    return grad, torch.where(counts, losses, 0).sum(1) / total, total


@classify_lanes.register_fake
def _(logits: Tensor, targets: Tensor, weight: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    return logits.new_empty(logits.shape), logits.new_empty(len(logits)), weight.new_empty(len(weight))
