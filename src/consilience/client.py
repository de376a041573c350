"""What the code of a method may do on a client: train on its own data, and look at its own curvature.

A method is written for ONE client. Everything here comes down to one primitive, `fold`: run a pure
step over the client's batches. The sequential executor gives a `fold` that loops over one client's
batches; the batched executor gives one that, under `vmap`, runs a whole cohort at once. A network
device has the former. Nothing else differs between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from consilience import sweeping, tree
from consilience.learning import curvature, kronecker
from consilience.learning.schedules.scheduled import TIME
from consilience.learning.solvers import Solver
from consilience.learning.task import Task, mean_loss
from consilience.objectives.base import Objective, Pass
from consilience.problems.base import LOSS, ROWS, row_sums
from consilience.problems.base import mean_loss as mean_of
from consilience.types import Batch, Params, State

Rows = Literal["train", "data", "batch", "samples", "holdout", "test"]
"""Which batches are meant.

- `train`: those of local training;
- `data`: one pass over the training data, in batches as in training;
- `batch`: the first batch of that pass;
- `samples`: a pass over the training data in any batches, where only samples matter;
- `holdout`: the held-out data;
- `test`: the global test set.
"""


class Step(ABC):
    """What is done with one batch: something is measured, and the carry moves by it.

    The carry is the state that passes from batch to batch, such as a model in training or a sum; the extras
    stay the same over all batches. A step is a frozen dataclass, so that equal steps do equal work.
    """

    apart: ClassVar[bool] = False
    """Whether it adds up what batches give so that a CPU's number of threads changes nothing."""

    @abstractmethod
    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        """What the batch says, e.g. a gradient. The function is pure."""

    def advance(self, carry: State, found: State, extras: State) -> State:
        """The next carry; by default sums grow and buffers are replaced. The function is pure."""
        return {
            group: found[group] if group == "buffers" else tree.add(params, found[group])
            for group, params in carry.items()
        }

    def advance_in_place(self, carry: State, found: State, extras: State) -> None:
        """Write the numbers of `advance`, up to rounding, over the old carry: a CPU's memory is slow."""
        for group, params in carry.items():
            for name, value in params.items():
                if group == "buffers":
                    value.copy_(found[group][name])
                else:
                    value.add_(found[group][name])

    def stackable(self, extras: State) -> bool:
        """Whether `advance_in_place` also works on the stacked states of many clients."""
        return True

    def __call__(self, carry: State, batch: Batch, extras: State) -> State:
        """The carry after one batch."""
        return self.advance(carry, self.measure(carry, batch, extras), extras)


class Fold(Protocol):
    """A function that runs a step over a client's batches.

    What a step puts into the group `tally` the engine also logs.
    """

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
    rates: Tensor | None = None
    """0-d, the sum of their learning rates, where these differ from step to step."""

    def length(self, solver: Solver) -> Tensor:
        """0-d, the sum of the learning rates of all steps that a solver took."""
        return self.steps * solver.lr if self.rates is None else self.rates


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
    """The epochs of one local training; 0 where its length is a number of steps."""
    fold: Fold
    key: Tensor
    """0-d int64, the source of random draws that are not about a batch."""
    common_key: Tensor
    """0-d int64, such a source that all clients of a seed share in a round."""
    peer: bool = False
    """Whether it is a node of a graph."""
    clip: float | None = None
    """The largest norm of a gradient in training; longer ones are shortened."""

    def train(
        self, model: State, objective: Objective | None = None, context: State | None = None
    ) -> Trained:
        """The result of local training from a model.

        Args:
            model: Where to start: any State with `params` and `buffers`.
            objective: What to minimise; by default the plain loss.
            context: Tensors for the objective's `penalty` and `correct`.
        """
        objective = Objective() if objective is None else objective
        solver, solver_numbers = sweeping.split(self.solver)
        skeleton, objective_numbers = sweeping.split(objective)
        step = TrainStep(self.task, solver, skeleton, self.clip)
        extras = tree.join(context or {}, {"solver": solver_numbers, "objective": objective_numbers})
        zero = self.samples.new_zeros(())
        carry = {
            **_weights(model),
            **self.solver.init(model["params"]),
            "tally": {"loss": zero, "rows": zero},
        }
        if objective.early_stop == "never":
            after = self.fold(step, carry, extras, "train")
            return Trained(_weights(after), self.steps, after.get(TIME, {}).get("rates"))
        return self._train_until_worse(step, carry, extras, rollback=objective.early_stop == "rollback")

    def _train_until_worse(self, step: Step, carry: State, extras: State, *, rollback: bool) -> Trained:
        """The result of training epoch by epoch; the first one that raises the held-out loss is the last."""
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
        return Trained(_weights(carry), steps, carry.get(TIME, {}).get("rates"))

    def holdout_loss(self, model: State) -> Tensor:
        """The mean loss on the client's held-out data (NaN where it has none)."""
        zero = self.samples.new_zeros((), dtype=torch.float64)
        total = self.fold(LossStep(self.task), {"sum": {LOSS: zero, ROWS: zero}}, _weights(model), "holdout")
        return mean_of(total["sum"]).to(self.samples.dtype)

    def grad(self, model: State, rows: Literal["data", "batch"] = "data") -> Gradient:
        """The gradient of the client's mean loss, in training mode, on all of its data or on one batch."""
        carry = {
            "sum": tree.zeros_like(model["params"]),
            "buffers": model["buffers"],
            "count": {"rows": self.samples.new_zeros(())},
        }
        carry = self.fold(GradStep(self.task), carry, {"params": model["params"]}, rows)
        return Gradient(tree.scale(1 / carry["count"]["rows"], carry["sum"]), carry["buffers"])

    def loss(self, model: State) -> Tensor:
        """The client's mean loss, in float64 (same batches, mode and masks as `grad`)."""
        zero = self.samples.new_zeros((), dtype=torch.float64)
        step = LossStep(self.task, training=True)
        total = self.fold(step, {"sum": {LOSS: zero, ROWS: zero}}, _weights(model), "data")["sum"]
        return self.task.regularised(mean_of(total), model["params"])

    def hvp(self, model: State, vector: Params) -> Params:
        """The Hessian of the client's mean loss times a vector (same batches and masks as `grad`)."""
        carry = {"sum": tree.zeros_like(model["params"]), "buffers": model["buffers"]}
        extras = {"params": model["params"], "vector": vector}
        return tree.scale(1 / self.samples, self.fold(HvpStep(self.task), carry, extras, "data")["sum"])

    def squared_gradients(
        self, model: State, names: tuple[str, ...] | None = None, kind: curvature.Kind = "per_sample_sum"
    ) -> Params:
        """The curvature diagonal of the named parameters (all by default), in evaluation mode.

        The kinds are those of `consilience.learning.curvature`.
        """
        chosen = tuple(model["params"]) if names is None else names
        some = model["params"]
        zero = self.samples.new_zeros(())
        carry = {
            "sum": {name: torch.zeros_like(some[name]) for name in chosen},
            "count": {"rows": zero, "batches": zero},
        }
        step = CurvatureStep(self.task, chosen, kind)
        rows: Rows = "data" if kind in curvature.OF_BATCHES else "samples"
        carry = self.fold(step, carry, _weights(model), rows)
        return curvature.finish(kind, carry["sum"], carry["count"]["rows"], carry["count"]["batches"])

    def kronecker_factors(self, model: State, weights: tuple[str, ...], kind: curvature.MeanKind) -> State:
        """The mean Kronecker factors of the layers with these weights, in evaluation mode.

        The groups are those of `consilience.learning.kronecker`, the kinds those of
        `consilience.learning.curvature`.
        """
        carry = {
            **kronecker.zeros(model["params"], weights),
            "count": {"rows": self.samples.new_zeros(())},
        }
        carry = self.fold(FactorStep(self.task, weights, kind), carry, _weights(model), "samples")
        share = 1 / carry["count"]["rows"]
        return {group: tree.scale(share, carry[group]) for group in (kronecker.INPUTS, kronecker.OUTPUTS)}


def _weights(model: State) -> State:
    return {"params": model["params"], "buffers": model["buffers"]}


@dataclass(frozen=True)
class TrainStep(Step):
    """One optimiser step on one batch. The carry holds the model, the solver's state and a tally."""

    task: Task
    solver: Solver
    objective: Objective
    clip: float | None = None

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        """The gradient, the buffers after the forward pass, and the loss."""
        objective = sweeping.join(self.objective, extras["objective"])
        batch = self.task.augmented(batch)

        def loss(params: Params) -> tuple[Tensor, tuple[Tensor, Params]]:
            model = {"params": params, "buffers": carry["buffers"]}
            output = self.task.forward(model, batch, training=True)
            fit = mean_loss(objective.fit(self.task, output.prediction, batch.targets), batch.weight)
            penalty = objective.penalty(Pass(self.task, params, batch, output), extras)
            total = fit if penalty is None else fit + penalty
            return self.task.regularised(total, params), (fit, output.buffers)

        grads, (fit, buffers) = torch.func.grad(loss, has_aux=True)(carry["params"])
        rows = batch.weight.sum()
        tally = {"loss": fit.detach() * rows, "rows": rows}
        if "running" in extras:  # a client that has stopped early trains on for nothing: not logged
            tally = tree.scale(extras["running"]["yes"].to(rows.dtype), tally)
        grads = objective.correct(grads, extras)
        if self.clip is not None:
            grads = tree.shorten(grads, self.clip)
        return {"grads": grads, "buffers": buffers, "tally": tally}

    def advance(self, carry: State, found: State, extras: State) -> State:
        solver = sweeping.join(self.solver, extras["solver"])
        params, state = solver.update(carry["params"], found["grads"], carry)
        tally = tree.add(carry["tally"], found["tally"])
        return {"params": params, "buffers": found["buffers"], **state, "tally": tally}

    def advance_in_place(self, carry: State, found: State, extras: State) -> None:
        solver = sweeping.join(self.solver, extras["solver"])
        solver.update_in_place(carry["params"], found["grads"], carry)
        rest = {group: carry[group] for group in ("buffers", "tally")}
        super().advance_in_place(rest, found, extras)

    def stackable(self, extras: State) -> bool:
        """Whether the solver allows it; numbers that differ between clients would not line up."""
        return self.solver.stackable and not extras["solver"]


@dataclass(frozen=True)
class GradStep(Step):
    """A step that adds the gradient of one batch's summed loss."""

    task: Task

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        """The gradient; parameters stay, batch-normalisation statistics move as in training."""
        loss = _summed_loss(self.task, carry["buffers"], batch)
        grads, buffers = torch.func.grad(loss, has_aux=True)(extras["params"])
        return {"sum": grads, "buffers": buffers, "count": {"rows": batch.weight.sum()}}


@dataclass(frozen=True)
class HvpStep(Step):
    """A step that adds the Hessian-vector product of one batch's summed loss."""

    task: Task

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        """The product: the derivative of the gradient's inner product with the vector (double backward)."""
        loss = _summed_loss(self.task, carry["buffers"], batch)

        def slope(params: Params) -> tuple[Tensor, Params]:
            grads, buffers = torch.func.grad(loss, has_aux=True)(params)
            return tree.dot(grads, extras["vector"]), buffers

        product, buffers = torch.func.grad(slope, has_aux=True)(extras["params"])
        return {"sum": product, "buffers": buffers}


@dataclass(frozen=True)
class ScoreStep(Step):
    """A step that adds the problem's sums over one batch, in evaluation mode. The model is in `extras`."""

    apart: ClassVar[bool] = True
    task: Task

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        return {"sum": self.task.tally(extras, batch)}


@dataclass(frozen=True)
class LossStep(Step):
    """A step that adds the loss and the rows of one batch. The model is in `extras`."""

    task: Task
    training: bool = False
    """Whether the model is in training mode; where its statistics move to is dropped."""

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        batch = self.task.augmented(batch) if self.training else batch
        prediction = self.task.forward(extras, batch, training=self.training).prediction
        return {"sum": row_sums(self.task.loss(prediction, batch.targets), batch.weight)}


@dataclass(frozen=True)
class CurvatureStep(Step):
    """A step that adds one batch to a curvature diagonal and counts rows and batches.

    The model is in `extras`.
    """

    task: Task
    names: tuple[str, ...]
    kind: curvature.Kind

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        part = curvature.contribution(self.task, self.names, self.kind, batch, extras)
        rows = batch.weight.sum()
        return {"sum": part, "count": {"rows": rows, "batches": torch.ones_like(rows)}}


@dataclass(frozen=True)
class FactorStep(Step):
    """A step that adds one batch to Kronecker factors and counts rows. The model is in `extras`."""

    task: Task
    weights: tuple[str, ...]
    kind: curvature.MeanKind

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        part = kronecker.contribution(self.task, self.weights, self.kind, batch, extras)
        return {**part, "count": {"rows": batch.weight.sum()}}


class _SummedLoss(Protocol):
    def __call__(self, params: Params) -> tuple[Tensor, Params]: ...


def _summed_loss(task: Task, buffers: Params, batch: Batch) -> _SummedLoss:
    batch = task.augmented(batch)

    def loss(params: Params) -> tuple[Tensor, Params]:
        output = task.forward({"params": params, "buffers": buffers}, batch, training=True)
        losses = task.loss(output.prediction, batch.targets)
        fit = torch.where(batch.weight > 0, losses, 0.0).sum()
        return task.regularised(fit, params, batch.weight.sum()), output.buffers

    return loss
