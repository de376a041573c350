"""Contestant: a hand-written PyTorch loop, as fast as we could make it (see training.py for what was tried).

Two worker processes of one thread each live through the run and keep their model. The data set is one float32
tensor that they share with the parent, weights travel through shared memory, and clients are handed out
largest first to whoever is free. With `--threads`, one process with two threads trains all clients instead.

Warm-up: one round, then the initial weights are written back. Environment: none; one thread a process makes
OMP_WAIT_POLICY irrelevant. With `--threads` it does not: on a busy machine, waiting threads that spin (the
default) were over ten times slower than sleeping ones (PASSIVE). In the silo and device settings two threads
were not faster than one, so this variant only runs when it is asked for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np
import torch
from common import Task, load, parser, report, since_start
from torch import Tensor
from training import accuracy, build, flat, inputs_of, set_flat, train


@dataclass(frozen=True)
class Memory:
    """What workers and the parent share."""

    inputs: Tensor
    labels: Tensor
    start: Tensor
    """[nodes or 1, parameters] the models that clients start from."""
    trained: Tensor
    """[participants, parameters] the models that clients ended with."""
    shards: tuple[Tensor, ...]


class Worker:
    """Trains clients with a model of its own."""

    def __init__(self, task: Task, memory: Memory) -> None:
        self.task, self.memory = task, memory
        self.model = build(task.setting)

    def client(self, number: int, slot: int) -> None:
        """Train the client in one slot of a round's cohort."""
        memory, client = self.memory, int(self.task.cohorts[number][slot])
        set_flat(self.model, memory.start[client if self.task.setting.graph else 0])
        seed = self.task.seed(number, client)
        train(self.model, memory.inputs, memory.labels, memory.shards[client], self.task.setting, seed)
        memory.trained[slot] = flat(self.model.parameters())


def serve(task: Task, memory: Memory, pipe: Connection, turn: object) -> None:
    """The life of a worker process: for every round number received, train clients until none is left."""
    torch.set_num_threads(1)
    worker = Worker(task, memory)
    while (number := pipe.recv()) is not None:
        order = largest_first(task, number)
        while True:
            with turn.get_lock():
                mine, turn.value = turn.value, turn.value + 1
            if mine >= len(order):
                break
            worker.client(number, order[mine])
        pipe.send(None)


def largest_first(task: Task, number: int) -> list[int]:
    """The slots of a round's cohort in the order in which they are handed out."""
    sizes = [len(task.shards[client]) for client in task.cohorts[number]]
    return np.argsort(sizes, kind="stable")[::-1].tolist()


def average(task: Task, memory: Memory, mixing: Tensor, number: int) -> None:
    """Average the trained models as a server does, or as every node of a graph does."""
    if task.setting.graph:
        torch.mm(mixing, memory.trained, out=memory.start)
        return
    sizes = torch.tensor([float(len(task.shards[client])) for client in task.cohorts[number]])
    torch.mv(memory.trained.T, sizes / sizes.sum(), out=memory.start[0])


def main() -> None:
    arguments = parser()
    arguments.add_argument("--threads", action="store_true", help="two threads in place of two processes")
    chosen = arguments.parse_args()
    # Before a fork only one thread may have run, or the children would wait for threads they do not have.
    torch.set_num_threads(2 if chosen.threads else 1)
    task = load(chosen.files, chosen.setting, chosen.rounds)
    initial = flat(task.weights)
    models = task.setting.clients if task.setting.graph else 1
    memory = Memory(
        inputs_of(task.images),
        torch.from_numpy(task.labels),
        initial.repeat(models, 1).share_memory_(),
        torch.zeros(task.setting.participants, len(initial)).share_memory_(),
        tuple(torch.from_numpy(shard) for shard in task.shards),
    )
    mixing = torch.from_numpy(task.mixing()) if task.setting.graph else torch.empty(0)
    processes, pipes = [], []
    turn = get_context("fork").Value("i", 0)
    for _ in range(0 if chosen.threads else 2):
        pipe, other = get_context("fork").Pipe()
        process = get_context("fork").Process(target=serve, args=(task, memory, other, turn), daemon=True)
        process.start()
        processes.append(process)
        pipes.append(pipe)
    alone = Worker(task, memory)

    def round_of(number: int) -> None:
        turn.value = 0
        for pipe in pipes:
            pipe.send(number)
        for pipe in pipes:
            pipe.recv()
        if not pipes:
            for slot in range(task.setting.participants):
                alone.client(number, slot)
        average(task, memory, mixing, number)

    round_of(0)
    memory.start.copy_(initial.expand(models, -1))
    startup, seconds = since_start(), []
    for number in range(task.rounds):
        begin = time.perf_counter()
        round_of(number)
        seconds.append(time.perf_counter() - begin)
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join()
    scores = []
    for model in memory.start:
        set_flat(alone.model, model)
        scores.append(accuracy(alone.model, task))
    report(chosen.out, task, startup, seconds, float(np.mean(scores)), ("torch", "numpy"))


if __name__ == "__main__":
    main()
