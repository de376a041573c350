"""Damage to the files of a run, one bit or a file's end at a time, and what becomes of it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from consilience.errors import UserError

NEVER_READ = (".lock", ".png", ".tmp")
"""How the names of files end that nothing of the library reads again."""

Kind = Literal["flip", "cut"]
Verdict = Literal["refused", "same", "changed", "unnamed", "crashed"]
"""Refused in a line that names the file; nothing changed; another result; a line without it; a traceback."""
FINE = ("refused", "same")


@dataclass(frozen=True)
class Damage:
    """What is done to a file."""

    file: str
    """Where it lies in the folder."""
    kind: Kind
    place: int
    """The bit that is turned over, or how many bytes are left."""

    def on(self, folder: Path) -> None:
        """Do it."""
        path = folder / self.file
        data = bytearray(path.read_bytes())
        if self.kind == "cut":
            del data[self.place :]
        else:
            data[self.place // 8] ^= 1 << self.place % 8
        path.write_bytes(data)


def files_of(folder: Path) -> list[str]:
    """The files of a run that somebody may read again, and that hold something."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size)
    return [str(path.relative_to(folder)) for path in found if not path.name.endswith(NEVER_READ)]


def damage_to(folder: Path, file: str, kind: Kind, draw: random.Random) -> Damage:
    """Some bit or end of a file, drawn at random."""
    size = (folder / file).stat().st_size
    return Damage(file, kind, draw.randrange(8 * size if kind == "flip" else size))


def attack(
    folder: Path, scratch: Path, damage: Damage, read: Callable[[Path], Any], expected: Any
) -> tuple[Verdict, str]:
    """What becomes of some damage, and what was said about it.

    Args:
        folder: A run's, which stays as it is.
        scratch: Where a copy of it is damaged, and left.
        damage: What is done to the copy.
        read: Goes on with a run, or reads it.
        expected: What comes out of that where nothing is damaged.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(folder, scratch)
    damage.on(scratch)
    try:
        found = read(scratch)
    except UserError as error:
        line = str(error)
        return ("refused" if Path(damage.file).name in line and "\n" not in line else "unnamed"), line
    except Exception as error:
        return "crashed", f"{type(error).__name__}: {error}"
    return ("same" if found == expected else "changed"), ""
