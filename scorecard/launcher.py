"""Starts members and commands in processes of their own, as orders come in; it forks, so torch is there."""

from __future__ import annotations

import errno
import functools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import consilience.deploy.zenoh.node  # so that forks need not
import consilience.experiment.execution
import consilience.sweep  # noqa: F401
from consilience.algorithms import METHODS
from consilience.cli import app
from consilience.cli.noding import run_node
from consilience.config import load_config
from consilience.deploy.agreeing import agree
from consilience.deploy.carrying import InProcess, federate
from scorecard.federations import federation_of


def main() -> None:
    """Read an order a line, and answer with the number of the process that carries it out."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    torch.set_num_threads(1)
    for line in sys.stdin:
        order = json.loads(line)
        if order["kind"] == "nodes":
            prepare(order["job"][0][0])
        number = os.fork()
        if number:
            print(number, flush=True)
        else:
            work(order)
    os.killpg(0, signal.SIGKILL)  # whoever gave orders is gone, and so is the use of what was started


@functools.cache
def prepare(file: str) -> None:
    """Load what nodes load, once: it is there in all processes."""
    agree(load_config(Path(file), []))


def work(order: dict[str, Any]) -> None:
    """Do what an order says, and leave the exit code where it says."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    code = 1
    try:
        for name, descriptor in (("out", 1), ("err", 2)):
            handle = os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(handle, descriptor)
        if order["harm"]:
            name, *how = order["harm"]
            {"die writing": die_writing, "disk full": fill_disk}[name](*how)
        code = {"nodes": nodes, "words": words, "federation": federation}[order["kind"]](order["job"])
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 1
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        code = 1
    finally:
        sys.stdout.flush()
        Path(order["code"]).write_text(str(code))
        os._exit(code)


def nodes(jobs: list[list[Any]]) -> int:
    """Run one node of several federations, one after the other."""
    for file, node, keys, listen, connect, out in jobs:
        code = run_node(Path(file), [], node, Path(keys), listen, connect, None, Path(out))
        if code:
            return code
    return 0


def words(line: list[str]) -> int:
    """Run a command line."""
    sys.argv = ["consilience", *line]
    app.main()
    return 0


def federation(job: list[Any]) -> int:
    """Run a hub and its sites, all of which keep files in a folder, from wherever they stand."""
    folder, method, rounds = Path(job[0]), job[1], job[2]
    place = federation_of(METHODS[method](), rounds=rounds)
    hub = place.hub(quorum="all", file=folder / "hub.safetensors")
    print("begun", flush=True)
    federate(hub, InProcess(place.sites(folder)))
    return 0


def die_writing(name: str, nth: int, share: float, renamed: bool) -> None:
    """Have this process killed in the nth write of a file: amid its bytes, or after its rename.

    Args:
        name: The file.
        nth: In which of its writes, counted from 1.
        share: How much of it has been written by then.
        renamed: Whether it is whole and has its name already.
    """
    sync, seen = os.fsync, 0

    def fsync(handle: int) -> None:
        nonlocal seen
        path = Path(f"/proc/self/fd/{handle}").readlink()
        if path.name == f"{name}.tmp":
            seen += 1
            if seen == nth and not renamed:
                os.ftruncate(handle, int(share * os.fstat(handle).st_size))
                os.kill(os.getpid(), signal.SIGKILL)
        elif seen == nth and renamed and path.is_dir():
            os.kill(os.getpid(), signal.SIGKILL)
        sync(handle)

    os.fsync = fsync


def fill_disk(writes: int) -> None:
    """Have this process find no room on the disk after some writes.

    Args:
        writes: For how many there is room.
    """
    sync, left = os.fsync, writes

    def fsync(handle: int) -> None:
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left -= 1
        sync(handle)

    os.fsync = fsync


if __name__ == "__main__":
    main()
