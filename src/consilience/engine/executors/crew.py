"""Processes that run machines at the same time, on a CPU.

Python runs one thread at a time, and small steps are mostly Python. A crew is forked from this process:
its members have the data and the recorded programs without a copy, and the memory of the machines is
shared. All that goes through a pipe is which batches to run.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import numpy as np
import torch
from torch import Tensor

from consilience.engine.executors.machine import Machine
from consilience.errors import UserError
from consilience.types import IntArray

DONE = b""
STOP = b""
CAN_FORK = sys.platform == "linux"  # elsewhere system libraries do not survive it
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT_BYTES = 2**26


class Crew:
    """Some processes, its members, that run machines.

    Args:
        machines: What each member can be asked to run; they were built before and live in shared memory.
        size: How many members there are.
    """

    def __init__(self, machines: Sequence[Machine], size: int) -> None:
        self.machines = list(machines)
        self._programs = {id(machine): machine.programs for machine in machines}
        self._lines: list[Connection] = []
        fork = multiprocessing.get_context("fork")
        self._members: list[BaseProcess] = []
        for _ in range(size):
            ours, theirs = fork.Pipe()
            self._lines.append(ours)
            member = fork.Process(target=_work, args=(theirs, self._lines, self.machines), daemon=True)
            member.start()
            theirs.close()
            self._members.append(member)
        self.close = weakref.finalize(self, _dismiss, self._lines, self._members)

    def can_run(self, machines: Sequence[Machine]) -> bool:
        """Whether the members know these machines as they are, and are alive and enough."""
        alive = all(member.is_alive() for member in self._members)
        known = all(self._programs.get(id(machine)) == machine.programs for machine in machines)
        return alive and len(self._members) >= len(machines) and known

    def kill(self) -> None:
        """End all members, whatever they are doing."""
        for member in self._members:
            member.kill()

    def run(
        self, member: int, machine: Machine, rows: Tensor, weight: Tensor, keys: Tensor, sizes: IntArray
    ) -> None:
        """Let a member run some ticks of a machine, given as in `Machine.run`, and wait for it."""
        line = self._lines[member]
        try:
            line.send_bytes(np.array([self.machines.index(machine), *rows.shape], dtype=np.int64).tobytes())
            for value in (rows.numpy(), weight.numpy(), keys.numpy(), sizes):
                line.send_bytes(np.ascontiguousarray(value).tobytes())
            answer = line.recv_bytes()
        except (EOFError, OSError) as error:
            raise UserError(
                "a worker process was killed, probably for want of memory: go on when there is more, with "
                "`consilience resume` where there is a folder (OMP_NUM_THREADS=1 does without such "
                "processes, but weights may then differ by rounding)"
            ) from error
        if answer != DONE:
            raise RuntimeError(f"in a worker process: {answer.decode()}")


def _dismiss(lines: Sequence[Connection], members: Sequence[BaseProcess]) -> None:
    for line in lines:
        # Closing is not enough: processes that were forked later hold this end of the pipe, too.
        with contextlib.suppress(OSError):
            line.send_bytes(STOP)
        line.close()
    for member in members:
        member.join(timeout=5)
        member.kill()
        member.join()


def _keep_memory() -> None:
    """Let this process keep what it frees for the next step: getting it back costs a page fault each 4 KiB.

    Steps whose tensors have megabytes took 5 to 20 % longer without it.
    """
    try:
        allocator = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not glibc's
        return
    for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
        allocator(option, KEPT_BYTES)


def _work(line: Connection, others: Sequence[Connection], machines: Sequence[Machine]) -> None:
    """A member's life: it ends when this process closes its end of the pipe, or dies."""
    for other in others:
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted run closes the pipe
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # what the command line does is not for members
    torch.set_num_threads(1)
    _keep_memory()
    while True:
        try:
            order = line.recv_bytes()
            if order == STOP:
                os._exit(0)
            number, *shape = np.frombuffer(order, dtype=np.int64).tolist()
            machine = machines[number]
            kinds = ((shape, torch.int64), (shape, machine.pool.dtype), (shape[:2], torch.int64))
            given = [
                torch.frombuffer(bytearray(line.recv_bytes()), dtype=dtype).reshape(size)
                for size, dtype in kinds
            ]
            sizes = np.frombuffer(line.recv_bytes(), dtype=np.int64).reshape(shape[:2])
        except (EOFError, ConnectionError):
            os._exit(0)  # nothing of this process's own end must run here
        try:
            machine.run(*given, sizes)
            answer = DONE
        except Exception:
            answer = traceback.format_exc().encode()
        try:
            line.send_bytes(answer)
        except ConnectionError:  # nobody is there to hear it any more
            os._exit(0)


def side_by_side(tasks: Sequence[Callable[[], None]], give_up: Callable[[], None] = lambda: None) -> None:
    """Run tasks at the same time, each on its share of the processor's cores.

    `give_up` is called when one fails, or on an interrupt; it should make the others end.
    """
    if len(tasks) < 2:
        for task in tasks:
            task()
        return
    threads = torch.get_num_threads()
    each = max(1, threads // len(tasks))

    def alone(task: Callable[[], None]) -> None:
        torch.set_num_threads(each)  # of this thread
        task()

    torch.set_num_threads(each)
    try:
        with ThreadPoolExecutor(len(tasks)) as workers:
            running = [workers.submit(alone, task) for task in tasks]
            try:
                for done in as_completed(running):
                    done.result()
            except BaseException:
                give_up()
                raise
    finally:
        torch.set_num_threads(threads)
