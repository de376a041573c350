"""Canaries: what the library relies on in torch beyond its documentation, compared with documented torch.

A failure here means that a release of torch changed something. The message says what, and
`consilience/torch_internals.py` is the one place to mend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close


@pytest.fixture(params=["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def same() -> Callable[..., None]:
    """Fails with what has changed in torch where two values differ."""

    def check(found: Any, wanted: Any, changed: str, **tolerance: float) -> None:
        assert_close(found, wanted, **tolerance, msg=lambda what: f"torch changed: {changed}\n{what}")

    return check
