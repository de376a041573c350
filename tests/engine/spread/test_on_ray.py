"""Runs on a real Ray cluster: the same bits as without one, whoever dies, comes or goes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
import ray
import torch

import consilience as cs
from consilience.config import read_config
from consilience.engine.spread import joining, on_ray
from consilience.errors import Paused, UserError
from consilience.experiment import resume, run
from consilience.experiment.folder import RunFolder

SETTING = {
    "data": "mnist-sample",
    "model": {"name": "mlp", "hidden": [8]},
    "clients": 6,
    "rounds": 10,
    "local": {"steps": 2},
    "partition": {"name": "sizes", "fractions": [0.05, 0.1, 0.15, 0.2, 0.25, 0.25]},
}
LONG = "CONSILIENCE_LONG" in os.environ
KILLS = 10 if LONG else 2
ON_RAY = {"executor": "ray-sequential", "workers": 2, "cluster": "local"}


@pytest.fixture(scope="module", autouse=True)
def end():
    """Ray goes when these tests have ended: others want a cluster of their own."""
    yield
    on_ray.STAFF.clear()
    ray.shutdown()


@pytest.fixture(autouse=True)
def one_thread():
    """Workers have one thread, and sums over several are rounded otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def expected(**changes) -> str:
    return cs.run("scaffold", executor="sequential", **SETTING | changes).digest


def test_workers_are_killed_in_mid_round_again_and_again(monkeypatch, caplog):
    staff = on_ray.staff_of("local", 2, gpu=False)
    wait, killed = staff.ray.wait, []

    def kill_one_first(asked, **options):
        """Whoever has to answer in an exchange is killed while others wait for the answer."""
        alive = [process for process in staff.processes.values() if process not in killed]
        if options.get("num_returns") == 1 and len(alive) == 2 and len(killed) < KILLS:
            killed.append(alive[len(killed) % 2])
            os.kill(killed[-1], signal.SIGKILL)
        return wait(asked, **options)

    monkeypatch.setattr(staff.ray, "wait", kill_one_first)
    found = cs.run("scaffold", **SETTING | ON_RAY)
    assert len(killed) == KILLS
    assert found.digest == expected()
    assert caplog.text.count("was lost, and its work is done again") >= KILLS


SEVERAL = {"seeds": [0, 1, 2], "rounds": 6, "checkpoint": {"every": 2}}


@pytest.mark.skipif(not LONG, reason="takes half a minute: CONSILIENCE_LONG=1")
def test_workers_are_killed_while_they_run_whole_replicas(monkeypatch, caplog):
    """Three seeds of each of two methods on two workers, of which one is killed now and then."""
    staff = on_ray.staff_of("local", 2, gpu=False)
    wait, killed = staff.ray.wait, []

    def kill_one_first(asked, **options):
        alive = [process for process in staff.processes.values() if process not in killed]
        if "num_returns" in options and len(asked) == 4 and len(alive) == 2 and len(killed) < KILLS // 2:
            killed.append(alive[len(killed) % 2])
            os.kill(killed[-1], signal.SIGKILL)
        return wait(asked, **options)

    monkeypatch.setattr(staff.ray, "wait", kill_one_first)
    monkeypatch.setattr(on_ray.RayWorkers, "carry_out", None)  # nobody's clients are dealt
    found = cs.run(["fedavg", "scaffold"], **SETTING | ON_RAY | SEVERAL)
    assert len(killed) == KILLS // 2
    assert found.digest == cs.run(["fedavg", "scaffold"], executor="sequential", **SETTING | SEVERAL).digest
    assert caplog.text.count("was lost, and its work is done again") >= len(killed)


def test_lanes_on_workers_round_as_lanes_do(monkeypatch):
    monkeypatch.setattr(on_ray, "HEAD_START", on_ray.PATIENCE)  # on a busy machine workers come late
    more = {"dtype": "float64", "rounds": 2}
    spread = cs.run("fedavg", **SETTING | ON_RAY | more | {"executor": "ray", "workers": 3})
    assert len(on_ray.STAFF["local", False].processes) == 3  # our own cluster began with room for two
    here = cs.run("fedavg", **SETTING | more | {"executor": "sequential"})
    assert spread.accuracy == here.accuracy
    for left, right in zip(spread.records, here.records, strict=True):
        assert left["train_loss"] == pytest.approx(right["train_loss"], rel=1e-9)


def test_a_run_of_whole_replicas_pauses_and_goes_on(tmp_path):
    """Between two of its checkpoints, while workers are ahead of who writes down what they did."""
    settings = SETTING | SEVERAL | {"rounds": 30, "checkpoint": {"every": 20}}
    config = read_config({"method": ["fedavg", "scaffold"], **settings, **ON_RAY})
    asked = iter([False, True])
    with pytest.raises(Paused):
        run(config, folder=RunFolder(tmp_path), pause=lambda: next(asked))
    assert 2 <= RunFolder(tmp_path).load_checkpoint().metrics // 3 < 30
    found = resume(tmp_path)
    assert found.digest == cs.run(["fedavg", "scaffold"], **settings | {"executor": "sequential"}).digest


def test_a_mistake_in_a_worker_is_told_in_one_line():
    def model():
        if "default_worker" in sys.argv[0]:  # Ray's name of what a worker runs
            raise UserError("no such weights here")
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))

    with pytest.raises(UserError, match=r"^no such weights here$"):
        cs.run("fedavg", **SETTING | ON_RAY | {"model": model, "rounds": 1})


DRIVER = """
import os, signal, sys
import torch
import consilience as cs
from consilience.experiment.folder import RunFolder
from ray.cluster_utils import Cluster

torch.set_num_threads(1)


def change_machines(state):
    if state.round == 2:
        machines.remove_node(first)  # with the worker on it
    if state.round == 5:
        machines.add_node(num_cpus=1)


def kill_driver(state):
    if state.round == 7:
        os.kill(os.getpid(), signal.SIGKILL)


def kill_after_early_checkpoint():  # a function that looks at rounds would keep methods from beginning early
    save = RunFolder.save_checkpoint

    def save_and_die(folder, checkpoint):
        save(folder, checkpoint)
        if "early" in folder.path.parts:
            os.kill(os.getpid(), signal.SIGKILL)

    RunFolder.save_checkpoint = save_and_die


methods, place, on_round = "scaffold", {{"cluster": "local", "workers": 2}}, ()
if sys.argv[1] == "whole":
    kill_after_early_checkpoint()
    methods = ["fedavg", "scaffold", "fedcurv"]
elif sys.argv[1] == "machines":
    machines = Cluster(initialize_head=True, head_node_args={{"num_cpus": 0, "include_dashboard": False}})
    first, second = (machines.add_node(num_cpus=1) for _ in range(2))
    place, on_round = {{"cluster": machines.address}}, change_machines
else:
    on_round = kill_driver
setting = {setting!r}
options = {{"executor": "ray-sequential", "name": "run", "out": sys.argv[2], "checkpoint": {{"every": 3}}}}
print(cs.run(methods, **setting, **place, **options, on_round=on_round).digest)
"""


WHOLE = {"rounds": 40}
"""Enough of them that a second method has made its first checkpoint before the first one ends."""


def drive(kind: str, folder) -> tuple[int, str]:
    """How a driver in a process of its own ended, and what it said; Ray's processes may outlive it."""
    script, said = folder / "driver.py", folder / "said"
    script.write_text(DRIVER.format(setting=SETTING | WHOLE if kind == "whole" else SETTING))
    with said.open("w") as file:
        status = subprocess.run([sys.executable, script, kind, folder], stdout=file, stderr=file, check=False)
    return status.returncode, said.read_text()


@pytest.mark.skipif(not LONG, reason="takes half a minute: CONSILIENCE_LONG=1")
def test_machines_come_and_go(tmp_path):
    status, said = drive("machines", tmp_path)
    assert status == 0, said
    assert "was lost, and its work" in said
    assert expected(checkpoint={"every": 3}) in said


def test_a_killed_driver_goes_on_with_another_number_of_workers(tmp_path):
    status, said = drive("driver", tmp_path)
    assert status == -signal.SIGKILL, said
    result = cs.resume(tmp_path / "run", workers=1)
    assert result.digest == expected(checkpoint={"every": 3})


@pytest.mark.skipif(not LONG, reason="takes half a minute: CONSILIENCE_LONG=1")
@pytest.mark.parametrize("workers", [1, 3])
def test_a_driver_whose_methods_are_at_workers_goes_on_with_others(workers, tmp_path):
    """Two workers have a method each; then one has all that are left, or clients are dealt to three."""
    status, said = drive("whole", tmp_path)
    assert status == -signal.SIGKILL, said
    assert list((tmp_path / "run" / "early").glob("*/checkpoint.safetensors"))
    result = cs.resume(tmp_path / "run", workers=workers)
    methods = ["fedavg", "scaffold", "fedcurv"]
    alone = cs.run(methods, executor="sequential", **SETTING | WHOLE, checkpoint={"every": 3})
    assert result.digest == alone.digest
    assert not (tmp_path / "run" / "early").exists()


def test_a_cluster_that_has_died_is_not_waited_for(monkeypatch, tmp_path):
    """Ray itself would try for a minute, and then end the process."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{nobody.getsockname()[1]}"
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(dead)
    assert joining.running() is None
    monkeypatch.setattr(on_ray, "STAFF", {})
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for address in (dead, "nowhere", "ray://127.0.0.1:x"):
        with pytest.raises(UserError, match=f"cluster: no Ray cluster answers at {address}"):
            cs.run("fedavg", **SETTING | ON_RAY | {"cluster": address})


def test_what_cannot_be_is_said(monkeypatch):
    with pytest.raises(UserError, match=r"^run: workers and cluster are those of executor: ray"):
        cs.run("fedavg", **SETTING | {"workers": 2})
    with pytest.raises(UserError, match="a GPU of its own; set device: cuda"):
        cs.run("fedavg", **SETTING | ON_RAY | {"device": "cuda:1"})
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(on_ray, "STAFF", {})
    with pytest.raises(UserError, match="a cluster needs Ray: pip install 'consilience"):
        cs.run("fedavg", **SETTING | ON_RAY)


def test_workers_that_ray_has_ended_are_not_asked_again(monkeypatch):
    """In a notebook Ray may be shut down between two runs."""
    gone = type("Gone", (), {"ray": type("Ray", (), {"is_initialized": staticmethod(lambda: False)})})()
    monkeypatch.setattr(on_ray, "STAFF", {("local", False): gone})
    monkeypatch.setattr(on_ray, "Staff", lambda *given, **named: type("New", (), {"ray": gone.ray})())
    staff = on_ray.staff_of("local", 3, gpu=False)
    assert staff is not gone
    assert (on_ray.STAFF["local", False], staff.asked) == (staff, 3)


def test_termination_stays_what_it_was_when_ray_joins(monkeypatch):
    """Ray puts a handler of its own in its place, and leaves it there."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: signal.signal(signal.SIGTERM, lambda *_: sys.exit(15)))
    before = signal.getsignal(signal.SIGTERM)
    assert on_ray.join("local").ours
    assert signal.getsignal(signal.SIGTERM) is before
