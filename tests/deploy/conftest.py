"""Federations of objects that exchange bytes, beside the simulations that they are to equal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scorecard.federations import Federation, federation_of


@pytest.fixture
def federate() -> Callable[..., Federation]:
    """Gives the federation of an algorithm."""
    return federation_of
