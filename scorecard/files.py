"""Files that are damaged, cut, half written, or have no room."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from consilience.experiment import resume
from consilience.experiment.folder import CHECKPOINT
from scorecard.damages import FINE, Kind, attack, damage_to, files_of
from scorecard.finding import Finding, Tally, demand, reason
from scorecard.runs import FRAGILE, Commands, checkpoint_loads, gone_on, interrupted, silent

# 2: killed inside a write

CHECKPOINTS = 10
"""How many a run writes at least."""


def killed_writing(trials: int, folder: Path) -> Finding:
    """Check 2: kill -9 in the middle of a checkpoint's bytes, or between its rename and what comes after."""
    tally, draw = Tally(), random.Random(2)
    commands = Commands(folder)
    expected = commands.whole(folder / "whole")
    for trial in range(trials):
        path, nth, renamed = folder / f"trial-{trial}", draw.randrange(1, CHECKPOINTS + 1), trial % 3 == 2
        harm = ["die writing", CHECKPOINT, nth, draw.random(), renamed]
        with tally.trial(f"checkpoint {nth}, {'renamed' if renamed else 'half written'}"):
            demand(commands.run(path, harm=harm).ended() is None, "it was not killed")
            demand(checkpoint_loads(path) or (nth == 1 and not renamed), "there is no checkpoint")
            demand(commands.whole(path) == expected, "the resumed run ends otherwise")
    return tally.finding()


# 3 and 4: damage


def flips(trials: int, folder: Path) -> Finding:
    """Check 3: one bit of a file of a run flipped, file after file."""
    return _damaged(trials, folder, "flip", random.Random(3))


def truncations(trials: int, folder: Path) -> Finding:
    """Check 4: a file of a run cut short, file after file."""
    return _damaged(trials, folder, "cut", random.Random(4))


def _damaged(trials: int, folder: Path, kind: Kind, draw: random.Random) -> Finding:
    """Damage files of a run that was interrupted and of one that has ended, go on with it, and read it."""
    tally = Tally()
    with silent():
        before = interrupted(folder / "before")
        ended = Path(shutil.copytree(before, folder / "ended"))
        expected = gone_on(ended)
        targets = [(run, file) for run in (before, ended) for file in files_of(run)]
        for trial in range(trials):
            run, file = targets[trial % len(targets)]
            damage, path = damage_to(run, file, kind, draw), folder / "damaged"
            verdict, said = attack(run, path, damage, gone_on, expected)
            fault = None if verdict in FINE else f"{verdict}: {said or 'another result, without a word'}"
            tally.count("refused by name" if verdict == "refused" else "the same result to the bit")
            if "--previous" in said or (verdict, run, file) == ("refused", before, CHECKPOINT):
                fault = fault or _previous_fault(path, said, expected)
                tally.count("previous checkpoint offered")
            tally.note(f"{file}, {kind} at {damage.place}", fault)
    tally.figures["files"] = len(targets)
    return tally.finding()


def _previous_fault(path: Path, said: str, expected: dict[str, object]) -> str | None:
    """What is wrong with an offer to go on from the checkpoint before the last, or without one."""
    if "--previous" not in said:
        return f"the previous checkpoint is not offered: {said}"
    try:
        resume(path, previous=True)
        return None if gone_on(path) == expected else "the previous checkpoint ends otherwise"
    except Exception as error:
        return f"the offer does not hold: {reason(error)}"


# 5: no room


def disk_full(trials: int, folder: Path) -> Finding:
    """Check 5: a disk fills up in the middle of a run; later there is room again."""
    tally, draw, disk = Tally(), random.Random(5), folder / "disk"
    commands = Commands(folder)
    expected = commands.whole(folder / "whole")
    size = sum((folder / "whole" / name).stat().st_size for name in files_of(folder / "whole"))
    with mounted(disk, "size=8m") as real:
        tally.figures["disk"] = "a small file system" if real else "errors of fsync; a mount is not permitted"
        ballast = disk / "ballast"
        for trial in range(trials):
            path, harm = disk / f"trial-{trial}", None
            with tally.trial(f"trial {trial}"):
                if real:
                    free = shutil.disk_usage(disk).free
                    ballast.write_bytes(bytes(max(0, free - draw.randrange(8_192, size))))
                else:
                    harm = ["disk full", draw.randrange(20)]
                process = commands.run(path, harm=harm)
                code, said = process.ended(), process.err.read_text()
                tally.count("runs that found no room", int(code != 0))
                demand(
                    code == 0 or (code, said.count("\n")) == (2, 1), f"it ended with {code}: {said[-300:]}"
                )
                demand(code == 0 or "No space left on device" in said, said)
                checkpoint_loads(path)
                ballast.unlink(missing_ok=True)
                demand(commands.whole(path) == expected, "the resumed run ends otherwise")
            ballast.unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
    tally.need("runs that found no room")
    return tally.finding()


@contextmanager
def mounted(place: Path, options: str) -> Iterator[bool]:
    """A small file system in memory at a place; whether that is permitted here."""
    place.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, check=False
    )
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "--lazy", str(place)], check=False)


# 7: nowhere to write


def nowhere(trials: int, folder: Path) -> Finding:
    """Check 7: folders that cannot be written to or do not exist, for runs and for members of federations."""
    tally = Tally()
    closed, file = folder / "closed", folder / "file"
    file.write_text("mine")
    with mounted(closed, "ro,size=1m") as real:
        if not real:
            closed.chmod(0o555)
        possible = real or os.geteuid() != 0  # root can write wherever the file system lets it
        if not possible:
            tally.figures["left out"] = "read-only: a mount is not permitted, and root may write anywhere"
        commands = Commands(folder)
        places = {
            **({"read-only": closed / "run"} if possible else {}),
            "under a file": file / "run",
            "of the system": Path("/proc/run"),
        }
        missing, member = folder / "nothing", folder / "member.yaml"
        member.write_text(json.dumps({**FRAGILE, "method": "fedavg", "seeds": [0]}))
        site = ("--client", 0, "--socket", folder / "socket", "--out")
        node = ("--id", 0, "--certificates", missing, "--listen", "tls/127.0.0.1:0", "--out", folder / "node")
        cases: dict[str, tuple[Path, tuple[object, ...]]] = {
            **{
                f"run, {name}": (place, ("run", commands.file, f"out={place}"))
                for name, place in places.items()
            },
            **{f"site, {name}": (place, ("site", member, *site, place)) for name, place in places.items()},
            "resume, missing": (missing, ("resume", missing)),
            "node, certificates missing": (
                missing,
                ("node", member, "topology=ring", "participation=4", *node),
            ),
        }
        for name, (place, words) in list(cases.items())[:trials]:
            process = commands.start(*words)
            code, said = process.ended(), process.err.read_text()
            tally.note(
                name,
                None if code == 2 and said.count("\n") == 1 else f"it ended with {code}: {said[-200:]}",
                None if str(place) in said else f"it does not name the folder: {said[-200:]}",
                "a round was computed" if "round 1" in process.out.read_text() else None,
            )
    return tally.finding()
