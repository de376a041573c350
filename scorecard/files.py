"""Files that are damaged, cut, half written, or have no room."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from consilience.api import load_model
from consilience.errors import UserError
from consilience.experiment import resume
from consilience.experiment.folder import CHECKPOINT, CONFIG
from scorecard.finding import Finding, Tally, demand
from scorecard.runs import FRAGILE, Commands, checkpoint_loads, files_of, harvest, interrupted, silent

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
            demand(checkpoint_loads(path) or nth == 1, "there is no checkpoint")
            demand(commands.whole(path) == expected, "the resumed run ends otherwise")
    return tally.finding()


# 3 and 4: damage

Damage = Callable[[bytes, random.Random], bytes]


def flips(trials: int, folder: Path) -> Finding:
    """Check 3: one bit of a file of a run flipped, file after file."""
    return _damaged(trials, folder, _flip, random.Random(3))


def truncations(trials: int, folder: Path) -> Finding:
    """Check 4: a file of a run cut short, file after file."""
    return _damaged(trials, folder, lambda data, draw: data[: draw.randrange(len(data))], random.Random(4))


def _flip(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]


def _damaged(trials: int, folder: Path, damage: Damage, draw: random.Random) -> Finding:
    """Damage files of an interrupted run, go on with it, and read what it has left."""
    tally = Tally()
    with silent():
        before = interrupted(folder / "before")
        whole = Path(shutil.copytree(before, folder / "whole"))
        resume(whole)
        expected, path = harvest(whole), folder / "damaged"
        names = files_of(before)
        for trial in range(trials):
            name = names[trial % len(names)]
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(before, path)
            data = (path / name).read_bytes()
            (path / name).write_bytes(damage(data, draw))
            tally.note(str(name), _damage_fault(path, name, expected, tally))
    tally.figures["files"] = len(names)
    return tally.finding()


def _damage_fault(path: Path, name: Path, expected: dict[str, object], tally: Tally) -> str | None:
    """What is wrong after a file was damaged: it is refused by name, or ends as if nothing had happened."""
    try:
        resume(path)
        for model in (path / "weights").rglob("*.safetensors"):
            load_model(model)
    except UserError as error:
        # What else could be wrong with a configuration that can be read: it is another one.
        if name.name not in str(error) and not (name.name == CONFIG and "configuration" in str(error)):
            return f"refused without its name: {error}"
        tally.count("refused by name")
        return _previous_fault(path, str(error), expected, tally) if name.name == CHECKPOINT else None
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if harvest(path) != expected:
        return "another result, without a word"
    tally.count("harmless: the same result to the bit")
    return None


def _previous_fault(path: Path, said: str, expected: dict[str, object], tally: Tally) -> str | None:
    """What is wrong where the checkpoint is damaged: the one before is offered, and ends alike."""
    if "--previous" not in said:
        return f"the previous checkpoint is not offered: {said}"
    resume(path, previous=True)
    tally.count("previous checkpoint offered, the same result to the bit")
    return None if harvest(path) == expected else "the previous checkpoint ends otherwise"


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
        commands = Commands(folder)
        places = {
            "read-only": closed / "run",
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
