"""Which executor computes a scene, and with how many lanes: by the model, the batch and the device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from consilience import tree
from consilience.engine.executors.base import UNLIMITED, Executor
from consilience.engine.executors.lanes import Batched
from consilience.engine.executors.sequential import Sequential
from consilience.engine.memory import LEAST, usual_memory
from consilience.engine.scene import ExecutorName, Scene
from consilience.learning.batches import Pool
from consilience.learning.task import Task

STATES_PER_JOB = 12
"""How many models' memory one client's work takes: states, gradients, messages and copies."""

JOBS_SHARE = 4
"""What clients that are computed together hold takes no more than one part in so many of the memory."""

FULL = 5e10
"""The operations of a step that fill a GPU: clients then train one by one, with cuDNN's own kernels.

Those of layers that are trained count: where weights are not, the products of all clients are one product.
"""

OPERATIONS_A_SECOND, SECONDS_A_TICK = 3e13, 1e-4
"""What a large GPU does of small models' steps, roughly, and how long the shortest step of all takes."""

COMPILED_FROM = 60.0
"""How many seconds of work have to be ahead for steps to be compiled.

That takes ten to thirty, and saves a fifth to a half.
"""

STACKED_ROWS = 512
"""The most rows that the batches of clients stacked on a CPU have together.

Small products leave the processor waiting for Python, so they are stacked. Stacked convolutions are slow ones
there, so those never are.
"""

STACKED_BYTES = 2**22
"""The most bytes that the models of clients stacked on a CPU have together.

With velocities and gradients that is three times as much, of what a core has in its caches. Models of some MB
have products that are large enough alone.
"""


def at_worker(scene: Scene) -> Scene:
    """The scene as a single process simulates it: a worker, or who has let workers run its rounds."""
    if not scene.executor.startswith("ray"):
        return scene
    # What a process has is its own business: workers find out themselves.
    return replace(scene, executor=_at_a_worker(scene.executor), memory=None)


def choose_executor(scene: Scene, task: Task, pool: Pool, variants: int = 1) -> Executor:
    """The executor that a scene asks for, with as many lanes as suit the model and the device.

    Args:
        scene: The setting.
        task: What is computed.
        pool: The data.
        variants: How many variants of a method run in it.
    """
    if _at_a_worker(scene.executor) == "sequential":
        return Sequential(pool)
    trained = sum(value.numel() for value in task.skeleton.parameters() if value.requires_grad)
    model_bytes = max(1, trained * scene.dtype.itemsize)
    held = pool.nbytes + tree.nbytes({"frozen": task.frozen})
    memory = max(LEAST, (scene.memory or usual_memory(scene.device)) - held)
    fits = max(1, memory // JOBS_SHARE // (STATES_PER_JOB * model_bytes))
    if scene.device.type == "cuda":
        inputs = torch.Size((1, *scene.dataset.shape))
        trace = task.trace(inputs, pool.given_dtype)
        if 3 * trace.trained * scene.work.batch_size > FULL:  # compiling takes minutes then
            return Batched(pool, scene.lanes or 1, fits, memory=memory)
        compiled = scene.compiled
        if compiled is None:
            compiled = seconds_ahead(scene, 3 * trace.operations, variants) > COMPILED_FROM
        return Batched(pool, scene.lanes or UNLIMITED, fits, compiled=compiled, memory=memory)
    convolutional = any(isinstance(layer, nn.Conv2d) for layer in task.skeleton.modules())
    stacked = min(STACKED_ROWS // widest_batch(scene), STACKED_BYTES // model_bytes)
    lanes = 1 if convolutional else max(1, stacked)
    workers = torch.get_num_threads()
    return Batched(pool, scene.lanes or lanes, fits, workers=workers, memory=memory)


def widest_batch(scene: Scene) -> int:
    """The most rows that a batch of any client has: large batches of small clients are small."""
    most = max(len(shard) for partition in scene.partitions.values() for shard in partition.shards)
    return max(1, min(scene.work.batch_size, most))


def seconds_ahead(scene: Scene, operations: int, variants: int) -> float:
    """How long a GPU will roughly be at work on a scene's training, by what has to be done and no stopwatch.

    Args:
        scene: The setting.
        operations: Multiplications and additions of a training step, for one row.
        variants: How many variants of a method run in it.
    """
    work, rows, ticks = scene.work, 0.0, 0.0
    for partition in scene.partitions.values():
        sizes = np.array([len(shard) for shard in partition.shards if len(shard)], dtype=np.int64)
        share = min(1.0, scene.participation / max(1, len(sizes)))
        steps = work.count(sizes, work.steps or work.epochs or 0)
        visited = sizes * (work.epochs or 0) if work.steps is None else steps * work.batch_size
        rows += share * float(visited.sum())
        ticks = max(ticks, float(steps.max(initial=0)))
    return scene.rounds * (variants * rows * operations / OPERATIONS_A_SECOND + ticks * SECONDS_A_TICK)


def resolve_executor(name: ExecutorName) -> ExecutorName:
    """The executor that is meant: for `auto` the batched one.

    It was ahead wherever both were measured (docs/performance.md).

    Nothing here uses a stopwatch: the same run must give the same bits again.
    """
    return "batched" if name == "auto" else name


def _at_a_worker(name: ExecutorName) -> ExecutorName:
    """The executor of a single process: a worker's, or that of who sends it work."""
    return "sequential" if name.endswith("sequential") else "batched"
