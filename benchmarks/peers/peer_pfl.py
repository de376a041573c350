"""Contestant: pfl-research 0.6, FederatedAveraging on its SimulatedBackend, two processes (torchrun, gloo).

Everything between the call of `FederatedAveraging.run` and its end is pfl's own code; it gets the model and
the optimiser of training.py (channels-last, fused SGD). Its in-memory dataset does not shuffle, so a user's
tensors are gathered in a new order whenever the user is sampled, and pfl slices them into batches. The user
sampler returns the cohorts of the setting's files. pfl would evaluate users before and after training in its
first iteration; the metric that it is given costs nothing.

Warm-up: the first iteration; a callback then writes the initial weights back.
Environment: PFL_PYTORCH_DEVICE=cpu, which saves pfl asking for a GPU with every batch (5 % for the MLP).
torchrun gives each process one thread.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

import torch
from common import Task, load, parser, report, since_start
from training import accuracy, build, inputs_of, set_weights

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


def launch() -> None:
    """Replace this process by torchrun, which starts two."""
    os.execv(sys.executable, [sys.executable, *TORCHRUN, str(Path(__file__).resolve()), *sys.argv[1:]])


def simulate(out: Path, task: Task) -> None:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.internal.ops.pytorch_ops import distributed
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    setting = task.setting
    inputs, labels = inputs_of(task.images), torch.from_numpy(task.labels)
    shards = [torch.from_numpy(shard) for shard in task.shards]
    module = build(setting)
    set_weights(module, task.weights)
    module.loss = lambda batch, target: torch.nn.functional.cross_entropy(module(batch), target)
    module.metrics = lambda batch, target: {"samples": Weighted(0, len(batch))}
    model = PyTorchModel(
        module,
        partial(torch.optim.SGD, momentum=setting.momentum, weight_decay=setting.weight_decay, fused=True),
        torch.optim.SGD(module.parameters(), lr=1.0),
    )

    def user(client: int) -> PyTorchTensorDataset:
        order = shards[client][torch.randperm(len(shards[client]))]
        return PyTorchTensorDataset((inputs.index_select(0, order), labels.index_select(0, order)))

    users = chain(task.cohorts[0].tolist(), *(cohort.tolist() for cohort in task.cohorts))
    dataset = FederatedDataset(user, lambda: next(users))
    times: list[float] = []
    startup = 0.0

    class Clock(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            nonlocal startup
            if not times:
                set_weights(module, task.weights)
                startup = since_start()
            times.append(time.perf_counter())
            return False, Metrics()

    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=task.rounds + 1,
            evaluation_frequency=task.rounds + 1,
            train_cohort_size=setting.participants,
            val_cohort_size=0,
        ),
        SimulatedBackend(dataset, dataset, [WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=setting.lr, local_batch_size=setting.batch_size
        ),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    if distributed.global_rank == 0:
        seconds = [after - before for before, after in pairwise(times)]
        report(out, task, startup, seconds, accuracy(module, task), ("pfl", "torch", "numpy"))


def main() -> None:
    chosen = parser().parse_args()
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        launch()
    simulate(chosen.out, load(chosen.files, chosen.setting, chosen.rounds))


if __name__ == "__main__":
    main()
