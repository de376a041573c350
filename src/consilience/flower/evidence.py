"""What goes with a model into a reply, so that a rule can weigh it: computed by one call after training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from consilience.client import Client, Rows, Step
from consilience.errors import UserError, kind_of
from consilience.learning.curvature import Kind
from consilience.learning.solvers import SGD
from consilience.learning.task import Task
from consilience.problems import Problem
from consilience.rules.base import Rule
from consilience.rules.hessian_weighted import HessianWeighted, Scope
from consilience.tree import Layers
from consilience.types import Batch, State

TARGETS = ("label", "labels", "target", "targets", "fine_label", "y")
"""What the targets of a batch are called where it is a mapping."""


def curvature(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    layers: Layers = "output",
    kind: Kind = "per_sample_sum",
    norm_scope: Scope = "layer",
    problem: Problem | None = None,
    keys: tuple[str, str] | None = None,
) -> dict[str, ArrayRecord]:
    """The curvature that goes with a trained model to an HWAStrategy, as records to put into the reply.

    Args:
        model: The trained model; it is left as it is.
        loader: Batches of the client's training data: pairs of inputs and targets, or mappings.
        layers: Which layers carry curvature, as in the strategy.
        kind: Which curvature diagonal is meant.
        norm_scope: What has unit norm before it is sent.
        problem: What is learned; by default classification.
        keys: What a mapping calls inputs and targets, where that is not plain.
    """
    rule = HessianWeighted(layers=layers, kind=kind, norm_scope=norm_scope)
    return evidence(rule, model, loader, problem=problem, keys=keys)


def evidence(
    rule: Rule,
    model: nn.Module,
    loader: Iterable[Any],
    *,
    problem: Problem | None = None,
    keys: tuple[str, str] | None = None,
    steps: int = 1,
    solver: SGD | None = None,
) -> dict[str, ArrayRecord]:
    """What a rule wants to know beside a trained model, as records to put into the reply.

    Args:
        rule: The rule, as in the strategy.
        model: The trained model; it is left as it is.
        loader: Batches of the client's training data: pairs of inputs and targets, or mappings.
        problem: What is learned; by default classification.
        keys: What a mapping calls inputs and targets, where that is not plain.
        steps: How many steps the client has trained, for rules that count them.
        solver: What it has trained with, for rules that look at that.
    """
    like = next(model.parameters())
    task = Task(model, like.dtype, problem=problem)
    weights = task.weights_of(model)
    if rule.init_memory(weights):
        raise UserError(f"{rule.name} remembers something from round to round here; use `deploy flower`")
    one = torch.ones((), dtype=like.dtype, device=like.device)
    key = torch.zeros((), dtype=torch.int64, device=like.device)
    client = Client(
        task=task,
        solver=solver or SGD(),
        samples=one,
        steps=one * steps,
        epochs=0,
        fold=_Batches(loader, like, keys),
        key=key,
        common_key=key,
    )
    found, _ = rule.evidence(client, weights, {})
    return {group: ArrayRecord({n: v.cpu() for n, v in params.items()}) for group, params in found.items()}


class _Batches:
    """A fold over what a loader gives."""

    def __init__(self, loader: Iterable[Any], like: Tensor, keys: tuple[str, str] | None) -> None:
        self._loader, self._like, self._keys = loader, like, keys

    def __call__(
        self, step: Step, carry: State, extras: State, rows: Rows, epoch: int | None = None
    ) -> State:
        """The carry after all batches."""
        device, dtype = self._like.device, self._like.dtype
        for one in self._loader:
            inputs, targets = (value.to(device) for value in _pair(one, self._keys))
            if inputs.is_floating_point():
                inputs = inputs.to(dtype)
            weight = torch.ones(len(targets), dtype=dtype, device=device)
            key = torch.zeros((), dtype=torch.int64, device=device)
            carry = step(carry, Batch(inputs, targets, weight, key), extras)
        return carry


def _pair(batch: Any, keys: tuple[str, str] | None) -> tuple[Tensor, Tensor]:
    """The inputs and targets of a batch."""
    if isinstance(batch, Mapping):
        chosen = keys or _keys_of(batch)
        return batch[chosen[0]], batch[chosen[1]]
    if isinstance(batch, Sequence) and len(batch) == 2:
        return batch[0], batch[1]
    raise UserError(f"a batch is a pair of inputs and targets or a mapping, not {kind_of(batch)}")


def _keys_of(batch: Mapping[str, Any]) -> tuple[str, str]:
    targets = [name for name in batch if name in TARGETS]
    inputs = [name for name in batch if name not in TARGETS]
    if len(targets) != 1 or len(inputs) != 1:
        raise UserError(f'say which of {sorted(batch)} are inputs and targets, e.g. keys=("img", "label")')
    return inputs[0], targets[0]
