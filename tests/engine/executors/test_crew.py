"""Worker processes: they compute, report what goes wrong, and never outlive this process."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from torch.testing import assert_close

from consilience.client import Client, Step
from consilience.engine.executors import machine
from consilience.engine.executors.crew import CAN_FORK, Crew, _keep_memory
from consilience.errors import UserError
from consilience.types import Batch, State

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="worker processes need fork")


@dataclass(frozen=True)
class FailsWhenRun(Step):
    """Can be recorded, but not run."""

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        return {"sum": {"x": carry["sum"]["x"]}}

    def advance_in_place(self, carry: State, found: State, extras: State) -> None:
        raise ValueError("no such luck")


@dataclass(frozen=True)
class DiesWhenRun(FailsWhenRun):
    """Ends the process that runs it."""

    def advance_in_place(self, carry: State, found: State, extras: State) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_goes_wrong_in_a_worker_is_said_here(federation):
    place = federation("mlp")

    def work(client: Client, down: State) -> State:
        return client.fold(FailsWhenRun(), {"sum": {"x": client.samples}}, {}, "data")

    with pytest.raises(RuntimeError, match=r"(?s)in a worker process.*no such luck"):
        place.run(place.batched(1, 5, 2), work)


def train(client: Client, down: State) -> State:
    return client.train(down).model


def members() -> list[int]:
    """The process numbers of all crews."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(child) for child in children if not _is_zombie(int(child))]


def _is_zombie(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_worker_that_has_died_is_replaced(federation):
    place = federation("mlp")
    before = set(members())
    executor = place.batched(1, 5, 2)
    place.run(executor, train)
    for member in set(members()) - before:
        os.kill(member, signal.SIGKILL)
        os.waitid(os.P_PID, member, os.WEXITED | os.WNOWAIT)  # until it is dead, which takes a moment
    expected = place.run(place.sequential(), train)
    assert_close(place.run(executor, train).uploads, expected.uploads, rtol=1e-12, atol=1e-12)


def test_workers_never_record_programs(federation, monkeypatch):
    """Where there is a GPU they could not: autograd's threads are left behind by a fork."""
    here, recorded = os.getpid(), machine.record

    def record(*given: object) -> object:
        assert os.getpid() == here, "recorded in a worker process"
        return recorded(*given)

    monkeypatch.setattr(machine, "record", record)
    place = federation("cnn", sizes=(7, 3, 10, 1, 5, 9))  # batches of four are full, half full and so on
    executor = place.batched(1, 6, 2)
    for _ in range(2):
        place.run(executor, train)
    expected = place.run(place.sequential(), train)
    assert_close(place.run(executor, train).uploads, expected.uploads, rtol=1e-12, atol=1e-12)


def test_a_worker_that_dies_at_work_is_noticed(federation):
    place = federation("mlp")

    def work(client: Client, down: State) -> State:
        return client.fold(DiesWhenRun(), {"sum": {"x": client.samples}}, {}, "data")

    with pytest.raises(UserError, match="a worker process was killed"):
        place.run(place.batched(1, 5, 2), work)


def test_workers_go_with_their_executor(federation):
    gc.collect()  # those of other tests
    before = set(members())
    place = federation("mlp")
    executor = place.batched(1, 5, 2)
    place.run(executor, train)
    assert len(set(members()) - before) == 2
    del executor
    assert set(members()) == before


SCRIPT = """
import os, sys, time, torch
torch.set_num_threads(2)
import consilience as cs
from consilience.engine.executors import crew
made = crew.Crew.__init__
def noisy(self, *given):
    made(self, *given)
    from pathlib import Path
    print(Path(f"/proc/self/task/{os.getpid()}/children").read_text(), flush=True)
    time.sleep(60)
crew.Crew.__init__ = noisy
cs.run("fedavg", data="mnist-sample", clients=4, rounds=1, model={"name": "mlp", "hidden": [9]}, device="cpu")
"""


def test_workers_do_not_outlive_a_killed_run():
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        children = [int(number) for number in process.stdout.readline().split()]
        process.kill()
    assert len(children) == 2
    for _ in range(100):
        if all(_is_zombie(child) for child in children):
            return
        time.sleep(0.05)
    pytest.fail("worker processes outlived the run")


def test_other_allocators_are_left_alone(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    _keep_memory()


def test_a_crew_can_go_while_a_younger_one_stays():
    old, young = Crew([], 2), Crew([], 2)  # the younger members hold the older ones' pipes
    old.close()
    assert [member.exitcode for member in old._members] == [0, 0]
    assert all(member.is_alive() for member in young._members)
    young.close()
    assert [member.exitcode for member in young._members] == [0, 0]
