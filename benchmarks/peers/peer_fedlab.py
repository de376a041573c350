"""Contestant: FedLab 1.3, FedAvg in its StandalonePipeline, which trains all clients in one process.

Two rows: by default clients read a DataLoader, as in FedLab's examples; with `--in-memory` the trainer's
`train` is replaced by the loop of training.py (channels-last, which FedLab's own serialisation of models
refuses). FedLab's trainer keeps one optimiser for all clients and knows no momentum, so an optimiser is made
for every client. Its average is not weighted; clients are equally large in the settings it runs. Its
data sets import torchvision, which is not used here and stands in as an empty module.

Warm-up: one round of another pipeline with the same trainer.
Environment: none. One thread: two are no faster for operations as small as these (see loop.py).
"""

from __future__ import annotations

import logging
import sys
import time
from itertools import pairwise
from types import ModuleType

import torch
from common import Task, load, parser, report, since_start
from torch.utils.data import DataLoader
from training import accuracy, build, flat, inputs_of, set_flat, set_weights, train

sys.modules["torchvision"] = ModuleType("torchvision")
sys.modules["torchvision"].transforms = ModuleType("transforms")

from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Shards(FedDataset):
    """The clients' data as FedLab wants it."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        inputs, labels = inputs_of(task.images), torch.from_numpy(task.labels)
        self.num = len(task.shards)
        self.parts = [BaseDataset(inputs[rows], labels[rows]) for rows in map(torch.from_numpy, task.shards)]

    def get_dataset(self, id: int, type: str = "train") -> BaseDataset:
        return self.parts[id]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader:
        return DataLoader(self.parts[id], batch_size=batch_size, shuffle=True)


class WithLoader(FedAvgSerialClientTrainer):
    """FedLab's trainer with a new optimiser for every client."""

    def __init__(self, task: Task, model: torch.nn.Module) -> None:
        super().__init__(model, task.setting.clients)
        self.setting = task.setting
        self.setup_dataset(Shards(task))
        self.setup_optim(1, task.setting.batch_size, task.setting.lr)

    def train(self, model_parameters: torch.Tensor, train_loader: DataLoader) -> list[torch.Tensor]:
        self.optimizer = torch.optim.SGD(
            self._model.parameters(),
            lr=self.setting.lr,
            momentum=self.setting.momentum,
            weight_decay=self.setting.weight_decay,
            fused=True,
        )
        return super().train(model_parameters, train_loader)


class InMemory(WithLoader):
    """FedLab's trainer with the loop of training.py, without DataLoader."""

    def __init__(self, task: Task, model: torch.nn.Module) -> None:
        super().__init__(task, model)
        self.fast, self.visits = build(task.setting), 0

    def train(self, model_parameters: torch.Tensor, train_loader: DataLoader) -> list[torch.Tensor]:
        part = train_loader.dataset
        self.visits += 1
        set_flat(self.fast, model_parameters)
        train(self.fast, part.x, part.y, torch.arange(len(part)), self.setting, self.visits)
        return [flat(self.fast.parameters())]


class GivenCohorts(FedAvgServerHandler):
    """FedAvg that trains the clients it is told."""

    cohorts: list[list[int]]

    def sample_clients(self) -> list[int]:
        return self.cohorts[self.round]


class Timed(StandalonePipeline):
    """A pipeline that notes when rounds end."""

    def evaluate(self) -> None:
        self.times.append(time.perf_counter())

    def main(self) -> None:
        self.times = [time.perf_counter()]
        super().main()


def main() -> None:
    arguments = parser()
    arguments.add_argument("--in-memory", action="store_true", help="do not use DataLoader")
    chosen = arguments.parse_args()
    logging.getLogger().setLevel(logging.WARNING)
    task = load(chosen.files, chosen.setting, chosen.rounds)
    setting = task.setting
    assert len({len(shard) for shard in task.shards}) == 1
    torch.set_num_threads(1)
    model = build(setting).to(memory_format=torch.contiguous_format)
    set_weights(model, task.weights)
    trainer = (InMemory if chosen.in_memory else WithLoader)(task, model)

    def pipeline(rounds: int) -> Timed:
        handler = GivenCohorts(model, rounds, setting.participants / setting.clients)
        handler.cohorts = task.cohorts.tolist()
        return Timed(handler, trainer)

    pipeline(1).main()
    timed = pipeline(task.rounds)
    startup = since_start()
    timed.main()
    set_weights(model, timed.handler.model.parameters())
    seconds = [after - before for before, after in pairwise(timed.times)]
    report(chosen.out, task, startup, seconds, accuracy(model, task), ("fedlab", "torch", "numpy"))


if __name__ == "__main__":
    main()
