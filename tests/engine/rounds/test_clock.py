"""The seconds of a round."""

from __future__ import annotations

import pytest

from consilience.engine.rounds import pending


def test_a_clock_that_is_set_back_gives_no_negative_seconds(monkeypatch: pytest.MonkeyPatch):
    clock, times = pending.Clock(), iter([10.0, 4.0, 4.5])
    monkeypatch.setattr(pending.time, "perf_counter", lambda: next(times))
    assert [clock.lap(9.0), clock.lap(10.0), clock.lap(3.9)] == [1.0, 0.0, 0.5]
