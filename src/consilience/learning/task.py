"""A task: a model's architecture with its loss. It holds no weights; those are arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience.learning.layers import KEY, ROWS, KeyedDropout, RowBatchNorm, convert, skeleton
from consilience.models.spec import Classifier
from consilience.torch_internals import called
from consilience.types import Batch, Params, State

PREFIX = "module."  # names inside the wrapper that also gives features


class Output(NamedTuple):
    """What one forward pass gives."""

    features: Tensor
    """[batch, features] the input of the output layer (of the head where the model has one)."""
    logits: Tensor
    """[batch, classes]"""
    buffers: Params
    """The buffers after the pass (batch-normalisation statistics move in training mode)."""


class Score(NamedTuple):
    """Sums over the rows of a batch."""

    correct: Tensor
    loss: Tensor


class Task:
    """Classification with one architecture.

    Args:
        module: Any module from inputs to logits. A Classifier, as all models of this library are, also
            gives its features; another gives its logits as features.
        dtype: The floating type of parameters and inputs.
        low: Whether products in training take inputs rounded to bfloat16.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype = torch.float32, *, low: bool = False) -> None:
        self.dtype, self.low = dtype, low
        converted = convert(module).to(dtype=dtype)
        # Skeletons: a task is structure, and structure needs no memory.
        self._training = _WithFeatures(skeleton(converted)).train()
        self._evaluating = _WithFeatures(skeleton(converted)).eval()
        self._ambient = _ambient(self._evaluating)
        self._places = _places(self._evaluating)
        self._dropouts = [layer for layer in self._training.modules() if isinstance(layer, KeyedDropout)]
        self.has_features = isinstance(module, Classifier)
        self._output_shapes: dict[torch.Size, dict[str, torch.Size]] = {}

    @property
    def skeleton(self) -> nn.Module:
        """The architecture in evaluation mode, without weights."""
        return self._evaluating.module

    def weights_of(self, module: nn.Module) -> State:
        """The parameters and buffers of a module of this architecture."""
        converted = convert(module).to(dtype=self.dtype)
        ambient = {name.removeprefix(PREFIX) for name in self._ambient}
        return {
            "params": {name: value.detach().clone() for name, value in converted.named_parameters()},
            "buffers": {
                name: v.detach().clone() for name, v in converted.named_buffers() if name not in ambient
            },
        }

    def forward(self, model: State, batch: Batch, *, training: bool) -> Output:
        """One forward pass; neither the weights nor the batch are changed."""
        given = {ROWS: batch.weight[:0] if batch.full else batch.weight, KEY: batch.key}
        tensors = {PREFIX + name: value for name, value in model["params"].items()}
        # A module may change a buffer in place; the caller's must stay as it is.
        tensors |= {PREFIX + name: v.clone() if training else v for name, v in model["buffers"].items()}
        tensors |= {name: given[kind] for name, kind in self._ambient.items()}
        module = self._training if training else self._evaluating
        for layer in self._dropouts:
            layer.calls = 0
        tensors = {place: tensors[name] for place, name in self._places.items()}
        with torch.autocast(
            batch.inputs.device.type, torch.bfloat16, enabled=self.low and training, cache_enabled=False
        ):
            (features, logits), after = called(module, tensors, batch.inputs)
        buffers = {name: after[PREFIX + name] for name in model["buffers"]}
        return Output(features.to(self.dtype), logits.to(self.dtype), buffers)

    def output_shapes(self, inputs: torch.Size) -> dict[str, torch.Size]:
        """The output shapes of linear and convolutional layers that run exactly once, for inputs of a shape.

        Found by a pass on the meta device (no arithmetic), once for each input shape.
        """
        if inputs not in self._output_shapes:
            self._output_shapes[inputs] = self._trace_shapes(inputs)
        return self._output_shapes[inputs]

    def outputs(self, inputs: torch.Size) -> int:
        """Numbers that come out of linear and convolutional layers."""
        return sum(shape.numel() for shape in self.output_shapes(inputs).values())

    def operations(self, inputs: torch.Size) -> int:
        """Multiplications and additions of linear and convolutional layers in a forward pass."""
        layers = dict(self.skeleton.named_modules())
        weights = {name: layers[name].get_parameter("weight") for name in self.output_shapes(inputs)}
        return sum(
            2 * shape.numel() * weights[layer][0].numel()
            for layer, shape in self.output_shapes(inputs).items()
        )

    def _trace_shapes(self, inputs: torch.Size) -> dict[str, torch.Size]:
        shapes: dict[str, torch.Size] = {}
        calls: Counter[str] = Counter()

        def record(layer: str, _: Tensor, output: Tensor) -> Tensor:
            shapes[layer] = output.shape
            calls[layer] += 1
            return output

        layers: dict[str, nn.Module] = {
            name: m for name, m in self.skeleton.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)
        }
        with hooked(layers, record):
            self._evaluating(torch.empty(inputs, dtype=self.dtype, device="meta"))
        return {layer: shape for layer, shape in shapes.items() if calls[layer] == 1}

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of every row, [batch]."""
        return F.cross_entropy(logits, targets, reduction="none")

    def score(self, model: State, batch: Batch) -> Score:
        """How many rows are classified right, and the summed loss, in evaluation mode."""
        logits = self.forward(model, batch, training=False).logits
        right = (logits.argmax(-1) == batch.targets).to(batch.weight.dtype)
        losses = torch.where(batch.weight > 0, self.loss(logits, batch.targets), 0.0)
        return Score((right * batch.weight).sum(), losses.sum())


class _WithFeatures(nn.Module):
    """Gives features and logits of one pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.module, Classifier):
            features = self.module.features(inputs)
            return features, self.module.head(features)
        logits = self.module(inputs)
        return logits, logits


def _ambient(module: nn.Module) -> dict[str, str]:
    """Full names of the buffers that say which rows count and what the key is."""
    kinds = {RowBatchNorm: ROWS, KeyedDropout: KEY}
    return {
        f"{name}.{kinds[type(layer)]}": kinds[type(layer)]
        for name, layer in module.named_modules()
        if type(layer) in kinds
    }


def _places(module: nn.Module) -> dict[str, str]:
    """Every attribute that holds a parameter or buffer, once, and the name of that tensor."""
    names = {id(v): name for name, v in chain(module.named_parameters(), module.named_buffers())}
    return {
        f"{layer}.{name}": names[id(value)]
        for layer, part in module.named_modules()
        for name, value in chain(
            part.named_parameters(recurse=False, remove_duplicate=False),
            part.named_buffers(recurse=False, remove_duplicate=False),
        )
    }


def mean_loss(losses: Tensor, weight: Tensor) -> Tensor:
    """The mean over the rows that count."""
    return torch.where(weight > 0, losses, 0.0).sum() / weight.sum()


@contextmanager
def hooked(layers: dict[str, nn.Module], replace: Callable[[str, Tensor, Tensor], Tensor]) -> Iterator[None]:
    """Within it, `replace(layer, input, output)` gives the output of each of the layers."""

    def hook_of(layer: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        return lambda _, given, output: replace(layer, given[0], output)

    handles = [module.register_forward_hook(hook_of(layer)) for layer, module in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
