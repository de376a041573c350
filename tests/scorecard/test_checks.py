"""The scorecard's attacks with few trials, without a look at the clock; `make scorecard` runs them all."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("zenoh", reason='needs pip install "consilience[zenoh]"')
pytest.importorskip("flwr", reason="Flower is not installed: pip install 'consilience[flower]'")

from scorecard.checks import CHECKS, Check

QUICK = [check for check in CHECKS if check.quick]


@pytest.mark.parametrize("check", QUICK, ids=lambda check: f"{check.number}-{check.attack}")
def test_what_is_promised_is_kept(check: Check, tmp_path: Path):
    finding = check.run(check.quick, tmp_path)
    assert finding.kept, "\n".join(finding.faults)


def test_plain_flower_is_attacked_in_the_same_way(tmp_path: Path):
    """What it finds is Flower's affair; that all attacks can be carried out is ours."""
    for check in CHECKS:
        if check.flower:
            assert check.run_flower(5, tmp_path).trials > 0
