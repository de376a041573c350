"""The scorecard's bookkeeping: what counts as kept, what is merged, and that its page is of today."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scorecard import running
from scorecard.checks import CHECKS, Check
from scorecard.finding import Tally, demand
from scorecard.page import page
from scorecard.running import RESULTS, ROOT, Running, exceeded, kept, missing, read, run

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
    assert kept(check, record(**{"slowest (s)": 1.0}))
    assert not kept(check, record())  # it was not measured
    assert not kept(check, record(**{"slowest (s)": float("nan")}))
    assert not kept(check, record(**{"slowest (s)": 1.1}))
    assert not kept(check, record(passed=1, **{"slowest (s)": 1.0}))
    assert not kept(check, record(trials=0, passed=0, **{"slowest (s)": 1.0}))
    assert exceeded(check, record(**{"slowest (s)": 1.125})) == ["slowest (s): 1.12, and 1 is promised"]


def test_results_are_merged_and_one_that_dies_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    results = tmp_path / "results.json"
    results.write_text(json.dumps({"checks": {"28": record()}}))
    monkeypatch.setattr(
        running, "apart", lambda check, **_: record(passed=0) if check.number == 3 else record()
    )
    told = []
    found = run(CHECKS[2:6], results, quick=False, told=lambda check, one: told.append(check.number))
    assert sorted(told) == [3, 4, 5, 6]
    assert set(found) == {"3", "4", "5", "6"}
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
    (fault,) = finding.faults
    assert fault.startswith("trial 0: ZeroDivisionError: division by zero (test_page.py, line ")
    assert fault.endswith(": 1 / number)")
    assert finding.figures == {"slowest (s)": 1.0}


def test_attacks_that_hit_nothing_are_a_fault():
    tally = Tally()
    for trial in range(30):
        tally.note("run")
        tally.count("kills that hit", trial % 3 == 0)
    tally.need("kills that hit")
    assert tally.finding().faults == ("the attack itself: kills that hit: 10 in 30 trials",)
    assert not tally.finding().kept


def test_a_promise_that_was_broken_says_so_in_its_own_words():
    tally = Tally()
    with tally.trial("trial"):
        demand(False, "the resumed run ends otherwise")
    assert tally.finding().faults == ("trial: the resumed run ends otherwise",)


def test_what_was_found_with_other_sources_or_few_trials_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(running, "sources", lambda: "c")
    assert 3 not in missing({"3": record()})
    assert 3 in missing({"3": {**record(), "quick": True}})
    assert 3 in missing({"3": {**record(), "commit": "b"}})
    assert missing({}) == list(range(1, 29))


def test_an_interrupted_scorecard_keeps_what_it_has_and_ends_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    results, processes = tmp_path / "results.json", []

    def apart(check: Check, *, running: Running, **_: Any) -> dict[str, Any]:
        if check.number != 3:
            with running.process("sleep", "100") as process:
                processes.append(process)
                process.wait()
        return record()

    def told(check: Check, one: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "apart", apart)
    with pytest.raises(KeyboardInterrupt):
        run(CHECKS[1:5], results, quick=False, told=told)
    assert list(read(results)) == ["3"]
    assert all(process.poll() is not None for process in processes)


def test_a_check_ends_with_who_has_started_it(tmp_path: Path):
    """It is killed, and cannot say so; what the check has started ends, too."""
    code = (
        "import subprocess, sys, time\n"
        "if sys.argv[1:]:\n"
        "    from scorecard.launching import stop_with_parent\n"
        "    stop_with_parent()\n"
        "    try:\n"
        "        print(1, flush=True)\n"
        "        time.sleep(100)\n"
        "    finally:\n"
        "        print(2, flush=True)\n"
        "else:\n"
        "    subprocess.run([sys.executable, __file__, 'check'])\n"
    )
    (tmp_path / "a.py").write_text(code)
    with subprocess.Popen(
        [sys.executable, tmp_path / "a.py"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.kill()
        assert process.stdout.read() == b"2\n"  # until nobody writes any longer


def test_what_is_not_kept_is_on_the_page_in_words():
    broken = {**record(trials=10_000, passed=9_999), "faults": ["a | b\nc"]}
    shown = page({"3": broken, "4": record(**{"slowest (s)": 0.1234})})
    assert "| 9,999 of 10,000 | refused by name" in shown
    assert "- **3** bit flips in every file of a run: `a / b c`" in shown
    assert "2 of 2; slowest (s): 0.123" in shown
    assert shown.count("not measured yet") == 26
