"""How much of a device's memory the engine may take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from consilience.errors import UserError
from consilience.reading import machine_memory

Resident = Literal["auto", "always", "never"]
"""Whether something is held in memory, or read from files as it is needed; auto: by its size."""

UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}
STEPS = 16
"""In so many steps of all memory the default is found, so that what others use matters little."""
RESERVE = 2**29
"""What a GPU's driver and libraries take for themselves, and nobody can say beforehand."""
LEAST = 2**28


def read_size(text: str | int) -> int:
    """The number of bytes that a text such as 8GB, 500 MB or 1.5GiB means.

    >>> read_size("8GB"), read_size("1.5 GiB"), read_size(10**9)
    (8000000000, 1610612736, 1000000000)
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
    unit = UNITS.get((found[2] or "B").upper()) if found else None
    if found is None or unit is None or not float(found[1]) * unit < 2**60:
        raise UserError(f"memory: {str(text)[:40]!r} is no amount of memory; write e.g. 8GB")
    size = int(float(found[1]) * unit)
    if size < LEAST:
        raise UserError(f"memory: {shown(size)} is too little to do anything with; at least {shown(LEAST)}")
    return size


def shown(size: int) -> str:
    """A number of bytes for people to read."""
    return f"{size / 1e9:.3g} GB"


def usual_memory(device: torch.device) -> int:
    """How much may be used where nothing else is said: what is free, on a GPU less a reserve."""
    if device.type != "cuda":
        return machine_memory()
    free, total = torch.cuda.mem_get_info(device)
    ours = torch.cuda.memory_reserved(device)
    step = total // STEPS
    return max(LEAST, (free + ours) // step * step - RESERVE)


@contextmanager
def bounded(device: torch.device, memory: int | None) -> Iterator[None]:
    """A context in which a GPU gives this process no more memory than that; want of it is a UserError."""
    limited = device.type == "cuda" and memory is not None
    try:
        if limited:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, (memory or total) / total), device.index or 0)
        yield
    except torch.OutOfMemoryError as error:
        asked = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
        held = shown(torch.cuda.memory_allocated(device)) if device.type == "cuda" else "all of it"
        raise UserError(
            f"out of memory on {device}: {held} in use, {asked[1] if asked else 'more'} asked for; set a "
            "smaller model, fewer clients a round (participation), fewer seeds at a time, or more memory"
        ) from None
    finally:
        if limited:
            torch.cuda.set_per_process_memory_fraction(1.0, device.index or 0)
