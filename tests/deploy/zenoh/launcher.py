"""Starts nodes in processes of their own, as orders come in; it forks, so that torch is imported once."""

import json
import os
import signal
import sys
from pathlib import Path

import consilience.deploy.zenoh.node  # noqa: F401, so that forks need not
from consilience.cli.noding import run_node
from consilience.config import load_config
from consilience.deploy.agreeing import agree


def main() -> None:
    """Read an order a line, and answer with the number of the process that carries it out."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for place, line in enumerate(sys.stdin):
        order = json.loads(line)
        if place == 0:  # what is imported and loaded here is there in all processes
            agree(load_config(Path(order["jobs"][0][0]), []))
        number = os.fork()
        if number:
            print(number, flush=True)
        else:
            work(Path(order["log"]), order["jobs"])


def work(log: Path, jobs: list[list[object]]) -> None:
    """Run one node of several federations, one after the other, and leave its exit code beside the log."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        for file, node, keys, listen, connect, out in jobs:
            code = run_node(Path(file), [], node, Path(keys), listen, connect, None, Path(out))
            if code:
                break
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        code = 1
    finally:
        sys.stdout.flush()
        log.with_suffix(".code").write_text(str(code))
        os._exit(code)


if __name__ == "__main__":
    main()
