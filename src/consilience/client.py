"""What the code of a method may do on a client: train on its own data, and look at its own curvature.

A method is written for ONE client. Everything here comes down to one primitive, `fold`: run a pure
step over the client's batches. The sequential executor gives a `fold` that loops over one client's
batches; the batched executor gives one that, under `vmap`, runs a whole cohort at once. A network
device has the former. Nothing else differs between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from consilience import curvature, numbers, tree
from consilience.objectives.base import Objective, Pass
from consilience.solver import Solver
from consilience.task import Task, mean_loss
from consilience.types import Batch, Params, State

Rows = Literal["train", "data", "holdout", "own"]
"""Which batches: of training; one pass over the training data; the held-out data; or these if any."""


class Step(Protocol):
    """A pure function from one carry to the next; a frozen dataclass, so that equal steps do equal work."""

    def __call__(self, carry: State, batch: Batch, extras: State) -> State:
        """The carry after one batch; `extras` stay the same over all batches of a client."""
        ...


class Fold(Protocol):
    """Runs a step over a client's batches. What a step puts into the group `tally` the engine also logs."""

    def __call__(
        self, step: Step, carry: State, extras: State, rows: Rows, epoch: int | None = None
    ) -> State:
        """The carry after all batches (of one epoch of training, where `epoch` is given)."""
        ...


class Trained(NamedTuple):
    """The result of local training."""

    model: State
    """`params` and `buffers`."""
    steps: Tensor
    """0-d, the optimiser steps taken."""


class Gradient(NamedTuple):
    """The gradient of the client's mean loss, and the buffers after the pass that computed it."""

    params: Params
    buffers: Params


@dataclass(frozen=True)
class Client:
    """One client, as its own code sees it."""

    task: Task
    solver: Solver
    samples: Tensor
    """0-d, the number of its training samples."""
    steps: Tensor
    """0-d, the optimiser steps of one local training."""
    epochs: int
    fold: Fold

    def train(
        self, model: State, objective: Objective | None = None, context: State | None = None
    ) -> Trained:
        """Local training from a model (any State with `params` and `buffers`).

        Args:
            model: Where to start.
            objective: What to minimise; by default the plain loss.
            context: Tensors for the objective's `penalty` and `correct`.
        """
        objective = Objective() if objective is None else objective
        solver, solver_numbers = numbers.split(self.solver)
        skeleton, objective_numbers = numbers.split(objective)
        step = TrainStep(self.task, solver, skeleton)
        extras = tree.join(context or {}, {"solver": solver_numbers, "objective": objective_numbers})
        zero = self.samples.new_zeros(())
        carry = {
            **_weights(model),
            **self.solver.init(model["params"]),
            "tally": {"loss": zero, "rows": zero},
        }
        if objective.early_stop == "never":
            return Trained(_weights(self.fold(step, carry, extras, "train")), self.steps)
        return self._train_until_worse(step, carry, extras, rollback=objective.early_stop == "rollback")

    def _train_until_worse(self, step: Step, carry: State, extras: State, *, rollback: bool) -> Trained:
        """Epoch by epoch; the first one that raises the held-out loss is the last."""
        start, blank = _weights(carry), carry["tally"]
        steps = torch.zeros_like(self.steps)
        running = torch.ones_like(self.samples, dtype=torch.bool)
        previous = torch.full_like(self.samples, torch.inf)
        for epoch in range(self.epochs):
            # What a client that has stopped still computes here is thrown away.
            given = {**extras, "running": {"yes": running}}
            after = self.fold(step, {**carry, "tally": blank}, given, "train", epoch)
            carry = tree.where(running, after, carry)
            steps = steps + running * self.steps / self.epochs
            loss = self.holdout_loss(carry)
            rose = running & ((loss > previous) | (loss == 0))
            if rollback:
                carry = {**carry, **tree.where(rose, start, carry)}
            running = running & ~rose
            previous = loss
        return Trained(_weights(carry), steps)

    def holdout_loss(self, model: State) -> Tensor:
        """The mean loss on the client's held-out data (NaN where it has none)."""
        zero = self.samples.new_zeros(())
        carry = {"sum": {"correct": zero, "loss": zero, "rows": zero}}
        total = self.fold(ScoreStep(self.task), carry, _weights(model), "holdout")["sum"]
        return total["loss"] / total["rows"]

    def grad(self, model: State) -> Gradient:
        """The full gradient of the client's mean loss, in training mode, one pass over its data."""
        carry = {"sum": tree.zeros_like(model["params"]), "buffers": model["buffers"]}
        carry = self.fold(GradStep(self.task), carry, {"params": model["params"]}, "data")
        return Gradient(tree.scale(1 / self.samples, carry["sum"]), carry["buffers"])

    def hvp(self, model: State, vector: Params) -> Params:
        """The Hessian of the client's mean loss times a vector (same batches and masks as `grad`)."""
        carry = {"sum": tree.zeros_like(model["params"]), "buffers": model["buffers"]}
        extras = {"params": model["params"], "vector": vector}
        return tree.scale(1 / self.samples, self.fold(HvpStep(self.task), carry, extras, "data")["sum"])

    def squared_gradients(
        self, model: State, names: tuple[str, ...] | None = None, kind: curvature.Kind = "per_sample_sum"
    ) -> Params:
        """The curvature diagonal of the named parameters (all by default), in evaluation mode.

        The kinds are those of `consilience.curvature`.
        """
        chosen = tuple(model["params"]) if names is None else names
        some = model["params"]
        zero = self.samples.new_zeros(())
        carry = {
            "sum": {name: torch.zeros_like(some[name]) for name in chosen},
            "count": {"rows": zero, "batches": zero},
        }
        step = curvature.CurvatureStep(self.task, chosen, kind)
        carry = self.fold(step, carry, _weights(model), "data")
        return curvature.finish(kind, carry["sum"], carry["count"]["rows"], carry["count"]["batches"])


def _weights(model: State) -> State:
    return {"params": model["params"], "buffers": model["buffers"]}


@dataclass(frozen=True)
class TrainStep:
    """One optimiser step on one batch."""

    task: Task
    solver: Solver
    objective: Objective

    def __call__(self, carry: State, batch: Batch, extras: State) -> State:
        """The carry holds params, buffers, the solver's state and a tally of the training loss."""
        solver = numbers.join(self.solver, extras["solver"])
        objective = numbers.join(self.objective, extras["objective"])

        def loss(params: Params) -> tuple[Tensor, tuple[Tensor, Params]]:
            model = {"params": params, "buffers": carry["buffers"]}
            output = self.task.forward(model, batch, training=True)
            fit = mean_loss(objective.fit(self.task, output.logits, batch.targets), batch.weight)
            penalty = objective.penalty(Pass(self.task, params, batch, output), extras)
            return (fit if penalty is None else fit + penalty), (fit, output.buffers)

        grads, (fit, buffers) = torch.func.grad(loss, has_aux=True)(carry["params"])
        grads = objective.correct(grads, extras)
        params, solver_state = solver.update(carry["params"], grads, carry)
        rows = batch.weight.sum()
        tally = {"loss": carry["tally"]["loss"] + fit.detach() * rows, "rows": carry["tally"]["rows"] + rows}
        if "running" in extras:  # a client that has stopped early trains on for nothing: not logged
            running = extras["running"]["yes"]
            tally = {name: torch.where(running, v, carry["tally"][name]) for name, v in tally.items()}
        return {"params": params, "buffers": buffers, **solver_state, "tally": tally}


@dataclass(frozen=True)
class GradStep:
    """Adds the gradient of one batch's summed loss."""

    task: Task

    def __call__(self, carry: State, batch: Batch, extras: State) -> State:
        """Parameters stay; batch-normalisation statistics move as they do in training."""
        grads, buffers = torch.func.grad(_summed_loss(self.task, carry["buffers"], batch), has_aux=True)(
            extras["params"]
        )
        return {"sum": tree.add(carry["sum"], grads), "buffers": buffers}


@dataclass(frozen=True)
class HvpStep:
    """Adds the Hessian-vector product of one batch's summed loss."""

    task: Task

    def __call__(self, carry: State, batch: Batch, extras: State) -> State:
        """Differentiates the inner product of the gradient with the vector (double backward)."""
        loss = _summed_loss(self.task, carry["buffers"], batch)

        def slope(params: Params) -> tuple[Tensor, Params]:
            grads, buffers = torch.func.grad(loss, has_aux=True)(params)
            return tree.dot(grads, extras["vector"]), buffers

        product, buffers = torch.func.grad(slope, has_aux=True)(extras["params"])
        return {"sum": tree.add(carry["sum"], product), "buffers": buffers}


@dataclass(frozen=True)
class ScoreStep:
    """Adds correct answers, loss and rows of one batch, in evaluation mode."""

    task: Task

    def __call__(self, carry: State, batch: Batch, extras: State) -> State:
        """The model is in `extras`."""
        score = self.task.score(extras, batch)
        total = carry["sum"]
        return {
            "sum": {
                "correct": total["correct"] + score.correct,
                "loss": total["loss"] + score.loss,
                "rows": total["rows"] + batch.weight.sum(),
            }
        }


class _SummedLoss(Protocol):
    def __call__(self, params: Params) -> tuple[Tensor, Params]: ...


def _summed_loss(task: Task, buffers: Params, batch: Batch) -> _SummedLoss:
    def loss(params: Params) -> tuple[Tensor, Params]:
        output = task.forward({"params": params, "buffers": buffers}, batch, training=True)
        losses = task.loss(output.logits, batch.targets)
        return torch.where(batch.weight > 0, losses, 0.0).sum(), output.buffers

    return loss
