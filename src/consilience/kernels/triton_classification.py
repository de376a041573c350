"""Triton kernel: the mean cross-entropies of many lanes, and their gradients.

Lanes are small, and what takes time is to launch: one program does all of a lane.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from consilience.kernels.launching import launch

ENTRIES = 4096
"""How many logits a program has at a time."""


@triton.jit
def _classify(
    logits, targets, weight, scale, grad, loss, count,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, B: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """grad[b, c] = scale / count * (softmax(logits[b])[c] - [c = targets[b]]), for rows b that count."""
    lane = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, C)[None, :]
    counts = tl.zeros((B,), dtype=tl.float32)
    for first in range(0, ROWS, B):
        b = first + tl.arange(0, B)
        counts += tl.load(weight + lane * ROWS + b, mask=b < ROWS, other=0.0).to(tl.float32)
    total = tl.sum(counts, 0)
    losses = tl.zeros((B,), dtype=tl.float32)
    for first in range(0, ROWS, B):
        b = first + tl.arange(0, B)
        target = tl.load(targets + lane * ROWS + b, mask=b < ROWS, other=-100)
        some = tl.load(weight + lane * ROWS + b, mask=b < ROWS, other=0.0) > 0
        some = some & (target != -100)
        place = (lane * ROWS + b)[:, None] * CLASSES + c
        use = (b < ROWS)[:, None] & (c < CLASSES)
        entries = tl.load(logits + place, mask=use, other=0.0).to(tl.float32)
        entries = tl.where(c < CLASSES, entries, float("-inf"))
        entries -= tl.max(entries, 1)[:, None]
        powers = tl.exp(entries)
        sums = tl.sum(powers, 1)
        own = c == target[:, None]
        losses += tl.where(some, tl.log(sums) - tl.sum(tl.where(own, entries, 0.0), 1), 0.0)
        slope = tl.where(some, scale / total, 0.0)
        found = (powers / sums[:, None] - tl.where(own, 1.0, 0.0)) * slope[:, None]
        tl.store(grad + place, found, mask=use)
    tl.store(loss + lane, tl.sum(losses, 0) / total)
    tl.store(count + lane, total)


def classify(logits: Tensor, targets: Tensor, weight: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """The results of `classify_lanes`, for tensors that lie in order."""
    lanes, rows, classes = logits.shape
    wide = triton.next_power_of_2(classes)
    grad, loss, count = logits.new_empty(logits.shape), logits.new_empty(lanes), weight.new_empty(lanes)
    block = min(triton.next_power_of_2(rows), max(1, ENTRIES // wide))
    launch(
        _classify,
        (lanes,),
        logits,
        targets,
        weight,
        float(scale),
        grad,
        loss,
        count,
        rows,
        classes,
        B=block,
        C=wide,
        num_warps=4,
    )
    return grad, loss, count
