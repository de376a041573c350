"""How a Ray cluster is joined, or one is started on this machine.

Ray takes seconds for that, most of which it waits. So it can be begun before anything is known but what a
configuration says of workers: nothing here needs torch, which takes seconds to import, too.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from consilience.errors import UserError

ENVIRONMENT = {
    "RAY_preload_python_modules": "consilience.engine.build,consilience.engine.spread.on_ray",
    "RAY_enable_autoscaler_v2": "1",
}
"""What a cluster of our own is told: what processes import before they have work, and its autoscaler.

It needs none, but the older of the two takes a second to end.
"""


END = 30.0
"""How many seconds a process that ends waits at most for a cluster that it has begun to join."""
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The head of a frame of HTTP/2, which Ray's servers speak: settings (4) that set nothing."""
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS
"""What a client of HTTP/2 says first; a server's first frame is one of settings, too."""


class Joined(NamedTuple):
    """Ray, in touch with a cluster."""

    ray: Any
    """The module."""
    now: bool
    """Whether it has only just been joined."""
    ours: bool
    """Whether it was started for us."""


BEGUN: dict[tuple[str, int | None], Future[Joined]] = {}
"""What is being joined in the background, or has been and nobody asked yet."""


def begin(settings: Mapping[str, Any]) -> None:
    """Begin to join the cluster that settings ask for, if they do and are sound; `join` waits for it.

    Where that fails, `join` tries again, and says what is wrong.
    """
    executor, cluster, count = (settings.get(key) for key in ("executor", "cluster", "workers"))
    asked = isinstance(executor, str) and executor.startswith("ray")
    sound = isinstance(cluster, str | None) and (count is None or (isinstance(count, int) and count > 0))
    ray = _ray() if asked and sound and not BEGUN else None
    if ray is None or ray.is_initialized():
        return
    place: tuple[str, int | None] = (cluster or "auto", count)
    told = BEGUN[place] = Future[Joined]()

    def work() -> None:
        try:
            told.set_result(_join(*place))
        except Exception as error:
            told.set_exception(error)
        threading.Event().wait()  # what a thread has started dies with it

    threading.Thread(target=work, daemon=True, name="joining").start()
    atexit.register(wait, [told], END)  # a cluster that is half there would be left behind


def join(cluster: str, count: int | None = None) -> Joined:
    """Get in touch with a cluster.

    Args:
        cluster: Its address; `auto`: the one that runs here, or a new one; `local`: a new one.
        count: How many workers a new one is for; None: one a core.
    """
    begun = BEGUN.pop((cluster, count), None)
    wait(BEGUN.values())
    if begun is not None and begun.exception() is None and begun.result().ray.is_initialized():
        return begun.result()
    return _join(cluster, count)


def _join(cluster: str, count: int | None) -> Joined:
    ray = _ray()
    if ray is None:
        raise UserError("a cluster needs Ray: pip install 'consilience[ray]'")
    if ray.is_initialized():
        return Joined(ray, now=False, ours=False)
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    address = running() if cluster == "auto" else cluster
    if address is not None and address != "local":
        if not _answers(address):  # Ray would try for minutes, and may then end this process
            raise UserError(f"cluster: no Ray cluster answers at {address}")
        try:
            with _termination_kept():
                ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"cluster: {address} is no Ray cluster to join: {said(error)}") from None
        return Joined(ray, now=True, ours=False)
    # Ray starts a process for every core that it is told of.
    with _environment(ENVIRONMENT if count else {}), _termination_kept():
        ray.init(address="local", num_cpus=count or cores(), include_dashboard=False, **quiet)
    atexit.register(ray.shutdown)  # its own way out waits for what workers print
    return Joined(ray, now=True, ours=True)


def _ray() -> Any | None:
    """The module, where it is installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told anything
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        return None
    return ray


@contextmanager
def _termination_kept() -> Iterator[None]:
    """Within it, Ray may join a cluster: it would leave a handler of its own for SIGTERM in this process."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """A context with some variables, where they are not set otherwise."""
    new = {name: value for name, value in more.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def running() -> str | None:
    """The address of the cluster that runs here, or that the environment names; None where there is none.

    Ray leaves a note of the last cluster that was started, also where that has died since.
    """
    named = os.environ.get("RAY_ADDRESS")
    if named:
        return named
    note = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    address = note.read_text().strip() if note.is_file() else ""
    return address if address and _answers(address) else None


def _answers(address: str) -> bool:
    """Whether a server like Ray's listens at an address like 10.0.0.7:6379 or ray://head:10001.

    Ray itself would try for many minutes to talk to another one.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":  # it would not understand a greeting in plain text
                return True
            connection.sendall(GREETING)
            answer = connection.makefile("rb").read(len(SETTINGS))
            return answer[3:4] == SETTINGS[3:4]
    except (OSError, ValueError, OverflowError):
        return False


def said(error: Exception) -> str:
    """What an error says, in one line: its last, which names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:200]
