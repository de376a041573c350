"""Nodes over Zenoh that are killed, hang, come back, are cut off, and run for long."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from consilience import tree
from consilience.config import load_config
from consilience.deploy import kept
from consilience.deploy.agreeing import agree
from consilience.deploy.zenoh.keeping import PEER_FILE
from scorecard.doors import Door
from scorecard.finding import Finding, Tally, demand
from scorecard.launching import until
from scorecard.rings import Ring, keyed_rings

DEADLINE = 5.0
ENDLESS = {
    # With replies, so that a kill hits either exchange; and rounds so long that there are not thousands.
    "rounds: 2": "rounds: 1000000",
    "fedavg": "cfa-ge",
    "deadline: 60": f"deadline: {DEADLINE:g}",
    "steps: 2": "steps: 10",
}
GONE, BESIDE, OTHERS = 2, (1, 3), (0, 1, 3)


@contextmanager
def endless(folder: Path) -> Iterator[Ring]:
    """A ring of four whose rounds do not end, with everybody heard."""
    with keyed_rings(folder) as (ring, _):
        one = ring(changes=ENDLESS)
        one.start_all()
        _together(one)
        yield one


def _together(one: Ring) -> None:
    """Wait until node 2 and its neighbours hear each other."""
    until(lambda: all(GONE in one.last(node)["heard"] for node in BESIDE))
    until(lambda: set(BESIDE) <= set(one.last(GONE)["heard"]))


def _leave(one: Ring, number: int, tally: Tally) -> None:
    """Let node 2 be killed or hang, and measure when the others go on without it."""
    gone = time.time()
    one.send(GONE, number)
    until(lambda: not any(GONE in one.last(node)["heard"] for node in BESIDE))
    until(lambda: all(one.last(node)["time"] > gone for node in OTHERS))
    for node in OTHERS:
        lines = one.since(node, gone)
        tally.most("slowest end of the round (s)", lines[0]["time"] - gone)
        if node in BESIDE:
            without = next(line for line in lines if GONE not in line["heard"])
            tally.most("slowest notice (s)", without["time"] - gone)
    begun = {node: one.last(node)["round"] for node in OTHERS}
    until(lambda: all(one.last(node)["round"] > begun[node] + 3 for node in OTHERS))
    demand(not any(GONE in one.last(node)["heard"] for node in BESIDE), "it is heard again")


def killed(trials: int, folder: Path) -> Finding:
    """Check 9: a node of four is killed in the middle of whatever it does; it then comes back."""

    def back(one: Ring) -> None:
        until(lambda: not one.running[GONE].running)
        one.start(GONE)

    return _left(trials, folder, signal.SIGKILL, back)


def hung(trials: int, folder: Path) -> Finding:
    """Check 10: a node of four is stopped and does not say so; it is then continued."""
    return _left(trials, folder, signal.SIGSTOP, lambda one: one.send(GONE, signal.SIGCONT))


def _left(trials: int, folder: Path, number: int, back: Callable[[Ring], None]) -> Finding:
    """Let node 2 leave by a signal at random instants, and come back."""
    tally, draw = Tally(), random.Random(number)
    with endless(folder) as one:
        for trial in range(trials):
            with tally.trial(f"trial {trial}"):
                time.sleep(draw.uniform(0.0, 0.3))
                _leave(one, number, tally)
                back(one)
                _together(one)
    return tally.finding()


def rejoined(trials: int, folder: Path) -> Finding:
    """Check 11: a node comes back after one to five rounds; at the end one is asked to stop."""
    tally, draw = Tally(), random.Random(11)
    with endless(folder) as one:
        for trial in range(trials):
            with tally.trial(f"trial {trial}"):
                begun, away = one.last(1)["round"], 1 + trial % 5
                gone = time.time()
                time.sleep(draw.uniform(0.0, 0.1))
                one.kill(GONE)
                until(lambda begun=begun, away=away: one.last(1)["round"] >= begun + away)
                back = time.time()
                one.start(GONE)
                _together(one)
                for node in BESIDE:
                    until(lambda node=node, back=back: _heard(one, node, back))
                    again, lines = _heard(one, node, back)[0], one.since(node, gone)
                    tally.most("slowest return (s)", again["time"] - back)
                    tally.most("longest round of a neighbour (s)", max(line["seconds"] for line in lines))
        with tally.trial("asked to stop"):
            one.send(1, signal.SIGTERM)
            demand(one.ended(1) == 130, "it ended otherwise")
            demand("the same command goes on" in one.log(1).read_text(), "it does not say how to go on")
    return tally.finding()


def _heard(one: Ring, node: int, when: float) -> list[dict[str, Any]]:
    """The rounds since a time in which a node has heard the one that was gone."""
    return [line for line in one.since(node, when) if GONE in line["heard"]]


# 12: a network that falls apart

APART = {"rounds: 2": "rounds: 1000000", "steps: 2": "steps: 10"}


def parted(trials: int, folder: Path) -> Finding:
    """Check 12: 0 and 1 on one side, 2 and 3 on the other, for ten rounds; then together again."""
    tally = Tally()
    for trial in range(trials):
        place = folder / str(trial)
        place.mkdir()
        with tally.trial(f"trial {trial}"), keyed_rings(place) as (ring, _):
            one = ring("apart", APART)
            with cut_between(one) as doors:
                one.start_all()
                until(lambda one=one: all(one.last(node)["round"] >= 3 for node in range(4)))
                for door in doors:
                    door.close()
                until(lambda one=one: all(len(one.last(node)["heard"]) == 2 for node in range(4)))
                _progress(one, 10)  # both sides
                for door in doors:
                    door.open()
                until(lambda one=one: all(len(one.last(node)["heard"]) == 3 for node in range(4)))
                _progress(one, 20)
                found, reached = _disagreement(one), one.last(0)["round"]
                one.stop()
            calm = ring("calm", APART)
            calm.start_all()
            until(lambda calm=calm, reached=reached: calm.last(0)["round"] >= reached)
            ratio = found / _disagreement(calm)
            tally.most("disagreement afterwards, of one never apart", ratio)
            demand(ratio <= 1.1, f"{ratio:.2f} times the baseline")
    return tally.finding()


@contextmanager
def cut_between(one: Ring) -> Iterator[list[Door]]:
    """The two connections over which the halves of a ring hear each other."""
    with ExitStack() as stack:
        doors = []
        for node in (1, 3):
            doors.append(Door(one.ports[(node + 1) % 4]))
            stack.callback(doors[-1].end)
            one.doors[node] = doors[-1].port
        yield doors


def _progress(one: Ring, rounds: int) -> None:
    begun = [one.last(node)["round"] for node in range(4)]
    until(lambda: all(one.last(node)["round"] > begun[node] + rounds for node in range(4)))


SNAPSHOTS = 50


def _disagreement(one: Ring) -> float:
    """How far nodes are from their mean, on average over moments in which they are in the same round."""
    run = agree(load_config(one.file, [])).terms.run
    found: list[float] = []

    def look() -> bool:
        parts = [kept.load(one.out(node) / PEER_FILE, run) for node in range(4)]
        whole = [part for part in parts if part is not None]
        if len({json.loads(fields["progress"])["round"] for _, fields in whole}) == 1:
            vectors = torch.stack([tree.concatenated(states["hub"]["params"]) for states, _ in whole])
            found.append(float((vectors - vectors.mean(0)).norm(dim=1).mean()))
        return len(found) >= SNAPSHOTS

    until(look)
    return sum(found) / len(found)


# 26 and 27: many rounds


def neighbours_alone(trials: int, folder: Path) -> Finding:
    """Check 26: a ring of eight; in every round a node hears its neighbours and itself."""
    tally = Tally()
    with keyed_rings(folder) as (ring, _):
        one = ring(changes={"rounds: 2": f"rounds: {trials}", "nodes: 4": "nodes: 8"})
        one.start_all()
        codes = [one.ended(node) for node in range(8)]
        for node in range(8):
            around = sorted({(node - 1) % 8, node, (node + 1) % 8})
            heard = [line["heard"] for line in one.metrics(node)]
            tally.count("messages", sum(map(len, heard)))
            tally.note(
                f"node {node}",
                None if codes[node] == 0 else f"it ended with {codes[node]}",
                None if heard == [around] * trials else "it has heard others",
                "it has refused something" if one.refusals(node) else None,
            )
    return tally.finding()


LARGE = {"rounds: 2": "rounds: 1000000", "hidden: [4]": "hidden: [157]"}  # 1 MB a message


def growth(trials: int, folder: Path) -> Finding:
    """Check 27: memory and descriptors after a tenth of many rounds with messages of 1 MB, and after all."""
    tally = Tally()
    with keyed_rings(folder) as (ring, _):
        one = ring(changes=LARGE)
        one.start_all()
        _reached(one, trials // 10)
        before = [_held(one, node) for node in range(4)]
        _reached(one, trials)
        for node, (memory, descriptors) in enumerate(before):
            memory_later, descriptors_later = _held(one, node)
            tally.most("memory at the end, of that at a tenth", memory_later / memory)
            tally.most("more descriptors", descriptors_later - descriptors)
            tally.note(
                f"node {node}",
                None if memory_later <= 1.05 * memory else f"{memory_later / memory:.3f} times the memory",
                None
                if descriptors_later <= descriptors + 2
                else "more descriptors",  # a file that is written
            )
    return tally.finding()


def _reached(one: Ring, number: int) -> None:
    while not all(one.last(node)["round"] >= number for node in range(4)):
        demand(all(process.running for process in one.running.values()), "a node has ended")
        time.sleep(0.5)


def _held(one: Ring, node: int) -> tuple[int, int]:
    """The memory (kB) and the descriptors of a node."""
    process = Path(f"/proc/{one.running[node].number}")
    status = (process / "status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]), len(list((process / "fd").iterdir()))
