"""What keys a member's own draws, so that nobody who knows the seed can undo them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from consilience.deploy.agreeing import Agreement
from consilience.errors import UserError

SECRET = "secret"


def secret_of(folder: Path, agreement: Agreement) -> int | None:
    """What keys a member's own draws: a number that it drew once and keeps, or None for the seed."""
    if agreement.arm.config.deploy.secret == "seed":
        return None
    path = folder / SECRET
    folder.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        try:
            return int(path.read_text())
        except ValueError:
            raise UserError(
                f"{path} does not hold the number that this member drew; remove it to draw another"
            ) from None
    with os.fdopen(handle, "w") as file:
        drawn = secrets.randbits(63)
        file.write(f"{drawn}\n")
        file.flush()
        os.fsync(handle)
    return drawn
