"""The model that a scene names: how it is made, and whether it takes the data."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from consilience import tree
from consilience.data.dataset import Dataset
from consilience.engine.scene import Scene
from consilience.errors import UserError
from consilience.learning.layers import copied
from consilience.learning.task import Task
from consilience.learning.warm_start import warm_started
from consilience.types import Batch, Params, State


def try_model(scene: Scene, task: Task, model: State) -> None:
    """Refuse a model that does not take the data, or give what the problem asks for, or cannot learn."""
    embeddings = [one for one in task.skeleton.modules() if isinstance(one, nn.Embedding | nn.EmbeddingBag)]
    if any(one.max_norm is not None for one in embeddings):
        raise UserError("an embedding with max_norm writes to its weights when it is read: leave that out")
    data, before = scene.dataset, tree.map_leaves(torch.clone, model)
    row = Batch(
        row_of(scene).clone(),  # which a model may write to
        data.targets[:1],
        torch.ones(1, dtype=scene.dtype),
        torch.zeros((), dtype=torch.int64),
    )

    def loss(params: Params, *, training: bool = True) -> Tensor:
        prediction = task.forward({**model, "params": params}, row, training=training).prediction
        if prediction.shape[-1:] != (data.outputs,) or len(prediction) != 1:
            places = " at each place" if prediction.ndim > 2 else ""
            raise UserError(
                f"the model gives {list(prediction.shape[1:])} numbers for a row, and "
                f"{task.problem.name} of these data asks for {data.outputs}{places}"
            )
        losses = task.loss(prediction, row.targets)
        if losses.shape != (1,):
            raise UserError(f"{task.problem.name} takes no predictions of shape {list(prediction.shape)}")
        return losses.sum()

    try:
        found = loss(
            {name: value.detach().requires_grad_() for name, value in model["params"].items()}, training=False
        )
    except _UNFIT as error:
        raise _unfit(scene, error) from error
    if not found.requires_grad:
        raise UserError(
            "what the model gives does not depend on its parameters, so it cannot learn: look for detach(), "
            "no_grad() or whole numbers in its forward"
        )
    try:
        with torch.random.fork_rng(devices=[]):  # a model may draw from it
            torch.func.grad(loss)(model["params"])
    except _UNFIT as error:
        raise _untrainable(error) from error
    after = tree.flatten(model)
    changed = [name for name, value in tree.flatten(before).items() if not torch.equal(value, after[name])]
    if changed:
        name = changed[0].partition("/")[2]
        raise UserError(
            f"the model writes to {name} in its forward; move that out of it, or, if it is a buffer, do it "
            "in training mode alone (if self.training)"
        )
    _check_repeatable(task, model, row)


def _check_repeatable(task: Task, model: State, row: Batch) -> None:
    """Refuse a model that does not follow from its weights, its inputs and torch's random numbers alone."""

    def says() -> Tensor:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            return task.forward(model, row, training=True).prediction

    if not torch.allclose(says(), says(), equal_nan=True):
        raise UserError(
            "the model gives something else when it is called again: it keeps what it has seen, or draws by "
            "other means than torch's"
        )


_UNFIT = (RuntimeError, IndexError, TypeError, ValueError, AttributeError, NotImplementedError)
"""What a model raises that does not take the data."""
BATCH_STATISTICS = "more than 1 value per channel when training"
"""What `F.batch_norm` says of a single row."""


def _unfit(scene: Scene, error: Exception) -> UserError:
    """What to say of a model that does not take the data."""
    if isinstance(error, UserError):
        return error
    data, problem = scene.dataset, scene.task_problem.name
    kind = f"{str(row_of(scene).dtype).removeprefix('torch.')} {list(data.shape)}"
    why = " ".join(str(error).split())
    if BATCH_STATISTICS in why:
        return _untrainable(error)
    hint = "; whole numbers are taken for tokens: give floats if they are none" if takes_tokens(data) else ""
    return UserError(f"the model does not fit {problem} of {kind} inputs: {why:.160}{hint}")


def _untrainable(error: Exception) -> UserError:
    """What to say of a model that gives predictions and no gradients."""
    if isinstance(error, UserError):
        return error
    why = " ".join(str(error).split())
    hints = {
        "in-place": "write to a copy of its inputs",
        "data pointer": "it leaves torch, or packs sequences",
        BATCH_STATISTICS: "F.batch_norm does not know which rows of a batch count: use nn.BatchNorm layers",
    }
    hint = next((text for word, text in hints.items() if word in why), "torch.func cannot differentiate it")
    return UserError(f"the model cannot be trained, {hint}: {why:.160}")


def row_of(scene: Scene) -> Tensor:
    """One input, as it lies in the data, in the type in which models take it."""
    first = scene.dataset.inputs[:1]
    return first if takes_tokens(scene.dataset) else first.to(scene.dtype)


def module_of(scene: Scene) -> nn.Module:
    """A model as a run starts with it; its lazy layers know their sizes."""
    module = _sized(scene, scene.build())
    return module if scene.start is None else warm_started(module, scene.start)


def _sized(scene: Scene, module: nn.Module) -> nn.Module:
    if not any(isinstance(value, UninitializedParameter) for value in module.parameters()):
        return module
    module = copied(module).to(scene.dtype)  # one that was given stays as it is
    training = module.training
    try:
        with torch.no_grad():
            module.eval()(row_of(scene))
    except _UNFIT as error:
        raise _unfit(scene, error) from error
    return module.train(training)


def takes_tokens(data: Dataset) -> bool:
    """Whether inputs are tokens: whole numbers that stay such."""
    return data.inputs.dtype == torch.int64
