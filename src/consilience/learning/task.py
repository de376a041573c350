"""A task: a model's architecture with its loss. It holds no weights; those are arguments."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from consilience import tree
from consilience.errors import UserError
from consilience.learning.augmentations.base import Augmentation, augmented
from consilience.learning.layers import ROWS, RowBatchNorm, convert, skeleton
from consilience.learning.masking import Masking
from consilience.learning.rewriting import Rewriting
from consilience.metrics import Score
from consilience.models.spec import Classifier
from consilience.problems import Classification, Problem
from consilience.torch_internals import as_if_compiled, called
from consilience.types import Batch, Params, State

PREFIX = "module."  # names inside the wrapper that also gives features


class Output(NamedTuple):
    """What one forward pass gives."""

    features: Tensor
    """[batch, features] the input of the output layer (of the head where the model has one)."""
    prediction: Tensor
    """[batch, ...] what the model says: logits of classes, or whatever the problem asks for."""
    buffers: Params
    """The buffers after the pass (batch-normalisation statistics move in training mode)."""


class Trace(NamedTuple):
    """What a forward pass looks like for inputs of some shape."""

    layers: dict[str, torch.Size]
    """The output shapes of linear and convolutional layers that run exactly once."""
    prediction: torch.Size
    operations: int
    """Multiplications and additions of these layers."""
    trained: int
    """Those of layers whose weights are trained."""

    @property
    def outputs(self) -> int:
        """How many numbers come out of these layers."""
        return sum(shape.numel() for shape in self.layers.values())


class Task:
    """One problem with one architecture.

    What is trained is an argument of every call. What is not (parameters that need no gradient, buffers that
    are no part of a `state_dict` or hold infinity, as masks do) is the same for all clients: the task holds
    it, once.

    Args:
        module: Any module from inputs to what the problem asks for, or to an object whose `logits` are that.
            A Classifier, as all models of this library are, also gives its features; another gives its
            predictions as features.
        dtype: The floating type of parameters and inputs.
        low: Whether products in training take inputs rounded to bfloat16.
        problem: What is to be learned; by default classification.
        l2: The weight of `|params|^2 / 2`, which is part of the loss that is minimised.
        metrics: Scores beside those of the problem, counted with them.
        padding: The token that fills up sequences, of which modules that ask for a mask are told.
        augment: How the inputs of training batches are varied.
        device: Where what is not trained lies; by default where the module has it.
    """

    def __init__(
        self,
        module: nn.Module,
        dtype: torch.dtype = torch.float32,
        *,
        low: bool = False,
        problem: Problem | None = None,
        l2: float = 0.0,
        metrics: Sequence[Score] = (),
        padding: int | None = None,
        augment: tuple[Augmentation, ...] = (),
        device: torch.device | None = None,
    ) -> None:
        self.metrics, self.augment = tuple(metrics), augment
        self.dtype, self.low, self.problem, self.l2 = dtype, low, problem or Classification(), l2
        self._layers = re.sub(r"0x[0-9a-f]+", "", repr(module))  # without addresses of objects
        converted = convert(module).to(dtype=dtype)
        # Skeletons: a task is structure, and structure needs no memory.
        masking = Masking(module, padding)
        self._training = _WithFeatures(skeleton(converted), masking).train()
        self._evaluating = _WithFeatures(skeleton(converted), masking).eval()
        self._ambient = _ambient(self._evaluating)
        self._places = _places(self._evaluating)
        self.frozen: Params = {
            name: value.detach().to(device)
            for name, value in converted.named_parameters()
            if not value.requires_grad
        }
        """The parameters that are not trained."""
        kept = converted.state_dict().keys()
        self.constants: Params = {
            name: value.detach().to(device)
            for name, value in converted.named_buffers()
            if PREFIX + name not in self._ambient and (name not in kept or value.isinf().any())
        }
        """The buffers that are alike for all clients and never change."""
        self.has_features = isinstance(module, Classifier)
        self._traces: dict[tuple[torch.Size, torch.dtype], Trace] = {}

    @property
    def skeleton(self) -> nn.Module:
        """The architecture in evaluation mode, without weights."""
        return self._evaluating.module

    @property
    def form(self) -> str:
        """The architecture in words: its layers, and the kinds of all its tensors."""
        named = chain(self.skeleton.named_parameters(), self.skeleton.named_buffers())
        kinds = [f"{name} {v.dtype} {tuple(v.shape)} {v.requires_grad}" for name, v in named]
        return "\n".join([self._layers, *kinds])

    def weights_of(self, module: nn.Module) -> State:
        """What is trained of a module of this architecture, and its buffers."""
        hidden = {name.removeprefix(PREFIX) for name in self._ambient} | self.constants.keys()

        def own(value: Tensor) -> Tensor:
            return value.detach().to(self.dtype if value.is_floating_point() else value.dtype, copy=True)

        params = {name: own(value) for name, value in module.named_parameters() if name not in self.frozen}
        if not params:
            raise UserError("the model has no parameters to train: all have requires_grad=False")
        buffers = {name: own(value) for name, value in module.named_buffers() if name not in hidden}
        return {"params": params, "buffers": buffers}

    def forward(self, model: State, batch: Batch, *, training: bool) -> Output:
        """The output of one forward pass; neither the weights nor the batch are changed."""
        whole = {
            "params": {**self.frozen, **model["params"]},
            "buffers": {**self.constants, **model["buffers"]},
        }
        return self._pass(whole, tuple(model["buffers"]), batch, training=training)

    def _pass(self, model: State, moving: tuple[str, ...], batch: Batch, *, training: bool) -> Output:
        """The output of a model with all that it has; `moving` names the buffers to give back."""
        tensors = {PREFIX + name: value for name, value in model["params"].items()}
        # A module may change a buffer in place; the caller's must stay as it is.
        tensors |= {PREFIX + name: v.clone() if training else v for name, v in model["buffers"].items()}
        rows = batch.weight[:0] if batch.full else batch.weight
        tensors |= dict.fromkeys(self._ambient, rows)
        module = self._training if training else self._evaluating
        tensors = {place: tensors[name] for place, name in self._places.items()}
        with (
            torch.autocast(
                batch.inputs.device.type, torch.bfloat16, enabled=self.low and training, cache_enabled=False
            ),
            Rewriting(batch.key),
            as_if_compiled(),
        ):
            (features, prediction), after = called(module, tensors, batch.inputs)
        buffers = {name: after[PREFIX + name] for name in moving}
        return Output(features.to(self.dtype), prediction.to(self.dtype), buffers)

    def augmented(self, batch: Batch) -> Batch:
        """A training batch, with its inputs varied; whatever is computed of it should see the same inputs."""
        return augmented(self.augment, batch) if self.augment else batch

    def trace(self, inputs: torch.Size, dtype: torch.dtype | None = None) -> Trace:
        """The shapes that come out for inputs of a shape and type (by default the task's own type).

        They are found by a pass on the meta device (no arithmetic), once for each shape.
        """
        kind = (inputs, dtype or self.dtype)
        if kind not in self._traces:
            self._traces[kind] = self._trace(*kind)
        return self._traces[kind]

    def _trace(self, inputs: torch.Size, dtype: torch.dtype) -> Trace:
        shapes: dict[str, torch.Size] = {}
        calls: Counter[str] = Counter()

        def record(layer: str, _: Tensor, output: Tensor) -> Tensor:
            shapes[layer] = output.shape
            calls[layer] += 1
            return output

        layers: dict[str, nn.Module] = {
            name: m for name, m in self.skeleton.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)
        }
        example = torch.empty(inputs, dtype=dtype, device="meta")
        try:
            with hooked(layers, record), Rewriting(torch.zeros((), dtype=torch.int64, device="meta")):
                _, prediction = self._evaluating(example)
        except (RuntimeError, NotImplementedError):  # a model that looks at numbers, or leaves torch
            shapes.clear()
            calls.clear()
            with hooked(layers, record):
                prediction = self._on_blanks(example)
        once = {layer: shape for layer, shape in shapes.items() if calls[layer] == 1}
        # A weight need not be a parameter itself: it may be computed from others.
        weights = {layer: cast(Tensor, layers[layer].weight) for layer in once}
        operations = {layer: 2 * shape.numel() * weights[layer][0].numel() for layer, shape in once.items()}
        trained = sum(count for layer, count in operations.items() if weights[layer].requires_grad)
        return Trace(once, prediction.shape, sum(operations.values()), trained)

    def _on_blanks(self, example: Tensor) -> Tensor:
        """The prediction of a model of zeros."""
        params, buffers = (
            {name: torch.zeros_like(value, device="cpu") for name, value in values}
            for values in (self.skeleton.named_parameters(), self.skeleton.named_buffers())
        )
        zeros = torch.zeros_like(example, device="cpu")
        batch = Batch(zeros, zeros[:0], torch.ones(len(zeros)), torch.zeros((), dtype=torch.int64))
        return self._pass({"params": params, "buffers": buffers}, (), batch, training=False).prediction

    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """[batch] the problem's loss of every row."""
        return self.problem.losses(prediction, targets)

    def regularised(self, loss: Tensor, params: Params, rows: Tensor | float = 1.0) -> Tensor:
        """A mean loss with the `l2` term; or a sum over rows, to which each of them adds it."""
        return loss + rows * self.l2 / 2 * tree.sq_norm(params) if self.l2 else loss

    def tally(self, model: State, batch: Batch) -> Params:
        """The problem's sums over a batch, from which scores follow; in evaluation mode."""
        prediction = self.forward(model, batch, training=False).prediction
        return self._tally(prediction, batch)

    def _tally(self, prediction: Tensor, batch: Batch) -> Params:
        given = (prediction, batch.targets, batch.weight)
        more = {
            f"{one.metric.name}.{name}": value
            for one in self.metrics
            for name, value in one.tally(*given).items()
        }
        return {**self.problem.tally(*given), **more}

    def scores(self, sums: Params) -> dict[str, Tensor]:
        """The named scores of the problem and those beside them, from sums with any leading axes."""
        found = self.problem.scores(sums)
        for one in self.metrics:
            prefix = f"{one.metric.name}."
            own = {n.removeprefix(prefix): value for n, value in sums.items() if n.startswith(prefix)}
            found[one.metric.name] = one.score(own)
        return found

    def blank_tally(self, like: Batch, model: State | None = None) -> Params:
        """Sums over no rows, in the form of those for a batch of one row such as this.

        Args:
            like: The batch.
            model: Any model, where there is one: its prediction is quicker than a trace.
        """
        if model is None:
            shape = self.trace(like.inputs.shape, like.inputs.dtype).prediction
        else:
            with torch.no_grad():
                shape = self.forward(model, like, training=False).prediction.shape
        prediction = torch.zeros(shape, dtype=self.dtype, device=like.inputs.device)
        return self._tally(prediction, like._replace(weight=torch.zeros_like(like.weight)))


class _WithFeatures(nn.Module):
    """A module that gives the features and the prediction of one pass."""

    def __init__(self, module: nn.Module, masking: Masking) -> None:
        super().__init__()
        self.module, self.masking = module, masking

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.module, Classifier):
            features = self.module.features(inputs)
            return features, self.module.head(features)
        prediction = self.masking.ask(self.module, inputs)
        return prediction, prediction


def _ambient(module: nn.Module) -> list[str]:
    """The full names of the buffers that say which rows count."""
    layers = module.named_modules()
    return [f"{name}.{ROWS}" for name, layer in layers if isinstance(layer, RowBatchNorm)]


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


def digest_of(tensors: Params, form: str = "") -> str:
    """The SHA-256, in hexadecimal, of named tensors and a text."""
    hasher = hashlib.sha256(form.encode())
    for name, value in tensors.items():
        hasher.update(f"\n{name} {value.dtype} {tuple(value.shape)}\n".encode())
        # Bytes through torch, because numpy has no bfloat16.
        hasher.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def mean_loss(losses: Tensor, weight: Tensor) -> Tensor:
    """The mean loss over the rows that count."""
    return torch.where(weight > 0, losses, 0.0).sum() / weight.sum()


@contextmanager
def hooked(layers: dict[str, nn.Module], replace: Callable[[str, Tensor, Tensor], Tensor]) -> Iterator[None]:
    """A context in which `replace(layer, input, output)` gives the output of each of the layers."""

    def hook_of(layer: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        return lambda _, given, output: replace(layer, given[0], output)

    handles = [module.register_forward_hook(hook_of(layer)) for layer, module in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
