"""Randomness is data: every draw comes from a generator keyed by what it is for, never from global state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch


class Purpose(IntEnum):
    """What a stream of random numbers is for. Streams of different purposes never touch."""

    INITIAL_WEIGHTS = 2
    COHORT = 3
    FAILURE = 4
    TRAINING = 5
    DATA_PASS = 6
    TOPOLOGY = 7


def generator(seed: int, purpose: Purpose, *key: int) -> np.random.Generator:
    """A generator for one purpose and key, e.g. (round, client)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(purpose, *key))))


@contextmanager
def torch_seed(seed: int, purpose: Purpose, *key: int) -> Iterator[None]:
    """Within it, torch's default generator is keyed; afterwards it is as before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, purpose, *key).integers(2**63)))
        yield
