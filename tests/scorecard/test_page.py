"""The scorecard's bookkeeping: what counts as kept, what is merged, and that its page is of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scorecard import running
from scorecard.checks import CHECKS, Check
from scorecard.finding import Tally
from scorecard.page import page
from scorecard.running import RESULTS, ROOT, kept, read, run

ABOUT = {"quick": False, "seconds": 1.0, "load": [0.1, 0.2], "machine": "m", "commit": "c", "versions": {}}


def record(trials: int = 2, passed: int = 2, **figures: float) -> dict[str, Any]:
    found = {"trials": trials, "passed": passed, "figures": figures, "faults": [], **ABOUT}
    return {**found, "date": "2026-01-01T00:00:00+00:00", "flower": {**found}}


def test_the_page_is_what_the_results_say():
    assert (ROOT / "docs" / "reliability.md").read_text() == page(read(RESULTS))


def test_the_checks_are_numbered_and_can_be_found():
    assert [check.number for check in CHECKS] == list(range(1, 29))
    gates = {1, 2, 3, 4, 13, 14, 15, 16, 17, 18, 20, 22, 25, 26}
    assert {check.number for check in CHECKS if check.gate} == gates
    assert {check.number for check in CHECKS if check.flower} == {3, 13, 20, 23}


def test_a_promise_is_kept_where_all_trials_passed_within_the_bounds():
    check = Check(1, "", "", "", "", 2, bounds={"slowest (s)": 1.0})
    assert kept(check, record())
    assert kept(check, record(**{"slowest (s)": 1.0}))
    assert not kept(check, record(**{"slowest (s)": 1.1}))
    assert not kept(check, record(passed=1))
    assert not kept(check, record(trials=0, passed=0))


def test_results_are_merged_and_one_that_dies_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    results = tmp_path / "results.json"
    results.write_text(json.dumps({"checks": {"28": record()}}))
    monkeypatch.setattr(running, "CHECKS", [])
    monkeypatch.setattr(
        running, "apart", lambda check, quick: record(passed=0) if check.number == 3 else record()
    )
    told = []
    found = run(CHECKS[2:6], results, quick=False, told=lambda check, one: told.append(check.number))
    assert sorted(told) == [3, 4, 5, 6]
    assert list(read(results)) == ["3", "4", "5", "6", "28"]
    assert not kept(CHECKS[2], found["3"])


def test_a_trial_that_raises_has_failed_and_the_next_goes_on():
    tally = Tally()
    for number in (0, 1, 2):
        with tally.trial(f"trial {number}"):
            1 / number
    tally.most("slowest (s)", 1.0)
    tally.most("slowest (s)", 0.5)
    finding = tally.finding()
    assert (finding.trials, finding.passed, finding.kept) == (3, 2, False)
    assert finding.faults == ("trial 0: ZeroDivisionError: division by zero",)
    assert finding.figures == {"slowest (s)": 1.0}


def test_what_is_not_kept_is_on_the_page_in_words():
    broken = {**record(trials=10_000, passed=9_999), "faults": ["a | b\nc"]}
    shown = page({"3": broken, "4": record(**{"slowest (s)": 0.1234})})
    assert "| 9,999 of 10,000 | refused by name" in shown
    assert "- **3** bit flips in every file of a run: `a / b c`" in shown
    assert "2 of 2; slowest (s): 0.123" in shown
    assert shown.count("not measured yet") == 26
