"""Processes that are killed at any instant, or asked to stop."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from consilience.config import load_config
from consilience.deploy import kept
from consilience.deploy.agreeing import agree
from consilience.deploy.zenoh.keeping import PEER_FILE
from consilience.experiment.folder import METRICS
from consilience.types import State
from scorecard.finding import Finding, Tally, demand
from scorecard.launching import Process, launcher, until
from scorecard.rings import Ring, keyed_rings
from scorecard.runs import Commands
from scorecard.spots import equal

# 1: kill -9


def killed(trials: int, folder: Path) -> Finding:
    """Check 1: kill -9 at random instants; of runs, of a hub with its sites, and of peers over Zenoh."""
    tally, draw = Tally(), random.Random(1)
    peers = trials // 5
    runs = (trials - peers) // 2
    _killed_runs(runs, folder / "runs", draw, tally)
    _killed_hubs(trials - peers - runs, folder / "hubs", draw, tally)
    if peers:
        _killed_peers(peers, folder / "peers", draw, tally)
    tally.need("kills that hit")
    return tally.finding()


def _kill(start: Callable[[], Process], seconds: float, draw: random.Random, tally: Tally) -> None:
    """Start something and kill it at a random instant before the end that it would have."""
    process = start()
    time.sleep(draw.uniform(0.0, seconds))
    tally.count("kills that hit", int(process.running))
    process.send(signal.SIGKILL)
    until(lambda: not process.running)


def _killed_runs(trials: int, folder: Path, draw: random.Random, tally: Tally) -> None:
    folder.mkdir()
    commands = Commands(folder)
    begun = time.perf_counter()
    expected = commands.whole(folder / "whole")
    seconds = time.perf_counter() - begun
    for trial in range(trials):
        path = folder / f"trial-{trial}"
        with tally.trial("run"):
            for _ in range(draw.randrange(1, 3)):
                _kill(lambda path=path: commands.run(path), 0.9 * seconds, draw, tally)
            if (path / METRICS).exists() and trial % 2:
                with (path / METRICS).open("a") as handle:
                    handle.write('{"setting": "sta')  # a line that the kill tore
            demand(commands.whole(path) == expected, "the resumed run ends otherwise")


def _killed_hubs(trials: int, folder: Path, draw: random.Random, tally: Tally) -> None:
    def start(path: Path) -> Process:
        path.mkdir(parents=True, exist_ok=True)
        return launcher().start("federation", [str(path), "scaffold", 40], path / "log")

    def ended(path: Path) -> dict[str, bytes]:
        process = start(path)
        demand(process.ended() == 0, process.err.read_text()[-300:])
        return {file.name: file.read_bytes() for file in path.glob("*.safetensors")}

    begun = time.perf_counter()
    expected = ended(folder / "whole")
    seconds = time.perf_counter() - begun
    for trial in range(trials):
        path = folder / str(trial)
        with tally.trial("hub and sites"):
            for _ in range(draw.randrange(1, 3)):
                _kill(lambda path=path: start(path), 0.9 * seconds, draw, tally)
            demand(ended(path) == expected, "the files of hub and sites are others")


PEERS = {"fedavg": "gradient-tracking", "seed,": "seed, quorum: all,"}


def _killed_peers(trials: int, folder: Path, draw: random.Random, tally: Tally) -> None:
    """All kills hit one federation; where it ends otherwise, all of them have failed."""
    folder.mkdir()
    rounds = {"rounds: 2": f"rounds: {15 + 4 * trials}"}
    with keyed_rings(folder) as (ring, _):
        expected = _weights(_ended(ring("whole", {**PEERS, **rounds})))
        one = ring("killed", {**PEERS, **rounds})
        one.start_all()
        for _ in range(trials):
            node, wait = draw.randrange(one.nodes), draw.uniform(0.0, 0.3)
            begun = one.round(node)
            until(lambda node=node, begun=begun: one.round(node) > begun or _done(one, node))
            time.sleep(wait)
            tally.count("kills that hit", int(one.running[node].running))
            one.kill(node)
            one.start(node)
        same = all(map(equal, _weights(_ended(one, start=False)), expected))
        for _ in range(trials):
            tally.note("peer", None if same else "the federation ended otherwise")


def _done(one: Ring, node: int) -> bool:
    return bool(one.status(node).get("done"))


def _ended(one: Ring, *, start: bool = True) -> Ring:
    """A federation whose nodes have all ended."""
    if start:
        one.start_all()
    for node in range(one.nodes):
        code = one.ended(node)
        demand(code == 0, f"node {node} ended with {code}: {one.log(node).read_text()[-300:]}")
    return one


def _weights(one: Ring) -> list[State]:
    """What every node ended with."""
    run = agree(load_config(one.file, [])).terms.run
    found = [kept.load(one.out(node) / PEER_FILE, run) for node in range(one.nodes)]
    return [parts[0]["hub"] for parts in found if parts is not None]


# 6: asked to stop


def stopped(trials: int, folder: Path) -> Finding:
    """Check 6: Ctrl-C and SIGTERM at random instants of a run."""
    tally, draw = Tally(), random.Random(6)
    commands = Commands(folder)
    expected = commands.whole(folder / "whole")
    for trial in range(trials):
        number = (signal.SIGINT, signal.SIGTERM)[trial % 2]
        path = folder / f"trial-{trial}"
        with tally.trial(number.name):
            process = commands.run(path)
            until(lambda process=process: "round" in process.out.read_text())
            time.sleep(draw.uniform(0.0, 0.3))
            process.send(number)
            with tally.timed("slowest exit (s)"):
                code = process.ended()
            said = process.err.read_text()
            tally.count("signals that hit", int(code != 0))
            demand(code in (0, 128 + number), f"it ended with {code}: {said[-300:]}")
            demand(code == 0 or f"consilience resume {path}" in said, f"it says nothing: {said[-300:]!r}")
            demand(commands.whole(path) == expected, "the resumed run ends otherwise")
    tally.need("signals that hit")
    return tally.finding()
