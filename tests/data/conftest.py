"""Labels to deal out, and what can be read from a partition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from consilience.data.partition import Partition

CLASS_SIZES = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)


@pytest.fixture(scope="session")
def mnist() -> np.ndarray:
    """As many labels of each class as MNIST has."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(10), CLASS_SIZES))


@pytest.fixture(scope="session")
def balanced() -> np.ndarray:
    """A hundred labels of each of ten classes."""
    return np.random.default_rng(1).permutation(np.repeat(np.arange(10), 100))


@pytest.fixture(scope="session")
def writers() -> np.ndarray:
    """For each of the balanced rows, which of forty wrote it."""
    return np.random.default_rng(2).permutation(np.repeat(np.arange(40), 25))


@pytest.fixture(scope="session")
def rows_of() -> Callable[[Partition], np.ndarray]:
    """All rows that anybody holds."""
    return lambda made: np.concatenate([*made.shards, *made.holdouts])


@pytest.fixture(scope="session")
def sizes_of() -> Callable[[Partition], list[int]]:
    """How many rows each client trains on."""
    return lambda made: [len(rows) for rows in made.shards]
