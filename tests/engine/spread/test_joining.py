"""Clusters are joined in the background, before torch is there; with a Ray that only takes notes."""

from __future__ import annotations

import os
import socket
import threading
from types import SimpleNamespace

import pytest

from consilience.cli import app
from consilience.engine.spread import joining
from consilience.errors import UserError

PRELOAD = "RAY_preload_python_modules"
ASKED = {"executor": "ray", "workers": 3, "cluster": "local"}


class Ray(SimpleNamespace):
    """Ray, so far as it is joined."""

    def __init__(self, fault: Exception | None = None) -> None:
        super().__init__(fault=fault, calls=[], threads=[], told=None, waiting=threading.Event())

    def is_initialized(self) -> bool:
        return bool(self.calls)

    def init(self, **options) -> None:
        self.waiting.wait(timeout=30)
        if self.fault:
            raise self.fault
        self.told = os.environ.get(PRELOAD)
        self.threads.append(threading.current_thread())
        self.calls.append(options)

    def shutdown(self) -> None:
        self.calls.clear()


@pytest.fixture
def ray(monkeypatch):
    fake = Ray()
    monkeypatch.setattr(joining, "_ray", lambda: fake)
    monkeypatch.setattr(joining, "BEGUN", {})
    yield fake
    fake.waiting.set()


def test_a_cluster_is_there_when_it_is_asked_for(ray):
    joining.begin(ASKED)
    joining.begin(ASKED)  # a run that is begun by a command and by a function
    assert not ray.calls
    ray.waiting.set()
    assert joining.join("local", 3) == (ray, True, True)
    (options,) = ray.calls
    assert options["num_cpus"] == 3
    assert "consilience.engine.spread.on_ray" in ray.told
    assert PRELOAD not in os.environ
    assert ray.threads[0].is_alive()  # or the processes that it has started would be killed
    joining.begin(ASKED)
    assert joining.join("local", 3) == (ray, False, False)


def test_one_that_was_begun_for_others_is_waited_for(ray):
    joining.begin(ASKED)
    threading.Timer(0.05, ray.waiting.set).start()
    assert joining.join("local", 1) == (ray, False, False)


def test_one_that_has_gone_again_is_joined_anew(ray):
    ray.waiting.set()
    joining.begin(ASKED)
    joining.BEGUN["local", 3].result()
    ray.shutdown()
    assert joining.join("local", 3) == (ray, True, True)


def test_what_goes_wrong_is_told_to_who_asks_if_it_still_does(ray):
    ray.fault = UserError("no room")
    ray.waiting.set()
    joining.begin(ASKED)
    with pytest.raises(UserError, match="no room"):
        joining.join("local", 3)
    joining.begin(ASKED)
    joining.BEGUN["local", 3].exception()
    ray.fault = None
    assert joining.join("local", 3) == (ray, True, True)


@pytest.mark.parametrize(
    "settings",
    [{}, {"executor": "batched"}, {"executor": 3}, ASKED | {"workers": "many"}, ASKED | {"cluster": 6379}],
)
def test_nothing_is_begun_without_a_sound_wish(ray, settings):
    joining.begin(settings)
    assert not joining.BEGUN


def test_processes_of_a_cluster_for_all_cores_import_nothing_beforehand(ray):
    ray.waiting.set()
    joining.join("local")
    assert ray.calls[0]["num_cpus"] == joining.cores()
    assert ray.told is None


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("executor: ray\nworkers: 2", [], {"executor": "ray", "workers": 2}),
        ("executor: ray", ["workers=4", "executor=batched"], {"executor": "batched", "workers": 4}),
        ("executor: [", [], {}),
        ("- ray", [], {}),
        ("executor: ray", ["workers=["], {}),
        (None, ["executor=ray"], {}),
    ],
)
def test_a_command_looks_for_workers_before_it_reads_in_earnest(tmp_path, text, overrides, expected):
    file = tmp_path / "study.yaml"
    if text is not None:
        file.write_text(text)
    assert app._said_of_workers(file, overrides) == expected


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (joining.SETTINGS, True),
        (b"HTTP/1.0 505 HTTP Version Not Supported\r\n", False),
        (b"SSH-2.0-OpenSSH_9.6\r\n", False),
        (b"", False),
    ],
)
def test_only_a_server_that_speaks_as_ray_does_is_taken_for_a_cluster(said, expected, monkeypatch):
    """Ray would try to talk to any other for many minutes."""
    monkeypatch.delenv("RAY_USE_TLS", raising=False)

    def serve():
        connection, _ = server.accept()
        with connection:
            heard = b""
            while len(heard) < len(joining.GREETING):
                heard += connection.recv(100)
            connection.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        assert joining._answers(f"127.0.0.1:{server.getsockname()[1]}") == expected
        thread.join()
