"""Configurations with mistakes: each is planned, or refused in one line that names the field."""

from __future__ import annotations

from pathlib import Path

from scorecard.finding import Finding, Tally
from scorecard.mutated_configurations import bounded_memory, judge, mutations


def mutated(trials: int, folder: Path) -> Finding:
    """Check 25: configurations that were mutated at random, read and planned as the command line does it."""
    tally = Tally()
    with bounded_memory():
        for one in mutations(trials):
            with tally.trial(one.name), tally.timed("slowest (s)"):
                tally.count("valid" if judge(one, folder).valid else "refused in a line")
    return tally.finding()
