"""Frames that are not what they should be, and what a reader makes of them."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience import wire
from scorecard.finding import Finding, Tally
from scorecard.mutated_frames import frames
from scorecard.spots import at_hub, at_peer


def malformed(trials: int, folder: Path) -> Finding:
    """Check 16: frames that were mutated at random; none is combined, or read that is written otherwise."""
    tally = Tally()
    for kind, frame in frames(trials):
        with tally.trial(kind):
            verdict = judge(frame)
            tally.most("slowest (s)", verdict.seconds)
            if not verdict.refused:  # it is well formed, but nothing that a member would say
                for spot in (at_hub(), at_peer()):
                    spot.check(frame)
            tally.count("refused by the reader" if verdict.refused else "well formed, and refused by members")
    return tally.finding()


@dataclass(frozen=True)
class Verdict:
    """What a reader made of a frame."""

    refused: bool
    """Whether it was refused by the reader's own error; if not, it is what an honest member would write."""
    seconds: float
    amplified: float
    """The most memory that Python took, less what a small frame always takes, by the bytes of the frame."""


ALLOWANCE = 2**20
"""Bytes that may be taken whatever the frame."""


def judge(
    data: bytes,
    read: Callable[[bytes], Any] = wire.decode,
    write: Callable[..., bytes] = lambda *found: wire.encode(*found, empty=True),
    error: type[Exception] = wire.WireError,
) -> Verdict:
    """What a reader makes of a frame; AssertionError where it reads something that is written otherwise.

    Any exception but the reader's own goes through: that is a crash. Memory is counted where the caller has
    started tracemalloc, which takes time.

    Args:
        data: The frame.
        read: The reader.
        write: The writer that inverts it.
        error: What the reader raises for bytes that it refuses.
    """
    if tracemalloc.is_tracing():
        tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    begun = time.perf_counter()
    try:
        found = read(data)
    except error:
        refused = True
    else:
        refused = False
    seconds = time.perf_counter() - begun
    taken = tracemalloc.get_traced_memory()[1] - before
    assert refused or write(*found) == data, "something was read that is not written so"
    return Verdict(refused, seconds, max(0, taken - ALLOWANCE) / max(1, len(data)))
